import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from service.decoding.logits_processors import (
    AllowedTokens,
    BannedTexts,
    LogitBias,
    MinLength,
    NoRepeatNGram,
    PrefixBias,
    PresenceFrequencyPenalty,
    RepetitionPenalty,
)
from service.decoding.request_processors import processors_of
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.options import DecodingOptions
from service.request import Request

EOS, V = 2, 12
token_lists = st.lists(st.integers(0, V - 1), max_size=30)
logit_lists = st.lists(st.floats(-20, 20, width=32), min_size=V, max_size=V)


def applied(processor, logits, tokens=()):
    """The scores after `tokens` and the processor."""
    scores_V = np.array(logits, np.float32)
    state = processor.initial_state()
    for token in tokens:
        state = processor.next_state(state, token)
    before = scores_V.copy()
    if processor.applies(state, tokens):
        processor.apply(scores_V, state, tokens)
    if processor.is_mask:
        changed = scores_V != before
        assert np.isneginf(scores_V[changed]).all()
    return scores_V


def softmax(scores_V):
    exp_V = np.exp(scores_V.astype(np.float64) - scores_V.max())
    return exp_V / exp_V.sum()


# ---- penalties


@given(logit_lists, token_lists, st.lists(st.integers(0, V - 1), min_size=1, max_size=5), st.floats(0.5, 2))
def test_the_repetition_penalty_divides_positive_and_multiplies_negative_logits_once(logits, tokens, prompt, penalty):
    scores_V = applied(RepetitionPenalty(penalty, prompt), logits, tokens)
    for token, logit in enumerate(logits):
        if token in tokens or token in prompt:
            logit = logit / penalty if logit > 0 else logit * penalty
        assert scores_V[token] == pytest.approx(logit, rel=1e-6)


@given(logit_lists, token_lists, st.floats(-2, 2), st.floats(-2, 2))
def test_presence_counts_once_and_frequency_each_time(logits, tokens, presence, frequency):
    scores_V = applied(PresenceFrequencyPenalty(presence=presence, frequency=frequency), logits, tokens)
    for token, logit in enumerate(logits):
        count = tokens.count(token)
        assert scores_V[token] == pytest.approx(logit - count * frequency - (count > 0) * presence, rel=1e-4, abs=1e-4)


def test_biases_are_added_to_logits():
    assert applied(LogitBias({3: 1.5, 0: -100.0}), [1.0] * V).tolist() == [-99.0, 1, 1, 2.5, *[1] * (V - 4)]


@given(logit_lists, st.lists(st.integers(0, V - 1), min_size=1, max_size=6), st.data())
def test_a_preferred_prefix_shares_the_probability_until_the_answer_leaves_it(logits, prefix, data):
    beta = data.draw(st.floats(0.001, 0.999))
    follows = data.draw(st.integers(0, len(prefix)))
    tokens = prefix[:follows]
    scores_V, expected_V = applied(PrefixBias(beta, prefix), logits, tokens), softmax(np.array(logits, np.float32))
    if follows < len(prefix):
        expected_V = expected_V * (1 - beta) + beta * (np.arange(V) == prefix[follows])
    assert softmax(scores_V) == pytest.approx(expected_V, rel=1e-3, abs=1e-9)
    total = np.logaddexp.reduce(np.array(logits, np.float64))
    assert np.logaddexp.reduce(scores_V.astype(np.float64)) == pytest.approx(total, abs=1e-3), "nothing to normalise"
    for other in {*range(V)} - {*prefix[follows : follows + 1]}:
        left = [*tokens, other, *prefix[follows + 1 :]][: len(prefix)]
        assert applied(PrefixBias(beta, prefix), logits, left).tolist() == np.array(logits, np.float32).tolist()


# ---- masks


def test_end_tokens_are_excluded_before_the_minimum_length():
    processor = MinLength((EOS, 5), before=2)
    masked = [np.flatnonzero(np.isneginf(applied(processor, [0.0] * V, [6] * count))).tolist() for count in range(4)]
    assert masked == [[EOS, 5], [EOS, 5], [], []]


@given(token_lists, token_lists, st.integers(1, 4))
def test_no_sequence_of_tokens_appears_twice_unless_it_ends(prompt, tokens, length):
    masked = np.isneginf(applied(NoRepeatNGram(length, prompt, eos_ids=(EOS,)), [0.0] * V, tokens))
    whole = [*prompt, *tokens]
    seen = [tuple(whole[at : at + length]) for at in range(len(whole) - length + 1)]
    for token in range(V):
        assert masked[token] == (tuple([*whole, token][-length:]) in seen and token != EOS)


