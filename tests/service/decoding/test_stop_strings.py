from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from service.decoding.stop_strings import StopMatcher, StopState
from service.decoding.vocabulary import Vocabulary
from service.engine.detokenizer import Detokenizer

TEXTS = ["ab ab abc", "größer als größe", "a b c d", "日本語 日本", "😀😃 😀"]
BPE = Tokenizer.train(TEXTS * 3, kind="bpe", vocab_size=290)
WORDS = Tokenizer.train(TEXTS, kind="words", vocab_size=60)
stop_strings = st.lists(st.text("ab größe日本😀 \ufffd", min_size=1, max_size=5), min_size=1, max_size=3)


def stopped_at(matcher, tokens):
    """The place of the token that completes a stop string, or None."""
    state = StopState()
    for place, token in enumerate(tokens):
        state = matcher.next_state(state, token)
        if state.is_stopped:
            return place
    return None


def cut_at(detokenizer, tokens):
    for place, token in enumerate(tokens):
        detokenizer.push(token)
        if detokenizer.is_stopped:
            return place
    return None


some_tokens = st.lists(st.integers(0, BPE.vocab_size - 1), max_size=40)
spelled = st.text("ab größe日本😀 ", max_size=20).map(BPE.encode)


@given(
    tokens=some_tokens | spelled | st.tuples(spelled, some_tokens).map(lambda two: two[0] + two[1]), stop=stop_strings
)
def test_it_stops_at_the_same_token_as_the_detokenizer(tokens, stop):
    """Any tokens: special ones, and bytes that are no UTF-8."""
    matcher = StopMatcher(Vocabulary.of(BPE, eos_ids=(2,)), stop)
    assert stopped_at(matcher, tokens) == cut_at(Detokenizer(BPE.incremental(), stop), tokens)


@given(tokens=st.lists(st.integers(0, WORDS.vocab_size - 1), max_size=20), stop=stop_strings)
def test_a_stripped_leading_space_has_no_text(tokens, stop):
    matcher = StopMatcher(Vocabulary.of(WORDS, eos_ids=(2,)), stop)
    assert stopped_at(matcher, tokens) == cut_at(Detokenizer(WORDS.incremental(), stop), tokens)


def test_states_are_values():
    matcher = StopMatcher(Vocabulary((b"", b"a", b"b"), eos_ids=(0,), strips_leading_space=False), ("ab",))
    first = matcher.next_state(StopState(), 1)
    assert matcher.next_state(first, 2).is_stopped
    assert not matcher.next_state(first, 1).is_stopped
    assert not first.is_stopped
