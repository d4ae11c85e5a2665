"""Pieces of ordinary text that a file flags special, against the library."""

import json

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from model.tokenizer import Tokenizer

TEXTS = [
    f"The {size} {who} {what}." for size in ("old", "red") for who in ("dog", "king") for what in ("sleeps", "sees")
]
PROBES = ("The dog sleeps!", "!! The king. ..", "a\nb\n\nc", "😀 é dog", "  The  ", "", "Thedog sleeps.")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level():
    library = Library(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return library, trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=["<end>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )


def byte_fallback():
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    library.decoder = decoders.Sequence(steps)
    return library, trainers.BpeTrainer(vocab_size=310, special_tokens=["<unk>", "</s>", *BYTES], show_progress=False)


def unigram():
    library = Library(models.Unigram())
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return library, trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )


def wordpiece():
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library, trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "[CLS]"], show_progress=False)


@pytest.fixture(scope="module", params=[byte_level, byte_fallback, unigram, wordpiece])
def library(request):
    made, trainer = request.param()
    made.train_from_iterator(TEXTS * 3, trainer)
    return made


def added(library, *tokens):
    changed = Library.from_str(library.to_str())
    changed.add_tokens(list(tokens))
    return changed


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize("name", ["!", ".", "\n", "dog", "sleeps", "Ġdog", "▁dog", "##s", "...", "é", "  "])
def test_a_piece_of_ordinary_text_has_its_id_although_flagged(library, name, is_special):
    for flags in ({}, {"lstrip": True}, {"single_word": True}):
        theirs = added(library, AddedToken(name, special=is_special, **flags))
        ours = Tokenizer.from_json(theirs.to_str())
        for text in PROBES:
            ids = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode(text) == ours.encode_batch([text])[0] == ids, (text, flags)
            assert ours.least_tokens(text) <= len(ids)


def test_the_name_of_a_special_token_is_plain_text(library):
    theirs = added(
        library, *(AddedToken(name, special=True) for name in ("<s>", "[SEP]", "<|im_end|>", "de_DE", "__en__"))
    )
    ours = Tokenizer.from_json(theirs.to_str())
    special = set(ours.special.values()) - {theirs.token_to_id(name) for name in ("<unk>", "[UNK]", *BYTES)}
    for name in ours.special:
        assert not special.intersection(ours.encode(f"a {name} dog")), name


def test_an_entry_without_text_is_never_found(library):
    values = json.loads(library.to_str())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    values["added_tokens"].append({"id": library.get_vocab_size(), "content": "", **plain})
    ours = Tokenizer.from_json(json.dumps(values))
    for text in PROBES:
        assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_flagged_bytes_are_decoded():
    made, trainer = byte_fallback()
    made.train_from_iterator(TEXTS, trainer)
    ours = Tokenizer.from_json(made.to_str())
    assert ours.decode(ours.encode("é 😀\nThe dog")) == "é 😀\nThe dog"
    assert ours.decode(ours.encode("<0x41>")) == "<0x41>", "the name of a byte is plain text"


@pytest.mark.parametrize("word", ["Größe", "日本", " x", "a b", "hello"])
def test_an_added_word_of_a_byte_level_vocabulary_is_what_it_says(word):
    made, trainer = byte_level()
    made.train_from_iterator(TEXTS, trainer)
    ours = Tokenizer.from_json(added(made, AddedToken(word)).to_str())
    text = f"The {word} sleeps"
    assert ours.decode(ours.encode(text)) == text == "".join(ours.token_texts(ours.encode(text)))
