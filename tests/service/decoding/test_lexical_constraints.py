import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from service.decoding.lexical_constraints import LexicalConstraints, allocate
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest
from service.phrase_variants import phrase_variants
from tests.fakes import brackets

EOS, V = 0, 9
TEXTS = ["the small red house stands behind the old tree", "New York, New York City", "größer als Größe", "日本語の本"]
BPE = Tokenizer.train(TEXTS * 3, kind="bpe", vocab_size=330)
WORDS = Tokenizer.train(TEXTS, kind="words", vocab_size=60)
variants = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), min_size=1, max_size=3, unique=True)
phrase_lists = st.lists(variants.map(tuple), min_size=1, max_size=4)


def build(phrases, *, ordered=False, slack=3):
    """Phrases that fit with `slack` tokens to spare."""
    return fitted(phrases, brackets(V, EOS), slack, ordered=ordered)


def fitted(phrases, vocabulary, slack, **given):
    least = minimum(LexicalConstraints(tuple(phrases), vocabulary, max_tokens=1000, **given))
    return LexicalConstraints(tuple(phrases), vocabulary, max_tokens=least + slack, **given)


def minimum(phrases):
    """The fewest tokens of an answer, end token included."""
    return 1 + phrases.remaining(phrases.initial_state())


def walk(phrases, choose):
    """Tokens up to the end, or up to max_tokens; checks every promise on the way."""
    state, tokens = phrases.initial_state(), list[int]()
    while len(tokens) < phrases.max_tokens and EOS not in tokens:
        scores_V = np.zeros(V, np.float32)
        if phrases.applies(state, tokens):
            phrases.apply(scores_V, state, tokens)
        possible = np.flatnonzero(scores_V > -np.inf).tolist()
        assert possible, (state, tokens)
        assert (EOS in possible) == phrases.is_done(state)
        better = phrases.next_tokens(state)
        for token in range(1, V):
            assert (phrases.num_met(phrases.next_state(state, token)) > phrases.num_met(state)) == (token in better)
        assert phrases.is_done(state) == (phrases.num_met(state) == phrases.total) == (phrases.remaining(state) == 0)
        if not phrases.is_done(state):
            assert better
            assert any(phrases.remaining(phrases.next_state(state, t)) < phrases.remaining(state) for t in range(1, V))
        token = choose(possible)
        tokens.append(token)
        if token != EOS:
            state = phrases.next_state(state, token)
    return tokens, state


def places(tokens, phrase):
    """Where the text of a phrase ends."""
    return [end for end in range(len(tokens) + 1) for v in phrase if tuple(tokens[max(0, end - len(v)) : end]) == v]


@given(phrase_lists, st.booleans(), st.integers(0, 6), st.randoms(use_true_random=False))
def test_every_walk_through_the_mask_has_all_phrases(phrases, ordered, slack, rng):
    built = build(phrases, ordered=ordered, slack=slack)
    tokens, state = walk(built, rng.choice)
    assert built.is_done(state)
    for phrase in phrases:
        assert places(tokens, phrase)


@given(phrase_lists, st.randoms(use_true_random=False))
def test_the_fewest_tokens_are_enough(phrases, rng):
    built = build(phrases, slack=0)
    tokens, state = walk(built, rng.choice)
    assert len(tokens) <= minimum(built)
    assert built.is_done(state)


@given(variants.map(tuple), st.integers(2, 3), st.randoms(use_true_random=False))
def test_a_phrase_given_twice_appears_twice_without_overlap(phrase, count, rng):
    tokens, state = walk(build((phrase,) * count), rng.choice)
    assert not any(state.missing)
    ends, position, found = set(places(tokens, phrase)), 0, 0
    for end in range(len(tokens) + 1):  # from left to right, the earliest end each time
        if end in ends and any(tuple(tokens[position:end][-len(v) :]) == v for v in phrase if end - position >= len(v)):
            position, found = end, found + 1
    assert found >= count


@given(phrase_lists, st.randoms(use_true_random=False))
def test_ordered_phrases_come_in_their_order(phrases, rng):
    tokens, _ = walk(build(phrases, ordered=True), rng.choice)
    position = 0
    for phrase in phrases:
        ends = [
            end
            for end in range(position + 1, len(tokens) + 1)
            for v in phrase
            if len(v) <= end - position and tuple(tokens[end - len(v) : end]) == v
        ]
        assert ends
        position = min(ends)


