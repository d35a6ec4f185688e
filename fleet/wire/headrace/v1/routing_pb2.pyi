from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AssignRequest(_message.Message):
    __slots__ = ("model", "task", "input_tokens", "max_output_tokens", "session", "client_address", "exclude")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    model: str
    task: str
    input_tokens: int
    max_output_tokens: int
    session: str
    client_address: str
    exclude: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., task: _Optional[str] = ..., input_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., session: _Optional[str] = ..., client_address: _Optional[str] = ..., exclude: _Optional[_Iterable[str]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("assignment_uid", "region", "zone", "node", "endpoint", "url", "served_as", "gpu_uuids", "ttl_ms")
    ASSIGNMENT_UID_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    SERVED_AS_FIELD_NUMBER: _ClassVar[int]
    GPU_UUIDS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    assignment_uid: str
    region: str
    zone: str
    node: str
    endpoint: str
    url: str
    served_as: str
    gpu_uuids: _containers.RepeatedScalarFieldContainer[str]
    ttl_ms: int
    def __init__(self, assignment_uid: _Optional[str] = ..., region: _Optional[str] = ..., zone: _Optional[str] = ..., node: _Optional[str] = ..., endpoint: _Optional[str] = ..., url: _Optional[str] = ..., served_as: _Optional[str] = ..., gpu_uuids: _Optional[_Iterable[str]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("assignment_uid",)
    ASSIGNMENT_UID_FIELD_NUMBER: _ClassVar[int]
    assignment_uid: str
    def __init__(self, assignment_uid: _Optional[str] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("ttl_ms",)
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ttl_ms: int
    def __init__(self, ttl_ms: _Optional[int] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("assignment_uid", "ok", "prompt_tokens", "completion_tokens", "time_to_first_token_seconds")
    ASSIGNMENT_UID_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    assignment_uid: str
    ok: bool
    prompt_tokens: int
    completion_tokens: int
    time_to_first_token_seconds: float
    def __init__(self, assignment_uid: _Optional[str] = ..., ok: _Optional[bool] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., time_to_first_token_seconds: _Optional[float] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
