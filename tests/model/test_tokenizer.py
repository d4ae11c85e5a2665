import os
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokenizer import SEPARATOR, SPECIAL, Tokenizer, TokenizerError

SENTENCES = [
    "Zwei junge Frauen in roten Mänteln warten vor dem alten Bahnhof.",
    "Two young women in red coats are waiting in front of the old station.",
    "There are twenty-seven dogs, and the old man's cat – isn't it sad?",
    "„Wo ist der Hund?“, fragt das Mädchen.",
]


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train(SENTENCES * 3, kind="bpe", vocab_size=300)


@pytest.fixture(scope="module")
def words():
    return Tokenizer.train(SENTENCES, kind="words", vocab_size=100)


@pytest.fixture(params=["bpe", "words"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def test_special_tokens_have_the_first_four_ids(tokenizer):
    assert tokenizer.special == dict(zip(SPECIAL, range(4), strict=True))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_text_of_the_corpus_comes_back_exactly(tokenizer, sentence):
    ids = tokenizer.encode(sentence)
    assert 3 not in ids
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    assert tokenizer.decode(ids) == sentence


def test_one_token_a_word_and_mark(words):
    assert len(words.encode("There are twenty-seven dogs.")) == 7


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=200)
def test_bpe_gives_every_text_back(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text


def test_special_tokens_typed_by_a_user_are_plain_text(bpe, words):
    ids = bpe.encode("a <eos> b<pad>")
    assert not set(ids) & {0, 1, 2, 3}
    assert bpe.decode(ids) == "a <eos> b<pad>"
    assert not set(words.encode("the <eos>")) & {0, 1, 2}


def test_special_ids_are_no_text(tokenizer):
    ids = tokenizer.encode(SENTENCES[0])
    assert tokenizer.decode([1, *ids[:3], 0, *ids[3:], 2, 0, 0]) == SENTENCES[0]


def test_batch_equals_one_by_one(tokenizer):
    assert tokenizer.encode_batch(SENTENCES) == [tokenizer.encode(sentence) for sentence in SENTENCES]
    assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("sentence", SENTENCES)
def test_offsets_cut_the_text_as_its_tokens_do(tokenizer, sentence):
    tokens = tokenizer.encode(sentence)
    for token, (start, end) in zip(tokens, tokenizer.offsets(sentence), strict=True):
        piece = tokenizer.decode([token])
        assert "\N{REPLACEMENT CHARACTER}" in piece or sentence[start:end].strip() == piece.strip()


def test_offsets_of_words_are_those_of_the_text_as_typed(words):
    typed = unicodedata.normalize("NFD", "  Zwei   junge\n\tMänteln .  ")
    assert [typed[start:end] for start, end in words.offsets(typed)] == [
        "Zwei",
        " junge",
        "\t" + unicodedata.normalize("NFD", "Mänteln"),
        " .",
    ]
    hangul = "\u1112\u1161\u11ab dogs"  # three characters that NFC makes one
    assert words.offsets(hangul) == [(0, 3), (3, 8)]


def test_bytes_of_one_character_all_stand_for_it(bpe):
    assert bpe.offsets("a😀") == [(0, 1)] + [(1, 2)] * 4


@given(
    st.text(
        st.sampled_from(
            "ae \n\u0301\u0323\u0338=<\u2000\xa0\u1112\u1161\u11ab\u0f73\u0344\u0958😀▁\u212b\ufb1d\U0001d15e-"
        )
    )
)
@settings(max_examples=500)
def test_offsets_are_in_order_and_cover_what_is_no_blank(bpe, words, text):
    for tokenizer in (bpe, words):
        spans = tokenizer.offsets(text)
        assert len(spans) == len(tokenizer.encode(text))
        assert all(0 <= start < end <= len(text) for start, end in spans)
        assert spans == sorted(spans)
        assert [end for _, end in spans] == sorted(end for _, end in spans)
        covered = {place for start, end in spans for place in range(start, end)}
        assert all(place in covered or text[place].isspace() for place in range(len(text)))


def test_unknown_words_are_named_in_order_and_once(words, bpe):
    text = "Two purple dogs, and a purple elephant are waiting; quickly!"
    assert words.unknown_words(text) == ["purple", "a", "elephant", ";", "quickly", "!"]
    assert words.unknown_words(SENTENCES[2]) == []
    assert bpe.unknown_words(text) == []


def test_words_do_not_care_how_blanks_and_accents_are_typed(words):
    assert words.encode("  Zwei\tjunge\n Frauen  in roten Ma\u0308nteln ") == words.encode(
        "Zwei junge Frauen in roten Mänteln"
    )


@given(st.lists(st.integers(0, 299), max_size=40))
@settings(max_examples=300)
def test_incremental_pieces_join_to_the_decoded_text(bpe, ids):
    """Any ids, also bytes that are no UTF-8: a model is free to produce them."""
    ids = [token % bpe.vocab_size for token in ids]
    decoder = bpe.incremental()
    pieces = [decoder.push(token) for token in ids]
    assert "".join(pieces) + decoder.flush() == bpe.decode(ids)


@given(st.lists(st.integers(0, 40), max_size=20))
@settings(max_examples=100)
def test_incremental_words_join_to_the_decoded_text(words, ids):
    ids = [token % words.vocab_size for token in ids]
    decoder = words.incremental()
    assert "".join(map(decoder.push, ids)) + decoder.flush() == words.decode(ids)


def test_texts_of_tokens_join_to_the_whole_text(bpe, words):
    for text, tokenizer in ((SENTENCES[0], words), (SENTENCES[0], bpe)):
        tokens = tokenizer.encode(text)
        assert "".join(tokenizer.token_texts([*tokens, 2])) == text
    half = bpe.encode("ä")[:1]
    assert "".join(bpe.token_texts(half)) == bpe.decode(half)
    assert words.token_texts([]) == []


def test_words_have_the_ids_of_the_text(bpe):
    found = bpe.words([*SENTENCES, "isn't it", ""])
    assert [[token for word in text for token in word] for text in found[:4]] == bpe.encode_batch(SENTENCES)
    assert [bpe.decode(word) for word in found[4]] == ["isn", "'t", " it"]
    assert found[5] == []


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_pieces_are_what_tokens_write(kind, request):
    tokenizer = request.getfixturevalue(kind)
    assert len(tokenizer.pieces) == tokenizer.vocab_size
    assert list(tokenizer.pieces[:4]) == [b""] * 4
    for sentence in SENTENCES:
        written = b"".join(tokenizer.pieces[token] for token in tokenizer.encode(sentence))
        assert written == b" " * tokenizer.strips_leading_space + sentence.encode()
    assert tokenizer.strips_leading_space == (kind == "words")


def test_a_character_appears_whole_with_its_last_byte():
    tokenizer = Tokenizer.train(["a"], kind="bpe", vocab_size=260)  # bytes only
    decoder = tokenizer.incremental()
    ids = tokenizer.encode("ä€🙂")
    assert len(ids) == 2 + 3 + 4
    assert [decoder.push(token) for token in ids] == ["", "ä", "", "", "€", "", "", "", "🙂"]
    assert decoder.flush() == ""
    assert decoder.push(tokenizer.encode("€")[0]) == ""
    assert decoder.flush() == "\N{REPLACEMENT CHARACTER}"


def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    for token in (-1, tokenizer.vocab_size):
        with pytest.raises(TokenizerError, match=rf"must be 0\.\.{tokenizer.vocab_size - 1}, got {token}"):
            tokenizer.incremental().push(token)


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.to_json() == tokenizer.to_json()
    assert loaded.encode_batch(SENTENCES) == tokenizer.encode_batch(SENTENCES)
    assert loaded.encode("<eos>") == tokenizer.encode("<eos>")


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_the_same_corpus_gives_the_same_bytes_in_every_process(kind):
    texts = [f"{sentence} {number % 7}" for number in range(50) for sentence in SENTENCES]
    program = (
        "import sys; from model.tokenizer import Tokenizer\n"
        f"sys.stdout.write(Tokenizer.train({texts!r}, kind={kind!r}, vocab_size=2000).to_json())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd(), "PYTHONIOENCODING": "utf-8"},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000


def test_a_vocabulary_that_is_too_small_is_refused():
    with pytest.raises(TokenizerError, match=r"the corpus has \d+ different words and marks, vocab_size allows 20"):
        Tokenizer.train(SENTENCES, kind="words", vocab_size=20)
    with pytest.raises(TokenizerError, match="vocab_size must be at least 260 for byte-level BPE"):
        Tokenizer.train(SENTENCES, kind="bpe", vocab_size=259)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff\xfe", b"[1, 2]"])
def test_a_broken_file_is_named(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=str(path)):
        Tokenizer.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"nowhere.json: cannot be read"):
        Tokenizer.load(tmp_path / "nowhere.json")


def test_a_file_without_a_vocabulary_is_refused(words, tmp_path):
    text = words.to_json().replace('"vocab"', '"words"')
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        Tokenizer.from_json(text)


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_words_begin_at_blanks_and_at_single_characters(kind):
    text = "the old, grey-green cat's tail (really?) moves"
    tokenizer = Tokenizer.train([text], kind=kind, vocab_size=270 if kind == "bpe" else 64)
    starts, spans = tokenizer.word_starts(text), tokenizer.offsets(text)
    assert len(starts) == len(tokenizer.encode(text))
    words = ["the", "old", ",", "grey", "-", "green", "cat", "'", "s", "tail", "(", "really", "?", ")", "moves"]
    firsts = [
        end - len(text[start:end].lstrip()) for is_start, (start, end) in zip(starts, spans, strict=True) if is_start
    ]
    places, last = [], 0
    for word in words:
        last = text.index(word, last)
        places.append(last)
        last += len(word)
    assert firsts == places


def test_the_bytes_of_a_character_begin_one_word():
    tokenizer = Tokenizer.train(["abc"], kind="bpe", vocab_size=270)
    text = "né 😀😀 ab"
    ids = tokenizer.encode(text)
    firsts = [place for place, is_start in enumerate(tokenizer.word_starts(text)) if is_start]
    assert len(ids) > len(text)
    words = [ids[start:end] for start, end in zip(firsts, [*firsts[1:], None], strict=True)]
    assert [tokenizer.decode(word).strip() for word in words] == ["né", "😀", "😀", "ab"]


def test_a_blank_of_its_own_begins_the_word_after_it():
    tokenizer = Tokenizer.train(["abc"], kind="bpe", vocab_size=260)
    text = "a  bc ("
    assert [text[slice(*span)] for span in tokenizer.offsets(text)] == ["a", " ", " ", "b", "c", " ", "("]
    assert tokenizer.word_starts(text) == [True, False, True, False, False, True, False]


def test_a_separator_is_a_special_token_that_no_text_contains():
    tokenizer = Tokenizer.train(["a <sep> b"], kind="words", vocab_size=20, with_separator=True)
    assert tokenizer.special[SEPARATOR] == 4
    assert 4 not in tokenizer.encode("a <sep> b")
    assert tokenizer.decode([*tokenizer.encode("a"), 4, *tokenizer.encode("b")]) == "a b"
    assert SEPARATOR not in Tokenizer.train(["a b"], kind="words", vocab_size=20).special
