"""How well the confidence of sentences tells good answers from answers that lack something, repeat it, or are to text
of another language.

Answers to the sentences of `--data` are compared with answers that are damaged on purpose as at export
(`export.damaged_answers`), with those to the lines of `--foreign`, and with those to several sentences joined, as far
as the model left text out: less than 80 % of the reference's words. Figures are the areas under the receiver operating
characteristic (AUC) of the words' mean confidence alone, as before bundle format 12, and of the sentence's confidence.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import Flag, case
from bench.measure import Verdict, report
from bench.sentences import sentence_pairs
from export.bundle.confidence import Calibration, raw_sentence, raw_words
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from export.confidence_fit import expected_calibration_error, ranking
from export.damaged_answers import Answered, Damage
from export.scheme_speed import ROWS
from export.select_scheme import answer_sources
from export.verification.ort_graphs import OrtGraphs
from export.word_errors import right_words
from model.architecture_config import model_config
from model.config import DEFAULT_LANGUAGES
from model.tokenizer import Tokenizer

JOINED = (2, 3, 4)  # sentences
LOST = 0.8  # of the words of a reference: an answer with fewer left something out
DIGITS = 3


class Answers:
    """Greedy answers of a bundle's fp32 graphs, and their confidence."""

    def __init__(self, bundle: Path) -> None:
        manifest = load_bundle(bundle)
        calibration = manifest.calibrations.get("fp32")
        if calibration is None or calibration.adequacy is None:
            raise SystemExit(f"{bundle} has no adequacy for fp32; export it with --calibrate")
        self.calibration: Calibration = calibration
        self.config, self.tokenizer = model_config(manifest.lineage["model"]), Tokenizer.load(bundle / TOKENIZER)
        graphs = OrtGraphs(bundle, manifest.variant("fp32"), manifest.limits)
        self.damage = Damage(graphs, self.tokenizer, self.config, DEFAULT_LANGUAGES)

    def greedy(self, texts: Sequence[str]) -> list[Answered]:
        """Answers to those texts that the model can read, the shortest first."""
        room = self.config.max_source_len - self.config.template.num_source_special
        tokens = zip(texts, self.tokenizer.encode_batch(list(texts)), strict=True)
        read = sorted(((text, ids) for text, ids in tokens if 0 < len(ids) <= room), key=lambda one: len(one[1]))
        found = list[Answered]()
        for first in range(0, len(read), ROWS):
            batch = read[first : first + ROWS]
            sources = [tuple(self.config.template.wrap_source(ids)) for _, ids in batch]
            answers = answer_sources(self.damage.graphs, sources, DEFAULT_LANGUAGES, self.config)
            found += [
                Answered(text, tuple(ids), answer.tokens, answer.logprobs)
                for (text, ids), answer in zip(batch, answers, strict=True)
            ]
        return found

    def confidences(self, answers: Sequence[Answered]) -> np.ndarray:
        """Of each answer with words that of its words alone, and that of the sentence: (answers, 2)."""
        rows = []
        for one in answers:
            words = raw_words(self.text(one), self.tokenizer.token_texts(one.answer), one.logprobs)
            sure = [self.calibration.words.map(word.confidence) for word in words]
            if sure:
                assert self.calibration.adequacy is not None
                adequacy = self.calibration.adequacy(self.damage.traits_of(one))
                rows.append((raw_sentence(sure), self.calibration.sentences.map(raw_sentence(sure, adequacy))))
        return np.array(rows).reshape(-1, 2)

    def text(self, one: Answered) -> str:
        """The text of an answer."""
        return self.tokenizer.decode(one.answer)


def that_lost(answers: Answers, joined: dict[str, str]) -> list[Answered]:
    """The answers to texts that have too few words. joined: references by text."""
    return [
        one
        for one in answers.greedy(list(joined))
        if len(answers.text(one).split()) < LOST * len(joined[one.text].split())
    ]


@case(bundle=Flag(type=Path, required=True), data=Flag(type=Path, required=True), foreign=Path, most=500)
def adequacy(args: argparse.Namespace) -> None:
    answers, pairs = Answers(args.bundle), dict(sentence_pairs(args.data, 1 << 30))
    good = [one for one in answers.greedy(list(pairs)) if answers.text(one).strip()]
    chosen = np.random.default_rng(1).permutation(len(good))[: args.most]
    damaged = answers.damage.damaged([good[index] for index in chosen])
    kinds = {
        kind: [one[kind] for one in damaged if kind in one] for kind in ("lost words", "lost sentence", "repeated")
    }
    if args.foreign:
        kinds["foreign"] = answers.greedy([target for _, target in sentence_pairs(args.foreign, args.most)])
    for count in JOINED:
        items = list(pairs.items())[: args.most * count]
        groups = [items[first : first + count] for first in range(0, len(items) - count + 1, count)]
        joined = {" ".join(one for one, _ in group): " ".join(other for _, other in group) for group in groups}
        kinds[f"{count} joined"] = that_lost(answers, joined)
    sure = answers.confidences(good)
    shares = [float(np.mean(right_words(answers.text(one), pairs[one.text]))) for one in good]
    figures: dict[str, Any] = {
        "good": len(sure),
        "good, mean confidence": round(float(sure[:, 1].mean()), DIGITS),
        "ECE of good sentences": round(expected_calibration_error(sure[:, 1], shares), DIGITS),
    }
    verdicts = []
    for kind, found in kinds.items():
        if not len(unsure := answers.confidences(found)):
            continue
        is_good = [True] * len(sure) + [False] * len(unsure)
        before, after = (ranking([*sure[:, column], *unsure[:, column]], is_good) for column in (0, 1))
        figures |= {kind: len(unsure), f"{kind}, mean confidence": round(float(unsure[:, 1].mean()), DIGITS)}
        figures |= {f"{kind}, AUC of words alone": round(before, DIGITS), f"{kind}, AUC": round(after, DIGITS)}
        verdicts.append(Verdict(f"AUC, {kind}", after, before, "", note="bar: that of the words alone"))
    report(figures, verdicts, as_json=args.json)
