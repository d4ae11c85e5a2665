from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from service.decoding.stops import StopMatcher
from service.detokenizer import Detokenizer

TEXTS = ["ab ab abc", "größer als größe", "a b c d", "日本語 日本", "😀😃 😀"]
BPE = Tokenizer.train(TEXTS * 3, kind="bpe", vocab_size=290)
WORDS = Tokenizer.train(TEXTS, kind="words", vocab_size=60)
stop_strings = st.lists(st.text("ab größe日本😀 ", min_size=1, max_size=5), min_size=1, max_size=3)


def stopped_at(matcher, tokens):
    """The place of the token that completes a stop string, or None."""
    state = matcher.start()
    for place, token in enumerate(tokens):
        state = matcher.after(state, token)
        if matcher.is_stopped(state):
            return place
    return None


def cut_at(detokenizer, tokens):
    for place, token in enumerate(tokens):
        detokenizer.push(token)
        if detokenizer.is_stopped:
            return place
    return None


@given(tokens=st.lists(st.integers(0, BPE.vocab_size - 1), max_size=40), stop=stop_strings)
def test_bytes_and_text_agree_on_the_token_that_stops(tokens, stop):
    text = BPE.decode(tokens)
    matcher = StopMatcher(BPE.pieces, stop, drops_first_blank=False)
    if "\ufffd" not in text:  # broken characters are text only for the detokenizer
        assert stopped_at(matcher, tokens) == cut_at(Detokenizer(BPE.incremental(), stop), tokens)


@given(tokens=st.lists(st.integers(0, WORDS.vocab_size - 1), max_size=20), stop=stop_strings)
def test_the_blank_before_the_first_word_is_no_text(tokens, stop):
    matcher = StopMatcher(WORDS.pieces, stop, drops_first_blank=WORDS.drops_first_blank)
    assert stopped_at(matcher, tokens) == cut_at(Detokenizer(WORDS.incremental(), stop), tokens)


def test_states_are_values():
    matcher = StopMatcher((b"", b"a", b"b"), ("ab",), drops_first_blank=False)
    first = matcher.after(matcher.start(), 1)
    assert matcher.is_stopped(matcher.after(first, 2))
    assert not matcher.is_stopped(matcher.after(first, 1))
    assert not matcher.is_stopped(first)
