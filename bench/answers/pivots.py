"""Translations by way of another language: one call beside two, and marks in what comes out.

Each text is translated in one call by way of the language between, and in two calls. The answers must be equal. With a
pair of tags around a word and a placeholder at the end, each mark must be in the answer once, the pair in its order.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from typing import Any

from bench.case import Flag, case
from bench.load.peer_server import glossa_server
from bench.measure import Verdict, report
from glossa.client import Client

MARKS = re.compile(r"<b>.*</b>.*\{x\}|\{x\}.*<b>.*</b>|<b>.*\{x\}.*</b>", re.DOTALL)


def marked(text: str, rng: random.Random) -> str:
    """A text with tags around one of its words, and a placeholder at its end."""
    words = text.split()
    place = rng.randrange(len(words))
    words[place] = f"<b>{words[place]}</b>"
    return " ".join((*words, "{x}"))


def has_its_marks(text: str) -> bool:
    """Whether a translation of `marked` has each mark once, the tags in their order."""
    return all(text.count(mark) == 1 for mark in ("<b>", "</b>", "{x}")) and MARKS.search(text) is not None


@case("first", "second", data=Flag(required=True, help="a file with one text a line"), sentences=500, seed=1)
def pivots(args: argparse.Namespace) -> None:
    """first, second: bundles of models of two languages; the second translates what the first one translates into."""
    with open(args.data, encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()][: args.sentences]
    rng, seconds = random.Random(args.seed), {"one call": 0.0, "two calls": 0.0}
    equal = well_formed = aligned = 0
    with (
        glossa_server(args.second.resolve(), flags=[f"first={args.first.resolve()}"]) as (address, _),
        Client(address, timeout_s=600) as client,
    ):
        source, target = client.get_model("first").source_languages[0], client.get_model("model").target_languages[0]
        languages: Any = {"source_language": source, "target_language": target}
        for text in texts:
            began = time.perf_counter()
            one = client.translate(text, **languages).text
            between = time.perf_counter()
            two = client.translate(client.translate(text, model="first").text, model="model").text
            seconds["one call"] += between - began
            seconds["two calls"] += time.perf_counter() - between
            equal += one == two
            answer = client.translate(marked(text, rng), markup=["tags", "placeholders"], **languages)
            well_formed += has_its_marks(answer.text)
            aligned += answer.markup is not None and answer.markup.placement == "alignment"
    count = len(texts)
    figures: dict[str, Any] = {"texts": count, "marks placed by the composed alignment": aligned}
    figures |= {f"ms per text, {name}": round(1000 * value / count, 1) for name, value in seconds.items()}
    verdicts = [
        Verdict("answers equal to those of two calls", equal, count, ""),
        Verdict("answers with all marks", well_formed, count, ""),
    ]
    report(figures, verdicts, as_json=args.json)
