"""What a vocabulary of a tokenizer.json must have: few gaps between ids, and an unknown token, without which the
library reads the file and fails at the first text that needs one. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.tokenizers.ordinary_pieces import vocabulary_of

MAX_GAPS = 1 << 16  # ids without an entry, each of which costs a kilobyte; published files have some hundred


def check_gaps(ids: Mapping[str, int]) -> None:
    """Raises ValueError for an id far above the number of entries."""
    size = max(ids.values(), default=-1) + 1
    if (gaps := size - len(set(ids.values()))) > MAX_GAPS:
        raise ValueError(f"at most {MAX_GAPS} ids may have no entry, got {gaps} of {size}; number the entries anew")


def check_unknown_token(model: Mapping[str, Any]) -> None:
    """Raises ValueError where a text may need an unknown token that the model does not have."""
    vocabulary, kind = vocabulary_of(model), model.get("type")
    if kind == "Unigram":
        if type(model.get("unk_id")) is not int:  # the library wants one beside byte pieces too
            raise ValueError(f"unk_id must be the id of the unknown token, got {model.get('unk_id')!r:.80}")
        return
    name = model.get("unk_token")
    if name not in vocabulary and (kind in ("WordLevel", "WordPiece") or name is not None):
        raise ValueError(f"unk_token must be an entry of the vocabulary, got {name!r:.80}; add it, or name another")
