"""The bytes of each token, read from the `decoder` of a tokenizer.json. Standard library only.

Supports byte-level vocabularies (GPT-2), vocabularies that mark a preceding space (SentencePiece, "▁") and those that
mark a continued word (WordPiece, "##").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Set
from typing import Any


def token_pieces(
    ids: Mapping[str, int],
    special: set[int],
    piece_of: Callable[[str], bytes],
    size: int,
    *,
    words: Set[str] = frozenset(),
) -> list[bytes]:
    """The UTF-8 bytes of each id; b"" for special tokens and unused ids.

    words: entries beside the vocabulary of a model. Where their characters stand for bytes that are no text, as those
    of "Größe" do in a byte-level vocabulary, they are what they say.
    """
    pieces = [b""] * size
    for token, token_id in ids.items():
        if token_id < size and token_id not in special:
            pieces[token_id] = piece_of(token)
            if token in words and not _is_text(pieces[token_id]):
                pieces[token_id] = token.encode("utf-8", "replace")
    return pieces


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def bytes_reader(decoder: Any) -> tuple[Callable[[str], bytes], bool]:
    """The function from a token's text to its bytes, and whether the first space of a text is dropped.

    decoder: of a tokenizer.json. Raises ValueError for an unsupported one.
    """
    steps = _flattened(decoder)
    kinds = [step["type"] for step in steps]
    match kinds:
        case ["ByteLevel"]:
            return bytes_of_characters, False
        case ["Metaspace"]:
            marks, drops = {steps[0]["replacement"]: " "}, steps[0].get("prepend_scheme", "always") != "never"
            return _marked(marks, has_bytes=False), drops
        case ["WordPiece"]:
            return _continued(steps[0]["prefix"], is_clean=steps[0]["cleanup"]), True
    marks, drops = {}, False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
                marks[pattern] = content
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if start < 2:
                drops = start == 1
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                marks = {}
                break
    if not marks:
        raise ValueError(
            "decoder must be ByteLevel, Metaspace, WordPiece, or a Sequence of Replace, ByteFallback, Fuse and Strip, "
            f"got {json.dumps(decoder):.200}"
        )
    return _marked(marks, has_bytes="ByteFallback" in kinds), drops


def _flattened(decoder: Any) -> list[dict[str, Any]]:
    if isinstance(decoder, dict) and decoder.get("type") == "Sequence":
        return [step for part in decoder["decoders"] for step in _flattened(part)]
    return [decoder] if isinstance(decoder, dict) else []


def bytes_of_characters(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary: one character stands for each byte; added tokens are literal."""
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.encode("utf-8", "replace")


def _marked(marks: Mapping[str, str], *, has_bytes: bool) -> Callable[[str], bytes]:
    """The reader for a vocabulary that marks spaces. has_bytes: <0x0A> is a byte."""

    def piece(token: str) -> bytes:
        if has_bytes and _BYTE.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        for mark, meaning in marks.items():
            token = token.replace(mark, meaning)
        return token.encode("utf-8", "replace")

    return piece


_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


def _continued(prefix: str, *, is_clean: bool) -> Callable[[str], bytes]:
    """The reader for a vocabulary that marks continued words. is_clean: no space before punctuation and in
    contractions."""

    def piece(token: str) -> bytes:
        if prefix and token.startswith(prefix):
            return token.removeprefix(prefix).encode("utf-8", "replace")
        text = f" {token}"
        for spaced, tidy in _TIDY.items() if is_clean else ():
            text = text.replace(spaced, tidy)
        return text.encode("utf-8", "replace")

    return piece


_TIDY = {
    **{f" {mark}": mark for mark in (".", "?", "!", ",")},
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " do not": " don't",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}


def _byte_of_character() -> dict[str, int]:
    """The inverse of GPT-2's table that gives every byte a printable character."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_BYTE_OF = _byte_of_character()
