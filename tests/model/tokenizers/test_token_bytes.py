"""The bytes of tokens against the decoders of the `tokenizers` library."""

import pytest
from tokenizers import decoders, pre_tokenizers

from model.tokenizers.token_bytes import bytes_of_characters, bytes_reader, token_pieces

MARKED = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def test_every_byte_has_a_character():
    written = [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(character)[0][0]
        for character in "a é€😀\n"
    ]
    assert [bytes_of_characters(token).decode() for token in written] == list("a é€😀\n")
    assert {bytes_of_characters(character) for character in pre_tokenizers.ByteLevel.alphabet()} == {
        bytes([byte]) for byte in range(256)
    }
    assert bytes_of_characters("a b") == b"a b", "an added token is literal"


@pytest.mark.parametrize(
    ("decoder", "tokens", "library"),
    [
        ({"type": "ByteLevel"}, ["Ġa", "Ãī", "b"], decoders.ByteLevel()),
        (
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
            ["▁a", "b", "▁c"],
            decoders.Metaspace(prepend_scheme="always"),
        ),
        (
            {"type": "WordPiece", "prefix": "##", "cleanup": True},
            ["it", "##s", "do", "not", "?", "is", "n't", ","],
            decoders.WordPiece(prefix="##", cleanup=True),
        ),
        (
            {"type": "WordPiece", "prefix": "##", "cleanup": False},
            ["it", "##s", "."],
            decoders.WordPiece(prefix="##", cleanup=False),
        ),
        (
            {"type": "Sequence", "decoders": [*MARKED, STRIP]},
            ["▁a", "<0xC3>", "<0xA9>", "▁b"],
            decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            ),
        ),
    ],
)
def test_joined_bytes_are_the_text_of_the_library(decoder, tokens, library):
    piece_of, drops_space = bytes_reader(decoder)
    text = b"".join(map(piece_of, tokens)).decode()
    assert (text.removeprefix(" ") if drops_space else text) == library.decode(tokens)


@pytest.mark.parametrize(
    ("decoder", "drops"),
    [
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, False),
        ({"type": "Metaspace", "replacement": "▁"}, True),
        ({"type": "Sequence", "decoders": MARKED}, False),
        ({"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [*MARKED, STRIP]}]}, True),
    ],
)
def test_whether_the_first_space_is_dropped(decoder, drops):
    assert bytes_reader(decoder)[1] == drops


@pytest.mark.parametrize(
    "decoder", [None, {"type": "CTC"}, {"type": "Sequence", "decoders": [*MARKED, {"type": "CTC"}]}]
)
def test_an_unsupported_decoder_is_refused(decoder):
    with pytest.raises(ValueError, match="decoder must be ByteLevel, Metaspace, WordPiece, or a Sequence of"):
        bytes_reader(decoder)


def test_special_tokens_and_unused_ids_have_no_bytes():
    ids = {"<s>": 0, "a": 1, "c": 3, "beyond": 5}
    assert token_pieces(ids, {0}, str.encode, 5) == [b"", b"a", b"", b"c", b""]
