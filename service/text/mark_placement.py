"""Where the marks of a text belong in its translation (`placed`), by the words that belong together (`Links`).

An element covers the words of the translation that are linked to its own: the run with the largest weight, where they
are not contiguous. Elements in each other stay so, others do not overlap. A point goes to the border that the fewest
links cross, where those of the words next to it count most. What stood first or last in its element stays there.

I words of the source, J words of the translation. Marks times J operations.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from service.text.mark_tree import Element, Node, Placed, Point
from service.text.words import Span, is_punctuation, words

OUTSIDE = 0.8  # how much a link of a word to outside an element counts against its being covered
TINY = 1e-12
NEARNESS = 0.5  # of each further word from a point, as a factor


class Links(NamedTuple):
    """Which tokens of a translation belong to which of its source: spans in both texts, and float32 (T, S) weights."""

    source_spans: Sequence[Span]
    target_spans: Sequence[Span]
    weights_TS: np.ndarray


def word_links(plain: str, translation: str, links: Links | None) -> np.ndarray:
    """The links between words, float64 (J, I). None: in proportion to the lengths of the texts."""
    source, target = words(plain), words(translation)
    if links is not None:
        target_JT = _shares(target, links.target_spans)
        source_IS = _shares(source, links.source_spans)
        return _mutual(target_JT @ links.weights_TS.astype(np.float64) @ source_IS.T)
    scaled = np.asarray(target, np.float64).reshape(-1, 2) * (len(plain) / max(1, len(translation)))
    spans = np.asarray(source, np.float64).reshape(-1, 2)
    starts = np.maximum(scaled[:, None, 0], spans[None, :, 0])
    overlaps_JI: np.ndarray = np.maximum(0.0, np.minimum(scaled[:, None, 1], spans[None, :, 1]) - starts)
    return overlaps_JI / np.maximum(1.0, scaled[:, 1:] - scaled[:, :1])


def _mutual(weights_JI: np.ndarray) -> np.ndarray:
    """Weights that are large where two words prefer each other, the sum 1 for each word of the translation.

    Attention is normalized over the source alone, so a source word that nothing else needs collects weight. The product
    of both normalizations, as of two models that must agree (Liang et al. 2006), places more marks exactly.
    """
    forward = weights_JI / np.maximum(weights_JI.sum(axis=1, keepdims=True), TINY)
    product = forward * weights_JI / np.maximum(weights_JI.sum(axis=0, keepdims=True), TINY)
    mutual: np.ndarray = product / np.maximum(product.sum(axis=1, keepdims=True), TINY)
    return mutual


def _shares(spans: Sequence[Span], tokens: Sequence[Span]) -> np.ndarray:
    """float64 (words, tokens): which part of each token belongs to each word. Both are in order."""
    starts, ends = [start for start, _ in spans], [end for _, end in spans]
    shares = np.zeros((len(spans), len(tokens)))
    for place, (start, end) in enumerate(tokens):
        first, last = bisect.bisect_right(ends, start), bisect.bisect_left(starts, end)
        overlaps = [min(end, ends[word]) - max(start, starts[word]) for word in range(first, last)]
        for word, overlap in zip(range(first, last), overlaps, strict=True):
            shares[word, place] = overlap / sum(overlaps)
    return shares


def placed(nodes: Sequence[Node], plain: str, translation: str, links: Links | None) -> tuple[Placed, ...]:
    """The nodes of a text, in the order of its translation."""
    placement = _Placement(plain, translation, word_links(plain, translation, links))
    return placement.nodes(nodes, (0, len(placement.source)), (0, len(placement.weights_JI)))


class _Score(NamedTuple):
    """How much each word of a cover belongs to an element. around: the source words that it has. inside: the weight of
    their links. gains: that, less the weight of links to other words."""

    element: Element
    around: Span
    inside: np.ndarray
    gains: np.ndarray

    @property
    def is_closed(self) -> bool:
        """Whether both tags are in this text."""
        return bool(self.element.opening and self.element.closing)

    def run(self, free: np.ndarray) -> Span:
        """The run of free words for it. One that began before this text reaches from the start, one that goes on after
        it to the end: another fragment has the rest."""
        gains = np.where(free, self.gains, -1e9)
        if not self.element.opening:
            return 0, int(gains.cumsum().argmax()) + 1
        if not self.element.closing:
            return len(gains) - 1 - int(gains[::-1].cumsum().argmax()), len(gains)
        start, end, gain = _best_run(self.gains, free)
        if gain <= 0:
            start = int(np.where(free, self.inside, -1.0).argmax())
            end = start + 1
        return start, end


def _taken(nodes: Sequence[Node], covers: Mapping[int, Span], cover: Span) -> list[Span]:
    """Between which borders no other mark goes: those of the elements; for one that began before this text also the
    border before its cover, and the one after it, for one that goes on."""
    found = []
    for node in nodes:
        if isinstance(node, Element) and id(node) in covers:
            start, end = covers[id(node)]
            found.append((start if node.opening else cover[0] - 1, end if node.closing else cover[1] + 1))
    return found


class _Placement:
    def __init__(self, plain: str, translation: str, weights_JI: np.ndarray) -> None:
        source, target = words(plain), words(translation)
        self.source, self.weights_JI = source, weights_JI
        self._are_marks = [is_punctuation(plain[start]) for start, _ in source]
        self._target_marks = [is_punctuation(translation[start]) for start, _ in target]
        self._starts, self._ends = [start for start, _ in source], [end for _, end in source]
        self._sums_JI = np.concatenate([np.zeros((len(weights_JI), 1)), weights_JI.cumsum(axis=1)], axis=1)
        self._left, self._right = _near(weights_JI), _near(weights_JI[:, ::-1])

    def nodes(self, nodes: Sequence[Node], around: Span, cover: Span) -> tuple[Placed, ...]:
        """Nodes of one element. around: the source words that it has. cover: the words of the translation."""
        covers = self._covers([node for node in nodes if isinstance(node, Element)], around, cover)
        taken = _taken(nodes, covers, cover)
        points: dict[int, list[Point]] = {}
        for node in nodes:
            if isinstance(node, Point):
                points.setdefault(node.place, []).append(node)
        borders: dict[int, int] = {}  # by the place in the source: points there stay together
        found = []
        for number, node in enumerate(nodes):
            if isinstance(node, Element) and id(node) in covers:
                start, end = covers[id(node)]
                inside = self.nodes(node.nodes, self._words(node), (start, end))
                found.append((start, end, number, Placed(node, start, end, inside)))
                continue
            place = node.start if isinstance(node, Element) else node.place
            if place not in borders:
                glued = self._glued_border(place, points.get(place, ()), cover, taken)
                borders[place] = self._border(place, around, cover, taken) if glued is None else glued
            border = borders[place]
            inside = self.nodes(node.nodes, (0, 0), (border, border)) if isinstance(node, Element) else ()
            found.append((border, border, number, Placed(node, border, border, inside)))
        return tuple(one for *_, one in sorted(found, key=lambda one: one[:3]))

    def _words(self, node: Element) -> Span:
        """The source words that an element has a part of."""
        return bisect.bisect_right(self._ends, node.start), bisect.bisect_left(self._starts, node.end)

    def _covers(self, elements: Sequence[Element], around: Span, cover: Span) -> dict[int, Span]:
        """Target span of each element, by its id; elements without words on either side are left out."""
        low, high = cover
        free = np.ones(high - low, bool)
        scores: dict[int, _Score] = {}
        for element in elements:
            first, last = self._words(element)
            if first < last and low < high:
                inside = self._sums_JI[low:high, last] - self._sums_JI[low:high, first]
                total = self._sums_JI[low:high, -1]
                scores[id(element)] = _Score(element, (first, last), inside, inside - OUTSIDE * (total - inside))
        found: dict[int, Span] = {}
        for one in sorted(scores, key=lambda one: (scores[one].is_closed, -_best_run(scores[one].gains, free)[2])):
            if scores[one].around == around and len(scores) == 1:
                found[one] = cover
                continue
            if not free.any():
                continue
            start, end = scores[one].run(free)
            start, end = self._trimmed(low + start, low + end, *scores[one].around)
            free[start - low : end - low] = False
            found[one] = (start, end)
        return found

    def _trimmed(self, start: int, end: int, first: int, last: int) -> Span:
        """A cover without punctuation at an end where its source words [first, last) have none."""
        marks = self._target_marks
        while end - start > 1 and marks[start] and not self._are_marks[first]:
            start += 1
        while end - start > 1 and marks[end - 1] and not self._are_marks[last - 1]:
            end -= 1
        return start, end

    def _glued_border(self, place: int, points: Sequence[Point], cover: Span, taken: Sequence[Span]) -> int | None:
        """Where points go that no blank separates from a word: to what is linked to it. None: there are no such points,
        or an element is in the way."""
        low, high = cover
        before = bisect.bisect_left(self._starts, place)
        is_left = bool(points) and points[0].is_glued_left and before > 0
        is_right = bool(points) and points[-1].is_glued_right and before < len(self.source)
        if low == high or not (is_left or is_right):
            return None
        word = before - 1 if is_left else before
        inside = self.weights_JI[low:high, word]
        total = self._sums_JI[low:high, -1]
        start, end, _ = _best_run(inside - OUTSIDE * (total - inside), np.ones(high - low, bool))
        border = low + (end if is_left else start)
        return None if any(first < border < last for first, last in taken) else border

    def _border(self, place: int, around: Span, cover: Span, taken: Sequence[Span]) -> int:
        """Where a point goes: a border of the cover that is not within an element."""
        low, high = cover
        before = bisect.bisect_left(self._starts, place)  # words that begin before it
        if before <= around[0] or low == high:
            return low
        if before >= around[1]:
            return high
        left, right = self._left[low:high, before], self._right[low:high, len(self.source) - before]
        costs = np.concatenate([[0.0], right.cumsum()]) + np.concatenate([left[::-1].cumsum()[::-1], [0.0]])
        for start, end in taken:
            costs[start - low + 1 : end - low] = np.inf
        return self._beside_punctuation(low + int(costs.argmin()), before, cover, costs)

    def _beside_punctuation(self, border: int, before: int, cover: Span, costs: np.ndarray) -> int:
        """A border on the side of punctuation on which the point was: attention to a comma or a full stop is diffuse.
        before: source words before the point."""
        low, high = cover
        is_after, is_followed = self._are_marks[before - 1], self._are_marks[before]
        step = is_after - is_followed
        while step and low <= border + min(step, 0) < high and self._target_marks[border + min(step, 0)]:
            if not np.isfinite(costs[border + step - low]):
                break
            border += step
        return border


def _near(weights_JI: np.ndarray) -> np.ndarray:
    """float64 (J, I + 1): for each border the links to the words before it, the nearest one counting most."""
    sums = np.zeros((len(weights_JI), weights_JI.shape[1] + 1))
    for word in range(weights_JI.shape[1]):
        sums[:, word + 1] = weights_JI[:, word] + NEARNESS * sums[:, word]
    return sums


def _best_run(gains: np.ndarray, free: np.ndarray) -> tuple[int, int, float]:
    """The run [start, end) of free words with the largest sum of gains, and that sum; (0, 0, -inf) if none is free."""
    if not free.any():
        return 0, 0, -np.inf
    sums = np.concatenate([[0.0], np.where(free, gains, -1e9).cumsum()])
    lowest = np.minimum.accumulate(sums[:-1])
    end = int((sums[1:] - lowest).argmax())
    start = int(sums[: end + 1].argmin())
    return start, end + 1, float(sums[end + 1] - sums[start])
