"""How an answer is chosen (`DecodingOptions`): every option with its meaning, its default, and who else calls it so.

One flat, frozen dataclass whose field names are those of the message `glossa.v1.DecodingOptions`. What cannot be used
is refused here, in one place, before any work is done; what depends on a model (its limits, its tokenizer, its bundle)
is refused by `service.edge.catalog`. Nothing here decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from service.errors import InvalidRequest

LengthNormalization = Literal["average", "gnmt"]
EarlyStopping = Literal["true", "false", "never"]
AlignmentKind = Literal["none", "soft", "hard", "both"]
GrammarKind = Literal["regex", "json_schema", "lark"]


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Defaults are greedy search without constraints."""

    # where the answer ends
    max_tokens: int = 0  # new tokens, end token included; 0: the model's own limit
    min_tokens: int = 0  # no end token before so many other ones
    max_length_ratio: float = 0.0  # at most so many new tokens per source token; 0: no such limit
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False  # the end token is never chosen: the answer has max_tokens
    echo: bool = False  # the answer's text begins with the prompt; generation only

    # beam search
    beam_size: int = 1
    num_hypotheses: int = 1  # how many answers: the best of the beam, or the alternatives at a position
    length_penalty: float = 1.0
    length_normalization: LengthNormalization = "average"
    coverage_penalty: float = 0.0
    patience: float = 1.0
    early_stopping: EarlyStopping = "true"
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0

    # sampling: on when any of these is given
    temperature: float | None = None  # 1 when another sampling option is given; 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None  # 0 .. 2**64 - 1
    num_sequences: int = 1

    # penalties
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()  # texts that must not appear in the answer

    # constraints
    prefix: str = ""  # the answer begins so
    prefix_tokens: tuple[int, ...] = ()  # the same as ids
    prefix_bias: float = 0.0  # 0: the prefix is forced; between 0 and 1: preferred with this weight
    return_alternatives: bool = False  # num_hypotheses different next tokens after the prefix, each continued
    min_alternative_probability: float = 0.0
    allowed_tokens: tuple[int, ...] = ()  # nothing else, but the end token
    use_shortlist: bool = False  # only what the bundle's shortlist lists for the source, and a prefix
    phrases: tuple[str, ...] = ()  # texts that must appear in the answer
    ordered_phrases: bool = False
    regex: str = ""
    json_schema: str = ""
    lark: str = ""

    # what is told beside the text
    token_logprobs: bool = False
    top_logprobs: int = 0  # alternatives at each position
    alignment: AlignmentKind = "none"
    alignment_layer: int = 0  # from 1; 0: the bundle's own choice
    alignment_heads: tuple[int, ...] = ()  # from 1; none: the mean of all

    @property
    def is_sampling(self) -> bool:
        given = (self.top_k, self.top_p != 1.0, self.min_p, self.typical_p != 1.0, self.num_sequences != 1)
        return self.temperature != 0 and (self.temperature is not None or self.seed is not None or any(given))

    @property
    def returns_hypotheses(self) -> bool:
        """Whether an answer's text and tokens are not all that is asked for: it comes with its scores then."""
        is_more = self.num_hypotheses > 1 or self.num_sequences > 1 or self.return_alternatives
        return is_more or self.token_logprobs or self.top_logprobs > 0 or self.alignment != "none"

    @property
    def width(self) -> int:
        """Hypotheses that are extended at once, each in a row."""
        return max(self.beam_size, self.num_sequences, self.num_hypotheses)

    @property
    def places(self) -> int:
        """Finished hypotheses that a beam keeps, those of all its groups."""
        return self.num_beam_groups * max(1, round(self.beam_size // self.num_beam_groups * self.patience))

    @property
    def grammars(self) -> list[tuple[GrammarKind, str]]:
        """Those given, one at most in options that were checked."""
        texts: dict[GrammarKind, str] = {"regex": self.regex, "json_schema": self.json_schema, "lark": self.lark}
        return [(kind, text) for kind, text in texts.items() if text]


MAX_WIDTH = 32  # hypotheses of one request
MAX_LOGIT_BIAS = 1024  # entries
MAX_BANNED = 64  # texts
MAX_PHRASES = 16  # texts; every one of them asks for its part of the beam
MAX_PHRASE_BYTES = 256  # of one banned or wanted text
# Compilation takes time with the square of the text, and stack with the length of the longest chain of rules.
MAX_GRAMMAR_BYTES: Mapping[GrammarKind, int] = {"regex": 2048, "json_schema": 1 << 15, "lark": 4096}
MAX_TOKEN_LIST = 1 << 16  # ids; more than the vocabularies served here
INT32_MAX = 2**31 - 1


class Range(NamedTuple):
    """What a number may be. NaN and infinity are in no range."""

    low: float
    high: float
    above_low: bool = False  # low itself is not allowed
    below_high: bool = False  # high itself is not allowed

    def has(self, value: float) -> bool:
        return (
            self.low <= value <= self.high
            and not (self.above_low and value == self.low)
            and not (self.below_high and value == self.high)
        )

    def __str__(self) -> str:
        if self.high == INT32_MAX:
            return f"at least {self.low:g}"
        if not (self.above_low or self.below_high):
            return f"{self.low:g}..{self.high:g}"
        low = f"above {self.low:g}" if self.above_low else f"at least {self.low:g}"
        return f"{low} and {'below' if self.below_high else 'at most'} {self.high:g}"


RANGES: Mapping[str, Range] = {
    "max_tokens": Range(0, INT32_MAX),
    "min_tokens": Range(0, INT32_MAX),
    "max_length_ratio": Range(0, 100),
    "beam_size": Range(1, MAX_WIDTH),
    "num_hypotheses": Range(1, MAX_WIDTH),
    "length_penalty": Range(-10, 10),
    "coverage_penalty": Range(0, 100),
    "patience": Range(0, 10, above_low=True),
    "num_beam_groups": Range(1, MAX_WIDTH),
    "diversity_penalty": Range(0, 100),
    "temperature": Range(0, 100),
    "top_k": Range(0, INT32_MAX),
    "top_p": Range(0, 1, above_low=True),
    "min_p": Range(0, 1, below_high=True),
    "typical_p": Range(0, 1, above_low=True),
    "num_sequences": Range(1, MAX_WIDTH),
    "repetition_penalty": Range(0.1, 10),
    "presence_penalty": Range(-10, 10),
    "frequency_penalty": Range(-10, 10),
    "no_repeat_ngram_size": Range(0, 64),
    "prefix_bias": Range(0, 1, below_high=True),
    "min_alternative_probability": Range(0, 1, below_high=True),
    "top_logprobs": Range(0, 20),
    "alignment_layer": Range(0, INT32_MAX),
}
LEAST_TEMPERATURE = 0.01  # below it but not 0: logits that no float32 holds
BIAS = Range(-100, 100)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "length_normalization": get_args(LengthNormalization),
    "early_stopping": get_args(EarlyStopping),
    "alignment": get_args(AlignmentKind),
}
OF_BEAMS = (  # without a beam they would change nothing, so they are a mistake
    *("length_penalty", "length_normalization", "coverage_penalty", "patience"),
    *("early_stopping", "num_beam_groups", "diversity_penalty"),
)
OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "num_sequences")
OF_SCORES = (  # what a given target can be asked about
    *("length_penalty", "length_normalization", "coverage_penalty", "token_logprobs", "top_logprobs"),
    *("alignment", "alignment_layer", "alignment_heads"),
)
DEFAULTS = DecodingOptions()


