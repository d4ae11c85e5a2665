"""Digests of the rows that a model was trained on: they show whether a test set was part of the training data.

    training_rows.safetensors    in a checkpoint: `sources` (N,) and `pairs` (M,), int64, ascending, each digest once

A digest is the first 8 bytes of the SHA-256 of a normalised text, little-endian: of the source, and of source, tab and
target. Case, runs of white space and Unicode composition do not matter; any other difference does, so paraphrases are
not found. Labels and spans are targets. Text without sources counts by its lines, as sources alone. Of documents both
the sentences and each whole document have digests: short sentences recur in many.

A row that is new matches one of N digests with the probability N / 2^64, 5e-13 for ten million. A pair takes at most
16 bytes: 2.6 MB for 160,000, 160 MB for ten million. The digests do not hide a text from a reader who can guess it.

Rows that were too long to train on count as well: they belong to the data.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.checkpoints.atomic_write import Content
from model.checkpoints.checkpoint import CheckpointError, map_tensors, tensors_in_pieces

FILE = "training_rows.safetensors"
DIGEST_BYTES = 8
SHOWN, SHOWN_CHARACTERS = 3, 60  # rows of a warning


class Row(NamedTuple):
    """A source and its target; without one, a line of text."""

    source: str
    target: str = ""


def rows_of(pairs: Iterable[tuple[str, str]], sizes: Sequence[int] = ()) -> Iterator[Row]:
    """The rows of pairs, or the lines of texts whose sources are "". sizes: of documents, each of which is one row."""
    if sizes:
        held = list(pairs)
        for start, end in pairwise(accumulate(sizes, initial=0)):
            yield Row(*("\n".join(side) for side in zip(*held[start:end], strict=True)))
        return
    for source, target in pairs:
        if source:
            yield Row(source, target)
        else:
            yield from (Row(line) for line in target.splitlines() if line.strip())


class Overlap(NamedTuple):
    """The rows of a set that are among the training rows, by their indices from 0.

    sources: those whose source is; pairs: those whose source with its target is. unknown: the parts of the training
    whose rows no checkpoint records.
    """

    rows: Sequence[Row]
    noun: str  # for the rows, plural
    sources: list[int]
    pairs: list[int]
    unknown: tuple[str, ...]

    def describe(self, name: str) -> str:
        """One sentence, with the first such rows if there are any. It is then a warning, except for lines of text, of
        which short ones recur. name: of the set, such as "test"."""
        same = f", {len(self.pairs):,} with the same target" if self.pairs else ""
        line = f"{len(self.sources):,} of {len(self.rows):,} {name} {self.noun} were in the training data{same}"
        if self.unknown:
            line += f" as far as it is known; not recorded: the rows of {', '.join(self.unknown)}"
        shown = (f"row {index + 1} {_shorten(self.rows[index].source)}" for index in self.sources[:SHOWN])
        warning = "" if self.noun == "texts" else "warning: "
        return f"{warning}{line}; the first: {', '.join(shown)}" if self.sources else line

    def figures(self) -> dict[str, int]:
        """The two counts, for a lineage."""
        return {"sources": len(self.sources), "pairs": len(self.pairs)}


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Digests of rows: sources (N,) and pairs (M,), int64, ascending, each once. unknown: as of `Overlap`."""

    sources: Tensor
    pairs: Tensor
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], sizes: Sequence[int] = ()) -> TrainingRows:
        """The digests of examples: pairs, or texts whose sources are "". sizes: of their documents."""
        sources, both = bytearray(), bytearray()
        for row in chain(rows_of(pairs), rows_of(pairs, sizes) if sizes else ()):
            source, pair = _digests(row)
            sources += source
            both += pair
        return cls(_ascending(_integers(sources)), _ascending(_integers(both)))

    def joined(self, other: TrainingRows | None, name: str) -> TrainingRows:
        """With the rows of another training; None: they are unknown, and `name` is noted."""
        if other is None:
            return replace(self, unknown=tuple(dict.fromkeys((*self.unknown, name))))
        return TrainingRows(
            _ascending(torch.cat((self.sources, other.sources))),
            _ascending(torch.cat((self.pairs, other.pairs))),
            tuple(dict.fromkeys((*self.unknown, *other.unknown))),
        )

    def overlap(self, pairs: Sequence[tuple[str, str]], sizes: Sequence[int] = ()) -> Overlap:
        """Which examples are among these rows. sizes: of their documents, which are then compared as wholes."""
        rows = list(rows_of(pairs, sizes))
        sources, both = zip(*map(_digests, rows), strict=True) if rows else ((), ())
        noun = "documents" if sizes else "sources" if any(both) else "texts"
        return Overlap(rows, noun, _found(self.sources, sources), _found(self.pairs, both), self.unknown)

    def files(self) -> dict[str, Content]:
        """The file of a checkpoint, by its name."""
        return {FILE: tensors_in_pieces({"sources": self.sources, "pairs": self.pairs})}

    def lineage(self) -> dict[str, Any]:
        """The entry of a checkpoint's lineage, which `read_training_rows` needs as well."""
        counts = {"sources": len(self.sources), "pairs": len(self.pairs)}
        return {"training_rows": {**counts, **({"unknown": list(self.unknown)} if self.unknown else {})}}


def read_training_rows(path: Path, lineage: Mapping[str, Any] | None = None) -> TrainingRows | None:
    """The rows of a checkpoint that `load_checkpoint` has verified, or None: it is older or was imported.

    lineage: of the checkpoint, where it was read already. Raises CheckpointError.
    """
    file = path / FILE
    if not file.is_file():
        return None
    tensors = map_tensors(file)
    wrong = [name for name in ("sources", "pairs") if name not in tensors or tensors[name].dtype != torch.int64]
    if wrong:
        raise CheckpointError(f"{file}: {wrong[0]} must be int64 digests; copy or train the checkpoint again")
    if lineage is None:
        lineage = json.loads((path / "lineage.json").read_bytes())
    unknown = tuple(lineage.get("training_rows", {}).get("unknown", ()))
    return TrainingRows(tensors["sources"], tensors["pairs"], unknown)


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text.casefold()).split())


def _digests(row: Row) -> tuple[bytes, bytes]:
    """Of the source, and of the pair if there is a target."""
    source, target = _normalised(row.source), _normalised(row.target)
    texts = (source, f"{source}\t{target}" if target else "")
    one, both = (hashlib.sha256(text.encode()).digest()[:DIGEST_BYTES] if text else b"" for text in texts)
    return one, both


def _integers(digests: bytes | bytearray) -> Tensor:
    """int64; of no digest as well, which `torch.frombuffer` refuses."""
    return torch.frombuffer(bytearray(digests), dtype=torch.int64) if digests else torch.empty(0, dtype=torch.int64)


def _ascending(digests: Tensor) -> Tensor:
    """Each digest once, in ascending order."""
    ordered = digests.sort().values
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_new]


def _found(known: Tensor, digests: Sequence[bytes]) -> list[int]:
    """The indices of the digests that are among the known ones, which are ascending. b"": no digest."""
    if not len(known):
        return []
    indices, wanted = [index for index, digest in enumerate(digests) if digest], _integers(b"".join(digests))
    nearest = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
    return [indices[number] for number in (known[nearest] == wanted).nonzero().flatten().tolist()]


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 3]}...")
