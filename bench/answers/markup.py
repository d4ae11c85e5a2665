"""Marks in translations: what comes back, where it is placed, and what it costs.

Sentences get random tags, in pairs and empty ones, and placeholders, and are translated by a server with and without
them. Counted are answers that are well-formed, that have every mark exactly once, and whose text is that without marks.

Phrases and their translations, marked by hand: `data/marked_tatoeba.tsv` has 100 on which the layers of the alignment
are chosen, `data/marked_tatoeba_held_out.tsv` 128 others, none of whose sentences is among the first. Of these, the
share that is placed exactly, by the alignment as the service takes it, by the layers that are best on the first file,
and in proportion to the lengths, and how far covers overlap (F1 of characters).
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from bench.case import Flag, case
from bench.load.peer_server import glossa_server
from bench.measure import Verdict, interleaved, report, seconds
from bench.sentences import sentence_pairs
from export.bundle.directory import load_bundle
from export.bundle.manifest import AlignmentSpec
from glossa.client import Client
from glossa.client.requests import MarkKind
from glossa.client.types import MarkupResult
from service.text.inline_markup import MarkedText, extract
from service.text.mark_placement import Links
from service.text.mark_scanner import Kinds, encoded
from service.text.words import words

CHOICE, HELD_OUT = (
    Path(__file__).with_name("data") / name for name in ("marked_tatoeba.tsv", "marked_tatoeba_held_out.tsv")
)
KINDS: tuple[MarkKind, ...] = ("tags", "placeholders")
MARK = re.compile(r"<[^>]+>|\{\w+\}")
MOST_TOKENS = 100
TIMED = 300  # sentences


def random_marks(text: str, draw: random.Random) -> tuple[str, list[str]]:
    """A text with 1 to 4 random marks, each different, and the marks. Elements lie in each other or apart."""
    spans, before, after, marks = words(text), dict[int, str](), dict[int, str](), list[str]()
    borders: list[tuple[int, int]] = []
    for number in range(draw.randint(1, 4)):
        first = draw.randrange(len(spans))
        last = draw.randrange(first, len(spans))
        kind = draw.choice(("pair", "pair", "empty", "placeholder"))
        if kind == "pair":
            if any(start <= first <= end < last or first < start <= last <= end for start, end in borders):
                continue
            if any((start, end) == (first, last) for start, end in borders):
                continue
            borders.append((first, last))
            marks += [f"<t{number}>", f"</t{number}>"]
        elif spans[first][0] and text[spans[first][0] - 1] == " ":
            mark = f"<e{number}/>" if kind == "empty" else f"{{p{number}}}"
            before[first] = before.get(first, "") + f"{mark} "
            marks.append(mark)
    tags = [mark for mark in marks if mark.startswith("<t")]
    for place, (first, last) in enumerate(sorted(borders, key=lambda one: (one[1] - one[0], one[0]))):
        tag = tags[borders.index((first, last))]
        before[first] = f"{tag}{before.get(first, '')}" if place else before.get(first, "") + tag
        after[last] = after.get(last, "") + tag.replace("<", "</")
    parts, done = [], 0
    for number, (start, end) in enumerate(spans):
        parts += [encoded(text[done:start]), before.get(number, ""), encoded(text[start:end]), after.get(number, "")]
        done = end
    return "".join(parts), marks


def is_well_formed(text: str) -> bool:
    """Whether a text is the content of an XML element."""
    try:
        ElementTree.fromstring(f"<all>{text}</all>")
    except ElementTree.ParseError:
        return False
    return True


def returned(client: Client, texts: Sequence[str], draw: random.Random) -> dict[str, Any]:
    """Shares of answers to marked texts that are as promised."""
    marked = [random_marks(text, draw) for text in texts]
    kinds = Kinds(tags=True, placeholders=True)
    assert all(is_well_formed(raw) for raw, _ in marked)
    plain = [answer.text for answer in client.translate_batch(texts, max_tokens=MOST_TOKENS)]
    raws = [raw for raw, _ in marked]
    answers = list(client.translate_batch(raws, max_tokens=MOST_TOKENS, markup=KINDS))
    results = [answer.markup or MarkupResult("", "", "") for answer in answers]
    checks: dict[str, list[bool]] = {
        "the source without marks is the text": [
            result.source_text == text for result, text in zip(results, texts, strict=True)
        ],
        "the answer without marks is that of the text": [
            result.plain_text == expected == extract(answer.text, kinds).plain
            for answer, result, expected in zip(answers, results, plain, strict=True)
        ],
        "well-formed": [is_well_formed(answer.text) for answer in answers],
        "every mark once": [
            sorted(MARK.findall(answer.text)) == sorted(marks)
            for answer, (_, marks) in zip(answers, marked, strict=True)
        ],
    }
    for name, found in checks.items():
        for place in [place for place, is_right in enumerate(found) if not is_right][:3]:
            print(f"not {name}: {raws[place]!r} → {answers[place].text!r}, plain {plain[place]!r}")
    figures: dict[str, Any] = {f"% {name}": 100 * sum(found) / len(found) for name, found in checks.items()}
    return {"sentences": len(texts), "marks": sum(len(marks) for _, marks in marked), **figures}


class Phrase(NamedTuple):
    """A phrase that was marked by hand. layer_weights_TS: of each decoder layer, float32 (tokens, source positions)."""

    marked: MarkedText
    plain: str  # the translation without marks
    target: str  # the translation with them
    layer_weights_TS: list[np.ndarray]
    links: Callable[[np.ndarray], Links]

    def placed(self, layers: Iterable[int]) -> str:
        """The translation with marks where the mean of some layers, counted from 1, puts them; in proportion to the
        lengths for none."""
        weights = [self.layer_weights_TS[layer - 1] for layer in layers]
        return self.marked.restored(self.plain, self.links(np.mean(weights, axis=0)) if weights else None)


def phrases_by_hand(client: Client, file: Path, layers: int) -> list[Phrase]:
    """The phrases of a file, with the attention of all decoder layers."""
    phrases = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        source, target = (part.replace("[", "<b>").replace("]", "</b>") for part in line.split("\t"))
        marked, plain = extract(source, Kinds(tags=True)), extract(target, Kinds(tags=True)).plain
        scores = [
            client.score(marked.plain, plain, alignment="soft", alignment_layer=layer).alignment
            for layer in range(1, layers + 1)
        ]
        found = [alignment for alignment in scores if alignment is not None]
        weights = [np.asarray(alignment.rows, np.float32) for alignment in found]
        links = partial(Links, found[0].source_spans, found[0].target_spans)
        phrases.append(Phrase(marked, plain, target, weights, links))
    return phrases


def exact(phrases: Sequence[Phrase], layers: Iterable[int]) -> float:
    """Percentage of phrases that are placed exactly."""
    chosen = [*layers]
    return 100 * sum(phrase.placed(chosen) == phrase.target for phrase in phrases) / len(phrases)


def placed_by_hand(client: Client, spec: AlignmentSpec) -> dict[str, Any]:
    """How phrases marked by hand are placed. The layers are chosen on one file, and the other one is scored."""
    choice, held_out = (phrases_by_hand(client, file, spec.layers) for file in (CHOICE, HELD_OUT))
    every = range(1, spec.layers + 1)
    # Means of the first layers, as the service takes them, and single layers.
    candidates = [*(tuple(range(1, last + 1)) for last in every), *((layer,) for layer in every[1:])]
    shares = {layers: exact(choice, layers) for layers in candidates}
    best = max(candidates, key=lambda layers: shares[layers])
    served = tuple(range(1, spec.default_layer + 1))
    figures: dict[str, Any] = {
        f"% exact on the {len(choice)} of the choice, layers {_named(layers)}": share
        for layers, share in shares.items()
    }
    figures |= {
        "layers chosen; served": f"{_named(best)}; {_named(served)}",
        "held-out phrases": len(held_out),
        "% exact, layers chosen": exact(held_out, best),
    }
    for name, layers in (("alignment", served), ("proportional", ())):
        figures[f"% exact, {name}"] = exact(held_out, layers)
        overlaps = [_overlap(phrase.placed(layers), phrase.target) for phrase in held_out]
        figures[f"F1, {name}"] = round(sum(overlaps) / len(overlaps), 3)
    return figures


def _named(layers: Sequence[int]) -> str:
    return "+".join(map(str, layers))


def _overlap(found: str, expected: str) -> float:
    (start, end), (first, last) = ((text.index("<b>"), text.index("</b>") - 3) for text in (found, expected))
    return 2 * max(0, min(end, last) - max(start, first)) / (end - start + last - first)


@case(bundle=Flag(type=Path, required=True), data=Path, texts=2000, rounds=3, seed=11)
def markup(args: argparse.Namespace) -> None:
    texts = [source for source, _ in sentence_pairs(args.data, args.texts)]
    draw, alignment = random.Random(args.seed), load_bundle(args.bundle).alignment
    if alignment is None:
        raise SystemExit(f"{args.bundle} has no alignment; export it with --attention")
    with glossa_server(args.bundle) as (address, _), Client(address, timeout_s=600) as client:
        figures = {**returned(client, texts, draw), **placed_by_hand(client, alignment)}
        some = texts[:TIMED]
        raws = [random_marks(text, draw)[0] for text in some]

        def timed(asked: Sequence[str], **options: Any) -> float:
            return seconds(lambda: list(client.translate_batch(asked, max_tokens=MOST_TOKENS, **options)))

        times = interleaved({"plain": lambda: timed(some), "marked": lambda: timed(raws, markup=KINDS)}, args.rounds)
        figures |= {f"{name}, s for {len(some)} texts": spread for name, spread in times.items()}
    promised = [name for name in figures if name.startswith("%") and "exact" not in name]
    verdicts = [Verdict(name.removeprefix("% "), figures[name], 100.0, "%") for name in promised]
    verdicts.append(
        Verdict(
            "phrases placed exactly by the alignment, to in proportion",
            figures["% exact, alignment"] / max(1.0, figures["% exact, proportional"]),
            1.5,
        )
    )
    report(figures, verdicts, as_json=args.json)