def check(options: DecodingOptions) -> None:
    """Raises InvalidRequest for what is out of range or contradicts itself, whatever the model."""
    if options is DEFAULTS:  # most requests
        return
    changed = _changed(options)
    _check_values(options, changed)
    _check_beam(options, changed)
    _check_sampling(options, changed)
    _check_constraints(options)
    _check_told(options)


def check_scoring(options: DecodingOptions) -> None:
    """The same for a target that is given, of which only the score can be chosen."""
    changed = _changed(options)
    for name in changed:
        if name not in OF_SCORES:
            raise _refused(name, "must be left out: a target that is given is not searched for")
    _check_values(options, changed)
    _check_told(options)


def _refused(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"options.{name}", problem)


def _changed(options: DecodingOptions) -> list[str]:
    """Names of the options that are not at their defaults."""
    defaults = vars(DEFAULTS)
    return [name for name, value in vars(options).items() if value != defaults[name]]


def _check_values(options: DecodingOptions, changed: Iterable[str]) -> None:
    """Each option by itself."""
    for name in changed:
        allowed, value = RANGES.get(name), getattr(options, name)
        if allowed is not None and value is not None and not allowed.has(value):
            raise _refused(name, f"must be {allowed}, got {_shown(value)}")
    if options.temperature is not None and 0 < options.temperature < LEAST_TEMPERATURE:
        raise _refused("temperature", f"must be 0 or {LEAST_TEMPERATURE:g}..100, got {options.temperature:g}")
    if options.seed is not None and not 0 <= options.seed < 2**64:
        raise _refused("seed", f"must be 0..{2**64 - 1}, got {options.seed}")
    for name, choices in CHOICES.items():
        if getattr(options, name) not in choices:
            raise _refused(name, f"must be one of {', '.join(choices)}, got {getattr(options, name)}")
    if len(options.logit_bias) > MAX_LOGIT_BIAS:
        raise _refused("logit_bias", f"must be at most {MAX_LOGIT_BIAS} tokens, got {len(options.logit_bias)}")
    for token, bias in options.logit_bias.items():
        if not BIAS.has(bias):
            raise _refused(f"logit_bias[{token}]", f"must be {BIAS}, got {bias:g}")
    for name in ("prefix_tokens", "allowed_tokens", "alignment_heads"):
        if len(getattr(options, name)) > MAX_TOKEN_LIST:
            raise _refused(name, f"must be at most {MAX_TOKEN_LIST} numbers, got {len(getattr(options, name))}")
    _check_texts("bad_words", options.bad_words, MAX_BANNED)
    _check_texts("phrases", options.phrases, MAX_PHRASES)
    for kind, text in options.grammars:
        if (size := len(text.encode())) > MAX_GRAMMAR_BYTES[kind]:
            raise _refused(kind, f"must be at most {MAX_GRAMMAR_BYTES[kind]} bytes, got {size}")


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_texts(name: str, texts: tuple[str, ...], most: int) -> None:
    if len(texts) > most:
        raise _refused(name, f"must be at most {most} texts, got {len(texts)}")
    for place, text in enumerate(texts):
        if not text.strip():
            raise _refused(f"{name}[{place}]", "must not be empty or blank")
        if (size := len(text.encode())) > MAX_PHRASE_BYTES:
            raise _refused(f"{name}[{place}]", f"must be 1..{MAX_PHRASE_BYTES} bytes, got {size}")


