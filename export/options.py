"""Export options, and the checks that reject invalid combinations of options and models before tracing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from export.bundle.target_shortlist import Shortlist
from export.calibration import MAX_SAMPLES, MIN_SAMPLES
from export.export_errors import ExportError
from export.graphs.group_query_attention import HEAD_DIM_MULTIPLE
from export.passes.quantization_scheme import SCHEMES, Precision
from export.texts import Development
from model.architecture_config import EncoderDecoderConfig, SourceUnit
from model.architectures import Model
from model.config import DEFAULT_LANGUAGES, LanguagePair, ModelConfig
from model.tokenizer import Tokenizer

# Candidates when the options name no scheme, those that are faster with many rows first. 8-bit blocks are for one to
# four rows; with larger 4-bit blocks, results depend on the batch.
AUTOMATIC: Mapping[Precision, tuple[str, ...]] = {
    "int8": ("w8a8-static-kv8", "w8a8-static", "w8a8-dynamic-kv8", "w8a8-dynamic"),
    "int4": ("w4-block32",),
    "w4a16": ("w4a16-block32",),
}


Tell = Callable[[str, int, int], object]
"""Called with what is being done, and with how much of how much is done; 0 of 0 if that is unknown."""


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """Selection of the quantization schemes.

    scheme: a name in `export.passes.quantization_scheme.SCHEMES`, or "auto" for the first of `AUTOMATIC` that is good
    enough.
    development: text on which schemes are compared; None if there is none.
    calibration: pairs of source and target text, the source empty for models without one; if empty, the development
    text is used.
    max_loss: see `export.select_scheme.select_scheme`.
    """

    scheme: str = "auto"
    development: Development | None = None
    calibration: Sequence[tuple[str, str]] = ()
    max_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The variants and further graphs to export of a model.

    precisions: one variant of each; CUDA requires fp16 or w4a16. quantization: the selection of the schemes.
    fp16_if_possible: also fp16, unless the model overflows there or its verification fails for another reason. The
    report then says why, and the other variants are exported. So it does of a quantized precision without a scheme that
    is good enough, if there is one beside it that is not quantized.
    texts: sentences similar to the training data, for verification.
    attention: also export a graph that returns every attention weight of a pass and, for models with a source, a graph
    that returns the cross-attention of a finished target.
    parallel: pairs of source and target text from which to learn a shortlist; empty: none is learned.
    shortlist: one that is known already, unless one is learned; None: there is none.
    confidence: sentences with references by which to calibrate confidence; None: answers have no confidence.
    confidence_samples: most of them that are answered.
    source_unit: of a translation, what the model reads at a time; None: what the checkpoint says.
    languages: the two of a translation where requests need not name them; "": what the checkpoint says.
    tell: gets what is being done, and how much of how much of it is done, 0 of 0 if that is unknown.
    """

    precisions: Sequence[Precision] = ("fp32",)
    fp16_if_possible: bool = False
    quantization: QuantizationOptions = QuantizationOptions()
    texts: Sequence[str] = ()
    attention: bool = False
    parallel: Sequence[tuple[str, str]] = ()
    shortlist: Shortlist | None = field(default=None, repr=False)
    confidence: Development | None = None
    confidence_samples: int = MAX_SAMPLES
    source_unit: SourceUnit | None = None
    languages: LanguagePair = DEFAULT_LANGUAGES
    tell: Tell = field(default=lambda *_: None, repr=False, compare=False)

    @property
    def has_shortlist(self) -> bool:
        """Whether the bundle gets one."""
        return bool(self.parallel) or self.shortlist is not None

    @property
    def quantized(self) -> list[Precision]:
        """Precisions whose schemes are compared on development text."""
        return [precision for precision in self.precisions if precision in AUTOMATIC]

    @property
    def optional(self) -> list[Precision]:
        """Precisions without which the others are exported."""
        has_plain = len(self.quantized) < len(self.precisions)
        optional = self.quantized if has_plain else []
        return [*optional, "fp16"] if self.fp16_if_possible else optional

    def with_development(self, development: Development | None) -> ExportOptions:
        """Return these options with development text, unless they have some."""
        quantization = self.quantization
        quantization = replace(quantization, development=quantization.development or development)
        return replace(self, quantization=quantization)


DEFAULTS = ExportOptions()


def check_exportable(model: Model, tokenizer: Tokenizer) -> None:
    """Reject models that the operators or the service cannot run. Raises ExportError."""
    config = model.config
    if config.is_recurrent:
        name, size, others = "encoder_dim", config.source_dim, "encoder_dim or d_model"
    else:
        name, size, others = "head_dim", config.attention_head_dim, "d_model, num_heads or head_dim"
    has_attention = config.has_decoder and not (config.is_recurrent and config.score == "none")
    if has_attention and size % HEAD_DIM_MULTIPLE:
        raise ExportError(
            f"{name}: must be a multiple of {HEAD_DIM_MULTIPLE} for ONNX Runtime's GroupQueryAttention, got {size}; "
            f"train with another {others}"
        )
    if tokenizer.has_two_vocabularies != bool(config.source_vocab_size):
        ours, theirs = ("one vocabulary", "two") if tokenizer.has_two_vocabularies else ("two vocabularies", "one")
        raise ExportError(f"source_vocab_size: the model has {ours}, its tokenizer {theirs}")
    if tokenizer.target.vocab_size > config.vocab_size:
        raise ExportError(f"vocab_size: the model has {config.vocab_size}, its tokenizer {tokenizer.target.vocab_size}")
    if config.source_vocab_size and tokenizer.vocab_size > config.source_vocab_size:
        sizes = f"the model has {config.source_vocab_size}, its tokenizer {tokenizer.vocab_size}"
        raise ExportError(f"source_vocab_size: {sizes}")
    if model.training:
        raise ExportError("the model is in training mode; call model.eval() first")