@given(phrase_lists, st.lists(st.integers(1, 6), max_size=30))
def test_progress_is_what_the_tokens_contain(phrases, tokens):
    built = build(phrases)
    state = built.initial_state()
    for token in tokens:
        state = built.next_state(state, token)
    if len(set(phrases)) == len(phrases):
        assert list(state.missing) == [0 if places(tokens, phrase) else 1 for phrase in phrases]


# ---- where phrases may stand

PIECES = (b"", b" a", b"a", b"b", b".", b" b", b"", " ä".encode(), b" ")
SMALL = Vocabulary(PIECES, eos_ids=(EOS,), strips_leading_space=False)
WORD_LIKE = ((2,), (3,), (2, 3), (3, 2, 2), (4,), (4, 2), (2, 4))  # a, b, ab, baa, ., .a, a.
spelled = st.sampled_from([((8, *bare), bare) for bare in WORD_LIKE] + [((1, 3), (2, 3)), ((5,), (3,)), ((1,), (2,))])
spelled_lists = st.lists(spelled, min_size=1, max_size=4)
befores = st.sampled_from(["", "a", "a.", "ä", " "])


def standing(phrases, *, ordered=False, slack=3, before=""):
    return fitted(phrases, SMALL, slack, ordered=ordered, before=before)


def stands(tokens, phrase, before):
    """Whether one of the spellings of a phrase is there, in its place: slow and obvious."""
    for start in range(len(tokens)):
        text = before + b"".join(PIECES[token] for token in tokens[:start]).decode()
        for variant in phrase:
            if tuple(tokens[start : start + len(variant)]) != variant:
                continue
            begin = b"".join(PIECES[token] for token in variant).decode()[0]
            if begin == " ":
                if text:
                    return True
            elif begin == "." or not text or text[-1] == " ":
                return True
    return False


@given(spelled_lists, st.lists(st.integers(1, 8), max_size=12), befores)
def test_a_phrase_counts_where_a_word_may_occur(phrases, tokens, before):
    phrases = list(dict.fromkeys(phrases))
    built = standing(phrases, before=before)
    state = progress(built, *tokens)
    assert [not missing for missing in state.missing] == [stands(tokens, phrase, before) for phrase in phrases]


@given(spelled_lists, st.booleans(), st.integers(0, 5), befores, st.randoms(use_true_random=False))
def test_phrases_at_word_positions_are_met(phrases, ordered, slack, before, rng):
    built = standing(phrases, ordered=ordered, slack=slack, before=before)
    tokens, state = walk(built, rng.choice)
    assert built.is_done(state)
    assert len(tokens) <= minimum(built) + slack
    assert all(stands(tokens, phrase, before) for phrase in phrases)


def test_no_blank_begins_an_answer_and_no_phrase_joins_a_word():
    phrase = standing([((1,), (2,))])
    assert phrase.next_tokens(phrase.initial_state()) == (2,)
    assert phrase.next_tokens(progress(phrase, 3)) == (1,)
    assert phrase.next_tokens(progress(phrase, 7)) == (1,)  # ä is a letter
    assert phrase.next_tokens(progress(phrase, 3, 4)) == (1,)  # nor to a full stop
    assert phrase.next_tokens(progress(phrase, 3, 8)) == (1, 2)
    assert phrase.next_tokens(progress(phrase, 6)) == (2,)  # a token without text
    assert not phrase.is_done(progress(phrase, 3, 2))
    continued = standing([((1,), (2,))], before="b")
    assert continued.next_tokens(continued.initial_state()) == (1,)


def test_text_may_precede_a_phrase_with_a_long_initial_tokenization():
    phrase = standing([((1,), (2, 3, 2))], slack=0)
    assert minimum(phrase) == 3  # something, the phrase, the end
    scores_V = np.zeros(V, np.float32)
    phrase.apply(scores_V, phrase.initial_state(), [])
    assert np.flatnonzero(scores_V == 0).tolist() == [1, 2, 3, 4, 5, 7, 8]  # not the end, no token without text