def _check_beam(options: DecodingOptions, changed: Iterable[str]) -> None:
    if 0 < options.max_tokens < options.min_tokens:
        raise _refused("min_tokens", f"must be 0..{options.max_tokens}, as max_tokens is, got {options.min_tokens}")
    if options.beam_size == 1:
        for name in changed:
            if name in OF_BEAMS:
                raise _refused(
                    name, f"must be left out without a beam, got {_shown(getattr(options, name))}; set beam_size"
                )
        if options.num_hypotheses > 1 and not options.return_alternatives:
            fix = (
                "num_sequences samples several answers"
                if options.is_sampling
                else "set beam_size, or return_alternatives"
            )
            raise _refused("num_hypotheses", f"must be at most beam_size 1, got {options.num_hypotheses}; {fix}")
        return
    for name in changed:
        value = getattr(options, name)
        if name in OF_SAMPLING and not (name == "temperature" and value == 0):
            raise _refused(
                name,
                f"must be left out with beam_size {options.beam_size}: a beam draws no tokens, got {_shown(value)}",
            )
    if options.num_hypotheses > options.beam_size:
        raise _refused(
            "num_hypotheses",
            f"must be at most beam_size {options.beam_size}, got {options.num_hypotheses}; raise beam_size",
        )
    if options.beam_size % options.num_beam_groups:
        raise _refused("num_beam_groups", f"must divide beam_size {options.beam_size}, got {options.num_beam_groups}")
    if options.num_hypotheses > options.places:
        raise _refused(
            "num_hypotheses",
            f"must be at most {options.places}, which patience {options.patience:g} keeps of a beam, "
            f"got {options.num_hypotheses}; raise patience",
        )
    if options.diversity_penalty and options.num_beam_groups == 1:
        raise _refused(
            "diversity_penalty", f"must be 0 with one group, got {options.diversity_penalty:g}; set num_beam_groups"
        )
    if options.num_beam_groups > 1 and not options.diversity_penalty:
        raise _refused(
            "num_beam_groups",
            f"must be 1 without diversity_penalty, got {options.num_beam_groups}: all groups would be the same",
        )


