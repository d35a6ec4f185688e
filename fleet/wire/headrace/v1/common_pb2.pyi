from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_HEALTH_UNSPECIFIED: _ClassVar[DeviceHealth]
    DEVICE_HEALTH_OK: _ClassVar[DeviceHealth]
    DEVICE_HEALTH_DEGRADED: _ClassVar[DeviceHealth]
    DEVICE_HEALTH_FAILED: _ClassVar[DeviceHealth]
    DEVICE_HEALTH_LOST: _ClassVar[DeviceHealth]

class EndpointPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENDPOINT_PHASE_UNSPECIFIED: _ClassVar[EndpointPhase]
    ENDPOINT_PHASE_STARTING: _ClassVar[EndpointPhase]
    ENDPOINT_PHASE_WARMING: _ClassVar[EndpointPhase]
    ENDPOINT_PHASE_READY: _ClassVar[EndpointPhase]
    ENDPOINT_PHASE_DRAINING: _ClassVar[EndpointPhase]
    ENDPOINT_PHASE_UNREACHABLE: _ClassVar[EndpointPhase]
    ENDPOINT_PHASE_STOPPED: _ClassVar[EndpointPhase]
DEVICE_HEALTH_UNSPECIFIED: DeviceHealth
DEVICE_HEALTH_OK: DeviceHealth
DEVICE_HEALTH_DEGRADED: DeviceHealth
DEVICE_HEALTH_FAILED: DeviceHealth
DEVICE_HEALTH_LOST: DeviceHealth
ENDPOINT_PHASE_UNSPECIFIED: EndpointPhase
ENDPOINT_PHASE_STARTING: EndpointPhase
ENDPOINT_PHASE_WARMING: EndpointPhase
ENDPOINT_PHASE_READY: EndpointPhase
ENDPOINT_PHASE_DRAINING: EndpointPhase
ENDPOINT_PHASE_UNREACHABLE: EndpointPhase
ENDPOINT_PHASE_STOPPED: EndpointPhase

class IntentVersion(_message.Message):
    __slots__ = ("epoch", "version", "chain")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    chain: bytes
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., chain: _Optional[bytes] = ...) -> None: ...

class Xid(_message.Message):
    __slots__ = ("code", "age_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    age_ms: int
    def __init__(self, code: _Optional[int] = ..., age_ms: _Optional[int] = ...) -> None: ...

class Accelerator(_message.Message):
    __slots__ = ("uuid", "index", "parent_uuid", "raw_name", "product", "mig_profile", "pci_bus_id", "memory_total_mib", "memory_used_mib", "utilisation", "temperature_celsius", "power_watts", "sm_clock_mhz", "sm_clock_max_mhz", "throttle_reasons", "ecc_uncorrected", "xids", "health", "health_reason", "sample_age_ms")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PARENT_UUID_FIELD_NUMBER: _ClassVar[int]
    RAW_NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MAX_MHZ_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    XIDS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_REASON_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    parent_uuid: str
    raw_name: str
    product: str
    mig_profile: str
    pci_bus_id: str
    memory_total_mib: int
    memory_used_mib: int
    utilisation: float
    temperature_celsius: float
    power_watts: float
    sm_clock_mhz: int
    sm_clock_max_mhz: int
    throttle_reasons: _containers.RepeatedScalarFieldContainer[str]
    ecc_uncorrected: int
    xids: _containers.RepeatedCompositeFieldContainer[Xid]
    health: DeviceHealth
    health_reason: str
    sample_age_ms: int
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., parent_uuid: _Optional[str] = ..., raw_name: _Optional[str] = ..., product: _Optional[str] = ..., mig_profile: _Optional[str] = ..., pci_bus_id: _Optional[str] = ..., memory_total_mib: _Optional[int] = ..., memory_used_mib: _Optional[int] = ..., utilisation: _Optional[float] = ..., temperature_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., sm_clock_mhz: _Optional[int] = ..., sm_clock_max_mhz: _Optional[int] = ..., throttle_reasons: _Optional[_Iterable[str]] = ..., ecc_uncorrected: _Optional[int] = ..., xids: _Optional[_Iterable[_Union[Xid, _Mapping]]] = ..., health: _Optional[_Union[DeviceHealth, str]] = ..., health_reason: _Optional[str] = ..., sample_age_ms: _Optional[int] = ...) -> None: ...

class ServedModel(_message.Message):
    __slots__ = ("model", "served_as")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SERVED_AS_FIELD_NUMBER: _ClassVar[int]
    model: str
    served_as: str
    def __init__(self, model: _Optional[str] = ..., served_as: _Optional[str] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("running", "waiting", "kv_usage", "prompt_tokens_total", "cached_tokens_total", "generated_tokens_total", "preemptions_total", "sample_age_ms")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    kv_usage: float
    prompt_tokens_total: float
    cached_tokens_total: float
    generated_tokens_total: float
    preemptions_total: float
    sample_age_ms: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ..., prompt_tokens_total: _Optional[float] = ..., cached_tokens_total: _Optional[float] = ..., generated_tokens_total: _Optional[float] = ..., preemptions_total: _Optional[float] = ..., sample_age_ms: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("uid", "name", "kind", "url", "models", "phase", "reason", "gpu_uuids", "gpus_known", "tensor_parallel", "max_inflight", "kv_tokens", "context_tokens", "engine_incarnation", "load", "auth_failed", "metrics_fresh", "api_key")
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    GPUS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    MAX_INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    AUTH_FAILED_FIELD_NUMBER: _ClassVar[int]
    METRICS_FRESH_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    uid: str
    name: str
    kind: str
    url: str
    models: _containers.RepeatedCompositeFieldContainer[ServedModel]
    phase: EndpointPhase
    reason: str
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    gpus_known: bool
    tensor_parallel: int
    max_inflight: int
    kv_tokens: int
    context_tokens: int
    engine_incarnation: int
    load: EngineLoad
    auth_failed: bool
    metrics_fresh: bool
    api_key: str
    def __init__(self, uid: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., url: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ServedModel, _Mapping]]] = ..., phase: _Optional[_Union[EndpointPhase, str]] = ..., reason: _Optional[str] = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., gpus_known: _Optional[bool] = ..., tensor_parallel: _Optional[int] = ..., max_inflight: _Optional[int] = ..., kv_tokens: _Optional[int] = ..., context_tokens: _Optional[int] = ..., engine_incarnation: _Optional[int] = ..., load: _Optional[_Union[EngineLoad, _Mapping]] = ..., auth_failed: _Optional[bool] = ..., metrics_fresh: _Optional[bool] = ..., api_key: _Optional[str] = ...) -> None: ...
