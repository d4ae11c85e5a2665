"""Rules about the text of an answer hold for the tokens of every family."""

import random
import re

import numpy as np
import pytest

from model.tokenizer import Tokenizer
from service.decoding.grammar import Grammar
from service.decoding.lexical_constraints import LexicalConstraints
from service.decoding.logits_processors import BannedTexts
from service.decoding.stop_strings import StopMatcher, StopState
from service.decoding.vocabulary import Vocabulary
from service.edge.models.alignment import target_spans
from service.engine.detokenizer import Detokenizer
from service.phrase_variants import phrase_variants
from tests.model.tokenizers.families import made
from tests.multilingual import lines


@pytest.fixture(scope="module", params=["gpt2", "llama2", "t5"])
def tokenizer(request, tmp_path_factory):
    return Tokenizer(made(request.param, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return Vocabulary.of(tokenizer, eos_ids=(tokenizer.special["</s>"],))


def possible(processor, state, tokens, size):
    scores_V = np.zeros(size, np.float32)
    if processor.applies(state, tokens):
        processor.apply(scores_V, state, tokens)
    return np.flatnonzero(scores_V == 0).tolist()


def test_a_grammar_holds_for_every_tokenizer(tokenizer, vocabulary):
    pattern, rng = r"(ka|lo)( mi| [0-9]{1,2}){1,3}\.", random.Random(1)
    processor = Grammar("regex", pattern, vocabulary)
    for _ in range(20):
        state, tokens = processor.initial_state(), list[int]()
        while not {*tokens} & {*vocabulary.eos_ids}:
            choices = possible(processor, state, tokens, len(vocabulary))
            assert not {*choices} & {*tokenizer.special.values()} - {*vocabulary.eos_ids}
            tokens.append(rng.choice(choices))
            state = processor.next_state(state, tokens[-1])
        assert re.fullmatch(pattern, tokenizer.decode(tokens))


def test_a_banned_text_never_appears(tokenizer, vocabulary):
    processor, rng = BannedTexts(["a", "ó", "m"], vocabulary), random.Random(2)
    for _ in range(30):
        state, tokens = processor.initial_state(), list[int]()
        for _ in range(12):
            tokens.append(rng.choice(possible(processor, state, tokens, len(vocabulary))))
            state = processor.next_state(state, tokens[-1])
        assert not {*"aóm"} & {*tokenizer.decode(tokens)}


def test_phrases_have_tokenizations_that_meet_them(tokenizer, vocabulary):
    for text in ("lo mi", "при", "世界"):
        variants = phrase_variants(tokenizer, text, field="options.phrases[0]")
        assert all(text in tokenizer.decode(variant) for variant in variants)
        phrases = LexicalConstraints([variants], vocabulary, ordered=False, max_tokens=40)
        state = phrases.initial_state()
        for token in tokenizer.encode(f"ka {text} ka"):
            state = phrases.next_state(state, token)
        assert phrases.is_done(state)


def test_stop_strings_end_hypotheses_where_they_end_the_text(tokenizer):
    rng = random.Random(3)
    for text in lines(60, 4):
        tokens = tokenizer.encode(text)
        tokens.insert(rng.randrange(len(tokens) + 1), rng.randrange(tokenizer.vocab_size))
        whole = tokenizer.decode(tokens)
        if not whole:
            continue
        place = rng.randrange(len(whole))
        stop = whole[place : place + 3]
        matcher = StopMatcher(Vocabulary.of(tokenizer, eos_ids=(2,)), [stop])
        cut, state = Detokenizer(tokenizer.incremental(), [stop]), StopState()
        released = ""
        for token in tokens:
            state = matcher.next_state(state, token)
            released += cut.push(token)
            if "\ufffd" not in stop:  # what is no character yet may become one
                assert state.is_stopped == cut.is_stopped
        assert released + cut.flush() == whole[: whole.find(stop)]


def test_the_spans_of_an_answer_are_its_text(tokenizer):
    for text in lines(40, 5):
        tokens = [*tokenizer.encode(text), tokenizer.special["</s>"]]
        whole = tokenizer.decode(tokens)
        spans = target_spans(tokens, tokenizer.pieces, whole, strips_leading_space=tokenizer.strips_leading_space)
        assert spans[-1][0] == spans[-1][1]
        assert {place for start, end in spans for place in range(start, end)} == set(range(len(whole)))
