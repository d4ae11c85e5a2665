"""Glossaries in translations: how many terms get into the answers, what that does to them, and what it costs.

The terms of a sentence are one or two of its words with the words of the reference that a small table of
co-occurrences links to them most, and that occur exactly once: what a reader of the reference would have asked for.
Answers without and with the glossary are compared, greedy (missing terms replace the aligned words) and with a beam of
4 (missing terms are forced by a second search): terms met, BLEU, and seconds for all texts.
"""

from __future__ import annotations

import argparse
import collections
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.case import Flag, case
from bench.measure import Verdict, report, seconds
from bench.peer_server import glossa_server
from bench.sentences import sentence_pairs
from glossa.client import Client
from glossa.client.types import Translation
from model.training.evaluate import bleu
from service.text.glossary import Term, form_in
from service.text.words import words

MOST_TOKENS = 100
LEAST_TOGETHER = 3  # sentences in which two words must meet before they count as a pair
LEAST_LETTERS = 4
TERMS = 2  # of a sentence
BEAM = 4
MOST_COUNTED = 50_000  # pairs of the corpus


def terms_of(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """For each pair up to TERMS words and their partners in the reference, by the Dice coefficient of the corpus."""
    sources, targets = ([_words(one) for one in side] for side in zip(*pairs, strict=True))
    count_s, count_t = _counted(sources), _counted(targets)
    together = collections.Counter(
        (source, target) for both in zip(sources, targets, strict=True) for source in both[0] for target in both[1]
    )
    found = []
    for (source, target), left, right in zip(pairs, sources, targets, strict=True):
        scored = sorted(
            (
                (2 * count / (count_s[one] + count_t[other]), one, other)
                for one in left
                for other in right
                if (count := together[one, other]) >= LEAST_TOGETHER
                and source.count(one) == target.count(other) == 1
                and one != other
            ),
            reverse=True,
        )
        terms: dict[str, str] = {}
        for score, one, other in scored:
            if score > 0.5 and one not in terms and other not in terms.values() and len(terms) < TERMS:
                terms[one] = other
        found.append(terms)
    return found


def _words(text: str) -> set[str]:
    return {text[start:end] for start, end in words(text) if end - start >= LEAST_LETTERS}


def _counted(texts: Iterable[set[str]]) -> collections.Counter[str]:
    return collections.Counter(word for text in texts for word in text)


def share_met(answers: Sequence[str], glossaries: Sequence[dict[str, str]]) -> float:
    """The share of all terms in % whose form is in its answer."""
    met = [
        form_in(Term(source, (target,)), answer) is not None
        for answer, terms in zip(answers, glossaries, strict=True)
        for source, target in terms.items()
    ]
    return 100 * sum(met) / max(1, len(met))


@case(bundle=Flag(type=Path, required=True), data=Path, texts=500, corpus=Path)
def glossary(args: argparse.Namespace) -> None:
    corpus = sentence_pairs(args.corpus, MOST_COUNTED) if args.corpus else []
    pairs = sentence_pairs(args.data, 1 << 30)
    everything = [*pairs, *corpus]
    chosen = [(pair, terms) for pair, terms in zip(pairs, terms_of(everything), strict=False) if terms][: args.texts]
    texts, references = [pair[0] for pair, _ in chosen], [pair[1] for pair, _ in chosen]
    glossaries = [terms for _, terms in chosen]
    figures: dict[str, Any] = {"texts": len(texts), "terms": sum(map(len, glossaries))}
    verdicts = []
    with glossa_server(args.bundle) as (address, _), Client(address, timeout_s=600) as client:

        def answered(beam: int, with_terms: bool) -> list[Translation]:
            every: list[dict[str, Any]] = [{"glossary": terms} if with_terms else {} for terms in glossaries]
            return [
                client.translate(text, max_tokens=MOST_TOKENS, beam_size=beam, **options)
                for text, options in zip(texts, every, strict=True)
            ]

        for beam in (1, BEAM):
            name = f"beam of {beam}" if beam > 1 else "greedy"
            met, took = {}, {}
            for with_terms in (False, True):
                answers: list[Translation] = []
                took[with_terms] = seconds(lambda: answers.extend(answered(beam, with_terms)))  # noqa: B023
                shown = f"{name}, {'with' if with_terms else 'without'} glossary"
                met[with_terms] = share_met([answer.text for answer in answers], glossaries)
                figures[f"{shown}: % terms met"] = round(met[with_terms], 1)
                figures[f"{shown}: BLEU"] = round(bleu([answer.text for answer in answers], references).score, 2)
                figures[f"{shown}: s"] = round(took[with_terms], 2)
                if with_terms:
                    reported = sum(answer.glossary.met for answer in answers if answer.glossary)
                    agrees = math.isclose(reported, met[True] * figures["terms"] / 100, abs_tol=0.01)
                    verdicts.append(Verdict(f"{name}: terms reported as met that are", 100.0 * agrees, 100.0, "%"))
            verdicts.append(Verdict(f"{name}: terms met with the glossary", met[True], 90.0, "%"))
    report(figures, verdicts, as_json=args.json)
