from fleet.wire.headrace.v1 import common_pb2 as _common_pb2
from fleet.wire.headrace.v1 import region_pb2 as _region_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("router_uid", "router_incarnation", "region", "have", "software_version")
    ROUTER_UID_FIELD_NUMBER: _ClassVar[int]
    ROUTER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    router_uid: str
    router_incarnation: int
    region: str
    have: _common_pb2.IntentVersion
    software_version: str
    def __init__(self, router_uid: _Optional[str] = ..., router_incarnation: _Optional[int] = ..., region: _Optional[str] = ..., have: _Optional[_Union[_common_pb2.IntentVersion, _Mapping]] = ..., software_version: _Optional[str] = ...) -> None: ...

class SnapshotUpdate(_message.Message):
    __slots__ = ("full", "delta", "observed", "heartbeat")
    FULL_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    full: SnapshotChunk
    delta: SnapshotDelta
    observed: _region_pb2.RegionObserved
    heartbeat: Heartbeat
    def __init__(self, full: _Optional[_Union[SnapshotChunk, _Mapping]] = ..., delta: _Optional[_Union[SnapshotDelta, _Mapping]] = ..., observed: _Optional[_Union[_region_pb2.RegionObserved, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class IntentObject(_message.Message):
    __slots__ = ("kind", "uid", "name", "generation", "spec_json", "labels", "secrets_json")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SECRETS_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    uid: str
    name: str
    generation: int
    spec_json: bytes
    labels: _containers.ScalarMap[str, str]
    secrets_json: bytes
    def __init__(self, kind: _Optional[str] = ..., uid: _Optional[str] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., spec_json: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ..., secrets_json: _Optional[bytes] = ...) -> None: ...

class ObjectKey(_message.Message):
    __slots__ = ("kind", "uid")
    KIND_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    uid: str
    def __init__(self, kind: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("at", "region", "index", "last", "objects", "content", "confirmed")
    AT_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    at: _common_pb2.IntentVersion
    region: str
    index: int
    last: bool
    objects: _containers.RepeatedCompositeFieldContainer[IntentObject]
    content: bytes
    confirmed: bool
    def __init__(self, at: _Optional[_Union[_common_pb2.IntentVersion, _Mapping]] = ..., region: _Optional[str] = ..., index: _Optional[int] = ..., last: _Optional[bool] = ..., objects: _Optional[_Iterable[_Union[IntentObject, _Mapping]]] = ..., content: _Optional[bytes] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class SnapshotDelta(_message.Message):
    __slots__ = ("base", "at", "upserts", "removals", "content", "confirmed")
    BASE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    UPSERTS_FIELD_NUMBER: _ClassVar[int]
    REMOVALS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    base: _common_pb2.IntentVersion
    at: _common_pb2.IntentVersion
    upserts: _containers.RepeatedCompositeFieldContainer[IntentObject]
    removals: _containers.RepeatedCompositeFieldContainer[ObjectKey]
    content: bytes
    confirmed: bool
    def __init__(self, base: _Optional[_Union[_common_pb2.IntentVersion, _Mapping]] = ..., at: _Optional[_Union[_common_pb2.IntentVersion, _Mapping]] = ..., upserts: _Optional[_Iterable[_Union[IntentObject, _Mapping]]] = ..., removals: _Optional[_Iterable[_Union[ObjectKey, _Mapping]]] = ..., content: _Optional[bytes] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("head",)
    HEAD_FIELD_NUMBER: _ClassVar[int]
    head: _common_pb2.IntentVersion
    def __init__(self, head: _Optional[_Union[_common_pb2.IntentVersion, _Mapping]] = ...) -> None: ...
