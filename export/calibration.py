"""Calibrates the confidence of a bundle's variants: answers development sentences as a server would, finds out which
words are right, damages some answers, and fits the maps of `export.bundle.confidence` and the adequacy.

The expected calibration errors are those of maps fitted to half of the sentences, on the other half. Every variant is
calibrated with its own graphs, except fp16, which a CPU only emulates: it has the map of fp32, whose weights are the
same up to rounding.

    CalibrationError (ValueError)    the text does not allow to calibrate with it; the message has value, limit and fix
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from export.adequacy_fit import fit_adequacy
from export.bundle.adequacy import Adequacy, Traits
from export.bundle.confidence import CalibratedConfidence, Calibration, ConfidenceMap, raw_sentence, raw_words
from export.bundle.manifest import Limits, Variant
from export.confidence_fit import DIGITS, expected_calibration_error, fit_map, mapped
from export.damaged_answers import KINDS, Answered, Damage
from export.scheme_speed import ROWS
from export.select_scheme import answer_sources
from export.texts import Development
from export.verification.inputs import Ids
from export.verification.ort_graphs import OrtGraphs
from export.word_errors import right_words, words
from model.config import ModelConfig
from model.tokenizer import Tokenizer

MIN_SAMPLES = 200  # sentences: each half then has some 600 words, the standard error of whose share is about 0.02
MAX_SAMPLES = 2000  # sentences that are answered, unless the caller wants another number
MIN_ANSWERED = 25  # answers with words of each half, so that a map can be fitted to them: FEWEST_A_KNOT
MAX_DAMAGED = 300  # answers that are damaged, in each way
LEAST_RIGHT = 0.1  # share of words with letters that occur in their references; references of another language: 0.03


class CalibrationError(ValueError):
    """The text does not allow to calibrate with it."""


class Example(NamedTuple):
    """One answer: the raw confidences of its words, which words are right, its traits, and those of the answers that
    were made by damaging it, by kind."""

    words: tuple[float, ...]
    right: tuple[bool, ...]
    traits: Traits
    damaged: Mapping[str, Traits] = types.MappingProxyType({})


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
    """A sentence to answer: the ids of its source, its text and its reference."""

    source: Ids
    text: str
    reference: str


def samples_of(development: Development, tokenizer: Tokenizer, config: ModelConfig, most: int) -> list[Sample]:
    """At most `most` sentences that the model can read, in a random order that is always the same. Raises
    CalibrationError for too few."""
    texts, name = list(development.texts), development.name
    if not any(development.references):
        raise CalibrationError(f"{name}: has no references; fix: give lines source<TAB>reference")
    found = []
    for text, ids, reference in zip(texts, tokenizer.encode_batch(texts), development.references, strict=True):
        source = tuple(config.template.wrap_source(ids, development.languages))
        is_known = config.source_vocab_size > 0 or config.unk_id not in ids  # which a closed vocabulary refuses
        if ids and reference.strip() and is_known and len(source) <= config.max_source_len:
            found.append(Sample(source, text, reference))
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
    plain: dict[int, Answered] = {}
    damage = Damage(graphs, tokenizer, config, development.languages)
    before, after = len(config.template.source_prefix), len(config.template.source_suffix)
    letters = right_letters = 0
    order = sorted(range(len(samples)), key=lambda index: len(samples[index].source))
    for first in range(0, len(order), ROWS):
        batch = order[first : first + ROWS]
        sources = [samples[index].source for index in batch]
        answers = answer_sources(graphs, sources, development.languages, config)
        for index, answer in zip(batch, answers, strict=True):
            text = tokenizer.target.decode(answer.tokens)
            found = raw_words(text, tokenizer.target.token_texts(answer.tokens), answer.logprobs)
            right = right_words(text, samples[index].reference)
            has_letters = [any(map(str.isalpha, word)) for word in words(text)]
            letters += sum(has_letters)
            right_letters += sum(map(min, has_letters, right))
            source = samples[index].source
            own = source[before : len(source) - after]
            plain[index] = Answered(samples[index].text, own, answer.tokens, answer.logprobs)
            confidences = tuple(word.confidence for word in found)
            examples[index] = Example(confidences, tuple(right), damage.traits_of(plain[index]))
    if right_letters < LEAST_RIGHT * letters or not letters:
        raise CalibrationError(
            f"{development.name}: must have references in the language of the model's answers; "
            f"{right_letters / max(letters, 1):.1%} of their words occur there, at least {LEAST_RIGHT:.0%} must; "
            "fix: check the order of the columns and the languages, or train the model further"
        )
    made = damage.traits([plain[index] for index in range(min(len(samples), MAX_DAMAGED))])
    whole = [examples[index] for index in range(len(samples))]
    return [one._replace(damaged=traits) for one, traits in zip(whole, made, strict=False)] + whole[len(made) :]


def calibrate(examples: Sequence[Example], name: str) -> Calibration:
    """Maps that are fitted to all examples, and errors of maps that did not see what they are measured on: those fitted
    to one half on the other half. name: of the text. Raises CalibrationError."""
    whole = examples[::2], examples[1::2]
    halves = [[one for one in half if one.words] for half in whole]
    if min(map(len, halves)) < MIN_ANSWERED:
        problem = f"must have answers with words to at least {MIN_ANSWERED} sentences of each half, got"
        counts = " and ".join(f"{len(half)} of {len(asked)}" for half, asked in zip(halves, whole, strict=True))
        raise CalibrationError(f"{name}: {problem} {counts}; fix: train the model further")
    words, sentences = _Measured(), _Measured()
    for fitted, others in (halves, halves[::-1]):
        maps = _fit(fitted)
        raw, right = _flat(others)
        words.add(raw, mapped(maps.words, raw), right)
        shares = [float(np.mean(one.right)) for one in others]
        plain = [raw_sentence(one.words) for one in others]
        sentences.add(plain, mapped(maps.sentences, _sentences(others, maps.words, maps.adequacy)), shares)
    maps = _fit([*halves[0], *halves[1]])
    return Calibration(
        data=name,
        samples=len(examples),
        words=words.calibrated(maps.words),
        sentences=sentences.calibrated(maps.sentences),
        adequacy=maps.adequacy,
    )


class _Maps(NamedTuple):
    words: ConfidenceMap
    adequacy: Adequacy | None
    sentences: ConfidenceMap


def _fit(examples: Sequence[Example]) -> _Maps:
    words, adequacy = fit_map(*_flat(examples)), _adequacy(examples)
    shares = [float(np.mean(one.right)) for one in examples]
    return _Maps(words, adequacy, fit_map(_sentences(examples, words, adequacy), shares, from_zero=True))


def _adequacy(examples: Sequence[Example]) -> Adequacy | None:
    """None if too few answers could be damaged."""
    groups = [[one.damaged[kind] for one in examples if kind in one.damaged] for kind in KINDS]
    enough = [group for group in groups if len(group) >= MIN_ANSWERED]
    return fit_adequacy([one.traits for one in examples], enough) if enough else None


def _flat(examples: Sequence[Example]) -> tuple[list[float], list[bool]]:
    """Raw confidence and correctness of all words."""
    return [raw for one in examples for raw in one.words], [right for one in examples for right in one.right]


def _sentences(examples: Sequence[Example], words: ConfidenceMap, adequacy: Adequacy | None) -> list[float]:
    """The raw confidence of each sentence, by the map of its words."""
    return [
        raw_sentence([words(raw) for raw in one.words], adequacy(one.traits) if adequacy else 1.0) for one in examples
    ]


class _Measured:
    """Raw and calibrated confidences of words or sentences, with their correctness."""

    def __init__(self) -> None:
        self._raw, self._confidence, self._right = list[float](), list[float](), list[float]()

    def add(self, raw: Sequence[float], confidence: Iterable[float], right: Sequence[float]) -> None:
        self._raw += raw
        self._confidence.extend(confidence)
        self._right += right

    def calibrated(self, map: ConfidenceMap) -> CalibratedConfidence:
        return CalibratedConfidence(
            map=map,
            ece_before=round(expected_calibration_error(self._raw, self._right), DIGITS),
            ece_after=round(expected_calibration_error(self._confidence, self._right), DIGITS),
            measured=len(self._right),
        )
