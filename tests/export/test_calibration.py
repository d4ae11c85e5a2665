"""Calibration of a bundle's variants: what is measured on which sentences, and text that does not allow it."""

import dataclasses
import math

import numpy as np
import pytest

from export.bundle import load_manifest
from export.calibration import (
    MIN_SAMPLES,
    CalibrationError,
    Example,
    answered,
    calibrate,
    calibrate_variants,
    samples_of,
)
from export.confidence_fit import expected_calibration_error, mapped
from export.select_scheme import Development
from export.verification.ort_graphs import OrtGraphs
from export.word_errors import right_words
from model.reference.greedy import greedy, score
from tests.bundles.make import SHAPE, development, kept_model
from tests.tiny import tiny_config, tiny_tokenizer

CONFIG, TOKENIZER = tiny_config("encoder_decoder", **SHAPE), tiny_tokenizer()


@pytest.fixture(scope="module")
def text():
    return development(kept_model(), TOKENIZER)


@pytest.fixture(scope="module")
def bundle(exported):
    return exported(kept_model())


@pytest.fixture(scope="module")
def graphs(bundle):
    manifest = load_manifest(bundle)
    return OrtGraphs(bundle, manifest.variants[0], manifest.limits)


def test_examples_have_the_log_probabilities_of_pytorch_and_the_words_of_the_text(graphs, text):
    samples = samples_of(text, TOKENIZER, CONFIG, 200)[:12]
    examples = answered(graphs, samples, text, TOKENIZER, CONFIG)
    model, most = kept_model(), CONFIG.max_target_len
    for sample, example in zip(samples, examples, strict=True):
        tokens = greedy(model, [CONFIG.bos_id], source=sample.source, max_tokens=most)
        logprobs = score(model, [CONFIG.bos_id], tokens, source=sample.source)
        assert list(example.right) == right_words(TOKENIZER.decode(tokens), sample.reference)
        assert math.log(example.sentence) == pytest.approx(np.mean(logprobs), abs=1e-4)
        expected, waiting = [], 0.0
        for token, logprob in zip(tokens, logprobs, strict=True):
            waiting = min(waiting, logprob)
            if TOKENIZER.pieces[token]:  # a whole word of this vocabulary
                expected.append(waiting)
                waiting = 0.0
        assert np.log(example.words) == pytest.approx(expected, abs=1e-4)


def examples(count, seed=0):
    """Sentences of five words, whose raw confidence is too high."""
    random = np.random.default_rng(seed)
    raw = random.uniform(0.3, 1.0, (count, 5))
    right = random.random((count, 5)) < raw**3
    return [
        Example(float(words.prod() ** 0.2), tuple(words.tolist()), tuple(found.tolist()))
        for words, found in zip(raw, right, strict=True)
    ]


def test_one_half_is_fitted_to_and_the_other_measured_on():
    found, half = examples(400), examples(400)[1::2]
    calibration = calibrate(found, "dev.tsv")
    assert (calibration.data, calibration.samples) == ("dev.tsv", 400)
    assert (calibration.words.measured, calibration.sentences.measured) == (1000, 200)
    raw, right = (np.array([getattr(one, name) for one in half]).ravel() for name in ("words", "right"))
    words = calibration.words
    assert words.ece_before == pytest.approx(expected_calibration_error(raw, right), abs=1e-6)
    assert words.ece_after == pytest.approx(expected_calibration_error(mapped(words.map, raw), right), abs=1e-6)
    assert words.ece_after < 0.06 < 0.2 < words.ece_before
    changed = [*found]
    changed[1::2] = [one._replace(right=(True,) * 5) for one in found[1::2]]
    assert calibrate(changed, "dev.tsv").words.map == words.map, "the second half has no influence on the map"
    assert calibrate(found[1:] + found[:1], "dev.tsv").words.map != words.map


def test_answers_without_words_are_no_sentences():
    found = calibrate([*examples(400), *[Example(0.5, (), ())] * 10], "dev.tsv")
    assert found.sentences.measured == 200
    with pytest.raises(CalibrationError, match=r"dev\.tsv: the model's answers have no words; fix: train"):
        calibrate([Example(0.5, (), ())] * 400, "dev.tsv")


def test_the_samples_are_chosen_at_random_and_always_the_same(text):
    some = samples_of(text, TOKENIZER, CONFIG, 220)
    assert samples_of(text, TOKENIZER, CONFIG, 220) == some
    everything = samples_of(text, TOKENIZER, CONFIG, 10_000)
    assert everything[:220] == some
    assert [sample.reference for sample in everything] != [reference for reference in text.references if reference]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"references": ()}, "words: has no references; fix: give lines source<TAB>reference"),
        ({"texts": ["a b"] * 300, "references": ["a"] * 300}, "got 0 of 300 sentences that this model can read"),
        (
            {"texts": ["a cat " * 40] * 300, "references": ["a"] * 300},
            "got 0 of 300 sentences that this model can read",
        ),
        ({"references": [" "] * 300}, "got 0 of 300"),
    ],
)
def test_sentences_that_the_model_cannot_read_are_no_samples(text, change, problem):
    unusable = dataclasses.replace(text, **{"references": ["a"] * 300, "name": "words", **change})
    with pytest.raises(CalibrationError, match=problem):
        samples_of(unusable, TOKENIZER, CONFIG, 1000)


def test_too_small_a_limit_is_named(text):
    with pytest.raises(CalibrationError, match=rf"at least {MIN_SAMPLES} sentences .* and a limit of 100; fix: "):
        samples_of(text, TOKENIZER, CONFIG, 100)


def test_references_of_another_language_are_refused(graphs, text):
    foreign = Development(text.texts, ["zwei rote Häuser"] * len(text.texts), "de.tsv")
    samples = samples_of(foreign, TOKENIZER, CONFIG, 200)
    with pytest.raises(
        CalibrationError, match=r"de\.tsv: must have references in the language .* 0\.0% of their words"
    ):
        answered(graphs, samples, foreign, TOKENIZER, CONFIG)


def test_fp16_has_the_calibration_of_fp32(bundle, text):
    manifest = load_manifest(bundle)
    half = dataclasses.replace(manifest.variants[0], precision="fp16", graphs={})
    found = calibrate_variants(
        bundle, (half, *manifest.variants), manifest.limits, text, TOKENIZER, CONFIG, most=MIN_SAMPLES
    )
    assert set(found) == {"fp16", "fp32"}
    assert found["fp16"] is found["fp32"]
    assert found["fp32"].samples == MIN_SAMPLES
