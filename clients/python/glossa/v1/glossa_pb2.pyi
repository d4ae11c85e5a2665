import datetime

from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LengthNormalization(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LENGTH_NORMALIZATION_UNSPECIFIED: _ClassVar[LengthNormalization]
    LENGTH_NORMALIZATION_AVERAGE: _ClassVar[LengthNormalization]
    LENGTH_NORMALIZATION_GNMT: _ClassVar[LengthNormalization]

class EarlyStopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EARLY_STOPPING_UNSPECIFIED: _ClassVar[EarlyStopping]
    EARLY_STOPPING_TRUE: _ClassVar[EarlyStopping]
    EARLY_STOPPING_FALSE: _ClassVar[EarlyStopping]
    EARLY_STOPPING_NEVER: _ClassVar[EarlyStopping]

class AlignmentKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALIGNMENT_KIND_UNSPECIFIED: _ClassVar[AlignmentKind]
    ALIGNMENT_KIND_NONE: _ClassVar[AlignmentKind]
    ALIGNMENT_KIND_SOFT: _ClassVar[AlignmentKind]
    ALIGNMENT_KIND_HARD: _ClassVar[AlignmentKind]
    ALIGNMENT_KIND_BOTH: _ClassVar[AlignmentKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_END_OF_SEQUENCE: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]

class MarkPlacement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MARK_PLACEMENT_UNSPECIFIED: _ClassVar[MarkPlacement]
    MARK_PLACEMENT_ALIGNMENT: _ClassVar[MarkPlacement]
    MARK_PLACEMENT_PROPORTIONAL: _ClassVar[MarkPlacement]

class DocumentFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DOCUMENT_FORMAT_UNSPECIFIED: _ClassVar[DocumentFormat]
    DOCUMENT_FORMAT_TEXT: _ClassVar[DocumentFormat]
    DOCUMENT_FORMAT_HTML: _ClassVar[DocumentFormat]
    DOCUMENT_FORMAT_XLIFF: _ClassVar[DocumentFormat]
    DOCUMENT_FORMAT_SRT: _ClassVar[DocumentFormat]
    DOCUMENT_FORMAT_VTT: _ClassVar[DocumentFormat]
    DOCUMENT_FORMAT_PO: _ClassVar[DocumentFormat]

class DocumentSplitting(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DOCUMENT_SPLITTING_UNSPECIFIED: _ClassVar[DocumentSplitting]
    DOCUMENT_SPLITTING_SENTENCES: _ClassVar[DocumentSplitting]
    DOCUMENT_SPLITTING_PARAGRAPHS: _ClassVar[DocumentSplitting]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_CLS: _ClassVar[Pooling]
    POOLING_POOLER: _ClassVar[Pooling]
    POOLING_MAX: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]
    POOLING_MEAN_SQRT_LEN: _ClassVar[Pooling]
    POOLING_WEIGHTED_MEAN: _ClassVar[Pooling]

class SimilarityMeasure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIMILARITY_MEASURE_UNSPECIFIED: _ClassVar[SimilarityMeasure]
    SIMILARITY_MEASURE_COSINE: _ClassVar[SimilarityMeasure]
    SIMILARITY_MEASURE_DOT: _ClassVar[SimilarityMeasure]
    SIMILARITY_MEASURE_EUCLIDEAN: _ClassVar[SimilarityMeasure]

class Task(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_UNSPECIFIED: _ClassVar[Task]
    TASK_TRANSLATION: _ClassVar[Task]
    TASK_GENERATION: _ClassVar[Task]
    TASK_ENCODING: _ClassVar[Task]

class AttentionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTENTION_KIND_UNSPECIFIED: _ClassVar[AttentionKind]
    ATTENTION_KIND_ENCODER: _ClassVar[AttentionKind]
    ATTENTION_KIND_DECODER: _ClassVar[AttentionKind]
    ATTENTION_KIND_CROSS: _ClassVar[AttentionKind]
LENGTH_NORMALIZATION_UNSPECIFIED: LengthNormalization
LENGTH_NORMALIZATION_AVERAGE: LengthNormalization
LENGTH_NORMALIZATION_GNMT: LengthNormalization
EARLY_STOPPING_UNSPECIFIED: EarlyStopping
EARLY_STOPPING_TRUE: EarlyStopping
EARLY_STOPPING_FALSE: EarlyStopping
EARLY_STOPPING_NEVER: EarlyStopping
ALIGNMENT_KIND_UNSPECIFIED: AlignmentKind
ALIGNMENT_KIND_NONE: AlignmentKind
ALIGNMENT_KIND_SOFT: AlignmentKind
ALIGNMENT_KIND_HARD: AlignmentKind
ALIGNMENT_KIND_BOTH: AlignmentKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_END_OF_SEQUENCE: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
MARK_PLACEMENT_UNSPECIFIED: MarkPlacement
MARK_PLACEMENT_ALIGNMENT: MarkPlacement
MARK_PLACEMENT_PROPORTIONAL: MarkPlacement
DOCUMENT_FORMAT_UNSPECIFIED: DocumentFormat
DOCUMENT_FORMAT_TEXT: DocumentFormat
DOCUMENT_FORMAT_HTML: DocumentFormat
DOCUMENT_FORMAT_XLIFF: DocumentFormat
DOCUMENT_FORMAT_SRT: DocumentFormat
DOCUMENT_FORMAT_VTT: DocumentFormat
DOCUMENT_FORMAT_PO: DocumentFormat
DOCUMENT_SPLITTING_UNSPECIFIED: DocumentSplitting
DOCUMENT_SPLITTING_SENTENCES: DocumentSplitting
DOCUMENT_SPLITTING_PARAGRAPHS: DocumentSplitting
POOLING_UNSPECIFIED: Pooling
POOLING_MEAN: Pooling
POOLING_CLS: Pooling
POOLING_POOLER: Pooling
POOLING_MAX: Pooling
POOLING_LAST: Pooling
POOLING_MEAN_SQRT_LEN: Pooling
POOLING_WEIGHTED_MEAN: Pooling
SIMILARITY_MEASURE_UNSPECIFIED: SimilarityMeasure
SIMILARITY_MEASURE_COSINE: SimilarityMeasure
SIMILARITY_MEASURE_DOT: SimilarityMeasure
SIMILARITY_MEASURE_EUCLIDEAN: SimilarityMeasure
TASK_UNSPECIFIED: Task
TASK_TRANSLATION: Task
TASK_GENERATION: Task
TASK_ENCODING: Task
ATTENTION_KIND_UNSPECIFIED: AttentionKind
ATTENTION_KIND_ENCODER: AttentionKind
ATTENTION_KIND_DECODER: AttentionKind
ATTENTION_KIND_CROSS: AttentionKind

class DecodingOptions(_message.Message):
    __slots__ = ("max_tokens", "stop", "min_tokens", "max_length_ratio", "ignore_eos", "echo", "beam_size", "num_hypotheses", "length_penalty", "length_normalization", "coverage_penalty", "patience", "early_stopping", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "num_sequences", "repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "logit_bias", "bad_words", "prefix", "prefix_tokens", "prefix_bias", "return_alternatives", "min_alternative_probability", "allowed_tokens", "use_shortlist", "phrases", "ordered_phrases", "regex", "json_schema", "lark", "token_logprobs", "top_logprobs", "alignment", "alignment_layer", "alignment_heads")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_RATIO_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LENGTH_NORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    NUM_BEAM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_BIAS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    MIN_ALTERNATIVE_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USE_SHORTLIST_FIELD_NUMBER: _ClassVar[int]
    PHRASES_FIELD_NUMBER: _ClassVar[int]
    ORDERED_PHRASES_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_LAYER_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_HEADS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    min_tokens: int
    max_length_ratio: float
    ignore_eos: bool
    echo: bool
    beam_size: int
    num_hypotheses: int
    length_penalty: float
    length_normalization: LengthNormalization
    coverage_penalty: float
    patience: float
    early_stopping: EarlyStopping
    num_beam_groups: int
    diversity_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int
    num_sequences: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: _containers.ScalarMap[int, float]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    prefix: str
    prefix_tokens: _containers.RepeatedScalarFieldContainer[int]
    prefix_bias: float
    return_alternatives: bool
    min_alternative_probability: float
    allowed_tokens: _containers.RepeatedScalarFieldContainer[int]
    use_shortlist: bool
    phrases: _containers.RepeatedScalarFieldContainer[str]
    ordered_phrases: bool
    regex: str
    json_schema: str
    lark: str
    token_logprobs: bool
    top_logprobs: int
    alignment: AlignmentKind
    alignment_layer: int
    alignment_heads: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., min_tokens: _Optional[int] = ..., max_length_ratio: _Optional[float] = ..., ignore_eos: bool = ..., echo: bool = ..., beam_size: _Optional[int] = ..., num_hypotheses: _Optional[int] = ..., length_penalty: _Optional[float] = ..., length_normalization: _Optional[_Union[LengthNormalization, str]] = ..., coverage_penalty: _Optional[float] = ..., patience: _Optional[float] = ..., early_stopping: _Optional[_Union[EarlyStopping, str]] = ..., num_beam_groups: _Optional[int] = ..., diversity_penalty: _Optional[float] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., seed: _Optional[int] = ..., num_sequences: _Optional[int] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., no_repeat_ngram_size: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., bad_words: _Optional[_Iterable[str]] = ..., prefix: _Optional[str] = ..., prefix_tokens: _Optional[_Iterable[int]] = ..., prefix_bias: _Optional[float] = ..., return_alternatives: bool = ..., min_alternative_probability: _Optional[float] = ..., allowed_tokens: _Optional[_Iterable[int]] = ..., use_shortlist: bool = ..., phrases: _Optional[_Iterable[str]] = ..., ordered_phrases: bool = ..., regex: _Optional[str] = ..., json_schema: _Optional[str] = ..., lark: _Optional[str] = ..., token_logprobs: bool = ..., top_logprobs: _Optional[int] = ..., alignment: _Optional[_Union[AlignmentKind, str]] = ..., alignment_layer: _Optional[int] = ..., alignment_heads: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenAlternative(_message.Message):
    __slots__ = ("token", "text", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    logprob: float
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "text", "logprob", "top_logprobs")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    logprob: float
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TokenAlternative]
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ..., top_logprobs: _Optional[_Iterable[_Union[TokenAlternative, _Mapping]]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class AlignmentRow(_message.Message):
    __slots__ = ("weights",)
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Alignment(_message.Message):
    __slots__ = ("source_spans", "target_spans", "rows", "positions")
    SOURCE_SPANS_FIELD_NUMBER: _ClassVar[int]
    TARGET_SPANS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    source_spans: _containers.RepeatedCompositeFieldContainer[Span]
    target_spans: _containers.RepeatedCompositeFieldContainer[Span]
    rows: _containers.RepeatedCompositeFieldContainer[AlignmentRow]
    positions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source_spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., target_spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[AlignmentRow, _Mapping]]] = ..., positions: _Optional[_Iterable[int]] = ...) -> None: ...

