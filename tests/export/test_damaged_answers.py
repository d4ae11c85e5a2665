"""Answers that are damaged on purpose: what they lack or repeat, and their log-probabilities by PyTorch."""

import dataclasses

import pytest

from export.bundle.directory import load_manifest
from export.damaged_answers import Answered, Damage
from export.verification.ort_graphs import OrtGraphs
from model.config import DEFAULT_LANGUAGES
from model.reference.greedy import score
from model.tokenizer import Tokenizer
from tests.bundles.make import SHAPE, kept_model
from tests.tiny import TEXTS, recombined, tiny_config, tiny_tokenizer

CONFIG, TOKENIZER = tiny_config("encoder_decoder", **SHAPE), tiny_tokenizer()
COUNT = 40  # more than a batch


@pytest.fixture(scope="module")
def damage(exported):
    bundle = exported(kept_model())
    manifest = load_manifest(bundle)
    graphs = OrtGraphs(bundle, manifest.variants[0], manifest.limits)
    return Damage(graphs, TOKENIZER, CONFIG, DEFAULT_LANGUAGES)


@pytest.fixture(scope="module")
def answers():
    """Given ones, with an end: the model's own are too short."""
    found = []
    for text, answer in zip(recombined(COUNT), recombined(COUNT, seed=8), strict=True):
        source, tokens = tuple(TOKENIZER.encode(text)), (*TOKENIZER.encode(answer), CONFIG.eos_id)
        logprobs = score(kept_model(), [CONFIG.bos_id], tokens, source=CONFIG.template.wrap_source(source))
        found.append(Answered(text, source, tokens, tuple(logprobs)))
    return found


@pytest.fixture(scope="module")
def damaged(damage, answers):
    return damage.damaged(answers)


def made(damaged, answers, kind):
    found = [(one[kind], answer) for one, answer in zip(damaged, answers, strict=True) if kind in one]
    assert len(found) > COUNT // 2
    return found


def test_a_run_of_words_is_lost(damaged, answers):
    for short, answer in made(damaged, answers, "lost words"):
        words, kept = TOKENIZER.decode(answer.answer).split(), TOKENIZER.decode(short.answer).split()
        lost = len(words) - len(kept)
        assert any(words[:first] + words[first + lost :] == kept for first in range(len(kept) + 1))
        assert max(1, len(words) // 3) <= lost <= len(words) / 2 + 1
        assert (short.text, short.source, short.answer[-1]) == (answer.text, answer.source, CONFIG.eos_id)


def test_a_source_has_a_sentence_more_than_its_answer(damaged, answers):
    for longer, answer in made(damaged, answers, "lost sentence"):
        assert longer.answer == answer.answer
        assert longer.text.startswith(f"{answer.text} ")
        assert longer.source == tuple(TOKENIZER.encode(longer.text))


def test_an_answer_is_there_twice_with_one_end(damaged, answers):
    for twice, answer in made(damaged, answers, "repeated"):
        assert twice.answer == (*answer.answer[:-1], *answer.answer[:-1], CONFIG.eos_id)
        assert twice.logprobs == (*answer.logprobs[:-1], *answer.logprobs)


@pytest.mark.parametrize("kind", ["lost words", "lost sentence"])
def test_log_probabilities_are_those_of_pytorch(damaged, answers, kind):
    for one, _ in made(damaged, answers, kind):
        source = CONFIG.template.wrap_source(one.source)
        assert one.logprobs == pytest.approx(score(kept_model(), [CONFIG.bos_id], one.answer, source=source), abs=1e-4)


def test_answers_that_were_cut_are_left_alone(damage, answers):
    cut = [one._replace(answer=one.answer[:-1], logprobs=one.logprobs[:-1]) for one in answers]
    assert damage.damaged(cut) == [{}] * COUNT
    assert damage.damaged([]) == []


def test_the_same_is_made_again(damage, answers, damaged):
    assert damage.damaged(answers) == damaged


def test_traits_are_those_of_what_was_made(damage, answers, damaged):
    for traits, made_of in zip(damage.traits(answers), damaged, strict=True):
        assert traits == {kind: damage.traits_of(one) for kind, one in made_of.items()}, "no word is foreign here"


def test_foreign_text_has_more_pieces_and_all_else_of_the_answer(damage):
    pieces = Tokenizer.train(TEXTS * 50, kind="bpe", vocab_size=330)
    plain = dataclasses.replace(damage, tokenizer=pieces)
    for text in TEXTS:
        source = tuple(pieces.encode(text))
        cut = Answered(text, source, source, (-1.0,) * len(source))  # of which nothing else is made
        ((kind, foreign),) = plain.traits([cut])[0].items()
        backwards = " ".join(word[::-1] for word in text.split())
        rate = len(pieces.encode(backwards)) / len(text)
        assert kind == "foreign"
        assert foreign == plain.traits_of(cut)._replace(tokens_per_character=rate)
        assert rate > len(source) / len(text)
