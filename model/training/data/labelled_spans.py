"""Labelled spans of texts: how training data writes them, how they become labels of tokens, and how well a model finds
them.

A text and its spans are a pair: the second text is `START:END:LABEL` for each span, in code points, ascending and
separated by blanks, or `-` for none. Labels of tokens follow IOB2, one for the first token of each word
(`Tokenizer.word_starts`). Serving has its own form of the rules here, `service.edge.rpcs.tagging`; tests compare them.

Shapes: S positions of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from model.encoder import Encoder
from model.tokenizer import Tokenizer

NONE = "-"
OUTSIDE = "O"


class LabelledSpan(NamedTuple):
    """The code points [start, end) of a text, and their label."""

    start: int
    end: int
    label: str


class SpanScores(NamedTuple):
    """Shares of exactly found spans: of those predicted, of those expected, and their harmonic mean."""

    precision: float
    recall: float
    f1: float


def read_spans(written: str, text: str) -> list[LabelledSpan]:
    """The spans of a text. Raises ValueError with the problem."""
    spans: list[LabelledSpan] = []
    for item in [] if written == NONE else written.split():
        start, _, rest = item.partition(":")
        end, _, label = rest.partition(":")
        if not (start.isdecimal() and end.isdecimal() and label):
            raise ValueError(f"must be START:END:LABEL for each span, or {NONE} for none, got {item!r:.80}")
        span = LabelledSpan(int(start), int(end), label)
        least = spans[-1].end if spans else 0
        if not least <= span.start < span.end <= len(text):
            raise ValueError(f"must have {least} <= start < end <= {len(text)} here, got {item:.80}")
        spans.append(span)
    return spans


def write_spans(spans: Iterable[LabelledSpan]) -> str:
    """As `read_spans` takes them."""
    return " ".join(f"{start}:{end}:{label}" for start, end, label in spans) or NONE


def labels_of(names: Iterable[str]) -> tuple[str, ...]:
    """The labels of tokens for spans with these labels, sorted, OUTSIDE last."""
    known = sorted(set(names))
    return (*(f"{prefix}-{name}" for prefix in "BI" for name in known), OUTSIDE)


def word_places(tokenizer: Tokenizer, text: str) -> list[tuple[int, int, int]]:
    """Of each word the index of its first token among `encode(text)`, and its code points [start, end)."""
    spans, words = tokenizer.offsets(text), list[tuple[int, int, int]]()
    for index, is_start in enumerate(tokenizer.word_starts(text)):
        start, end = spans[index]
        if is_start:
            words.append((index, end - len(text[start:end].lstrip()), end))
        elif words and text[start:end].strip():
            words[-1] = (*words[-1][:2], max(end, words[-1][2]))
    return words


def word_labels(tokenizer: Tokenizer, text: str, spans: Sequence[LabelledSpan]) -> dict[int, str]:
    """The label of each word by the index of its first token."""
    labels, begun = dict[int, str](), set[LabelledSpan]()
    for index, start, _ in word_places(tokenizer, text):
        span = next((span for span in spans if span.start <= start < span.end), None)
        labels[index] = OUTSIDE if span is None else f"{'I' if span in begun else 'B'}-{span.label}"
        if span is not None:
            begun.add(span)
    return labels


def spans_of(labels: Sequence[str], words: Sequence[tuple[int, int, int]]) -> list[LabelledSpan]:
    """The spans of labelled words: I- continues the span of its name in the word before, otherwise begins one."""
    spans, last = list[LabelledSpan](), ""
    for label, (_, start, end) in zip(labels, words, strict=True):
        name = "" if label == OUTSIDE else label[2:]
        if name and name == last and label.startswith("I-"):
            spans[-1] = spans[-1]._replace(end=end)
        elif name:
            spans.append(LabelledSpan(start, end, name))
        last = name
    return spans


@torch.no_grad()
def found_spans(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    answered: Callable[[int], object] = lambda _: None,
) -> list[list[LabelledSpan]]:
    """The spans that a model, in evaluation mode, finds in each text. Words beyond its limit are outside. answered:
    gets the number of texts that are done, after each."""
    template, device = model.config.template, next(model.parameters()).device
    room, first = model.config.max_source_len - template.num_source_special, len(template.source_prefix)
    found = []
    for text in texts:
        words = [word for word in word_places(tokenizer, text) if word[0] < room]
        ids = template.wrap_source(tokenizer.encode(text)[:room])
        source, lengths = torch.tensor([ids], device=device), torch.tensor([len(ids)], device=device)
        best_S = model.tag_logits(model(source, lengths))[0].argmax(-1).tolist()
        found.append(spans_of([model.config.labels[best_S[first + index]] for index, _, _ in words], words))
        answered(len(found))
    return found


def span_scores(found: Sequence[Sequence[LabelledSpan]], expected: Sequence[Sequence[LabelledSpan]]) -> SpanScores:
    """A span counts if its ends and its label are right. Without any, a share is 1."""
    right = sum(len(set(ours) & set(theirs)) for ours, theirs in zip(found, expected, strict=True))
    predicted, wanted = sum(map(len, found)), sum(map(len, expected))
    precision, recall = right / predicted if predicted else 1.0, right / wanted if wanted else 1.0
    return SpanScores(precision, recall, 2 * right / (predicted + wanted) if predicted + wanted else 1.0)
