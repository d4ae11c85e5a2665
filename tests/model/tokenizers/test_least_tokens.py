import json
import random

import pytest

from model.tokenizer import Tokenizer

TEXTS = ("The small red house, and its 12 doors.", "Zwei rote Häuser -- ein Hund!", "a  b\n\nc")
BPE = Tokenizer.train(TEXTS * 20, kind="bpe", vocab_size=400)
WORDS = Tokenizer.train(TEXTS, kind="words", vocab_size=64)
# White space of all kinds, separators, marks, marks of blanks, letters with marks of their own, what NFC composes
PARTS = [
    *(
        "house",
        "Häuser",
        "a",
        "12",
        "x" * 40,
        ".",
        "--",
        "!?",
        "'s",
        "_",
        "e\u0301",
        "\u1100\u1161",
        "\u0301",
        "家",
        "🏠",
    ),
    *(" ", "  ", "\n", "\t", "\r\n", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u3000", "\u200b"),
    *("\x00", "\x1c", "\x1f", "\ufeff", "▁", "\u180e", "<eos>", " \0<eos>", "\u0344", "\u2126", "\u0958", "Ġ"),
]


def without(values, **changes):
    return Tokenizer.from_json(json.dumps({**values, **changes}))


@pytest.mark.parametrize("tokenizer", [BPE, WORDS], ids=["bpe", "words"])
def test_no_text_has_fewer_tokens(tokenizer):
    draw, bounds = random.Random(0), 0
    for _ in range(20_000):
        text = "".join(draw.choices(PARTS, k=draw.randint(1, 30)))
        least = tokenizer.least_tokens(text)
        assert least <= len(tokenizer.encode(text)), text
        bounds += least > 1
    assert bounds > 1_000


def test_every_word_and_every_byte_counts():
    assert BPE.least_tokens("house " * 50) >= 50
    longest = max(map(len, BPE.pieces))
    assert BPE.least_tokens("ß" * 600) == -(-1200 // longest)
    assert WORDS.least_tokens("house " * 50) == 50
    assert WORDS.least_tokens("x" * 1000) == 1, "one unknown word is one token"


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": " +"}, "behavior": "Removed", "invert": False}},
    ],
)
def test_a_tokenizer_that_may_shrink_or_merge_has_no_bound(changes):
    values = json.loads(BPE.to_json())
    assert without(values, **changes).least_tokens("house " * 50) == 0
    if "normalizer" in changes or changes["pre_tokenizer"] is None:
        assert without(json.loads(WORDS.to_json()), **changes).least_tokens("house " * 50) == 0


def test_an_added_token_that_texts_match_leaves_no_bound():
    masked = Tokenizer.train(TEXTS, kind="bpe", vocab_size=400, with_mask=True)
    assert masked.least_tokens("house " * 50) >= 50
    assert masked.matching_special(4).least_tokens("house " * 50) == 0


def test_a_vocabulary_that_lacks_a_byte_has_no_bound():
    values = json.loads(BPE.to_json())
    model = {
        **values["model"],
        "vocab": {piece: token for piece, token in values["model"]["vocab"].items() if piece != "A"},
    }
    assert without(values, model=model).least_tokens("house " * 50) == 0
