"""Marian's binary lexical shortlist → the content of a checkpoint's shortlist.json.

Little-endian uint64: a magic number, a checksum of what follows it, the number of tokens that every source allows (the
first of the vocabulary), the most of one source token, and the lengths of two arrays: the ends of the source tokens'
lists (uint64, one more than tokens), and the target tokens of all lists (uint32). (browsermt/marian-dev:
src/data/shortlist.h, src/common/hash.h)
"""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path

import numpy as np

from model.pretrained.files import PretrainedError
from model.pretrained.marian.items import AGAIN

MAGIC = struct.pack("<Q", 0xF11A48D5013417F5)
HEADER = struct.Struct("<6Q")
GOLDEN, WORD = 0x9E3779B9, (1 << 64) - 1  # of boost's hash_combine
OTHER = "it is of another vocabulary; give the one that belongs to the model, or remove it"


def is_shortlist(file: Path) -> bool:
    """Whether a file begins as one."""
    with file.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_shortlist(file: Path, source_size: int, size: int) -> bytes:
    """The JSON of a shortlist for vocabularies of so many tokens, of sources and targets. Raises PretrainedError."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error
    if data[: len(MAGIC)] != MAGIC:
        fix = "text is not covered; convert it with marian-conv --shortlist FILE 50 50 0 --dump FILE.bin, or remove it"
        raise PretrainedError(f"{file}: is no binary shortlist of Marian: {fix}")
    if len(data) < HEADER.size:
        raise PretrainedError(f"{file}: must have a header of {HEADER.size} bytes, got {len(data)}; {AGAIN}")
    _, checksum, first, _, sources, entries = HEADER.unpack_from(data)
    expected = HEADER.size + 8 * sources + 4 * entries
    if len(data) != expected:
        raise PretrainedError(f"{file}: must have the {expected} bytes that its header says, got {len(data)}; {AGAIN}")
    if (found := checksum_of(data)) != checksum:
        raise PretrainedError(
            f"{file}: must have checksum {checksum:#x}, got {found:#x}; it is damaged, fetch it again"
        )
    if sources != source_size + 1 or first > size:
        problem = f"has {sources - 1} source tokens where the vocabulary has {source_size}"
        raise PretrainedError(f"{file}: {problem}: {OTHER}")
    ends = np.frombuffer(data, "<u8", sources, HEADER.size)
    targets = np.frombuffer(data, "<u4", entries, HEADER.size + 8 * sources)
    if np.any(np.diff(ends.astype(np.int64)) < 0) or ends[0] or ends[-1] != entries:
        raise PretrainedError(f"{file}: the ends of its lists must grow from 0 to {entries}; fetch it again")
    if entries and targets.max() >= size:
        raise PretrainedError(f"{file}: lists target token {targets.max()} where the vocabulary has {size}: {OTHER}")
    lists = (targets[begin:end].tolist() for begin, end in itertools.pairwise(ends.tolist()))
    by_source = {str(source): own for source, own in enumerate(lists) if own}
    values = {"always": list(range(first)), "by_source": by_source, "is_ranked": False}  # targets are sorted by id
    return (json.dumps(values, separators=(",", ":")) + "\n").encode()


def checksum_of(data: bytes) -> int:
    """Of a whole file: its words after the checksum, one after another."""
    seed = 0
    for word in np.frombuffer(data, "<u8", (len(data) - 16) // 8, 16).tolist():
        seed ^= (word + GOLDEN + (seed << 6) + (seed >> 2)) & WORD
    return seed
