import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.tokenizer import IncrementalDecoder, Tokenizer
from service.edge.models.alignment import align, composed, target_spans

EOS = 2
PIECES = [
    b"",
    b"",
    b"",
    b"",
    *(bytes([byte]) for byte in range(256)),
    b" dog",
    b"\xf0\x9f",
    b"\x98\x80!",
    b"a\xcc",
    b" ",
]
DOG, HALF, REST, MARK, BLANK = range(260, 265)
TOKENIZER = Tokenizer.train(["a cat ate a tea, e.a. 😀"] * 3, kind="bpe", vocab_size=300)


def token_of(byte):
    return byte + 4


def spell(text):
    return [token_of(byte) for byte in text.encode()]


def decode(tokens, *, strips_leading_space=False, pieces=PIECES):
    decoder = IncrementalDecoder(pieces, strips_leading_space=strips_leading_space)
    return "".join([decoder.push(token) for token in tokens]) + decoder.flush()


def spans_of(tokens, *, strips_leading_space=False):
    return target_spans(
        tokens,
        PIECES,
        decode(tokens, strips_leading_space=strips_leading_space),
        strips_leading_space=strips_leading_space,
    )


def test_spans_partition_the_text():
    assert spans_of([*spell("My"), DOG, DOG, EOS]) == ((0, 1), (1, 2), (2, 6), (6, 10), (10, 10))


def test_a_character_belongs_to_all_tokens_with_bytes_of_it():
    tokens = [*spell("ä"), HALF, REST, EOS]
    assert decode(tokens) == "ä😀!"
    assert spans_of(tokens) == ((0, 1), (0, 1), (1, 2), (1, 3), (3, 3))


def test_a_combining_mark_is_a_character_of_its_own():
    tokens = [MARK, token_of(0x81), *spell("x")]
    assert decode(tokens) == "a\u0301x"
    assert spans_of(tokens) == ((0, 2), (1, 2), (2, 3))


def test_each_broken_character_is_one_character():
    tokens = [
        HALF,
        *spell("b"),
        token_of(0xE2),
        token_of(0xE2),
        token_of(0xFF),
        *spell("\N{REPLACEMENT CHARACTER}"),
        HALF,
    ]
    assert decode(tokens) == "\ufffdb\ufffd\ufffd\ufffd\ufffd\ufffd"
    assert spans_of(tokens) == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (5, 6), (5, 6), (6, 7))


def test_a_stripped_leading_space_belongs_to_no_span():
    assert spans_of([EOS, DOG, DOG], strips_leading_space=True) == ((0, 0), (0, 3), (3, 7))
    assert spans_of([BLANK, DOG], strips_leading_space=True) == ((0, 0), (0, 4))
    assert spans_of([DOG, DOG]) == ((0, 4), (4, 8))


def test_spans_end_where_a_stop_string_cut_the_text():
    tokens = [DOG, DOG, DOG, EOS]
    assert target_spans(tokens, PIECES, " dog d", strips_leading_space=False) == ((0, 4), (4, 6), (6, 6), (6, 6))
    assert target_spans(tokens, PIECES, "", strips_leading_space=False) == ((0, 0),) * 4


def test_no_tokens_have_no_spans():
    assert target_spans([], PIECES, "", strips_leading_space=True) == ()


@given(tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=20), drops=st.booleans())
@example(tokens=[HALF, EOS, REST], drops=True)
@example(tokens=[token_of(0xED), token_of(0xA0)], drops=False)  # half a surrogate: two broken characters
@settings(max_examples=300)
def test_spans_are_ordered_and_cover_the_text(tokens, drops):
    check_spans(tokens, PIECES, drops)


@given(
    text=st.text(st.sampled_from("aé ñ\u0301\u200d👩‍🚀😀\ufffd\n中▁"), max_size=12),
    cuts=st.lists(st.integers(0, 48), max_size=8),
    drops=st.booleans(),
)
@settings(max_examples=300)
def test_spans_of_text_cut_anywhere_hold_the_characters_of_their_bytes(text, cuts, drops):
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    parts = [data[start:end] for start, end in pairwise(edges)]
    pieces, tokens = [b"", *parts], list(range(1, len(parts) + 1))
    check_spans(tokens, pieces, drops)

    def begun(end):
        return sum(byte & 0xC0 != 0x80 for byte in data[:end])

    expected = tuple((begun(start + 1) - 1, begun(end)) for start, end in pairwise(edges))
    assert target_spans(tokens, pieces, text, strips_leading_space=False) == expected


