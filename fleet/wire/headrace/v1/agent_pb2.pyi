from fleet.wire.headrace.v1 import common_pb2 as _common_pb2
from fleet.wire.headrace.v1 import region_pb2 as _region_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGENT_PHASE_UNSPECIFIED: _ClassVar[AgentPhase]
    AGENT_PHASE_RUNNING: _ClassVar[AgentPhase]
    AGENT_PHASE_RESTARTING: _ClassVar[AgentPhase]
    AGENT_PHASE_DRAINING: _ClassVar[AgentPhase]
AGENT_PHASE_UNSPECIFIED: AgentPhase
AGENT_PHASE_RUNNING: AgentPhase
AGENT_PHASE_RESTARTING: AgentPhase
AGENT_PHASE_DRAINING: AgentPhase

class NodeReport(_message.Message):
    __slots__ = ("node_uid", "node_name", "zone", "incarnation", "sequence", "phase", "interval_ms", "gpus", "endpoints", "addresses", "restart_grace_ms", "device_error", "agent_version")
    NODE_UID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RESTART_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ERROR_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    node_uid: str
    node_name: str
    zone: str
    incarnation: int
    sequence: int
    phase: AgentPhase
    interval_ms: int
    gpus: _containers.RepeatedCompositeFieldContainer[_common_pb2.Accelerator]
    endpoints: _containers.RepeatedCompositeFieldContainer[_common_pb2.Endpoint]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    restart_grace_ms: int
    device_error: str
    agent_version: str
    def __init__(self, node_uid: _Optional[str] = ..., node_name: _Optional[str] = ..., zone: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., phase: _Optional[_Union[AgentPhase, str]] = ..., interval_ms: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[_common_pb2.Accelerator, _Mapping]]] = ..., endpoints: _Optional[_Iterable[_Union[_common_pb2.Endpoint, _Mapping]]] = ..., addresses: _Optional[_Iterable[str]] = ..., restart_grace_ms: _Optional[int] = ..., device_error: _Optional[str] = ..., agent_version: _Optional[str] = ...) -> None: ...

class NodeDirective(_message.Message):
    __slots__ = ("epoch", "version", "routers", "cordoned", "draining", "report_interval_ms", "rejoin")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUTERS_FIELD_NUMBER: _ClassVar[int]
    CORDONED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    routers: _containers.RepeatedScalarFieldContainer[str]
    cordoned: bool
    draining: bool
    report_interval_ms: int
    rejoin: bool
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., routers: _Optional[_Iterable[str]] = ..., cordoned: _Optional[bool] = ..., draining: _Optional[bool] = ..., report_interval_ms: _Optional[int] = ..., rejoin: _Optional[bool] = ...) -> None: ...
