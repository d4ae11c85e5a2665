"""Vocabularies that `tokenizers` reads, and of which texts fail."""

import json
from typing import Any

import pytest

from model.tokenizer import Tokenizer, TokenizerError
from model.tokenizers.vocabulary_checks import MAX_GAPS

WORDS = {"<unk>": 0, "a": 1}
PAIRS = [["<unk>", 0.0], ["a", -1.0]]


def tokenizer(kind, vocab, added=(), **model):
    values = {"added_tokens": list(added), "model": {"type": kind, "vocab": vocab, **model}}
    return Tokenizer.from_json(json.dumps({**values, "decoder": {"type": "ByteLevel"}}))


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece", "BPE"])
def test_an_unknown_token_is_an_entry(kind):
    own: dict[str, Any] = {"BPE": {"merges": []}}.get(kind, {})
    if kind == "WordPiece":
        own = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    assert tokenizer(kind, WORDS, unk_token="<unk>", **own).encode("b") == [0]
    with pytest.raises(TokenizerError, match=r"unk_token must be an entry of the vocabulary, got '\[UNK\]'; add it"):
        tokenizer(kind, WORDS, unk_token="[UNK]", **own)


def test_a_unigram_model_has_an_unknown_token():
    assert tokenizer("Unigram", PAIRS, unk_id=0).encode("b") == [0]
    with pytest.raises(TokenizerError, match="unk_id must be the id of the unknown token, got None"):
        tokenizer("Unigram", PAIRS, unk_id=None)


def test_few_ids_have_no_entry():
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {**flags, "content": "<x>", "special": True}
    few = tokenizer("WordLevel", WORDS, [{**added, "id": 99}], unk_token="<unk>")
    assert (few.vocab_size, few.encode("a")) == (100, [1])
    with pytest.raises(TokenizerError, match=f"at most {MAX_GAPS} ids may have no entry, got {MAX_GAPS + 1} of"):
        tokenizer("WordLevel", WORDS, [{**added, "id": MAX_GAPS + 3}], unk_token="<unk>")