def check_options(config: ModelConfig, options: ExportOptions) -> None:
    """Reject options that are inconsistent or that a model of this kind does not support. Raises ExportError."""
    precisions, name = options.precisions, options.quantization.scheme
    if not precisions or len(set(precisions)) != len(precisions):
        raise ExportError(f"precision: must be one or several different ones, got {', '.join(precisions) or 'none'}")
    if options.fp16_if_possible and "fp16" in precisions:
        raise ExportError("fp16_if_possible: fp16 is among the precisions already; fix: take it away from one of them")
    scheme = SCHEMES.get(name)
    if name != "auto" and (scheme is None or not scheme.is_quantized):
        known = [name for name, scheme in SCHEMES.items() if scheme.is_quantized]
        raise ExportError(f"scheme: must be auto, {' or '.join(known)}, got {name}")
    if scheme is not None and scheme.precision not in precisions:
        raise ExportError(
            f"scheme: {name} is one of {scheme.precision}, which is not among the precisions "
            f"{', '.join(precisions)}; fix: add {scheme.precision}"
        )
    is_for_encoders = scheme is None or (scheme.activations != "block" and not scheme.has_int8_cache)
    if not config.has_decoder and ("int4" in precisions or not is_for_encoders):
        raise ExportError(
            "precision int4, and schemes with blocks or int8 caches, are of decoders; export an encoder with fp32, "
            "fp16, or int8 in scheme w8a8-dynamic or w8a8-static"
        )
    if scheme is not None and scheme.has_int8_cache and (problem := int8_cache_problem(config)):
        raise ExportError(f"scheme: {name} keeps int8 keys and values, {problem}; take {name[:-4]}")
    if options.attention and config.compression_stride:
        raise ExportError(
            "attention: not of a model with compression, whose layers see keys of several tokens; export it without"
        )
    if options.parallel and not (config.has_encoder and config.has_decoder):
        raise ExportError("shortlist: only models that translate have it; export this one without shortlist")
    if options.parallel and isinstance(config, EncoderDecoderConfig) and config.ensemble_size > 1:
        raise ExportError(
            "shortlist: not of an ensemble, whose members each have a product with the vocabulary; "
            "export it without shortlist"
        )
    if options.source_unit and not (config.has_encoder and config.has_decoder):
        raise ExportError("source_unit: only models that translate have it; export this one without --source-unit")
    if any(options.languages) and not (config.has_encoder and config.has_decoder):
        raise ExportError("languages: only models that translate have them; export this one without --source-language")
    if options.confidence and not (config.has_encoder and config.has_decoder):
        raise ExportError("confidence: only models that translate have it; export this one without --calibrate")
    if options.confidence and options.confidence_samples < MIN_SAMPLES:
        raise ExportError(f"confidence_samples: must be at least {MIN_SAMPLES}, got {options.confidence_samples}")
    if options.attention and config.is_recurrent and config.score == "none":
        raise ExportError("attention: a recurrent model without a score has none; export it without attention")
    if options.attention and not config.num_encoder_layers + config.num_decoder_layers:
        raise ExportError("attention: a model without layers has none but token weights; export it without attention")
    if options.quantized and options.quantization.development is None:
        raise ExportError(
            f"{' and '.join(options.quantized)}: there is no text to measure on what rounding costs; "
            "fix: give development text, --development FILE"
        )


def scheme_names(precision: Precision, scheme: str, config: ModelConfig) -> tuple[str, ...]:
    """Return the schemes of a precision to measure: only the named scheme, if it belongs to this precision."""
    if scheme in SCHEMES and SCHEMES[scheme].precision == precision:
        return (scheme,)
    has_problem = bool(int8_cache_problem(config))
    return tuple(name for name in AUTOMATIC[precision] if not (has_problem and SCHEMES[name].has_int8_cache))


def int8_cache_problem(config: ModelConfig) -> str:
    """Return the reason why a model's keys and values cannot be kept in int8; "" if they can.

    Calibration observes keys and values at the output of their product, and some models change them afterwards.
    """
    if config.is_recurrent or not config.has_decoder:
        kind = "a recurrent model" if config.is_recurrent else "an encoder-only model"
        return f"and {kind} has none"
    if config.carries_states:
        return "and a decoder with recurrent layers has none of its own tokens"
    if config.compression_stride:
        return "and those of a model with compression are made of several tokens"
    if config.qk_norm:
        return "and those of a model with qk_norm have another range after the norm"
    if config.positions == "rotary" and config.rotary_dims:
        return "and of those of a model with rotary_dims only a part turns"
    return ""