class WordConfidence(_message.Message):
    __slots__ = ("span", "confidence", "is_uncertain")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    IS_UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    span: Span
    confidence: float
    is_uncertain: bool
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ..., confidence: _Optional[float] = ..., is_uncertain: bool = ...) -> None: ...

class Confidence(_message.Message):
    __slots__ = ("sentence", "words", "calibrated", "uncertain")
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    sentence: float
    words: _containers.RepeatedCompositeFieldContainer[WordConfidence]
    calibrated: bool
    uncertain: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, sentence: _Optional[float] = ..., words: _Optional[_Iterable[_Union[WordConfidence, _Mapping]]] = ..., calibrated: bool = ..., uncertain: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("text", "tokens", "finish_reason", "score", "cumulative_logprob", "token_logprobs", "alignment", "plain_text", "confidence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    PLAIN_TEXT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: FinishReason
    score: float
    cumulative_logprob: float
    token_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    alignment: Alignment
    plain_text: str
    confidence: Confidence
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., score: _Optional[float] = ..., cumulative_logprob: _Optional[float] = ..., token_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., alignment: _Optional[_Union[Alignment, _Mapping]] = ..., plain_text: _Optional[str] = ..., confidence: _Optional[_Union[Confidence, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "generated_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    generated_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue", "prefill", "first_token", "total")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    first_token: _duration_pb2.Duration
    total: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., total: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("finish_reason", "usage", "timings", "hypotheses", "seed", "confidence", "warnings", "detected_language", "route")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DETECTED_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    seed: int
    confidence: Confidence
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    detected_language: DetectedLanguage
    route: TranslationRoute
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., seed: _Optional[int] = ..., confidence: _Optional[_Union[Confidence, _Mapping]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ..., detected_language: _Optional[_Union[DetectedLanguage, _Mapping]] = ..., route: _Optional[_Union[TranslationRoute, _Mapping]] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "fields")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    fields: _struct_pb2.Struct
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., fields: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ChatOptions(_message.Message):
    __slots__ = ("template_arguments", "add_generation_prompt", "continue_final_message")
    TEMPLATE_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    template_arguments: _struct_pb2.Struct
    add_generation_prompt: bool
    continue_final_message: bool
    def __init__(self, template_arguments: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ...) -> None: ...

class Markup(_message.Message):
    __slots__ = ("tags", "placeholders", "urls", "numbers")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PLACEHOLDERS_FIELD_NUMBER: _ClassVar[int]
    URLS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    tags: bool
    placeholders: bool
    urls: bool
    numbers: bool
    def __init__(self, tags: bool = ..., placeholders: bool = ..., urls: bool = ..., numbers: bool = ...) -> None: ...

class MarkupResult(_message.Message):
    __slots__ = ("placement", "plain_text", "source_text")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    PLAIN_TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TEXT_FIELD_NUMBER: _ClassVar[int]
    placement: MarkPlacement
    plain_text: str
    source_text: str
    def __init__(self, placement: _Optional[_Union[MarkPlacement, str]] = ..., plain_text: _Optional[str] = ..., source_text: _Optional[str] = ...) -> None: ...

class GlossaryTerm(_message.Message):
    __slots__ = ("source", "targets", "ignore_case")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_CASE_FIELD_NUMBER: _ClassVar[int]
    source: str
    targets: _containers.RepeatedScalarFieldContainer[str]
    ignore_case: bool
    def __init__(self, source: _Optional[str] = ..., targets: _Optional[_Iterable[str]] = ..., ignore_case: bool = ...) -> None: ...

class Glossary(_message.Message):
    __slots__ = ("terms", "name")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    terms: _containers.RepeatedCompositeFieldContainer[GlossaryTerm]
    name: str
    def __init__(self, terms: _Optional[_Iterable[_Union[GlossaryTerm, _Mapping]]] = ..., name: _Optional[str] = ...) -> None: ...

class GlossaryResult(_message.Message):
    __slots__ = ("terms", "met", "unmet")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    UNMET_FIELD_NUMBER: _ClassVar[int]
    terms: int
    met: int
    unmet: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, terms: _Optional[int] = ..., met: _Optional[int] = ..., unmet: _Optional[_Iterable[str]] = ...) -> None: ...

class TranslateRequest(_message.Message):
    __slots__ = ("model", "text", "options", "include_tokens", "source_language", "target_language", "markup", "glossary", "include_confidence", "uncertain_below", "split_sentences", "splitter_language", "pivot_language")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MARKUP_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_BELOW_FIELD_NUMBER: _ClassVar[int]
    SPLIT_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    SPLITTER_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PIVOT_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    options: DecodingOptions
    include_tokens: bool
    source_language: str
    target_language: str
    markup: Markup
    glossary: Glossary
    include_confidence: bool
    uncertain_below: float
    split_sentences: bool
    splitter_language: str
    pivot_language: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., include_tokens: bool = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., markup: _Optional[_Union[Markup, _Mapping]] = ..., glossary: _Optional[_Union[Glossary, _Mapping]] = ..., include_confidence: bool = ..., uncertain_below: _Optional[float] = ..., split_sentences: bool = ..., splitter_language: _Optional[str] = ..., pivot_language: _Optional[str] = ...) -> None: ...

