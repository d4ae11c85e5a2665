"""Marks in translations: what comes back, where it is placed, and what it costs.

Sentences get random tags, in pairs and empty ones, and placeholders, and are translated by a server with and without
them. Counted are answers that are well-formed, that have every mark exactly once, and whose text is that without marks.

`data/marked_tatoeba.tsv` has 100 phrases and their translations, marked by hand: the share that is placed exactly, by
the alignment of the model and in proportion to the lengths, and how far covers overlap (F1 of characters).
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from bench.case import Flag, case
from bench.measure import Verdict, interleaved, report, seconds
from bench.peer_server import glossa_server
from bench.sentences import sentence_pairs
from export.bundle import load_bundle
from glossa.client import Client
from glossa.client.requests import MarkKind
from glossa.client.types import MarkupResult
from service.text.inline_markup import extract
from service.text.mark_placement import Links
from service.text.mark_scanner import Kinds, encoded
from service.text.words import words

BY_HAND = Path(__file__).with_name("data") / "marked_tatoeba.tsv"
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


def placed_by_hand(client: Client, layers: int) -> dict[str, Any]:
    """Shares of hand-marked phrases that are placed exactly, and the overlap. layers: whose mean the alignment is."""
    exact, overlap = {"alignment": 0, "proportional": 0}, {"alignment": 0.0, "proportional": 0.0}
    lines = [line for line in BY_HAND.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for line in lines:
        source, target = (part.replace("[", "<b>").replace("]", "</b>") for part in line.split("\t"))
        marked, expected = extract(source, Kinds(tags=True)), extract(target, Kinds(tags=True)).plain
        scores = [
            client.score(marked.plain, expected, alignment="soft", alignment_layer=layer).alignment
            for layer in range(1, layers + 1)
        ]
        found_by = [alignment for alignment in scores if alignment is not None]
        weights_TS = np.mean([np.asarray(alignment.rows, np.float32) for alignment in found_by], axis=0)
        links = Links(found_by[0].source_spans, found_by[0].target_spans, weights_TS)
        for name, used in (("alignment", links), ("proportional", None)):
            found = marked.restored(expected, used)
            exact[name] += found == target
            overlap[name] += _overlap(found, target)
    return {
        "phrases by hand": len(lines),
        **{f"% exact, {name}": 100 * count / len(lines) for name, count in exact.items()},
        **{f"F1, {name}": round(total / len(lines), 3) for name, total in overlap.items()},
    }


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
        figures = {**returned(client, texts, draw), **placed_by_hand(client, alignment.default_layer)}
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
