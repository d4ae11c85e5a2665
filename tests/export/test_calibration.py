"""Calibration of a bundle's variants: what is measured on which sentences, and text that does not allow it."""

import dataclasses

import numpy as np
import pytest

from export.adequacy_fit import fit_adequacy
from export.bundle.adequacy import Traits
from export.bundle.directory import load_manifest
from export.calibration import (
    MAX_DAMAGED,
    MIN_ANSWERED,
    MIN_SAMPLES,
    CalibrationError,
    Example,
    answered,
    calibrate,
    calibrate_variants,
    samples_of,
)
from export.confidence_fit import expected_calibration_error, fit_map, mapped
from export.texts import Development
from export.verification.ort_graphs import OrtGraphs
from export.word_errors import right_words
from model.reference.greedy import greedy, score
from tests.bundles.make import SHAPE, development, kept_model
from tests.tiny import tiny_config, tiny_tokenizer

WHOLE = Traits(source_tokens=5, answer_tokens=5, repetition=0.0, open_end=0.0, tokens_per_character=0.25)
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
        expected, waiting = [], 0.0
        for token, logprob in zip(tokens, logprobs, strict=True):
            waiting += logprob
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
        Example(tuple(words.tolist()), tuple(found.tolist()), WHOLE) for words, found in zip(raw, right, strict=True)
    ]


def flat(found, name):
    return np.array([getattr(one, name) for one in found]).ravel()


def test_maps_are_fitted_to_all_and_measured_on_what_they_have_not_seen():
    found = examples(400)
    calibration = calibrate(found, "dev.tsv")
    assert (calibration.data, calibration.samples) == ("dev.tsv", 400)
    words, sentences = calibration.words, calibration.sentences
    assert (words.measured, sentences.measured) == (2000, 400)
    assert words.map == fit_map(flat(found, "words"), flat(found, "right"))
    raw, calibrated, right, plain, whole, shares = [], [], [], [], [], []
    for fitted, others in ((found[::2], found[1::2]), (found[1::2], found[::2])):
        map = fit_map(flat(fitted, "words"), flat(fitted, "right"))
        raw += [*flat(others, "words")]
        calibrated += [*mapped(map, flat(others, "words"))]
        right += [*flat(others, "right")]
        means = [np.mean(mapped(map, one.words)) for one in fitted]
        sentence_map = fit_map(means, [np.mean(one.right) for one in fitted], from_zero=True)
        plain += [np.mean(one.words) for one in others]
        whole += [sentence_map(float(np.mean(mapped(map, one.words)))) for one in others]
        shares += [np.mean(one.right) for one in others]
    error = expected_calibration_error
    assert (words.ece_before, words.ece_after) == pytest.approx((error(raw, right), error(calibrated, right)), abs=2e-6)
    expected = error(plain, shares), error(whole, shares)
    assert (sentences.ece_before, sentences.ece_after) == pytest.approx(expected, abs=2e-6)
    assert max(words.ece_after, sentences.ece_after) < 0.04 < 0.2 < min(words.ece_before, sentences.ece_before)


def lost(one, share):
    return one._replace(damaged={"lost words": one.traits._replace(answer_tokens=int(5 * share))})


def test_sentences_have_the_adequacy_of_their_answers():
    """Of every other answer a part is missing, and its words are right all the same."""
    found = [lost(one, 0.2) for one in examples(400)]
    calibration = calibrate(found, "dev.tsv")
    adequacy = calibration.adequacy
    assert adequacy == fit_adequacy([WHOLE] * 400, [[WHOLE._replace(answer_tokens=1)] * 400])
    assert adequacy(WHOLE) > 0.95
    words = calibrate(examples(400), "dev.tsv").words
    assert calibration.words == words, "words know nothing of it"
    mean = float(np.mean(mapped(words.map, found[0].words)))
    sure, unsure = (calibration.sentences.map(adequacy(one) * mean) for one in (WHOLE, WHOLE._replace(answer_tokens=1)))
    assert unsure < 0.2 < sure


@pytest.mark.parametrize(("count", "is_fitted"), [(0, False), (MIN_ANSWERED - 1, False), (MIN_ANSWERED, True)])
def test_adequacy_needs_answers_that_could_be_damaged(count, is_fitted):
    found = [*(lost(one, 0.2) for one in examples(count)), *examples(400)]
    assert (calibrate(found, "dev.tsv").adequacy is not None) is is_fitted


def test_the_first_answers_are_damaged(graphs, text, monkeypatch):
    monkeypatch.setattr("export.calibration.MAX_DAMAGED", 8)
    samples = samples_of(text, TOKENIZER, CONFIG, 200)[:12]
    found = answered(graphs, samples, text, TOKENIZER, CONFIG)
    assert any(one.damaged for one in found[:8])
    assert not any(one.damaged for one in found[8:])
    assert MAX_DAMAGED >= 2 * MIN_ANSWERED, "enough for each half"


def test_answers_without_words_are_no_sentences():
    found = calibrate([*examples(400), *[Example((), (), WHOLE)] * 10], "dev.tsv")
    assert found.sentences.measured == 400


@pytest.mark.parametrize("count", [0, 1, 2, 5, 9, 20, 49])
def test_too_few_answers_with_words_are_refused(count):
    found = [*examples(count), *[Example((), (), WHOLE)] * (400 - count)]
    expected = (count + 1) // 2, count // 2
    with pytest.raises(CalibrationError) as caught:
        calibrate(found, "dev.tsv")
    assert str(caught.value) == (
        "dev.tsv: must have answers with words to at least 25 sentences of each half, "
        f"got {expected[0]} of 200 and {expected[1]} of 200; fix: train the model further"
    )


@pytest.mark.parametrize(("raw", "right"), [(0.0, False), (1.0, True), (1.0, False), (0.5, True)])
def test_few_answers_of_one_word_that_are_all_alike_can_be_calibrated(raw, right):
    found = calibrate([*[Example((raw,), (right,), WHOLE)] * 50, *[Example((), (), WHOLE)] * 350], "dev.tsv")
    assert (found.words.measured, found.sentences.measured) == (50, 50)
    assert found.words.map(raw) == pytest.approx(float(right), abs=0.01)


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
