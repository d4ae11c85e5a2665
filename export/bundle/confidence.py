"""Confidence in the words and sentences of a translation: what an export calibrates and a server applies.

A word's raw confidence is the product of the probabilities of its tokens, a sentence's the mean of the calibrated ones
of its words times its adequacy (`export.bundle.adequacy`). A `ConfidenceMap`, fitted at export (`export.calibration`)
and stored in the manifest, calibrates each. docs/confidence.md has the definitions and their sources. Standard library
only.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from export.bundle.adequacy import Adequacy
from export.bundle.manifest_fields import Items, Line, Range, Share

Span = tuple[int, int]
"""[start, end) in code points."""

MAX_KNOTS = 32
Samples = Annotated[int, Range(0, (1 << 31) - 1)]
# Han, Hiragana and Katakana, which have no spaces between words: each character is a word.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_CHUNK = re.compile(r"\S+")
_LEAST = 1e-9  # distance of a probability from 0 and 1, so that its logit is finite


@dataclass(frozen=True, kw_only=True)
class ConfidenceMap:
    """A monotone map from raw to calibrated confidence, both 0..1.

    temperature: sigmoid(logit(raw) / temperature), Guo et al. 2017 for two classes. isotonic: linear between the knots
    (raw[i], calibrated[i]) and constant outside them.
    """

    method: Literal["temperature", "isotonic"]
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    raw: Annotated[tuple[Share, ...], Items(MAX_KNOTS)] = ()  # ascending
    calibrated: Annotated[tuple[Share, ...], Items(MAX_KNOTS)] = ()  # not descending

    def __call__(self, raw: float) -> float:
        if self.method == "temperature":
            bounded = min(max(raw, _LEAST), 1 - _LEAST)
            scaled = math.log(bounded / (1 - bounded)) / self.temperature
            return 1 / (1 + math.exp(-scaled)) if scaled > -700 else 0.0  # below it exp overflows
        upper = bisect.bisect(self.raw, raw)
        if upper in (0, len(self.raw)):
            return self.calibrated[upper - 1 if upper else 0]
        left, right = self.raw[upper - 1], self.raw[upper]
        low, high = self.calibrated[upper - 1], self.calibrated[upper]
        return low + (high - low) * (raw - left) / (right - left)

    @property
    def problem(self) -> str:
        """Why these numbers are no monotone map; "" if they are one."""
        if self.method == "temperature":
            return "must have no knots for the method temperature" if self.raw or self.calibrated else ""
        if len(self.raw) != len(self.calibrated) or not self.raw:
            return f"must have as many raw as calibrated knots, got {len(self.raw)} and {len(self.calibrated)}"
        if any(left >= right for left, right in itertools.pairwise(self.raw)):
            return "must have ascending raw knots"
        if any(left > right for left, right in itertools.pairwise(self.calibrated)):
            return "must have calibrated knots that do not descend"
        return ""


@dataclass(frozen=True, kw_only=True)
class CalibratedConfidence:
    """A map, and expected calibration errors (15 bins of equal mass): those of maps fitted to one half of the examples,
    on the other half. The map itself is fitted to all of them."""

    map: ConfidenceMap
    ece_before: Share  # of the raw confidences of words, or of their mean over a sentence
    ece_after: Share
    measured: Samples  # words or sentences that the errors are of


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The confidence of one variant's greedy answers, calibrated on development text."""

    data: Line  # name of the text
    samples: Samples  # sentences
    words: CalibratedConfidence  # to the probability that the word is in the reference
    sentences: CalibratedConfidence  # to the expected share of such words
    adequacy: Adequacy | None = None  # None: sentences have the mean of their words alone, as before format 12


class RawWord(NamedTuple):
    """A word of an answer: its part of the text, and the product of the probabilities of its tokens."""

    span: Span
    confidence: float


def word_spans(text: str) -> list[Span]:
    """The words of a text, in order: maximal runs without white space, whose leading and trailing punctuation marks
    and symbols are words of their own, as is every character of scripts without spaces."""
    return [span for chunk in _CHUNK.finditer(text) for span in _parts(text, *chunk.span())]


def _parts(text: str, start: int, end: int) -> Iterator[Span]:
    """The words of one run without white space."""
    first, last = start, end
    while first < end and _is_mark(text[first]):
        first += 1
    while last > first and _is_mark(text[last - 1]):
        last -= 1
    yield from ((index, index + 1) for index in range(start, first))
    begun = first
    for character in _UNSPACED.finditer(text, first, last):
        if begun < character.start():
            yield begun, character.start()
        yield character.span()
        begun = character.end()
    if begun < last:
        yield begun, last
    yield from ((index, index + 1) for index in range(last, end))


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def raw_words(text: str, pieces: Sequence[str], logprobs: Sequence[float]) -> list[RawWord]:
    """The words of an answer with their raw confidences.

    text: of the answer, a beginning of the pieces' text if a stop string cut it. pieces: the text that each token
    completes; one that completes none, such as the first bytes of a character, counts for the next one that does.
    logprobs: of the tokens, by the unmodified model. A token that lies in several words counts for each of them.
    """
    spans: list[Span] = []
    sums: list[float] = []
    read, waiting = 0, 0.0
    for piece, logprob in zip(pieces, logprobs, strict=True):
        waiting += logprob
        if piece:
            spans.append((read, read + len(piece)))
            sums.append(waiting)
            read, waiting = read + len(piece), 0.0
    words, token = [], 0
    for start, end in word_spans(text):
        while token < len(spans) and spans[token][1] <= start:
            token += 1
        last = token
        while last < len(spans) and spans[last][0] < end:
            last += 1
        words.append(RawWord((start, end), math.exp(min(math.fsum(sums[token:last]), 0.0))))
    return words


def raw_sentence(words: Sequence[float], adequacy: float = 1.0) -> float:
    """The mean of the calibrated confidences of a sentence's words, at least one, times the sentence's adequacy."""
    return adequacy * math.fsum(words) / len(words)


def merged(spans: Sequence[Span], chosen: Sequence[bool]) -> list[Span]:
    """The chosen spans of a sequence, neighbours as one."""
    found: list[Span] = []
    for index, (span, is_chosen) in enumerate(zip(spans, chosen, strict=True)):
        if is_chosen and index and chosen[index - 1]:
            found[-1] = (found[-1][0], span[1])
        elif is_chosen:
            found.append(span)
    return found
