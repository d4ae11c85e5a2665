"""What the verbs for encoders print of a client's answers."""

import inspect
import io
import json
from typing import Any

import pytest
from google.rpc import status_pb2

from cli.requests.encode import classify, embed, fill_mask, similarity, tag
from cli.terminal import UsageError
from glossa.client import ClientError
from glossa.client.embeddings import Embedding
from glossa.client.types import (
    Classification,
    LabelProbability,
    TaggedSpan,
    TaggedToken,
    Tagging,
    TokenCandidate,
    TokenVector,
    TokenWeight,
)
from glossa.v1 import glossa_pb2 as pb

COST: Any = {"prompt_tokens": 2, "generated_tokens": 0, "queue_s": 0.0, "prefill_s": 0.0, "total_s": 0.0}


class ScriptedClient:
    """Answers every text alike but a zebra, and keeps what was asked."""

    def __init__(self):
        self.calls = []

    def ask(self, text, options):
        if text == "zebra":
            raise ClientError.of_status(status_pb2.Status(code=3, message="text: unknown words: zebra"))
        if text == "lost":
            raise ClientError.of_status(status_pb2.Status(code=14, message="connection refused"))
        self.calls.append((text, options))

    def embed(self, text, **options):
        self.ask(text, options)
        cut = options.get("truncate", False)
        return Embedding(pb.EmbedResponse(values=[0.5, -1.0], usage=pb.Usage(prompt_tokens=3), truncated=cut))

    def similarity(self, items, **options):
        self.calls.append((items, options))
        return [[1.0, 0.25], [0.25, 1.0]] if len(items) == 2 else [[1.0, 0.25, 0.5]] * 3

    def embed_tokens(self, text, **options):
        self.ask(text, options)
        return [TokenVector(5, " cat", (1, 5), (0.5, -1.0)), TokenVector(2, "<eos>", (5, 5), (0.25, 0.0))]

    def tag(self, text, **options):
        self.ask(text, options)
        tokens = (TaggedToken(2, "<eos>", (5, 5), "O", 0.5),) if options["include_tokens"] else ()
        return Tagging(spans=(TaggedSpan((1, 5), "animal", 0.75, "cat"),), tokens=tokens, **COST)

    def fill_mask(self, text, **options):
        self.ask(text, options)
        return [[TokenCandidate(5, " cat", 0.75), TokenCandidate(6, " dog", 0.25)], [TokenCandidate(7, " sat", 1.0)]]

    def classify(self, text, **options):
        self.ask(text, options)
        weights = (TokenWeight((0, 0), 0.25), TokenWeight((0, 1), 0.75)) if options["token_weights"] else ()
        labels = (LabelProbability("good", 0.9), LabelProbability("bad", 0.1))
        return Classification(labels=labels, token_weights=weights, **COST)


@pytest.fixture
def called(capsys, monkeypatch):
    """Calls a verb with the scripted client: what it asked and printed."""

    def call(verb, *arguments, lines=None, **options):
        client = ScriptedClient()
        if lines is not None:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        inspect.unwrap(verb)(*arguments, client=client, **options)
        return client.calls, capsys.readouterr().out

    return call


def test_a_vector_is_a_json_array_a_line(called):
    calls, printed = called(embed, "a cat", pooling="cls", normalize=True, options={"model": "m"})
    how = {"pooling": "cls", "prompt_name": None, "truncate": False}
    assert calls == [("a cat", {"normalize": True, "model": "m", **how})]
    assert json.loads(printed) == [0.5, -1.0]
    calls, printed = called(embed, lines="a cat\na dog\n", options={})
    assert [text for text, _ in calls] == ["a cat", "a dog"]
    assert printed == "[0.5, -1.0]\n" * 2


def test_a_text_that_was_truncated_has_a_warning(called, capsys):
    calls, printed = called(embed, "a cat", prompt_name="query", options={})
    assert calls[0][1] == {"normalize": False, "pooling": None, "prompt_name": "query", "truncate": False}
    inspect.unwrap(embed)("a cat", truncate=True, client=ScriptedClient(), options={})
    warning = "warning: of 'a cat'… the first 3 tokens were read, with those of a prompt and special ones\n"
    assert capsys.readouterr() == (printed, warning)


def test_fillings_are_numbered_by_mask(called):
    calls, printed = called(fill_mask, "a <mask> <mask>", "m", 2)
    assert calls == [("a <mask> <mask>", {"model": "m", "top_k": 2})]
    assert printed == " 1  0.7500  cat\n 1  0.2500  dog\n 2  1.0000  sat\n"
    _, printed = called(fill_mask, "a <mask> <mask>", as_json=True)
    assert [len(fillings) for fillings in json.loads(printed)] == [2, 1]
    assert json.loads(printed)[0][0]["probability"] == 0.75