def check_spans(tokens, pieces, drops):
    text = decode(tokens, strips_leading_space=drops, pieces=pieces)
    spans = target_spans(tokens, pieces, text, strips_leading_space=drops)
    assert len(spans) == len(tokens)
    full = [span for span in spans if span[0] < span[1]]
    assert full == sorted(full)
    assert [end for _, end in full] == sorted(end for _, end in full)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert {place for start, end in spans for place in range(start, end)} == set(range(len(text)))
    end_before = 0
    for token, (start, end) in zip(tokens, spans, strict=True):
        assert pieces[token] or start == end == end_before
        end_before = end


@given(text=st.text(st.sampled_from("ae \u0301\n😀中.,"), max_size=30))
@settings(max_examples=100)
def test_spans_of_a_trained_tokenizer_are_those_it_gives_a_source(text):
    tokenizer = TOKENIZER
    tokens = tokenizer.encode(text)
    spans = target_spans(tokens, tokenizer.pieces, text, strips_leading_space=tokenizer.strips_leading_space)
    assert list(spans) == tokenizer.offsets(text)


def test_spans_begin_where_words_begin():
    tokenizer = Tokenizer.train(["Two old dogs, and isn't it sad?"], kind="words", vocab_size=50)
    text = unicodedata.normalize("NFC", "Two dogs, isn't it?")
    spans = target_spans(tokenizer.encode(text), tokenizer.pieces, text, strips_leading_space=True)
    assert [text[start:end] for start, end in spans] == ["Two", " dogs", ",", " isn", "'", "t", " it", "?"]


def attention(layers=2, heads=3, tokens=4, source=5):
    weights_LHTS = np.random.default_rng(1).random((layers, heads, tokens, source), dtype=np.float32)
    return weights_LHTS / weights_LHTS.sum(-1, keepdims=True)


@pytest.mark.parametrize("tokens", [1, 4])
def test_weights_are_the_mean_of_the_selected_heads_of_the_selected_layer(tokens):
    weights_LHTS = attention(tokens=tokens)
    for layer in (1, 2):
        assert align(weights_LHTS, layer) == pytest.approx(weights_LHTS[layer - 1].mean(0))
        assert align(weights_LHTS, layer, [3]) == pytest.approx(weights_LHTS[layer - 1, 2])
        assert align(weights_LHTS, layer, [1, 3]) == pytest.approx(weights_LHTS[layer - 1, [0, 2]].mean(0))
    assert align(weights_LHTS, 1).dtype == np.float32
    assert align(weights_LHTS, 1).sum(-1) == pytest.approx(np.ones(tokens))


def test_two_alignments_over_a_text_between_are_composed():
    """The first model cuts it into ab|cd and an end, the second into a|bcd and an end of its own."""
    first = np.array([[0.8, 0.2], [0.0, 1.0], [0.5, 0.5]], np.float32)
    second = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]], np.float32)
    found = composed(first, [(0, 2), (2, 4), (4, 4)], second, [(0, 1), (1, 4), (4, 4)])
    whole = (np.array([0.8, 0.2]) + 2 * np.array([0.0, 1.0])) / 3  # b of ab, and cd
    np.testing.assert_allclose(found[:3], [[0.8, 0.2], whole, [0.5, 0.5]], atol=1e-6)
    np.testing.assert_allclose(found[3], (np.array([0.8, 0.2]) + whole) / 2, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_the_same_cut_composes_as_a_product_of_matrices():
    rng = np.random.default_rng(1)
    first, second = (rng.dirichlet(np.ones(4), size=3).astype(np.float32) for _ in range(2))
    spans = [(0, 3), (3, 5), (5, 5)]
    second = second[:, :3] / second[:, :3].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(composed(first, spans, second, spans), second @ first, atol=1e-6)
