"""Which entries of a tokenizer.json are pieces of ordinary text although they are flagged special.

Files flag pieces that segmentation needs: a padding token was set to "!", and the tokenizer saved again; all byte
pieces were added as special tokens. Without them, the text has another id, or none. The name of a real special token,
such as `</s>`, is never such a piece. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_MARKUP = re.compile(r"▁?[<\[{(|].+[>\]})|]▁?", re.DOTALL)  # as all names of special tokens are written


def vocabulary_of(model: Mapping[str, Any]) -> dict[str, int]:
    """The ids of the entries of a model."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # of a Unigram model: pairs of a piece and its score
        return {piece: token for token, (piece, _) in enumerate(vocabulary)}
    return dict(vocabulary)


def with_ordinary_pieces(
    model: Mapping[str, Any], added: Sequence[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], set[str]]:
    """The added tokens, with the flag removed from pieces of ordinary text, and the names of byte pieces that are
    flagged: no text matches these either, but bytes become them."""
    reachable = _reachable(model)
    has_bytes = bool(model.get("byte_fallback"))
    flagged = {item["content"] for item in added if item["special"]}
    by_byte = {name for name in flagged if has_bytes and BYTE.fullmatch(name)}
    ordinary = {name for name in flagged if not _MARKUP.fullmatch(name) and (name in reachable or _is_plain(name))}
    matched = {item["content"] for item in added if item["content"] and not item["special"]} | ordinary
    return [{**item, "special": item["content"] not in matched} for item in added], by_byte


def _is_plain(name: str) -> bool:
    """Whether a name beside the pieces is a word or a sign, such as a line break, and no language code, as de_DE."""
    letters = [character for character in name if not character.isspace()]
    return bool(name) and (all(map(str.isalpha, letters)) or not any(map(str.isalnum, letters)))


def _reachable(model: Mapping[str, Any]) -> set[str]:
    """The entries of a model that segmentation can yield."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # special tokens have the score 0, pieces a logarithm of their probability
        return {piece for piece, score in vocabulary if score}
    if "merges" not in model or model.get("ignore_merges"):
        return set(vocabulary)
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return {piece for piece in vocabulary if len(piece) == 1} | {"".join(merge) for merge in merges}
