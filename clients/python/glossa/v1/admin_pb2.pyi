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
VERSION_STATE_UNSPECIFIED: VersionState
VERSION_STATE_OPENING: VersionState
VERSION_STATE_SERVING: VersionState
VERSION_STATE_DRAINING: VersionState

class Version(_message.Message):
    __slots__ = ("model", "version", "state", "is_default", "bundle_sha256", "path", "calls", "engine_processes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    state: VersionState
    is_default: bool
    bundle_sha256: str
    path: str
    calls: int
    engine_processes: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[VersionState, str]] = ..., is_default: bool = ..., bundle_sha256: _Optional[str] = ..., path: _Optional[str] = ..., calls: _Optional[int] = ..., engine_processes: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

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
