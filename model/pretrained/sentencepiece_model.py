"""Reads SentencePiece models (Kudo & Richardson 2018) in protobuf's wire format (sentencepiece_model.proto).
Rejects features that Glossa's tokenizer.json cannot express. Standard library only.

The `sentencepiece` library cannot replace this module or `model.tokenizers.sentencepiece`: its generated protobuf code
(0.2.3, gencode 7.36.1) refuses to load with the protobuf runtime of a server (6.33.6), and without that code no
processor can be made from the tokenizer.json of a checkpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from model.pretrained.files import PretrainedError


class Piece(NamedTuple):
    """An entry of the vocabulary. type: NORMAL and the others below."""

    text: str
    score: float
    type: int


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
UNIGRAM, BPE = 1, 2
FIXED_WIDTHS = {1: 8, 5: 4}  # bytes, by wire type


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """The parts of a model that determine its segmentation. charsmap: b"" if there are no replacements."""

    pieces: tuple[Piece, ...]
    kind: int
    has_byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_sentencepiece(file: Path) -> SentencePieceModel:
    """The model in a file. Raises PretrainedError."""
    try:
        return _model_of(file.read_bytes())
    except (OSError, ValueError, struct.error) as error:
        raise PretrainedError(f"{file}: is not a SentencePiece model that is covered: {error}") from error


def _model_of(data: bytes) -> SentencePieceModel:
    model = _message(data)
    trainer, normalizer = (_merged(model, number) for number in (2, 3))
    pieces = []
    for item in model.get(1, ()):
        fields = _message(item)
        score = struct.unpack("<f", _last(fields, 2, b"\0\0\0\0"))[0]
        pieces.append(Piece(_last(fields, 1, b"").decode(), score, _last(fields, 3, NORMAL)))
    kind = _last(trainer, 3, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        raise ValueError(f"model_type must be unigram (1) or bpe (2), got {kind}")
    if _last(trainer, 24, 0) or not _last(normalizer, 5, 1):
        raise ValueError("blanks must be marked before words: treat_whitespace_as_suffix or not escape_whitespaces")
    if _last(_merged(model, 5), 2, b""):
        raise ValueError("there are rules to change decoded text: denormalizer_spec")
    if sum(piece.type == UNKNOWN for piece in pieces) != 1:
        raise ValueError("there must be one unknown piece")
    return SentencePieceModel(
        pieces=tuple(pieces),
        kind=kind,
        has_byte_fallback=bool(_last(trainer, 35, 0)),
        charsmap=_last(normalizer, 2, b""),
        add_dummy_prefix=bool(_last(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_last(normalizer, 4, 1)),
    )


def _last(fields: Mapping[int, Sequence[Any]], number: int, default: Any) -> Any:
    """The value of a field, of the type of its default. Raises ValueError."""
    found = fields[number][-1] if number in fields else default
    if type(found) is not type(default):
        raise ValueError(f"field {number} must be {type(default).__name__}, got {type(found).__name__}")
    return found


def _merged(model: Mapping[int, Sequence[Any]], number: int) -> dict[int, list[Any]]:
    """The fields of a message, which a file may have in parts. Raises ValueError."""
    return {field: values for part in model.get(number, ()) for field, values in _message(part).items()}


def _message(data: bytes) -> dict[int, list[Any]]:
    """The values of each field: numbers, or bytes of strings, messages and fixed-width numbers. Raises ValueError."""
    if not isinstance(data, bytes):
        raise ValueError("a message must have a length, got a number")
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        value: int | bytes
        if key & 7 == 0:
            value, position = _varint(data, position)
        elif key & 7 in FIXED_WIDTHS or key & 7 == 2:
            size, position = (FIXED_WIDTHS[key & 7], position) if key & 7 != 2 else _varint(data, position)
            value, position = data[position : position + size], position + size
        else:
            raise ValueError(f"wire type {key & 7} at byte {position}")
        if position > len(data):
            raise ValueError("it ends in the midst of a field")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("it ends in the midst of a number")
        byte, position = data[position], position + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"a number of more than ten bytes before byte {position}")