def test_labels_of_a_text_and_of_lines(called):
    calls, printed = called(classify, "a cat", weights=True)
    assert calls == [("a cat", {"model": "", "token_weights": True})]
    assert printed == "0.9000  good\n0.1000  bad\n      0.2500  (special token)\n      0.7500  a\n"
    _, printed = called(classify, lines="a cat\na dog\n")
    assert printed == "good\t0.9000\n" * 2
    _, printed = called(classify, "a cat", as_json=True)
    assert json.loads(printed)["labels"][0] == {"label": "good", "probability": 0.9}


def test_vectors_of_tokens_are_an_object_a_line(called):
    calls, printed = called(embed, "a cat", normalize=True, tokens=True, options={"model": "m"})
    assert calls == [("a cat", {"normalize": True, "model": "m"})]
    first, second = map(json.loads, printed.splitlines())
    assert first == {"token": 5, "text": " cat", "span": [1, 5], "values": [0.5, -1.0]}
    assert second["text"] == "<eos>"
    for flag, given in (("pooling", "cls"), ("prompt-name", ""), ("truncate", True)):
        with pytest.raises(UsageError, match=f"--{flag}: must be left out with --tokens"):
            called(embed, "a cat", tokens=True, options={}, **{flag.replace("-", "_"): given})


def test_spans_are_lines_of_probability_label_and_text(called):
    calls, printed = called(tag, "a cat", model="m")
    assert calls == [("a cat", {"model": "m", "include_tokens": False})]
    assert printed == "0.7500  animal\tcat\n"
    assert called(tag, "a cat", tokens=True)[1].splitlines()[1].split() == ["0.5000", "O", "<eos>"]
    assert called(tag, lines="a cat\na cat\n")[1] == "0.7500  animal\tcat\n\n" * 2
    assert json.loads(called(tag, "a cat", as_json=True)[1])["spans"][0]["label"] == "animal"


VERBS: Any = [
    (embed, {"options": {}}),
    (embed, {"options": {}, "tokens": True}),
    (fill_mask, {}),
    (fill_mask, {"as_json": True}),
    (classify, {}),
    (classify, {"as_json": True}),
    (tag, {}),
    (tag, {"as_json": True}),
]


@pytest.mark.parametrize(("verb", "options"), VERBS)
def test_a_blank_line_is_answered_by_a_blank_one(called, verb, options):
    _, one = called(verb, lines="a cat\n", **options)
    calls, printed = called(verb, lines="a cat\n\na cat\n \n", **options)
    assert printed == f"{one}\n{one}\n"
    assert [text for text, _ in calls] == ["a cat", "a cat"]


@pytest.mark.parametrize(("verb", "options"), VERBS)
def test_a_line_that_is_refused_is_named(called, verb, options):
    with pytest.raises(UsageError, match=r"^line 3: INVALID_ARGUMENT: text: unknown words: zebra$"):
        called(verb, lines="a cat\n\nzebra\n", **options)
    with pytest.raises(ClientError, match=r"^INVALID_ARGUMENT: text: unknown"):
        called(verb, "zebra", **options)
    with pytest.raises(ClientError, match=r"^UNAVAILABLE"):  # which is explained by the address
        called(verb, lines="lost\n", **options)


def test_weights_that_would_not_be_shown_are_refused(called):
    with pytest.raises(UsageError, match="--weights: needs a text or --json"):
        called(classify, lines="a cat\n", weights=True)
    _, printed = called(classify, lines="a cat\n", weights=True, as_json=True)
    assert len(json.loads(printed)["token_weights"]) == 2


def test_two_texts_have_one_similarity_and_more_a_table(called):
    calls, printed = called(similarity, ["a cat", "a dog"], measure="dot", options={"model": "m"})
    assert calls == [(["a cat", "a dog"], {"measure": "dot", "pooling": None, "prompt_name": None, "model": "m"})]
    assert printed == "0.25\n"
    calls, printed = called(similarity, lines="a\nb\nc\n", options={})
    assert calls[0][0] == ["a", "b", "c"]
    assert printed == "1\t0.25\t0.5\n" * 3
    assert json.loads(called(similarity, ["a", "b"], as_json=True, options={})[1]) == [[1.0, 0.25], [0.25, 1.0]]
    assert called(similarity, ["[1, 2.5]", "[0, 1]"], vectors=True, options={})[0][0][0] == [[1, 2.5], [0, 1]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a"], "TEXTS: must be at least 2, got 1"),
        (["[1]", "[true]"], "--vectors: vector 2 must be a JSON array of numbers"),
        (["1", "[1]"], "--vectors: vector 1 must be a JSON array of numbers, got '1'"),
        (["[1", "[1]"], "--vectors: vector 1 must be"),
        (["[1]", f"[1{'0' * 400}]"], "--vectors: vector 2 must have numbers of at most 3.4e[+]38, got '.10000"),
        (["[-1e39]", "[1]"], "--vectors: vector 1 must have numbers of at most 3.4e[+]38, got '.-1e39.'; scale it"),
        (["[NaN]", "[1]"], "--vectors: vector 1 must have numbers"),
    ],
)
def test_what_cannot_be_compared_is_refused(called, texts, message):
    with pytest.raises(UsageError, match=message):
        called(similarity, texts, vectors=len(texts) > 1, options={})
