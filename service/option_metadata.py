"""What is known of a decoding option besides its name, type and default (`Option`): range, meaning, names at the peers.

`service.options` is the list of all options. The client's types, the flags of the command line and the tables of
docs/decoding.md are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

INT32_MAX = 2**31 - 1

Group = Literal["length", "beam", "sampling", "penalties", "constraints", "output"]
TITLES: Mapping[Group, str] = {
    "length": "Length and stopping",
    "beam": "Beam search",
    "sampling": "Sampling",
    "penalties": "Penalties and bans",
    "constraints": "Constraints",
    "output": "Additional output",
}


class Range(NamedTuple):
    """The numbers that an option accepts. NaN and infinity are in no range."""

    low: float
    high: float
    above_low: bool = False  # low itself is not allowed
    below_high: bool = False  # high itself is not allowed
    or_zero: bool = False  # 0 is allowed although it lies outside

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, int | float)
        if self.or_zero and value == 0:
            return True
        return (self.low < value if self.above_low else self.low <= value) and (
            value < self.high if self.below_high else value <= self.high
        )

    def __str__(self) -> str:
        if self.high == INT32_MAX:
            return f"at least {self.low}"
        if self.above_low or self.below_high:
            low = f"above {self.low}" if self.above_low else f"at least {self.low}"
            return f"{low} and {'below' if self.below_high else 'at most'} {self.high}"
        return f"{'0 or ' if self.or_zero else ''}{self.low}..{self.high}"


class Peers(NamedTuple):
    """What other systems call an option; empty: they have nothing like it."""

    hf: str = ""  # GenerationConfig of Hugging Face Transformers
    ct2: str = ""  # translate_batch of CTranslate2
    vllm: str = ""  # SamplingParams, for beams BeamSearchParams
    fairseq: str = ""  # flags of fairseq-generate


NO_PEERS = Peers()


@dataclass(frozen=True, kw_only=True)
class Option:
    """Metadata of one decoding option.

    help: its meaning, without the range and the default. default: None: without the option, something else decides.
    range: of a number, or of each value of a mapping. max_items: of a list or mapping. max_bytes: UTF-8 bytes of a
        text, or of each text of a list.
    limits: in words, what is checked elsewhere. unset: in words, what the default means.
    task: the only kind of request that takes it; empty: all that produce text. scores: `ScoringService.Score` takes it.
    needs_beam: it changes nothing without a beam.
    flag: of the command line, where it is not the name. is_file: the flag takes a file that holds the value.
    """

    group: Group
    help: str
    default: Any
    range: Range | None = None
    max_items: int = 0
    max_bytes: int = 0
    limits: str = ""
    unset: str = ""
    task: Literal["", "translation", "generation"] = ""
    scores: bool = False
    needs_beam: bool = False
    flag: str = ""
    is_file: bool = False
    peers: Peers = NO_PEERS

    @property
    def accepts(self) -> str:
        """The allowed values in words."""
        parts = [str(self.range)] if self.range is not None else []
        if self.max_items:
            parts.append(f"at most {self.max_items}{f' of {self.max_bytes} bytes' if self.max_bytes else ''}")
        elif self.max_bytes:
            parts.append(f"at most {self.max_bytes} bytes")
        return "; ".join(filter(None, [*parts, self.limits]))

    @property
    def default_meaning(self) -> str:
        """The default in words."""
        value = str(self.default).lower() if isinstance(self.default, bool) else f"{self.default}".removesuffix(".0")
        if self.default is None or self.default in ((), "", {}):
            return self.unset or "none"
        return f"{value} ({self.unset})" if self.unset else value


def option(default: Any, help: str, *, group: Group, **details: Any) -> Any:
    """A field of a dataclass with metadata. default: must not be changed."""
    known = Option(group=group, help=help, default=default, **details)
    if isinstance(default, Mapping):
        return field(default_factory=dict, metadata={"option": known})
    return field(default=default, metadata={"option": known})