class TranslateResponse(_message.Message):
    __slots__ = ("text", "tokens", "finish_reason", "usage", "timings", "hypotheses", "seed", "markup", "glossary", "confidence", "detected_language", "route")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MARKUP_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    DETECTED_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    seed: int
    markup: MarkupResult
    glossary: GlossaryResult
    confidence: Confidence
    detected_language: DetectedLanguage
    route: TranslationRoute
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., seed: _Optional[int] = ..., markup: _Optional[_Union[MarkupResult, _Mapping]] = ..., glossary: _Optional[_Union[GlossaryResult, _Mapping]] = ..., confidence: _Optional[_Union[Confidence, _Mapping]] = ..., detected_language: _Optional[_Union[DetectedLanguage, _Mapping]] = ..., route: _Optional[_Union[TranslationRoute, _Mapping]] = ...) -> None: ...

class DetectedLanguage(_message.Message):
    __slots__ = ("language", "probability")
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    language: str
    probability: float
    def __init__(self, language: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class TranslationRoute(_message.Message):
    __slots__ = ("model", "first_model", "pivot_language", "pivot_text")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FIRST_MODEL_FIELD_NUMBER: _ClassVar[int]
    PIVOT_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PIVOT_TEXT_FIELD_NUMBER: _ClassVar[int]
    model: str
    first_model: str
    pivot_language: str
    pivot_text: str
    def __init__(self, model: _Optional[str] = ..., first_model: _Optional[str] = ..., pivot_language: _Optional[str] = ..., pivot_text: _Optional[str] = ...) -> None: ...

class TranslateBatchRequest(_message.Message):
    __slots__ = ("defaults", "in_order", "items")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    defaults: TranslateRequest
    in_order: bool
    items: _containers.RepeatedCompositeFieldContainer[TranslateBatchItem]
    def __init__(self, defaults: _Optional[_Union[TranslateRequest, _Mapping]] = ..., in_order: bool = ..., items: _Optional[_Iterable[_Union[TranslateBatchItem, _Mapping]]] = ...) -> None: ...

class TranslateBatchItem(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: TranslateRequest
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[TranslateRequest, _Mapping]] = ...) -> None: ...

class TranslateBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TranslateBatchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[TranslateBatchResult, _Mapping]]] = ...) -> None: ...

class TranslateBatchResult(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: TranslateResponse
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[TranslateResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class TranslateDocumentRequest(_message.Message):
    __slots__ = ("model", "text", "format", "options", "source_language", "target_language", "context_sentences", "splitter_language", "glossary", "markup", "include_confidence", "pivot_language")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    SPLITTER_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_FIELD_NUMBER: _ClassVar[int]
    MARKUP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    PIVOT_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    format: DocumentFormat
    options: DecodingOptions
    source_language: str
    target_language: str
    context_sentences: int
    splitter_language: str
    glossary: Glossary
    markup: Markup
    include_confidence: bool
    pivot_language: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., format: _Optional[_Union[DocumentFormat, str]] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., context_sentences: _Optional[int] = ..., splitter_language: _Optional[str] = ..., glossary: _Optional[_Union[Glossary, _Mapping]] = ..., markup: _Optional[_Union[Markup, _Mapping]] = ..., include_confidence: bool = ..., pivot_language: _Optional[str] = ...) -> None: ...

class TranslateDocumentResponse(_message.Message):
    __slots__ = ("segments", "final")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[DocumentSegment]
    final: DocumentSummary
    def __init__(self, segments: _Optional[_Iterable[_Union[DocumentSegment, _Mapping]]] = ..., final: _Optional[_Union[DocumentSummary, _Mapping]] = ...) -> None: ...

class TextRange(_message.Message):
    __slots__ = ("start", "end", "start_byte", "end_byte")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    START_BYTE_FIELD_NUMBER: _ClassVar[int]
    END_BYTE_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    start_byte: int
    end_byte: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., start_byte: _Optional[int] = ..., end_byte: _Optional[int] = ...) -> None: ...

class DocumentSegment(_message.Message):
    __slots__ = ("index", "source", "target", "text", "is_copied", "error", "confidence")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_COPIED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    index: int
    source: TextRange
    target: TextRange
    text: str
    is_copied: bool
    error: _status_pb2.Status
    confidence: float
    def __init__(self, index: _Optional[int] = ..., source: _Optional[_Union[TextRange, _Mapping]] = ..., target: _Optional[_Union[TextRange, _Mapping]] = ..., text: _Optional[str] = ..., is_copied: bool = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., confidence: _Optional[float] = ...) -> None: ...

class DocumentSummary(_message.Message):
    __slots__ = ("segments", "failed", "splitting", "splitter_language", "is_language_assumed", "usage", "timings", "glossary", "detected_language", "route")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SPLITTING_FIELD_NUMBER: _ClassVar[int]
    SPLITTER_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    IS_LANGUAGE_ASSUMED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_FIELD_NUMBER: _ClassVar[int]
    DETECTED_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    segments: int
    failed: int
    splitting: DocumentSplitting
    splitter_language: str
    is_language_assumed: bool
    usage: Usage
    timings: Timings
    glossary: GlossaryResult
    detected_language: DetectedLanguage
    route: TranslationRoute
    def __init__(self, segments: _Optional[int] = ..., failed: _Optional[int] = ..., splitting: _Optional[_Union[DocumentSplitting, str]] = ..., splitter_language: _Optional[str] = ..., is_language_assumed: bool = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., glossary: _Optional[_Union[GlossaryResult, _Mapping]] = ..., detected_language: _Optional[_Union[DetectedLanguage, _Mapping]] = ..., route: _Optional[_Union[TranslationRoute, _Mapping]] = ...) -> None: ...

class StreamTranslateRequest(_message.Message):
    __slots__ = ("model", "text", "options", "include_tokens", "source_language", "target_language", "markup", "glossary", "include_confidence", "uncertain_below", "split_sentences", "splitter_language", "pivot_language")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MARKUP_FIELD_NUMBER: _ClassVar[int]
    GLOSSARY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_BELOW_FIELD_NUMBER: _ClassVar[int]
    SPLIT_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    SPLITTER_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PIVOT_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    options: DecodingOptions
    include_tokens: bool
    source_language: str
    target_language: str
    markup: Markup
    glossary: Glossary
    include_confidence: bool
    uncertain_below: float
    split_sentences: bool
    splitter_language: str
    pivot_language: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., include_tokens: bool = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., markup: _Optional[_Union[Markup, _Mapping]] = ..., glossary: _Optional[_Union[Glossary, _Mapping]] = ..., include_confidence: bool = ..., uncertain_below: _Optional[float] = ..., split_sentences: bool = ..., splitter_language: _Optional[str] = ..., pivot_language: _Optional[str] = ...) -> None: ...

class StreamTranslateResponse(_message.Message):
    __slots__ = ("text", "tokens", "final")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    final: Completion
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., final: _Optional[_Union[Completion, _Mapping]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "text", "options", "include_tokens", "prompt_tokens", "messages", "chat")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    options: DecodingOptions
    include_tokens: bool
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    chat: ChatOptions
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., include_tokens: bool = ..., prompt_tokens: _Optional[_Iterable[int]] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., chat: _Optional[_Union[ChatOptions, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("text", "tokens", "finish_reason", "usage", "timings", "hypotheses", "seed", "warnings")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    seed: int
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., seed: _Optional[int] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ...) -> None: ...

class StreamGenerateRequest(_message.Message):
    __slots__ = ("model", "text", "options", "include_tokens", "prompt_tokens", "messages", "chat")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    options: DecodingOptions
    include_tokens: bool
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    chat: ChatOptions
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., include_tokens: bool = ..., prompt_tokens: _Optional[_Iterable[int]] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., chat: _Optional[_Union[ChatOptions, _Mapping]] = ...) -> None: ...

