"""The kinds of tokenizer.json in published checkpoints, against the `tokenizers` library."""

import json
import random
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer as Library

from model import tokenizer as backends
from model.tokenizer import Tokenizer, TokenizerError
from tests.model.tokenizers.families import FAMILIES, made
from tests.multilingual import lines

TEXTS = lines(300, 20)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """What the library makes of a file, without its template, and what we do."""
    values = made(request.param, tmp_path_factory.mktemp(request.param))
    tokenizer = Tokenizer.from_json(json.dumps(values))
    bare = {**values, "post_processor": None, "truncation": None, "padding": None}
    if request.param == "llama3":  # whose gaps the library closes
        bare["added_tokens"] = []
    library = Library.from_str(json.dumps(bare))
    library.encode_special_tokens = True
    return request.param, library, tokenizer


def without_special(tokenizer, texts):
    return [text for text in texts if not any(name in text for name in tokenizer.special)]


def test_ids_and_text_are_those_of_the_library(family):
    name, library, tokenizer = family
    texts = [text for text in without_special(tokenizer, TEXTS) if "[tool]" not in text]
    expected = [encoding.ids for encoding in library.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer.encode_batch(texts) == expected
    assert [tokenizer.encode(text) for text in texts[:40]] == expected[:40]
    for ids in expected:
        assert tokenizer.decode(ids) == library.decode(ids), name


def test_added_tokens_are_found_and_special_ones_are_not(family):
    name, _, tokenizer = family
    if name in ("gpt2", "llama3"):
        own = {"gpt2": 503, "llama3": 500 + 28}[name]
        assert own in tokenizer.encode("a[tool]b")
        assert tokenizer.decode(tokenizer.encode("a[tool] née b")) == "a[tool] née b"
    unknown = {token for text, token in tokenizer.special.items() if text in ("<unk>", "[UNK]")}
    for text in tokenizer.special:
        ids = tokenizer.encode(f"a {text} {text}{text} b")
        assert not {*tokenizer.special.values()} - unknown & {*ids}
        if not unknown & {*ids} and name != "bert":
            assert tokenizer.decode(ids) == f"a {text} {text}{text} b"
        assert tokenizer.decode([tokenizer.special[text]]) == ""


def test_ids_one_by_one_are_the_text_of_all(family):
    _, _, tokenizer = family
    rng = random.Random(22)
    for text in TEXTS[:60]:
        ids = tokenizer.encode(text)
        for _ in range(3):
            ids.insert(rng.randrange(len(ids) + 1), rng.randrange(tokenizer.vocab_size))
        decoder = tokenizer.incremental()
        joined_text = "".join([decoder.push(token) for token in ids]) + decoder.flush()
        assert joined_text == tokenizer.decode(ids)
        joined = b"".join(tokenizer.pieces[token] for token in ids)
        assert joined_text == (joined.removeprefix(b" ") if tokenizer.strips_leading_space else joined).decode(
            "utf-8", "replace"
        )


def test_lossless_vocabularies_round_trip_text(family):
    name, _, tokenizer = family
    if name in ("gpt2", "llama3"):
        assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS
    elif name in ("llama2", "gemma"):  # a "▁" that was typed is a blank
        kept = [text for text in TEXTS if "▁" not in text]
        assert [tokenizer.decode(tokenizer.encode(text)) for text in kept] == kept


def test_offsets_are_ordered_and_omit_only_blanks(family):
    name, _, tokenizer = family
    for text in TEXTS[:100]:
        spans = tokenizer.offsets(text)
        assert len(spans) == len(tokenizer.encode(text))
        assert [start for start, _ in spans] == sorted(start for start, _ in spans)
        assert [end for _, end in spans] == sorted(end for _, end in spans)
        if name in ("gpt2", "llama3", "llama2", "gemma"):
            covered = {place for start, end in spans for place in range(start, end)}
            assert covered == set(range(len(text)))


def test_ids_beyond_the_vocabulary_are_no_text(family):
    _, _, tokenizer = family
    wide = Tokenizer.from_json(tokenizer.to_json(), vocab_size=tokenizer.vocab_size + 5)
    assert wide.vocab_size == len(wide.pieces) == tokenizer.vocab_size + 5
    assert wide.decode([wide.vocab_size - 1, *wide.encode("a b")]) == tokenizer.decode(tokenizer.encode("a b"))
    assert wide.incremental().push(wide.vocab_size - 1) == ""
    with pytest.raises(TokenizerError, match="token ids must be"):
        wide.decode([wide.vocab_size])
    with pytest.raises(TokenizerError, match=r"my\.json: must have at most the model's 9 entries"):
        Tokenizer.from_json(tokenizer.to_json(), name="my.json", vocab_size=9)


def test_ids_with_gaps_keep_their_places(tmp_path):
    values = made("llama3", tmp_path)
    tokenizer = Tokenizer(values)
    size = len(values["model"]["vocab"])
    assert tokenizer.special == {"<|endoftext|>": size + 7, "</s>": size + 14, "<s>": size + 21}
    assert tokenizer.vocab_size == size + 36
    assert [tokenizer.pieces[size + place] for place in (0, 7, 27, 28, 35)] == [
        b"",
        b"",
        b"",
        b"[tool]",
        " née".encode(),
    ]


def test_a_byte_that_is_no_character_is_replaced_and_does_not_spoil_others(tmp_path):
    tokenizer = Tokenizer(made("llama2", tmp_path))
    by_name = {piece: token for token, piece in enumerate(tokenizer.pieces) if len(piece) == 1}
    e_acute = [by_name[bytes([byte])] for byte in "é".encode()]
    assert tokenizer.decode(e_acute) == "é"
    assert tokenizer.decode([*e_acute, by_name[b"\xff"]]) == "é\ufffd"
    decoder = tokenizer.incremental()
    assert [decoder.push(token) for token in (*e_acute, by_name[b"\xe2"], *tokenizer.encode("a"))][:2] == ["", "é"]


def test_wordpiece_joins_continued_words_and_cleans_up_punctuation(tmp_path):
    tokenizer = Tokenizer(made("bert", tmp_path))
    assert tokenizer.decode(tokenizer.encode("Mi, lo! (ka) ?")) == "mi, lo! ( ka )?"
    continued = next(token for token, piece in enumerate(tokenizer.pieces) if piece[:1].isalpha())
    assert tokenizer.decode([*tokenizer.encode("lo"), continued]) == "lo" + tokenizer.pieces[continued].decode()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"decoder": None}, "decoder must be ByteLevel, Metaspace, WordPiece, or a Sequence of Replace"),
        ({"decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, "decoder must be .* got .*BPEDecoder"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "CTC"}]}}, "decoder must be"),
        ({"model": {"type": "BPE"}}, "not a tokenizer.json: KeyError"),
        ({"model": {"type": "Strange", "vocab": {"a": 0}}}, "not a tokenizer.json"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "token ids must be whole numbers 0"),
        ({"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}}, "token ids must be whole numbers 0"),
        ({"normalizer": {"type": "Strange"}}, "not a tokenizer.json"),
        ({"added_tokens": [{"content": "a"}]}, "not a tokenizer.json: KeyError"),
    ],
)
def test_an_unsupported_tokenizer_json_is_refused(change, problem, tmp_path):
    values = made("gpt2", tmp_path)
    with pytest.raises(TokenizerError, match=problem):
        Tokenizer.from_json(json.dumps({**values, **change}))


def test_a_panic_of_the_library_is_an_error_of_the_file(tmp_path, monkeypatch):
    """Its binding (tokenizers 0.23.3) panics at some values, by an exception that is no `Exception`."""

    class Panic(BaseException):
        pass

    def panics(text):
        raise Panic("no charsmap")

    monkeypatch.setattr(backends, "Backend", SimpleNamespace(from_str=panics))
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json: no charsmap"):
        Tokenizer.from_json(json.dumps(made("gpt2", tmp_path)))


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, "1"])
def test_a_tokenizer_json_that_is_no_object_is_refused(text):
    with pytest.raises(TokenizerError, match=r"^t\.json: not a tokenizer\.json"):
        Tokenizer.from_json(text, name="t.json")
