"""Tokens that a checkpoint never generates, as a bias of the logits. Phrases of several tokens are refused."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor

from model.pretrained.files import Fields, PretrainedError

NEVER = -3e4  # a bias below any logit, finite in float16


def with_bans(bias_V: Tensor, fields: Fields, ends: Collection[int]) -> Tensor:
    """A copy of the bias of the logits, `NEVER` for the tokens of `bad_words_ids` and `suppress_tokens`.

    ends: the end-of-sequence ids, which `bad_words_ids` cannot ban in `generate` of transformers. Raises
    PretrainedError for phrases and for ids that the vocabulary lacks.
    """
    biased_V, words = bias_V.clone(), _list(fields, "bad_words_ids")
    for word in words:
        if not isinstance(word, list) or len(word) != 1:
            raise fields.refuse("bad_words_ids", "covered: single tokens")
    bad = [word[0] for word in words]
    banned = [("bad_words_ids", token) for token in bad if token not in ends]
    banned += [("suppress_tokens", token) for token in _list(fields, "suppress_tokens")]
    for name, token in banned:
        if type(token) is not int or not 0 <= token < len(bias_V):
            raise PretrainedError(
                f"{fields.file}: {name} must be ids 0..{len(bias_V) - 1} of the vocabulary, got {token!r}; "
                "remove it from the file"
            )
        biased_V[token] = NEVER
    return biased_V


def _list(fields: Fields, name: str) -> list[Any]:
    values = fields.get(name, [])
    if not isinstance(values, list):
        raise fields.refuse(name, "covered: a list of tokens")
    return values