def test_only_allowed_tokens_remain():
    assert np.flatnonzero(applied(AllowedTokens({7, 3, EOS}), [0.5] * V) == 0.5).tolist() == [EOS, 3, 7]


TEXTS = ["ab ab abc", "größer als größe", "a b c d", "日本語 日本", "😀😃 😀"]
TOKENIZERS = {
    "bpe": Tokenizer.train(TEXTS * 3, kind="bpe", vocab_size=290),
    "words": Tokenizer.train(TEXTS, kind="words", vocab_size=60),
}
VOCABULARIES = {kind: Vocabulary.of(tokenizer, eos_ids=(2,)) for kind, tokenizer in TOKENIZERS.items()}
texts = st.lists(st.text("ab größe日本😀 ", min_size=1, max_size=5), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(banned=texts, data=st.data())
@settings(max_examples=60)
def test_a_token_is_masked_if_and_only_if_it_completes_a_banned_text(kind, banned, data):
    vocabulary = VOCABULARIES[kind]
    any_tokens = st.lists(st.integers(0, len(vocabulary) - 1), max_size=12)
    tokens = data.draw(any_tokens | st.text("ab größe日本😀 ", max_size=8).map(TOKENIZERS[kind].encode))
    masked = np.isneginf(applied(BannedTexts(banned, vocabulary), np.zeros(len(vocabulary)), tokens))

    def written(tokens):
        text = b"".join(vocabulary.pieces[token] for token in tokens)
        return text.removeprefix(b" ") if vocabulary.strips_leading_space else text

    here = len(written(tokens))
    for token in range(len(vocabulary)):
        whole = written([*tokens, token])
        completes = any(text.encode() in whole[max(0, here - len(text.encode()) + 1) :] for text in banned)
        assert masked[token] == (completes and len(whole) > here), (token, tokens)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(banned=texts, seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_no_random_answer_contains_a_banned_text(kind, banned, seed):
    vocabulary, rng = VOCABULARIES[kind], random.Random(seed)
    processor, tokens = BannedTexts(banned, vocabulary), list[int]()
    state = processor.initial_state()
    for _ in range(25):
        scores_V = np.zeros(len(vocabulary), np.float32)
        if processor.applies(state, tokens):
            processor.apply(scores_V, state, tokens)
        tokens.append(rng.choice(np.flatnonzero(scores_V == 0).tolist()))
        state = processor.next_state(state, tokens[-1])
    assert not any(text in TOKENIZERS[kind].decode(tokens) for text in banned)


def test_the_replacement_character_cannot_be_banned():
    with pytest.raises(InvalidRequest, match=r"options.bad_words\[1\]: must not contain U\+FFFD"):
        BannedTexts(("a", "b\ufffd"), VOCABULARIES["bpe"])


# ---- all of them


def built(prefix=(), vocabulary=None, **options):
    vocabulary = vocabulary or VOCABULARIES["words"]
    request = Request(
        request_id="r", prompt=(1,), max_tokens=9, preferred_prefix=prefix, options=DecodingOptions(**options)
    )
    return processors_of(request, vocabulary, TOKENIZERS["words"])


def test_without_options_there_are_no_processors():
    assert built() == ()
    assert built(prefix=(5, 6)) == ()  # it is forced, not preferred


def test_every_option_becomes_its_processor_penalties_first():
    processors = built(
        prefix=(5, 6),
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={5: 1.0},
        prefix_bias=0.5,
        min_tokens=3,
        no_repeat_ngram_size=2,
        bad_words=("ab",),
        allowed_tokens=(5, 6),
    )
    kinds = [
        LogitBias,
        RepetitionPenalty,
        PresenceFrequencyPenalty,
        PrefixBias,
        MinLength,
        NoRepeatNGram,
        BannedTexts,
        AllowedTokens,
    ]
    assert [type(processor) for processor in processors] == kinds
    assert [processor.is_mask for processor in processors] == sorted(processor.is_mask for processor in processors)


def test_an_answer_without_end_never_ends():
    (processor,) = built(ignore_eos=True)
    size = len(VOCABULARIES["words"])
    assert all(np.isneginf(applied(processor, np.zeros(size), [5] * count)[EOS]) for count in range(9))


def test_every_end_is_always_allowed():
    vocabulary = Vocabulary.of(TOKENIZERS["words"], eos_ids=(EOS, 9))
    (processor,) = built(vocabulary=vocabulary, allowed_tokens=(EOS,))
    assert np.flatnonzero(applied(processor, np.zeros(len(vocabulary))) == 0).tolist() == [EOS, 9]


def test_the_end_is_always_allowed():
    (processor,) = built(allowed_tokens=(EOS,))
    assert np.flatnonzero(applied(processor, np.zeros(len(VOCABULARIES["words"]))) == 0).tolist() == [EOS]
