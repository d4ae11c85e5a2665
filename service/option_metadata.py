"""What is known of each decoding option (`OPTIONS`), read from the list in decoding_options.toml.

`service.options` has the values of one request, `service.option_checks` the checks.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

LIST = Path(__file__).with_name("decoding_options.toml")
INT32_MAX = 2**31 - 1


class Range(NamedTuple):
    """The numbers that an option accepts. NaN and infinity are in no range."""

    low: float
    high: float = INT32_MAX
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


@dataclass(frozen=True, kw_only=True)
class Option:
    """One decoding option."""

    group: Literal["length", "beam", "sampling", "penalties", "constraints", "output"]
    type: str  # of the field of DecodingOptions
    default: Any = None
    help: str  # the meaning, without range and default
    range: Range | None = None  # of a number, or of each value of a mapping
    max_items: int = 0  # of a list or mapping
    max_bytes: int = 0  # UTF-8 bytes of a text, or of each text of a list
    limits: str = ""  # in words: limits that are checked elsewhere
    unset: str = ""  # in words: what the default means
    task: Literal["", "translation", "generation"] = ""  # the only one that takes it; empty: all that produce text
    scores: bool = False  # ScoringService.Score takes it
    needs: tuple[str, ...] = ()  # options without all of which it changes nothing
    flag: str = ""  # of the command line, if not the name
    is_file: bool = False  # the flag takes a file that holds the value
    hf: str = ""  # its name in GenerationConfig of Hugging Face Transformers
    ct2: str = ""  # in translate_batch of CTranslate2
    vllm: str = ""  # in SamplingParams of vLLM, for beams BeamSearchParams
    fairseq: str = ""  # flag of fairseq-generate


def _option(known: dict[str, Any]) -> Option:
    known |= {key: tuple(value) for key, value in known.items() if isinstance(value, list)}
    if "range" in known:
        known["range"] = Range(**known["range"])
    return Option(**known)


OPTIONS: Mapping[str, Option] = {
    name: _option(known) for name, known in tomllib.loads(LIST.read_text(encoding="utf-8")).items()
}