def _check_sampling(options: DecodingOptions, changed: Iterable[str]) -> None:
    if options.temperature == 0:
        for name in changed:
            if name in OF_SAMPLING and name != "temperature":
                raise _refused(
                    name,
                    "must be left out with temperature 0: nothing is sampled then, "
                    f"got {_shown(getattr(options, name))}",
                )
    if options.return_alternatives:
        if options.beam_size > 1:
            raise _refused(
                "return_alternatives", f"must be false with a beam, got true with beam_size {options.beam_size}"
            )
        if options.is_sampling:
            raise _refused("return_alternatives", "must be false when sampling, got true: each goes on greedily")
        if options.num_hypotheses == 1:
            raise _refused("num_hypotheses", "must be at least 2 with return_alternatives, got 1: so many are returned")
        if options.prefix_bias:
            raise _refused(
                "return_alternatives", "must be false with prefix_bias, got true: they stand behind a prefix"
            )
    elif options.min_alternative_probability:
        raise _refused(
            "min_alternative_probability",
            f"must be 0 without return_alternatives, got {options.min_alternative_probability:g}",
        )


def _check_constraints(options: DecodingOptions) -> None:
    if options.prefix and options.prefix_tokens:
        raise _refused("prefix_tokens", "must be empty with prefix: both say how the answer begins; leave one out")
    if options.prefix_bias and not (options.prefix or options.prefix_tokens):
        raise _refused("prefix_bias", f"must be 0 without prefix or prefix_tokens, got {options.prefix_bias:g}")
    if len(options.grammars) > 1:
        (first, _), (second, _), *_ = options.grammars
        raise _refused(second, f"must be empty with {first}: an answer has one grammar; leave one out")
    if options.phrases and (options.is_sampling or options.return_alternatives):
        other = "return_alternatives" if options.return_alternatives else "sampling"
        raise _refused("phrases", f"must be empty with {other}: only a beam makes room for them; set beam_size")
    if options.ordered_phrases and not options.phrases:
        raise _refused("ordered_phrases", "must be false without phrases, got true")
    wanted = {f"phrases[{place}]": phrase for place, phrase in enumerate(options.phrases)}
    if not options.prefix_bias:
        wanted["prefix"] = options.prefix
    for field_name, text in wanted.items():
        for name in ("bad_words", "stop"):
            for kept_out in getattr(options, name):
                if kept_out in text:
                    raise _refused(field_name, f"must not contain {kept_out!r}, which {name} keeps out")


def _check_told(options: DecodingOptions) -> None:
    if options.alignment == "none":
        for name in ("alignment_layer", "alignment_heads"):
            if getattr(options, name):
                raise _refused(name, f"must be left out without alignment, got {getattr(options, name)}; set alignment")
    seen = set[int]()
    for place, head in enumerate(options.alignment_heads):
        if head < 1:
            raise _refused(f"alignment_heads[{place}]", f"must be at least 1, got {head}")
        if head in seen:
            raise _refused(f"alignment_heads[{place}]", f"must be another head than those before it, got {head} again")
        seen.add(head)