class StreamGenerateResponse(_message.Message):
    __slots__ = ("text", "tokens", "final")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    final: Completion
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., final: _Optional[_Union[Completion, _Mapping]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "text", "target", "target_tokens", "omit_eos", "options", "source_language", "target_language", "text_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OMIT_EOS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    target: str
    target_tokens: _containers.RepeatedScalarFieldContainer[int]
    omit_eos: bool
    options: DecodingOptions
    source_language: str
    target_language: str
    text_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., target: _Optional[str] = ..., target_tokens: _Optional[_Iterable[int]] = ..., omit_eos: bool = ..., options: _Optional[_Union[DecodingOptions, _Mapping]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., text_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("tokens", "cumulative_logprob", "score", "perplexity", "alignment", "usage", "timings")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PERPLEXITY_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    cumulative_logprob: float
    score: float
    perplexity: float
    alignment: Alignment
    usage: Usage
    timings: Timings
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., cumulative_logprob: _Optional[float] = ..., score: _Optional[float] = ..., perplexity: _Optional[float] = ..., alignment: _Optional[_Union[Alignment, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class ScoreBatchRequest(_message.Message):
    __slots__ = ("defaults", "in_order", "items")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    defaults: ScoreRequest
    in_order: bool
    items: _containers.RepeatedCompositeFieldContainer[ScoreBatchItem]
    def __init__(self, defaults: _Optional[_Union[ScoreRequest, _Mapping]] = ..., in_order: bool = ..., items: _Optional[_Iterable[_Union[ScoreBatchItem, _Mapping]]] = ...) -> None: ...

class ScoreBatchItem(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: ScoreRequest
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[ScoreRequest, _Mapping]] = ...) -> None: ...

class ScoreBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ScoreBatchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ScoreBatchResult, _Mapping]]] = ...) -> None: ...

