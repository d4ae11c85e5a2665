"""A number of tokens that a text has at least, found without segmenting it. Standard library only.

Where segmentation cannot merge words, a text has a token for each of its words; where it also keeps every byte, it has
as many tokens as pieces of the longest kind would take. Both hold for few tokenizers, and each is proven for what it is
used for:

- byte-level BPE as GPT-2's: nothing is normalised, every byte is in the vocabulary, and the expression that cuts a text
  before segmentation lets no piece reach over white space into a second word
- the closed vocabularies that are trained here: normalisation removes nothing but white space, and the expression that
  cuts a text cuts before every blank, so that each word is at least one token, known or not

Others get no bound: SentencePiece removes blanks and merges unknown characters, WordPiece makes a token of a long word,
NFKC and lower-casing may shrink a text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from model.tokenizers.token_bytes import bytes_of_characters

BLANK = "▁"
SEPARATORS = "\x1c\x1d\x1e\x1f"  # white space to Python, and a character like others to regular expressions of Rust
WORDS = {  # the parts of a tokenizer.json of a closed vocabulary
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Strip", "strip_left": True, "strip_right": True},
        ],
    },
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": "always", "split": False},
            {
                "type": "Split",
                "pattern": {"Regex": rf"{BLANK}?(?:\w+|[^\w{BLANK}])"},
                "behavior": "Isolated",
                "invert": False,
            },
        ],
    },
}


def least_tokens_of(values: Mapping[str, Any], special: Collection[str]) -> Callable[[str], int]:
    """The function from a text to its bound for the tokenizer of a tokenizer.json; 0: none is known.

    special: the names of its tokens that no text matches.
    """
    model = values["model"]
    is_plain = all(item["content"] in special for item in values.get("added_tokens") or ())
    if is_plain and model.get("type") == "WordLevel" and all(values.get(part) == WORDS[part] for part in WORDS):
        return _words
    if is_plain and model.get("type") == "BPE" and _keeps_bytes(values, model):
        longest = max(len(bytes_of_characters(piece)) for piece in model["vocab"] if piece not in special)
        return lambda text: max(_words(text), -(-len(text.encode()) // longest))
    return lambda text: 0


def _keeps_bytes(values: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    cut = values.get("pre_tokenizer") or {}
    alphabet = {bytes_of_characters(piece) for piece in model["vocab"] if len(piece) == 1}
    affixes: Sequence[object] = (model.get("continuing_subword_prefix"), model.get("end_of_word_suffix"))
    return (
        values.get("normalizer") is None
        and (cut.get("type"), cut.get("use_regex", True)) == ("ByteLevel", True)
        and not any(affixes)
        and alphabet >= {bytes([byte]) for byte in range(256)}
    )


def _words(text: str) -> int:
    """Words between white space. A word of blank marks alone would be none, so a text with one has no bound."""
    if BLANK in text or any(separator in text for separator in SEPARATORS):
        return 0
    return len(text.split())
