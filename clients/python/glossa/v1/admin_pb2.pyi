import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VersionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERSION_STATE_UNSPECIFIED: _ClassVar[VersionState]
    VERSION_STATE_OPENING: _ClassVar[VersionState]
    VERSION_STATE_SERVING: _ClassVar[VersionState]
    VERSION_STATE_DRAINING: _ClassVar[VersionState]

class CanaryState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CANARY_STATE_UNSPECIFIED: _ClassVar[CanaryState]
    CANARY_STATE_RUNNING: _ClassVar[CanaryState]
    CANARY_STATE_PROMOTED: _ClassVar[CanaryState]
    CANARY_STATE_SENT_BACK: _ClassVar[CanaryState]
    CANARY_STATE_STOPPED: _ClassVar[CanaryState]
VERSION_STATE_UNSPECIFIED: VersionState
VERSION_STATE_OPENING: VersionState
VERSION_STATE_SERVING: VersionState
VERSION_STATE_DRAINING: VersionState
CANARY_STATE_UNSPECIFIED: CanaryState
CANARY_STATE_RUNNING: CanaryState
CANARY_STATE_PROMOTED: CanaryState
CANARY_STATE_SENT_BACK: CanaryState
CANARY_STATE_STOPPED: CanaryState

class Version(_message.Message):
    __slots__ = ("model", "version", "state", "is_default", "bundle_sha256", "path", "calls", "engine_processes", "weight", "shadow_share")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHADOW_SHARE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    state: VersionState
    is_default: bool
    bundle_sha256: str
    path: str
    calls: int
    engine_processes: int
    weight: int
    shadow_share: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[VersionState, str]] = ..., is_default: bool = ..., bundle_sha256: _Optional[str] = ..., path: _Optional[str] = ..., calls: _Optional[int] = ..., engine_processes: _Optional[int] = ..., weight: _Optional[int] = ..., shadow_share: _Optional[int] = ...) -> None: ...

class EvaluationExample(_message.Message):
    __slots__ = ("text", "reference")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    reference: str
    def __init__(self, text: _Optional[str] = ..., reference: _Optional[str] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("examples", "source_language", "target_language", "max_loss")
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MAX_LOSS_FIELD_NUMBER: _ClassVar[int]
    examples: _containers.RepeatedCompositeFieldContainer[EvaluationExample]
    source_language: str
    target_language: str
    max_loss: float
    def __init__(self, examples: _Optional[_Iterable[_Union[EvaluationExample, _Mapping]]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., max_loss: _Optional[float] = ...) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("examples", "chrf", "default_chrf")
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    CHRF_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_CHRF_FIELD_NUMBER: _ClassVar[int]
    examples: int
    chrf: float
    default_chrf: float
    def __init__(self, examples: _Optional[int] = ..., chrf: _Optional[float] = ..., default_chrf: _Optional[float] = ...) -> None: ...

class LoadVersionRequest(_message.Message):
    __slots__ = ("model", "path", "version", "keep_default", "keep_previous", "evaluation")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    KEEP_PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    model: str
    path: str
    version: str
    keep_default: bool
    keep_previous: bool
    evaluation: Evaluation
    def __init__(self, model: _Optional[str] = ..., path: _Optional[str] = ..., version: _Optional[str] = ..., keep_default: bool = ..., keep_previous: bool = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ...) -> None: ...

class LoadVersionResponse(_message.Message):
    __slots__ = ("version", "evaluation")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    evaluation: EvaluationResult
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationResult, _Mapping]] = ...) -> None: ...

class UnloadVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class UnloadVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions", "canaries")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CANARIES_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    canaries: _containers.RepeatedCompositeFieldContainer[Canary]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ..., canaries: _Optional[_Iterable[_Union[Canary, _Mapping]]] = ...) -> None: ...

class SetDefaultVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class SetDefaultVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class RollBackRequest(_message.Message):
    __slots__ = ("model", "keep_previous")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KEEP_PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    model: str
    keep_previous: bool
    def __init__(self, model: _Optional[str] = ..., keep_previous: bool = ...) -> None: ...

class RollBackResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class VersionShare(_message.Message):
    __slots__ = ("version", "percent")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    version: str
    percent: int
    def __init__(self, version: _Optional[str] = ..., percent: _Optional[int] = ...) -> None: ...

class SetTrafficRequest(_message.Message):
    __slots__ = ("model", "weights", "by_request_id", "shadow")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    BY_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    model: str
    weights: _containers.RepeatedCompositeFieldContainer[VersionShare]
    by_request_id: bool
    shadow: VersionShare
    def __init__(self, model: _Optional[str] = ..., weights: _Optional[_Iterable[_Union[VersionShare, _Mapping]]] = ..., by_request_id: bool = ..., shadow: _Optional[_Union[VersionShare, _Mapping]] = ...) -> None: ...

class SetTrafficResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class CanaryBounds(_message.Message):
    __slots__ = ("failed", "p99", "chrf", "disagreement", "memory")
    FAILED_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    CHRF_FIELD_NUMBER: _ClassVar[int]
    DISAGREEMENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    failed: float
    p99: float
    chrf: float
    disagreement: float
    memory: float
    def __init__(self, failed: _Optional[float] = ..., p99: _Optional[float] = ..., chrf: _Optional[float] = ..., disagreement: _Optional[float] = ..., memory: _Optional[float] = ...) -> None: ...

class StartCanaryRequest(_message.Message):
    __slots__ = ("model", "version", "share", "shadow_share", "duration", "patience", "bounds", "evaluation", "unload_loser")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SHADOW_SHARE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_LOSER_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    share: int
    shadow_share: int
    duration: _duration_pb2.Duration
    patience: _duration_pb2.Duration
    bounds: CanaryBounds
    evaluation: Evaluation
    unload_loser: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., share: _Optional[int] = ..., shadow_share: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., patience: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., bounds: _Optional[_Union[CanaryBounds, _Mapping]] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., unload_loser: bool = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("model", "version", "state", "bound", "reason", "judged", "calls", "failed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    state: CanaryState
    bound: str
    reason: str
    judged: _duration_pb2.Duration
    calls: int
    failed: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[CanaryState, str]] = ..., bound: _Optional[str] = ..., reason: _Optional[str] = ..., judged: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., calls: _Optional[int] = ..., failed: _Optional[int] = ...) -> None: ...

class StartCanaryResponse(_message.Message):
    __slots__ = ("canary",)
    CANARY_FIELD_NUMBER: _ClassVar[int]
    canary: Canary
    def __init__(self, canary: _Optional[_Union[Canary, _Mapping]] = ...) -> None: ...
