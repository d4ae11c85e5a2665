"""How an answer is chosen (`DecodingOptions`): every option with its meaning, its default, and who else calls it so.

One flat, frozen dataclass whose field names are those of the message `glossa.v1.DecodingOptions`. What cannot be used
is refused here, in one place, before any work is done; what depends on a model (its limits, its tokenizer, its bundle)
is refused by `service.catalog`. Nothing here decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LengthNormalization = Literal["average", "gnmt"]
EarlyStopping = Literal["true", "false", "never"]
AlignmentKind = Literal["none", "soft", "hard", "both"]


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
    no_repeat_ngram: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: tuple[str, ...] = ()  # texts that must not appear in the answer

    # constraints
    prefix: str = ""  # the answer begins so
    prefix_tokens: tuple[int, ...] = ()  # the same as ids
    prefix_bias: float = 0.0  # 0: the prefix is forced; between 0 and 1: preferred with this weight
    return_alternatives: bool = False  # num_hypotheses different next tokens after the prefix, each continued
    min_alternative_probability: float = 0.0
    allowed_tokens: tuple[int, ...] = ()  # nothing else, but the end token
    use_shortlist: bool = False  # only what the bundle's shortlist lists for the source
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
    def width(self) -> int:
        """Hypotheses that are extended at once, each in a row."""
        return max(self.beam_size, self.num_sequences, self.num_hypotheses)
