"""The tokenizations of a phrase that an answer must have (`phrase_variants`). How a beam meets it is in
`service.decoding.lexical_constraints`."""

from __future__ import annotations

from collections.abc import Iterable

from model.tokenizer import Tokenizer
from service.errors import InvalidRequest

Variants = tuple[tuple[int, ...], ...]
"""The tokenizations of one phrase: token ids, none of them empty."""


def phrase_variants(tokenizer: Tokenizer, text: str, *, field: str = "options.phrases") -> Variants:
    """The tokenizations of a phrase: after a blank, and at the beginning or after a punctuation mark.

    The text of each contains `text`, wherever it occurs. Raises InvalidRequest with the name `field`.
    """
    if tokens := _after_a_word(tokenizer, text):
        return (tokens,)
    if unknown := tokenizer.unknown_words(text):
        raise InvalidRequest(field, f"the model's closed vocabulary does not know {', '.join(unknown)}")
    starts = ("",) if text.startswith(" ") else (" ", "")
    spellings = dict.fromkeys(tuple(tokenizer.encode(start + text)) for start in starts)
    wanted = text.encode()
    variants = tuple(tokens for tokens in spellings if tokens and wanted in _text(tokenizer, tokens))
    if not variants:
        raise InvalidRequest(field, f"no tokens of the model have the text {text!r}; use other blanks or characters")
    return variants


def _after_a_word(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokenization of a text that begins with a mark, in a closed vocabulary that has the mark only after words."""
    first = text[:1]
    if not tokenizer.strips_leading_space or not first or first.isalnum() or first not in tokenizer.unknown_words(text):
        return ()
    word = next(
        (piece.decode()[1:] for piece in tokenizer.pieces if piece.startswith(b" ") and piece[1:].isalnum()), ""
    )
    if not word or tokenizer.unknown_words(word + text):
        return ()
    tokens = tuple(tokenizer.encode(word + text)[1:])
    return tokens if b"".join(tokenizer.pieces[token] for token in tokens) == text.encode() else ()


def _text(tokenizer: Tokenizer, tokens: Iterable[int]) -> bytes:
    """The text of the tokens at the beginning of an answer, where a leading blank may be dropped."""
    text = b"".join(tokenizer.pieces[token] for token in tokens)
    return text.removeprefix(b" ") if tokenizer.strips_leading_space else text
