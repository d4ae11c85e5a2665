"""What `glossa tokens` prints of a client's answers."""

import inspect
import io
import json

import pytest
from google.rpc import status_pb2

from cli.requests.tokens import BATCH, BATCH_BYTES, blocks, tokens
from cli.terminal import UsageError
from glossa.client import ClientError
from glossa.client.types import Token, TokenCount, Tokenized, TokenLimits
from tests.cli.command import ask

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
        if "zebra" in texts:
            message = f"texts[{texts.index('zebra')}]: must be at most 4 bytes, got 5; shorten or split it"
            raise ClientError.of_status(status_pb2.Status(code=3, message=message))
        if "xx" in texts:
            raise ClientError.of_status(status_pb2.Status(code=5, message="model 'xx' is not served here"))
        if "lost" in texts:
            raise ClientError.of_status(status_pb2.Status(code=14, message="connection refused"))
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


def test_a_call_has_no_more_text_than_a_message_may(called):
    paragraph = "ü" * 1000
    calls, printed = called(lines=f"{paragraph}\n" * 200)
    assert [len(texts) for texts, _ in calls] == [32] * 6 + [8]
    assert printed.out == "1000\texceeds the limit\n" * 200
    long = "a" * (BATCH_BYTES + 1)
    assert list(blocks(["a", long, "b", "c"])) == [["a"], [long], ["b", "c"]]
    assert list(blocks(["a" * BATCH_BYTES, ""])) == [["a" * BATCH_BYTES, ""]]
    assert list(blocks([])) == []


def test_a_line_that_is_refused_is_named_by_its_place_in_the_input(called):
    with pytest.raises(UsageError, match=r"^line 259: INVALID_ARGUMENT: must be at most 4 bytes, got 5; shorten"):
        called(lines="a\n" * (BATCH + 2) + "zebra\n")
    with pytest.raises(UsageError, match=r"^lines 257 to 259: NOT_FOUND: model 'xx' is not served here$"):
        called(lines="a\n" * BATCH + "a\nxx\na\n")
    with pytest.raises(ClientError, match=r"^UNAVAILABLE"):  # which is explained by the address
        called(lines="lost\n")


def test_special_tokens_that_would_not_be_shown_are_refused(called):
    with pytest.raises(UsageError, match="--special: needs a text or --target"):
        called(lines="a\n", special=True)
    assert called(target="b", special=True)[0] == [("", {"target": "b", "add_special_tokens": True})]


async def test_many_paragraphs_are_counted_by_a_server(edge):
    counted = await ask(
        edge, "tokens", "--model", "en", lines="a black cat " * 200 + "\n" + f"{'a cat ' * 400}\n" * 150
    )
    assert len(counted.splitlines()) == 151
    refused = await ask(edge, "tokens", "--model", "en", lines="a\n" * 300 + "a" * 20000 + "\n", fails=True)
    assert "error: line 301: INVALID_ARGUMENT: must be at most 16384 bytes, got 20000; shorten or split it" in refused
