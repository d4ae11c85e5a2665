import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import IncrementalDecoder, Tokenizer
from service.engine.detokenizer import Detokenizer


class Pieces(IncrementalDecoder):
    """Token i is the i-th piece of text."""

    def __init__(self, pieces, rest=""):
        self.pieces, self.rest = pieces, rest

    def push(self, token):
        return self.pieces[token]

    def flush(self):
        return self.rest


def pushed(pieces, stop=(), rest=""):
    """What comes out of each push and of the flush, and whether a stop string did it."""
    text = Detokenizer(Pieces(pieces, rest), stop)
    out = [text.push(token) for token in range(len(pieces))]
    return [*out, text.flush()], text.is_stopped


def read_by_character(text, stop):
    """The slow rule: read on until the text ends with a stop string; the longest of those is cut off."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stop if s and text[:end].endswith(s)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def test_without_stop_strings_everything_comes_at_once():
    assert pushed(["ab", "", "c"], rest="d") == (["ab", "", "c", "d"], False)


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_certain():
    assert pushed(["x", "#", "#", "y"], stop=["###"]) == (["x", "", "", "##y", ""], False)


def test_a_stop_string_is_not_part_of_the_text():
    assert pushed(["one EN", "D", " two"], stop=["END"]) == (["one ", "", "", ""], True)


def test_a_stop_string_within_one_piece():
    assert pushed(["one END two"], stop=["END"]) == (["one ", ""], True)


def test_text_held_back_comes_at_the_end():
    assert pushed(["x#"], stop=["##"]) == (["x", "#"], False)


def test_a_stop_string_that_ends_with_the_flush():
    assert pushed(["x#"], stop=["#!"], rest="!") == (["x", ""], True)


@pytest.mark.parametrize(("stop", "text"), [(["abcd", "bc"], "xabcdy"), (["bc", "abc"], "xabcy"), (["", "b"], "xaby")])
def test_the_stop_string_complete_first_counts_and_of_these_the_longest(stop, text):
    expected = read_by_character(text, stop)
    for pieces in ([text], list(text)):
        out, is_stopped = pushed(pieces, stop)
        assert ("".join(out), is_stopped) == expected


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_text_does_not_depend_on_how_it_is_cut_into_tokens(pieces, stop):
    out, is_stopped = pushed(pieces, stop)
    assert ("".join(out), is_stopped) == read_by_character("".join(pieces), stop)


@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_no_more_is_held_back_than_needed(pieces, stop):
    text = Detokenizer(Pieces(pieces), stop)
    seen = out = ""
    for token, piece in enumerate(pieces):
        out += text.push(token)
        seen += piece
        if text.is_stopped:
            break
        held = seen.removeprefix(out)
        assert not held or any(s.startswith(held) and s != held for s in stop)


def test_characters_spread_over_tokens_arrive_whole():
    tokenizer = Tokenizer.train(["plain text"], kind="bpe", vocab_size=260)  # bytes: every emoji is four tokens
    tokens = tokenizer.encode("a😀é")
    text = Detokenizer(tokenizer.incremental(), ["😀é!"])
    out = [text.push(token) for token in tokens]
    assert out == ["a", "", "", "", "", "", ""]
    assert text.flush() == "😀é"


def test_a_broken_character_at_the_end_is_replaced():
    tokenizer = Tokenizer.train(["plain text"], kind="bpe", vocab_size=260)
    text = Detokenizer(tokenizer.incremental())
    for token in tokenizer.encode("😀")[:-1]:
        assert text.push(token) == ""
    assert text.flush() == "\ufffd"


@given(st.lists(st.sampled_from(["", " ", "\n", "a", " b ", "c\n\n"])), st.sampled_from(["", " ", "d", " d "]))
def test_a_trimmed_text_is_the_text_without_blanks_at_its_ends(pieces, rest):
    text = Detokenizer(Pieces(pieces, rest), trims=True)
    out = [text.push(token) for token in range(len(pieces))]
    assert all(piece == "" or not "".join(out[: at + 1])[-1].isspace() for at, piece in enumerate(out))
    assert "".join([*out, text.flush()]) == ("".join(pieces) + rest).strip()


def test_blanks_before_a_stop_string_are_trimmed():
    text = Detokenizer(Pieces([" a", " b ", " \n", "c"]), ("\n",), trims=True)
    assert [text.push(token) for token in range(4)] == ["a", " b", "", ""]
    assert (text.flush(), text.is_stopped) == ("", True)
