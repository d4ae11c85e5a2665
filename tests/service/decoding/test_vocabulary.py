import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.tokenizer import Tokenizer
from service.decoding.vocabulary import Vocabulary

TEXTS = ["größer als Größe", "the old tree, the old house", "日本語の本", "😀😃 😀"]
BPE = Vocabulary.of(Tokenizer.train(TEXTS * 3, kind="bpe", vocab_size=320), eos_ids=(2,))
WORDS = Vocabulary.of(Tokenizer.train(TEXTS, kind="words", vocab_size=60), eos_ids=(2,))
texts = st.one_of(
    st.sampled_from([" ", "the", "ö", "本", "😀", " old", "d"]), st.text("theold größe,日本😀", min_size=1)
)


@pytest.mark.parametrize("vocabulary", [BPE, WORDS], ids=["bpe", "words"])
@given(text=texts, cut=st.integers(0, 3))
def test_indices_find_the_same_as_a_linear_scan(vocabulary, text, cut):
    whole = text.encode()
    pieces = list(enumerate(vocabulary.pieces))
    assert vocabulary.containing(whole).tolist() == [token for token, piece in pieces if whole in piece]
    part = whole[min(cut, len(whole) - 1) :]  # may begin inside a character
    assert sorted(vocabulary.beginning_with(part)) == [token for token, piece in pieces if piece.startswith(part)]


def test_the_leading_space_has_no_text_if_the_tokenizer_strips_it():
    token = WORDS.pieces.index(b" old")
    assert WORDS.first(token) == b"old"
    assert BPE.first(BPE.pieces.index(b" old")) == b" old"
    assert (len(WORDS), WORDS.longest) == (len(WORDS.pieces), len(" 日本語の本".encode()))


def test_a_derived_value_is_computed_once_and_lives_as_long_as_the_vocabulary():
    """As the tokens of a grammar and the contexts of lexical constraints are."""
    built = list[int]()

    class Derived:
        def __init__(self, vocabulary):
            built.append(len(vocabulary))

    vocabulary = Vocabulary(BPE.pieces, eos_ids=(2,), strips_leading_space=False)
    first = vocabulary.derived(Derived)
    assert vocabulary.derived(Derived) is first
    assert built == [len(BPE)]
    assert Vocabulary(BPE.pieces, eos_ids=(2,), strips_leading_space=False).derived(Derived) is not first
    reference = weakref.ref(first)
    del vocabulary, first
    gc.collect()
    assert reference() is None
