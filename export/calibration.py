"""Calibrates the confidence of a bundle's variants: answers development sentences as a server would, finds out which
words are right, and fits the maps of `export.confidence` to one half of the sentences.

The expected calibration errors are those of the other half. Every variant is calibrated with its own graphs, except
fp16, which a CPU only emulates: it has the map of fp32, whose weights are the same up to rounding.

    CalibrationError (ValueError)    the text does not allow to calibrate with it; the message has value, limit and fix
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from export.confidence import CalibratedConfidence, Calibration, raw_sentence, raw_words
from export.confidence_fit import DIGITS, expected_calibration_error, fit_map, mapped
from export.manifest import Limits, Variant
from export.scheme_speed import ROWS
from export.select_scheme import TOKENS_BESIDE_SOURCE, Development
from export.verification.golden import answer_greedily
from export.verification.inputs import Ids
from export.verification.ort_graphs import OrtGraphs
from export.word_errors import right_words, words
from model.config import ModelConfig
from model.tokenizer import Tokenizer

MIN_SAMPLES = 200  # sentences: each half then has some 600 words, and the error of a share of them is about 0.02
MAX_SAMPLES = 2000  # sentences that are answered, unless the caller wants another number
LEAST_RIGHT = 0.1  # share of words with letters that occur in their references; references of another language: 0.03


class CalibrationError(ValueError):
    """The text does not allow to calibrate with it."""


class Example(NamedTuple):
    """One answer: raw confidences of the sentence and of its words, and which words are right."""

    sentence: float
    words: tuple[float, ...]
    right: tuple[bool, ...]


def calibrate_variants(
    directory: Path,
    variants: Sequence[Variant],
    limits: Limits,
    development: Development,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    most: int = MAX_SAMPLES,
) -> dict[str, Calibration]:
    """The calibration of each variant by its precision; their files are below `directory`. most: sentences that are
    answered. Raises CalibrationError."""
    chosen = samples_of(development, tokenizer, config, most)
    precisions = {variant.precision for variant in variants}
    found: dict[str, Calibration] = {}
    for variant in variants:
        if variant.precision != "fp16" or "fp32" not in precisions:
            graphs = OrtGraphs(directory, variant, limits)
            examples = answered(graphs, chosen, development, tokenizer, config)
            found[variant.precision] = calibrate(examples, development.name)
    if "fp16" in precisions and "fp32" in found:
        found["fp16"] = found["fp32"]
    return found


class Sample(NamedTuple):
    """A sentence to answer: the ids of its source and its reference."""

    source: Ids
    reference: str


def samples_of(development: Development, tokenizer: Tokenizer, config: ModelConfig, most: int) -> list[Sample]:
    """At most `most` sentences that the model can read, in a random order that is always the same. Raises
    CalibrationError for too few."""
    texts, name = list(development.texts), development.name
    if not any(development.references):
        raise CalibrationError(f"{name}: has no references; fix: give lines source<TAB>reference")
    found = []
    for ids, reference in zip(tokenizer.encode_batch(texts), development.references, strict=True):
        source = tuple(config.template.wrap_source(ids, development.languages))
        if ids and reference.strip() and config.unk_id not in ids and len(source) <= config.max_source_len:
            found.append(Sample(source, reference))
    if min(len(found), most) < MIN_SAMPLES:
        usable = f"{len(found)} of {len(texts)} sentences that this model can read"
        raise CalibrationError(
            f"{name}: must have at least {MIN_SAMPLES} sentences to calibrate confidence with, got {usable}"
            f"{f', and a limit of {most}' if most < len(found) else ''}; fix: give more sentences of the model's "
            "languages that training did not use"
        )
    random.Random(1).shuffle(found)
    return found[:most]


def answered(
    graphs: OrtGraphs, samples: Sequence[Sample], development: Development, tokenizer: Tokenizer, config: ModelConfig
) -> list[Example]:
    """The greedy answers of one variant to the samples, in their order. Raises CalibrationError if hardly a word is
    right."""
    examples: dict[int, Example] = {}
    letters = right_letters = 0
    order = sorted(range(len(samples)), key=lambda place: len(samples[place].source))
    start = config.template.wrap_prompt((), development.languages)
    for first in range(0, len(order), ROWS):
        batch = order[first : first + ROWS]
        sources = [samples[place].source for place in batch]
        most = min(config.max_target_len + 1 - len(start), 2 * max(map(len, sources)) + TOKENS_BESIDE_SOURCE)
        answers = answer_greedily(graphs, sources, [start] * len(sources), config.eos_ids, most)
        for place, answer in zip(batch, answers, strict=True):
            text = tokenizer.decode(answer.tokens)
            found = raw_words(text, tokenizer.token_texts(answer.tokens), answer.logprobs)
            right = right_words(text, samples[place].reference)
            has_letters = [any(map(str.isalpha, word)) for word in words(text)]
            letters += sum(has_letters)
            right_letters += sum(map(min, has_letters, right))
            examples[place] = Example(
                raw_sentence(answer.logprobs), tuple(word.confidence for word in found), tuple(right)
            )
    if right_letters < LEAST_RIGHT * letters or not letters:
        raise CalibrationError(
            f"{development.name}: must have references in the language of the model's answers; "
            f"{right_letters / max(letters, 1):.1%} of their words occur there, at least {LEAST_RIGHT:.0%} must; "
            "fix: check the order of the columns and the languages, or train the model further"
        )
    return [examples[place] for place in range(len(samples))]


def calibrate(examples: Sequence[Example], name: str) -> Calibration:
    """Maps that are fitted to every second example, and their errors on the others. name: of the text."""
    halves = examples[::2], examples[1::2]
    fitted, held_out = ([(raw, right) for one in half for raw, right in zip(*one[1:], strict=True)] for half in halves)
    scored, others = ([(one.sentence, float(np.mean(one.right))) for one in half if one.right] for half in halves)
    if not scored or not others:
        raise CalibrationError(f"{name}: the model's answers have no words; fix: train the model further")
    return Calibration(
        data=name, samples=len(examples), words=_calibrated(fitted, held_out), sentences=_calibrated(scored, others)
    )


def _calibrated(fitted: Sequence[tuple[float, float]], held_out: Sequence[tuple[float, float]]) -> CalibratedConfidence:
    """A map fitted to pairs of raw confidence and correctness, and its error on other pairs."""
    map = fit_map(*zip(*fitted, strict=True))
    raw, right = zip(*held_out, strict=True)
    return CalibratedConfidence(
        map=map,
        ece_before=round(expected_calibration_error(raw, right), DIGITS),
        ece_after=round(expected_calibration_error(mapped(map, raw), right), DIGITS),
        measured=len(held_out),
    )
