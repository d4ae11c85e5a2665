"""What `glossa tokens` prints of a client's answers."""

import inspect
import io
import json

import pytest

from cli.terminal import UsageError
from cli.tokens import BATCH, tokens
from glossa.client.types import Token, TokenCount, Tokenized, TokenLimits

FOUND = Tokenized(
    tokens=(Token(5, " a", (0, 1), is_special=False), Token(2, "<eos>", (1, 1), is_special=True)),
    limits=TokenLimits(8, 16384, 16),
    count=2,
    exceeds_limit=False,
    unknown_words=(),
)


class ScriptedClient:
    def __init__(self):
        self.calls = []

    def tokenize(self, text, **options):
        self.calls.append((text, options))
        return FOUND

    def count_tokens(self, texts, **options):
        self.calls.append((texts, options))
        return [TokenCount(len(text), len(text) > 2, ("dog",) if "dog" in text else ()) for text in texts]


@pytest.fixture
def called(capsys, monkeypatch):
    def call(*arguments, lines="", **options):
        client = ScriptedClient()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        inspect.unwrap(tokens)(*arguments, client=client, options={}, **options)
        return client.calls, capsys.readouterr()

    return call


def test_tokens_are_listed_with_id_place_and_text(called):
    calls, printed = called("a", special=True)
    assert calls == [("a", {"target": "", "add_special_tokens": True})]
    assert [line.split(maxsplit=2) for line in printed.out.splitlines()] == [
        ["5", "0..1", '" a"'],
        ["2", "1..1", "<eos>"],
    ]
    assert printed.err == "2 tokens of at most 8; room for 16 new ones\n"
    assert json.loads(called("a", as_json=True)[1].out)["tokens"][0]["span"] == [0, 1]
    assert called(target="b")[0] == [("", {"target": "b", "add_special_tokens": False})]
    with pytest.raises(UsageError, match="--target"):
        called("a", target="b")


def test_lines_are_counted_in_batches(called):
    calls, printed = called(lines="a\ndog\n")
    assert printed.out == "1\n3\texceeds the limit\tunknown: dog\n"
    calls, printed = called(lines="a\n" * (BATCH + 1), as_json=True)
    assert [len(texts) for texts, _ in calls] == [BATCH, 1]
    assert json.loads(printed.out.splitlines()[0]) == {"tokens": 1, "exceeds_limit": False, "unknown_words": []}
