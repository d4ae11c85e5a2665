"""The sentence pairs that measurements are made on."""

from __future__ import annotations

from pathlib import Path

from model.corpus.corpus import pairs
from model.training.data.text_files import read_tsv


def sentence_pairs(data: Path | None, count: int) -> list[tuple[str, str]]:
    """At most `count` pairs of a TSV file, or of the embedded corpus, none of which training has seen."""
    return list(read_tsv([data]).pairs[:count] if data else pairs(seed=1, count=count, split="test"))