class ScoreBatchResult(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: ScoreResponse
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[ScoreResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model", "text", "normalize", "pooling", "source_language", "target_language", "prompt_name", "truncate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    normalize: bool
    pooling: Pooling
    source_language: str
    target_language: str
    prompt_name: str
    truncate: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., normalize: bool = ..., pooling: _Optional[_Union[Pooling, str]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., prompt_name: _Optional[str] = ..., truncate: bool = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("values", "usage", "timings", "truncated")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    usage: Usage
    timings: Timings
    truncated: bool
    def __init__(self, values: _Optional[_Iterable[float]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., truncated: bool = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class SimilarityItem(_message.Message):
    __slots__ = ("text", "vector")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    text: str
    vector: Vector
    def __init__(self, text: _Optional[str] = ..., vector: _Optional[_Union[Vector, _Mapping]] = ...) -> None: ...

class SimilarityRequest(_message.Message):
    __slots__ = ("model", "items", "others", "measure", "pooling", "source_language", "target_language", "prompt_name", "others_prompt_name")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    OTHERS_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    model: str
    items: _containers.RepeatedCompositeFieldContainer[SimilarityItem]
    others: _containers.RepeatedCompositeFieldContainer[SimilarityItem]
    measure: SimilarityMeasure
    pooling: Pooling
    source_language: str
    target_language: str
    prompt_name: str
    others_prompt_name: str
    def __init__(self, model: _Optional[str] = ..., items: _Optional[_Iterable[_Union[SimilarityItem, _Mapping]]] = ..., others: _Optional[_Iterable[_Union[SimilarityItem, _Mapping]]] = ..., measure: _Optional[_Union[SimilarityMeasure, str]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., prompt_name: _Optional[str] = ..., others_prompt_name: _Optional[str] = ...) -> None: ...

class SimilarityRow(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class SimilarityResponse(_message.Message):
    __slots__ = ("rows", "usage", "timings")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[SimilarityRow]
    usage: Usage
    timings: Timings
    def __init__(self, rows: _Optional[_Iterable[_Union[SimilarityRow, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class EmbedBatchRequest(_message.Message):
    __slots__ = ("defaults", "in_order", "items")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    defaults: EmbedRequest
    in_order: bool
    items: _containers.RepeatedCompositeFieldContainer[EmbedBatchItem]
    def __init__(self, defaults: _Optional[_Union[EmbedRequest, _Mapping]] = ..., in_order: bool = ..., items: _Optional[_Iterable[_Union[EmbedBatchItem, _Mapping]]] = ...) -> None: ...

class EmbedBatchItem(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: EmbedRequest
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[EmbedRequest, _Mapping]] = ...) -> None: ...

class EmbedBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EmbedBatchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[EmbedBatchResult, _Mapping]]] = ...) -> None: ...

class EmbedBatchResult(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: EmbedResponse
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[EmbedResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class EmbedTokensRequest(_message.Message):
    __slots__ = ("model", "text", "normalize", "source_language", "target_language", "spans")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    normalize: bool
    source_language: str
    target_language: str
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., normalize: bool = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class TokenVector(_message.Message):
    __slots__ = ("token", "text", "span", "values")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    span: Span
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class EmbedTokensResponse(_message.Message):
    __slots__ = ("tokens", "usage", "timings")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenVector]
    usage: Usage
    timings: Timings
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenVector, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class FillMaskRequest(_message.Message):
    __slots__ = ("model", "text", "top_k")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    top_k: int
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., top_k: _Optional[int] = ...) -> None: ...

class TokenCandidate(_message.Message):
    __slots__ = ("token", "text", "probability")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    probability: float
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class MaskPrediction(_message.Message):
    __slots__ = ("candidates",)
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedCompositeFieldContainer[TokenCandidate]
    def __init__(self, candidates: _Optional[_Iterable[_Union[TokenCandidate, _Mapping]]] = ...) -> None: ...

class FillMaskResponse(_message.Message):
    __slots__ = ("masks", "usage", "timings")
    MASKS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    masks: _containers.RepeatedCompositeFieldContainer[MaskPrediction]
    usage: Usage
    timings: Timings
    def __init__(self, masks: _Optional[_Iterable[_Union[MaskPrediction, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class TagRequest(_message.Message):
    __slots__ = ("model", "text", "include_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    include_tokens: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., include_tokens: bool = ...) -> None: ...

class TaggedSpan(_message.Message):
    __slots__ = ("span", "label", "probability", "text")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    span: Span
    label: str
    probability: float
    text: str
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ..., label: _Optional[str] = ..., probability: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class TaggedToken(_message.Message):
    __slots__ = ("token", "text", "span", "label", "probability")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    span: Span
    label: str
    probability: float
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., label: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class TagResponse(_message.Message):
    __slots__ = ("spans", "tokens", "usage", "timings")
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[TaggedSpan]
    tokens: _containers.RepeatedCompositeFieldContainer[TaggedToken]
    usage: Usage
    timings: Timings
    def __init__(self, spans: _Optional[_Iterable[_Union[TaggedSpan, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[TaggedToken, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model", "text", "include_token_weights")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKEN_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    include_token_weights: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., include_token_weights: bool = ...) -> None: ...

class LabelProbability(_message.Message):
    __slots__ = ("label", "probability")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    label: str
    probability: float
    def __init__(self, label: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class TokenWeight(_message.Message):
    __slots__ = ("span", "weight")
    SPAN_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    span: Span
    weight: float
    def __init__(self, span: _Optional[_Union[Span, _Mapping]] = ..., weight: _Optional[float] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("labels", "token_weights", "usage", "timings")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[LabelProbability]
    token_weights: _containers.RepeatedCompositeFieldContainer[TokenWeight]
    usage: Usage
    timings: Timings
    def __init__(self, labels: _Optional[_Iterable[_Union[LabelProbability, _Mapping]]] = ..., token_weights: _Optional[_Iterable[_Union[TokenWeight, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class ClassifyBatchRequest(_message.Message):
    __slots__ = ("defaults", "in_order", "items")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    defaults: ClassifyRequest
    in_order: bool
    items: _containers.RepeatedCompositeFieldContainer[ClassifyBatchItem]
    def __init__(self, defaults: _Optional[_Union[ClassifyRequest, _Mapping]] = ..., in_order: bool = ..., items: _Optional[_Iterable[_Union[ClassifyBatchItem, _Mapping]]] = ...) -> None: ...

class ClassifyBatchItem(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: ClassifyRequest
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[ClassifyRequest, _Mapping]] = ...) -> None: ...

class ClassifyBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ClassifyBatchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ClassifyBatchResult, _Mapping]]] = ...) -> None: ...

class ClassifyBatchResult(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: ClassifyResponse
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[ClassifyResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_prompt_tokens", "max_tokens", "max_text_bytes", "max_stop_strings", "max_stop_bytes", "max_hypotheses", "max_document_bytes")
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    MAX_DOCUMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_prompt_tokens: int
    max_tokens: int
    max_text_bytes: int
    max_stop_strings: int
    max_stop_bytes: int
    max_hypotheses: int
    max_document_bytes: int
    def __init__(self, max_prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_text_bytes: _Optional[int] = ..., max_stop_strings: _Optional[int] = ..., max_stop_bytes: _Optional[int] = ..., max_hypotheses: _Optional[int] = ..., max_document_bytes: _Optional[int] = ...) -> None: ...

class ExecutionProvider(_message.Message):
    __slots__ = ("provider", "requested", "fallback", "reason", "graph_nodes")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRAPH_NODES_FIELD_NUMBER: _ClassVar[int]
    provider: str
    requested: str
    fallback: bool
    reason: str
    graph_nodes: _containers.RepeatedCompositeFieldContainer[GraphNodes]
    def __init__(self, provider: _Optional[str] = ..., requested: _Optional[str] = ..., fallback: bool = ..., reason: _Optional[str] = ..., graph_nodes: _Optional[_Iterable[_Union[GraphNodes, _Mapping]]] = ...) -> None: ...

class GraphNodes(_message.Message):
    __slots__ = ("graph", "provider", "nodes")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    graph: str
    provider: str
    nodes: int
    def __init__(self, graph: _Optional[str] = ..., provider: _Optional[str] = ..., nodes: _Optional[int] = ...) -> None: ...

class ParityCheck(_message.Message):
    __slots__ = ("name", "precision", "max_error", "tolerance", "passed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MAX_ERROR_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    precision: str
    max_error: float
    tolerance: float
    passed: bool
    def __init__(self, name: _Optional[str] = ..., precision: _Optional[str] = ..., max_error: _Optional[float] = ..., tolerance: _Optional[float] = ..., passed: bool = ...) -> None: ...

class Parity(_message.Message):
    __slots__ = ("passed", "checks")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    passed: bool
    checks: _containers.RepeatedCompositeFieldContainer[ParityCheck]
    def __init__(self, passed: bool = ..., checks: _Optional[_Iterable[_Union[ParityCheck, _Mapping]]] = ...) -> None: ...

class Lineage(_message.Message):
    __slots__ = ("steps", "data_sha256", "git_commit")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DATA_SHA256_FIELD_NUMBER: _ClassVar[int]
    GIT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    steps: int
    data_sha256: str
    git_commit: str
    def __init__(self, steps: _Optional[int] = ..., data_sha256: _Optional[str] = ..., git_commit: _Optional[str] = ...) -> None: ...

class Quantization(_message.Message):
    __slots__ = ("scheme", "weight_bits", "block_size", "activations", "kv_cache", "batch_invariant", "evaluation_samples", "bleu_loss", "exact_match", "nats_loss")
    SCHEME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BITS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BLEU_LOSS_FIELD_NUMBER: _ClassVar[int]
    EXACT_MATCH_FIELD_NUMBER: _ClassVar[int]
    NATS_LOSS_FIELD_NUMBER: _ClassVar[int]
    scheme: str
    weight_bits: int
    block_size: int
    activations: str
    kv_cache: str
    batch_invariant: bool
    evaluation_samples: int
    bleu_loss: float
    exact_match: float
    nats_loss: float
    def __init__(self, scheme: _Optional[str] = ..., weight_bits: _Optional[int] = ..., block_size: _Optional[int] = ..., activations: _Optional[str] = ..., kv_cache: _Optional[str] = ..., batch_invariant: bool = ..., evaluation_samples: _Optional[int] = ..., bleu_loss: _Optional[float] = ..., exact_match: _Optional[float] = ..., nats_loss: _Optional[float] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("ece_before", "ece_after", "samples", "method", "sentence_ece_before", "sentence_ece_after", "sentence_method", "data")
    ECE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ECE_AFTER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_ECE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_ECE_AFTER_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_METHOD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ece_before: float
    ece_after: float
    samples: int
    method: str
    sentence_ece_before: float
    sentence_ece_after: float
    sentence_method: str
    data: str
    def __init__(self, ece_before: _Optional[float] = ..., ece_after: _Optional[float] = ..., samples: _Optional[int] = ..., method: _Optional[str] = ..., sentence_ece_before: _Optional[float] = ..., sentence_ece_after: _Optional[float] = ..., sentence_method: _Optional[str] = ..., data: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "task", "architecture", "limits", "vocab_size", "precision", "execution_provider", "parity", "lineage", "bundle_sha256", "format_version", "has_alignment", "alignment_layers", "alignment_heads", "has_shortlist", "quantization", "languages", "source_languages", "target_languages", "draft_tokens", "labels", "embedding_size", "mask_token", "multi_label", "has_pooler", "attention", "engines", "engine_processes", "version", "is_default", "calibration", "token_labels", "context_sentences", "splits_sentences", "pooling", "embeddings_normalized", "has_chat_template", "prompts", "default_prompt_name", "translation_template", "source_vocab_size", "keeps_answers", "answers_not_kept")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_PROVIDER_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    HAS_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_HEADS_FIELD_NUMBER: _ClassVar[int]
    HAS_SHORTLIST_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_SIZE_FIELD_NUMBER: _ClassVar[int]
    MASK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MULTI_LABEL_FIELD_NUMBER: _ClassVar[int]
    HAS_POOLER_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_LABELS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    SPLITS_SENTENCES_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_NORMALIZED_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSLATION_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    KEEPS_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_NOT_KEPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    task: Task
    architecture: str
    limits: Limits
    vocab_size: int
    precision: str
    execution_provider: ExecutionProvider
    parity: Parity
    lineage: Lineage
    bundle_sha256: str
    format_version: int
    has_alignment: bool
    alignment_layers: int
    alignment_heads: int
    has_shortlist: bool
    quantization: Quantization
    languages: _containers.RepeatedScalarFieldContainer[str]
    source_languages: _containers.RepeatedScalarFieldContainer[str]
    target_languages: _containers.RepeatedScalarFieldContainer[str]
    draft_tokens: int
    labels: _containers.RepeatedScalarFieldContainer[str]
    embedding_size: int
    mask_token: str
    multi_label: bool
    has_pooler: bool
    attention: _containers.RepeatedCompositeFieldContainer[AttentionLayers]
    engines: int
    engine_processes: int
    version: str
    is_default: bool
    calibration: Calibration
    token_labels: _containers.RepeatedScalarFieldContainer[str]
    context_sentences: int
    splits_sentences: bool
    pooling: Pooling
    embeddings_normalized: bool
    has_chat_template: bool
    prompts: _containers.ScalarMap[str, str]
    default_prompt_name: str
    translation_template: str
    source_vocab_size: int
    keeps_answers: bool
    answers_not_kept: str
    def __init__(self, name: _Optional[str] = ..., task: _Optional[_Union[Task, str]] = ..., architecture: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., vocab_size: _Optional[int] = ..., precision: _Optional[str] = ..., execution_provider: _Optional[_Union[ExecutionProvider, _Mapping]] = ..., parity: _Optional[_Union[Parity, _Mapping]] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., bundle_sha256: _Optional[str] = ..., format_version: _Optional[int] = ..., has_alignment: bool = ..., alignment_layers: _Optional[int] = ..., alignment_heads: _Optional[int] = ..., has_shortlist: bool = ..., quantization: _Optional[_Union[Quantization, _Mapping]] = ..., languages: _Optional[_Iterable[str]] = ..., source_languages: _Optional[_Iterable[str]] = ..., target_languages: _Optional[_Iterable[str]] = ..., draft_tokens: _Optional[int] = ..., labels: _Optional[_Iterable[str]] = ..., embedding_size: _Optional[int] = ..., mask_token: _Optional[str] = ..., multi_label: bool = ..., has_pooler: bool = ..., attention: _Optional[_Iterable[_Union[AttentionLayers, _Mapping]]] = ..., engines: _Optional[int] = ..., engine_processes: _Optional[int] = ..., version: _Optional[str] = ..., is_default: bool = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., token_labels: _Optional[_Iterable[str]] = ..., context_sentences: _Optional[int] = ..., splits_sentences: bool = ..., pooling: _Optional[_Union[Pooling, str]] = ..., embeddings_normalized: bool = ..., has_chat_template: bool = ..., prompts: _Optional[_Mapping[str, str]] = ..., default_prompt_name: _Optional[str] = ..., translation_template: _Optional[str] = ..., source_vocab_size: _Optional[int] = ..., keeps_answers: bool = ..., answers_not_kept: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class AttentionLayers(_message.Message):
    __slots__ = ("kind", "layers", "heads")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    kind: AttentionKind
    layers: int
    heads: int
    def __init__(self, kind: _Optional[_Union[AttentionKind, str]] = ..., layers: _Optional[int] = ..., heads: _Optional[int] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("model", "text", "target", "target_tokens", "text_only", "max_tokens", "kinds", "layers", "heads", "mean_heads", "mean_layers", "source_language", "target_language")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_ONLY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    MEAN_HEADS_FIELD_NUMBER: _ClassVar[int]
    MEAN_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    target: str
    target_tokens: _containers.RepeatedScalarFieldContainer[int]
    text_only: bool
    max_tokens: int
    kinds: _containers.RepeatedScalarFieldContainer[AttentionKind]
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    mean_heads: bool
    mean_layers: bool
    source_language: str
    target_language: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., target: _Optional[str] = ..., target_tokens: _Optional[_Iterable[int]] = ..., text_only: bool = ..., max_tokens: _Optional[int] = ..., kinds: _Optional[_Iterable[_Union[AttentionKind, str]]] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., mean_heads: bool = ..., mean_layers: bool = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ...) -> None: ...

class AttentionToken(_message.Message):
    __slots__ = ("token", "text", "span")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    span: Span
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class AttentionMatrix(_message.Message):
    __slots__ = ("kind", "layer", "head", "weights")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    kind: AttentionKind
    layer: int
    head: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, kind: _Optional[_Union[AttentionKind, str]] = ..., layer: _Optional[int] = ..., head: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("source", "target", "predicted", "target_text", "finish_reason", "matrices", "usage", "timings")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FIELD_NUMBER: _ClassVar[int]
    TARGET_TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    MATRICES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    source: _containers.RepeatedCompositeFieldContainer[AttentionToken]
    target: _containers.RepeatedCompositeFieldContainer[AttentionToken]
    predicted: _containers.RepeatedCompositeFieldContainer[AttentionToken]
    target_text: str
    finish_reason: FinishReason
    matrices: _containers.RepeatedCompositeFieldContainer[AttentionMatrix]
    usage: Usage
    timings: Timings
    def __init__(self, source: _Optional[_Iterable[_Union[AttentionToken, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[AttentionToken, _Mapping]]] = ..., predicted: _Optional[_Iterable[_Union[AttentionToken, _Mapping]]] = ..., target_text: _Optional[str] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., matrices: _Optional[_Iterable[_Union[AttentionMatrix, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("model", "texts", "source_language", "target_language", "messages", "chat", "prompt_name")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    source_language: str
    target_language: str
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    chat: ChatOptions
    prompt_name: str
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., chat: _Optional[_Union[ChatOptions, _Mapping]] = ..., prompt_name: _Optional[str] = ...) -> None: ...

class TokenCount(_message.Message):
    __slots__ = ("tokens", "exceeds_limit", "unknown_words")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXCEEDS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_WORDS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    exceeds_limit: bool
    unknown_words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tokens: _Optional[int] = ..., exceeds_limit: bool = ..., unknown_words: _Optional[_Iterable[str]] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("counts", "max_prompt_tokens")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[TokenCount]
    max_prompt_tokens: int
    def __init__(self, counts: _Optional[_Iterable[_Union[TokenCount, _Mapping]]] = ..., max_prompt_tokens: _Optional[int] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "target", "source_language", "target_language", "add_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    target: str
    source_language: str
    target_language: str
    add_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., target: _Optional[str] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., add_special_tokens: bool = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("token", "text", "span", "is_special")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    IS_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: str
    span: Span
    is_special: bool
    def __init__(self, token: _Optional[int] = ..., text: _Optional[str] = ..., span: _Optional[_Union[Span, _Mapping]] = ..., is_special: bool = ...) -> None: ...

class TokenLimits(_message.Message):
    __slots__ = ("max_prompt_tokens", "max_text_bytes", "max_new_tokens")
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_prompt_tokens: int
    max_text_bytes: int
    max_new_tokens: int
    def __init__(self, max_prompt_tokens: _Optional[int] = ..., max_text_bytes: _Optional[int] = ..., max_new_tokens: _Optional[int] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("tokens", "limits", "count", "exceeds_limit", "unknown_words")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EXCEEDS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_WORDS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    limits: TokenLimits
    count: int
    exceeds_limit: bool
    unknown_words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., limits: _Optional[_Union[TokenLimits, _Mapping]] = ..., count: _Optional[int] = ..., exceeds_limit: bool = ..., unknown_words: _Optional[_Iterable[str]] = ...) -> None: ...

class DetectLanguageRequest(_message.Message):
    __slots__ = ("texts", "languages", "max_results")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESULTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    languages: _containers.RepeatedScalarFieldContainer[str]
    max_results: int
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., languages: _Optional[_Iterable[str]] = ..., max_results: _Optional[int] = ...) -> None: ...

class LanguageDetection(_message.Message):
    __slots__ = ("languages",)
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    languages: _containers.RepeatedCompositeFieldContainer[DetectedLanguage]
    def __init__(self, languages: _Optional[_Iterable[_Union[DetectedLanguage, _Mapping]]] = ...) -> None: ...

class DetectLanguageResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LanguageDetection]
    def __init__(self, results: _Optional[_Iterable[_Union[LanguageDetection, _Mapping]]] = ...) -> None: ...

class ListLanguagePairsRequest(_message.Message):
    __slots__ = ("source_language", "target_language", "include_pivots")
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PIVOTS_FIELD_NUMBER: _ClassVar[int]
    source_language: str
    target_language: str
    include_pivots: bool
    def __init__(self, source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., include_pivots: bool = ...) -> None: ...

class LanguagePair(_message.Message):
    __slots__ = ("source_language", "target_language", "models", "pivot_languages")
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PIVOT_LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    source_language: str
    target_language: str
    models: _containers.RepeatedScalarFieldContainer[str]
    pivot_languages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, source_language: _Optional[str] = ..., target_language: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., pivot_languages: _Optional[_Iterable[str]] = ...) -> None: ...

class ListLanguagePairsResponse(_message.Message):
    __slots__ = ("pairs",)
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[LanguagePair]
    def __init__(self, pairs: _Optional[_Iterable[_Union[LanguagePair, _Mapping]]] = ...) -> None: ...