def test_without_spare_tokens_text_that_keeps_the_minimum_is_allowed():
    phrase = standing([((8, 1), (2,))], slack=1)  # two tokens after a letter, one after a blank
    scores_V = np.zeros(V, np.float32)
    phrase.apply(scores_V, phrase.initial_state(), [])
    assert np.flatnonzero(scores_V == 0).tolist() == [2, 6, 8]


@pytest.mark.parametrize(
    ("text", "is_closed"),
    [("ä", True), ("Haus7", True), ("(", False), ("Haus ", False), ("„", False), ("本", False), ("Haus!", True)],
)
def test_characters_that_a_word_may_follow_directly(text, is_closed):
    word = BPE.encode("house")
    phrases = LexicalConstraints(
        [phrase_variants(BPE, "house")], Vocabulary.of(BPE, eos_ids=(2,)), ordered=False, max_tokens=50, before=text
    )
    assert phrases.is_done(progress(phrases, *word)) == (not is_closed)
    assert phrases.is_done(progress(phrases, *BPE.encode(" house")))


def test_scripts_without_blanks_and_punctuation_occur_anywhere():
    for text in ("本", ", the", "-old"):
        phrases = LexicalConstraints(
            [phrase_variants(BPE, text)],
            Vocabulary.of(BPE, eos_ids=(2,)),
            ordered=False,
            max_tokens=50,
            before="house",
        )
        assert phrases.is_done(progress(phrases, *BPE.encode(text)))


def progress(phrases, *tokens):
    state = phrases.initial_state()
    for token in tokens:
        state = phrases.next_state(state, token)
    return state


def test_an_interrupted_phrase_keeps_its_longest_matching_prefix():
    phrases = build([((1, 1, 2),)])
    assert [phrases.num_met(progress(phrases, *[1] * count)) for count in range(5)] == [0, 1, 2, 2, 2]
    assert phrases.num_met(progress(phrases, 1, 1, 3)) == 0
    assert phrases.is_done(progress(phrases, 1, 1, 1, 2))


def test_phrases_may_share_tokens():
    phrases = build([((1, 2),), ((2, 3),)])
    assert phrases.is_done(progress(phrases, 1, 2, 3))
    assert minimum(phrases) == 5  # an upper bound: none of them shared, and the end token


def test_every_tokenization_counts_as_the_longest():
    phrases = build([((1, 2, 3), (4,))])
    assert phrases.total == 3
    assert phrases.num_met(progress(phrases, 1)) == 1
    assert phrases.num_met(progress(phrases, 4)) == 3
    assert phrases.next_tokens(phrases.initial_state()) == (1, 4)
    assert minimum(phrases) == 2


def test_of_phrases_begun_together_only_one_counts():
    phrases = build([((1, 2),), ((1, 3),)])
    assert phrases.num_met(progress(phrases, 1)) == 1
    assert phrases.remaining(progress(phrases, 1)) == 3
    assert phrases.next_tokens(progress(phrases, 1)) == (2, 3)


def test_without_spare_tokens_only_the_phrase_is_allowed():
    phrases = build([((1, 2),)], slack=1)
    scores_V = np.zeros(V, np.float32)
    phrases.apply(scores_V, progress(phrases, 1), [1])
    assert np.flatnonzero(scores_V == 0).tolist() == [1, 2]  # what is begun is kept: 1 again leaves enough tokens
    scores_V = np.zeros(V, np.float32)
    phrases.apply(scores_V, progress(phrases, 1, 1), [1, 1])
    assert np.flatnonzero(scores_V == 0).tolist() == [2]


def test_phrases_that_no_longer_fit_allow_nothing():
    phrases = LexicalConstraints((((1, 2, 3),),), brackets(V, EOS, 7), ordered=False, max_tokens=3)
    assert minimum(phrases) == 4
    scores_V = np.zeros(V, np.float32)
    phrases.apply(scores_V, phrases.initial_state(), [])
    assert not np.isfinite(scores_V).any()


# ---- the beam's places


