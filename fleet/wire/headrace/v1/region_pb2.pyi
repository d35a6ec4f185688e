from fleet.wire.headrace.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CapacityRow(_message.Message):
    __slots__ = ("zone", "model", "endpoints_ready", "endpoints_total", "prefill_tokens_per_second", "decode_tokens_per_second", "inflight", "waiting", "expected_wait_seconds", "kv_free_tokens")
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_READY_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_FREE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    zone: str
    model: str
    endpoints_ready: int
    endpoints_total: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    inflight: int
    waiting: int
    expected_wait_seconds: float
    kv_free_tokens: int
    def __init__(self, zone: _Optional[str] = ..., model: _Optional[str] = ..., endpoints_ready: _Optional[int] = ..., endpoints_total: _Optional[int] = ..., prefill_tokens_per_second: _Optional[float] = ..., decode_tokens_per_second: _Optional[float] = ..., inflight: _Optional[int] = ..., waiting: _Optional[int] = ..., expected_wait_seconds: _Optional[float] = ..., kv_free_tokens: _Optional[int] = ...) -> None: ...

class DemandRow(_message.Message):
    __slots__ = ("origin", "model", "sla_class", "requests_per_second", "input_tokens_per_second", "output_tokens_per_second")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SLA_CLASS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    origin: str
    model: str
    sla_class: str
    requests_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    def __init__(self, origin: _Optional[str] = ..., model: _Optional[str] = ..., sla_class: _Optional[str] = ..., requests_per_second: _Optional[float] = ..., input_tokens_per_second: _Optional[float] = ..., output_tokens_per_second: _Optional[float] = ...) -> None: ...

class InventoryNode(_message.Message):
    __slots__ = ("node_uid", "node_name", "zone", "incarnation", "sequence", "state", "report_age_ms", "gpus", "endpoints", "device_error")
    NODE_UID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPORT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ERROR_FIELD_NUMBER: _ClassVar[int]
    node_uid: str
    node_name: str
    zone: str
    incarnation: int
    sequence: int
    state: str
    report_age_ms: int
    gpus: _containers.RepeatedCompositeFieldContainer[_common_pb2.Accelerator]
    endpoints: _containers.RepeatedCompositeFieldContainer[_common_pb2.Endpoint]
    device_error: str
    def __init__(self, node_uid: _Optional[str] = ..., node_name: _Optional[str] = ..., zone: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., state: _Optional[str] = ..., report_age_ms: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[_common_pb2.Accelerator, _Mapping]]] = ..., endpoints: _Optional[_Iterable[_Union[_common_pb2.Endpoint, _Mapping]]] = ..., device_error: _Optional[str] = ...) -> None: ...

class FleetEvent(_message.Message):
    __slots__ = ("uid", "reason", "message", "kind", "name", "region", "severity", "wall")
    UID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    WALL_FIELD_NUMBER: _ClassVar[int]
    uid: str
    reason: str
    message: str
    kind: str
    name: str
    region: str
    severity: str
    wall: float
    def __init__(self, uid: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., region: _Optional[str] = ..., severity: _Optional[str] = ..., wall: _Optional[float] = ...) -> None: ...

class RegionReport(_message.Message):
    __slots__ = ("router_uid", "incarnation", "sequence", "region", "http_addresses", "grpc_addresses", "ready", "applied_epoch", "applied_version", "rows", "demand", "peer_rtt_seconds", "inventory_digest", "inventory_full", "inventory", "inventory_removed", "events", "rejections", "software_version")
    class PeerRttSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUTER_UID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    APPLIED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    APPLIED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    PEER_RTT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FULL_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_REMOVED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    router_uid: str
    incarnation: int
    sequence: int
    region: str
    http_addresses: _containers.RepeatedScalarFieldContainer[str]
    grpc_addresses: _containers.RepeatedScalarFieldContainer[str]
    ready: bool
    applied_epoch: int
    applied_version: int
    rows: _containers.RepeatedCompositeFieldContainer[CapacityRow]
    demand: _containers.RepeatedCompositeFieldContainer[DemandRow]
    peer_rtt_seconds: _containers.ScalarMap[str, float]
    inventory_digest: bytes
    inventory_full: bool
    inventory: _containers.RepeatedCompositeFieldContainer[InventoryNode]
    inventory_removed: _containers.RepeatedScalarFieldContainer[str]
    events: _containers.RepeatedCompositeFieldContainer[FleetEvent]
    rejections: _containers.RepeatedScalarFieldContainer[str]
    software_version: str
    def __init__(self, router_uid: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., region: _Optional[str] = ..., http_addresses: _Optional[_Iterable[str]] = ..., grpc_addresses: _Optional[_Iterable[str]] = ..., ready: _Optional[bool] = ..., applied_epoch: _Optional[int] = ..., applied_version: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[CapacityRow, _Mapping]]] = ..., demand: _Optional[_Iterable[_Union[DemandRow, _Mapping]]] = ..., peer_rtt_seconds: _Optional[_Mapping[str, float]] = ..., inventory_digest: _Optional[bytes] = ..., inventory_full: _Optional[bool] = ..., inventory: _Optional[_Iterable[_Union[InventoryNode, _Mapping]]] = ..., inventory_removed: _Optional[_Iterable[str]] = ..., events: _Optional[_Iterable[_Union[FleetEvent, _Mapping]]] = ..., rejections: _Optional[_Iterable[str]] = ..., software_version: _Optional[str] = ...) -> None: ...

class RegionDirective(_message.Message):
    __slots__ = ("acknowledged_incarnation", "acknowledged_sequence", "report_interval_ms", "want_full_inventory", "acknowledged_events")
    ACKNOWLEDGED_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    WANT_FULL_INVENTORY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    acknowledged_incarnation: int
    acknowledged_sequence: int
    report_interval_ms: int
    want_full_inventory: bool
    acknowledged_events: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, acknowledged_incarnation: _Optional[int] = ..., acknowledged_sequence: _Optional[int] = ..., report_interval_ms: _Optional[int] = ..., want_full_inventory: _Optional[bool] = ..., acknowledged_events: _Optional[_Iterable[str]] = ...) -> None: ...

class RouterObserved(_message.Message):
    __slots__ = ("router_uid", "incarnation", "sequence", "ready", "http_addresses", "grpc_addresses")
    ROUTER_UID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    router_uid: str
    incarnation: int
    sequence: int
    ready: bool
    http_addresses: _containers.RepeatedScalarFieldContainer[str]
    grpc_addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, router_uid: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., ready: _Optional[bool] = ..., http_addresses: _Optional[_Iterable[str]] = ..., grpc_addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RegionObserved(_message.Message):
    __slots__ = ("region", "routers", "rows", "age_ms")
    REGION_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    region: str
    routers: _containers.RepeatedCompositeFieldContainer[RouterObserved]
    rows: _containers.RepeatedCompositeFieldContainer[CapacityRow]
    age_ms: int
    def __init__(self, region: _Optional[str] = ..., routers: _Optional[_Iterable[_Union[RouterObserved, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[CapacityRow, _Mapping]]] = ..., age_ms: _Optional[int] = ...) -> None: ...

class NodeJoinRequest(_message.Message):
    __slots__ = ("join_token", "identity", "node_name", "zone", "region", "gpu_uuids", "node_uid", "attempt")
    JOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    NODE_UID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    join_token: str
    identity: str
    node_name: str
    zone: str
    region: str
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    node_uid: str
    attempt: str
    def __init__(self, join_token: _Optional[str] = ..., identity: _Optional[str] = ..., node_name: _Optional[str] = ..., zone: _Optional[str] = ..., region: _Optional[str] = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., node_uid: _Optional[str] = ..., attempt: _Optional[str] = ...) -> None: ...

class NodeJoinResponse(_message.Message):
    __slots__ = ("node_uid", "identity", "expires_in_seconds")
    NODE_UID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    node_uid: str
    identity: str
    expires_in_seconds: int
    def __init__(self, node_uid: _Optional[str] = ..., identity: _Optional[str] = ..., expires_in_seconds: _Optional[int] = ...) -> None: ...