def test_banks_share_the_beam_and_the_highest_takes_the_rest():
    candidates = [(-0.1 * n, bank) for bank in (0, 1, 2) for n in range(4)]
    chosen = allocate(candidates, 5)
    assert sorted(candidates[place][1] for place in chosen) == [0, 1, 2, 2, 2]
    assert chosen == sorted(chosen, key=lambda place: (-candidates[place][0], place))


def test_slots_that_a_bank_cannot_fill_go_to_other_banks():
    assert sorted(allocate([(0.0, 2), (-1.0, 0), (-2.0, 0), (-3.0, 0)], 3)) == [0, 1, 2]
    assert sorted(allocate([(-5.0, 0), (-1.0, 2), (-2.0, 2), (-3.0, 2)], 4)) == [0, 1, 2, 3]
    assert sorted(allocate([(0.0, 0), (-1.0, 0), (-9.0, 1), (-9.5, 1), (-9.6, 1)], 4)) == [0, 1, 2, 3]


def test_a_beam_smaller_than_the_banks_keeps_the_most_advanced():
    assert allocate([(0.0, 0), (-1.0, 1), (-2.0, 2), (-3.0, 3)], 2) == [2, 3]


def test_equal_candidates_keep_their_order():
    assert allocate([(0.0, 1)] * 5, 3) == [0, 1, 2]
    assert allocate([], 3) == []


@given(st.lists(st.tuples(st.floats(-9, 0), st.integers(0, 5)), max_size=30), st.integers(1, 12))
def test_the_beam_is_filled_with_the_best_of_each_bank(candidates, beam_size):
    chosen = allocate(candidates, beam_size)
    assert len(chosen) == len(set(chosen)) == min(beam_size, len(candidates))
    for bank in range(6):
        inside = sorted((-score, place) for place, (score, at) in enumerate(candidates) if at == bank)
        taken = [place for place in chosen if candidates[place][1] == bank]
        assert taken == [place for _, place in inside[: len(taken)]]
    top = max((bank for _, bank in candidates), default=0)
    for bank in range(top + 1):  # no bank gets less than the share that it could fill
        share = beam_size // (top + 1)
        assert sum(candidates[place][1] == bank for place in chosen) >= min(
            share, sum(at == bank for _, at in candidates)
        )


# ---- spellings


@pytest.mark.parametrize("tokenizer", [BPE, WORDS], ids=["bpe", "words"])
@pytest.mark.parametrize("text", ["red house", "New York", "größer", "tree", "York, New"])
def test_the_text_of_every_tokenization_contains_the_phrase(tokenizer, text):
    rng = random.Random(text)
    for variant in phrase_variants(tokenizer, text):
        assert text in tokenizer.decode(variant)
        around = [rng.randrange(4, tokenizer.vocab_size) for _ in range(2)]
        assert text in tokenizer.decode([*around, *variant])
        assert text in tokenizer.decode([*variant, *around])


def test_bytes_have_tokenizations_with_and_without_a_leading_blank():
    spelled = {BPE.decode(variant) for variant in phrase_variants(BPE, "house")}
    assert spelled == {"house", " house"}
    assert len(phrase_variants(WORDS, "house")) == 1
    assert {BPE.decode(variant) for variant in phrase_variants(BPE, " house")} == {" house"}


@pytest.mark.parametrize("text", [",", ", New York"])
def test_a_mark_that_a_closed_vocabulary_has_only_after_words_is_tokenized_so(text):
    assert WORDS.unknown_words(text) == [","]
    (spelling,) = phrase_variants(WORDS, text)
    assert WORDS.decode([*WORDS.encode("tree"), *spelling]) == "tree" + text
    for unknown in (", zebra", "-", ", ,", ",  New"):
        with pytest.raises(InvalidRequest):
            phrase_variants(WORDS, unknown)


def test_phrases_without_a_tokenization_are_rejected():
    with pytest.raises(InvalidRequest, match=r"options\.phrases\[1\]: the model's closed vocabulary .* not know zebra"):
        phrase_variants(WORDS, "old zebra", field="options.phrases[1]")
    for text in ("", "old  tree", " tree"):
        with pytest.raises(InvalidRequest, match=r"options\.phrases: no tokens of the model have the text"):
            phrase_variants(WORDS, text)
