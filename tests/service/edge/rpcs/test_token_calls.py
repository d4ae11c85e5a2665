"""TokenService and prompts of token ids, over real gRPC without engines."""

import grpc
import pytest

from service.edge.admission.preparation import Preparation
from service.edge.requests.tokenization import MAX_TEXTS
from service.edge.rpcs import token_calls
from service.edge.rpcs.token_calls import PORTION_CHARACTERS
from tests.edge import GENERATION, TRANSLATION, failure, method

TEXT = "the small red house"


def listed(response):
    return [(one.token, one.text, (one.span.start, one.span.end), one.is_special) for one in response.tokens]


async def test_tokens_have_their_text_and_place(channel):
    response = await method(channel, "Tokenize")(model="en-de", text="a black cat")
    ids = TRANSLATION.tokenizer.encode("a black cat")
    texts, spans = (" a", " black", " cat"), ((0, 1), (1, 7), (7, 11))
    assert listed(response) == [(*one, False) for one in zip(ids, texts, spans, strict=True)]
    assert (response.count, response.exceeds_limit) == (4, False)
    limits = response.limits
    assert (limits.max_prompt_tokens, limits.max_text_bytes, limits.max_new_tokens) == (8, 16384, 16)


async def test_special_tokens_are_those_of_a_request(edge, channel):
    text = "a black cat"
    response = await method(channel, "Tokenize")(model="en-de", text=text, add_special_tokens=True)
    await method(channel, "Translate")(text=text)
    assert tuple(one.token for one in response.tokens) == edge.pool.requests[0].source
    assert listed(response)[-1] == (2, "<eos>", (11, 11), True)
    assert response.count == len(response.tokens) == 4


async def test_a_prompt_shares_the_context_with_its_answer(edge, channel):
    response = await method(channel, "Tokenize")(model="en", text="a cat", add_special_tokens=True)
    assert listed(response)[0] == (1, "<bos>", (0, 0), True)
    assert response.limits.max_new_tokens == 16 - len(response.tokens) + 1
    await method(channel, "Generate")(text="a cat")
    request = edge.pools["en"].requests[0]
    assert (request.prompt, request.max_tokens) == (
        tuple(one.token for one in response.tokens),
        response.limits.max_new_tokens,
    )


async def test_a_target_is_tokenized_as_such(edge, channel):
    response = await method(channel, "Tokenize")(model="en-de", target="zwei rote Häuser", add_special_tokens=True)
    ids = TRANSLATION.tokenizer.encode("zwei rote Häuser")
    assert [one.token for one in response.tokens] == [1, *ids, 2]
    assert [one.is_special for one in response.tokens] == [True, False, False, False, True]
    assert (response.count, response.limits.max_new_tokens) == (4, 13)


async def test_a_text_above_the_limit_is_counted_and_listed(edge, channel):
    response = await method(channel, "Tokenize")(model="en-de", text="cat " * 9, add_special_tokens=True)
    assert (response.count, response.exceeds_limit, len(response.tokens)) == (10, True, 10)
    assert response.limits.max_new_tokens == 0
    counted = await method(channel, "CountTokens")(model="en-de", texts=["cat " * 9, "a cat", "", "cat " * 7])
    assert [(one.tokens, one.exceeds_limit) for one in counted.counts] == [
        (10, True),
        (3, False),
        (1, False),
        (8, False),
    ]
    assert counted.max_prompt_tokens == 8
    error, _ = await failure(method(channel, "Translate")(text="cat " * 9))
    assert "at most 8 tokens, got 10" in error.details()
    await method(channel, "Translate")(text="cat " * 7)


async def test_unknown_words_are_reported(channel):
    counted = await method(channel, "CountTokens")(model="en-de", texts=["a dog", "a cat", "dog " * 9])
    assert [list(one.unknown_words) for one in counted.counts] == [["dog"], [], []]
    response = await method(channel, "Tokenize")(model="en-de", text="a dog")
    assert list(response.unknown_words) == ["dog"]
    assert listed(response)[1] == (3, "<unk>", (1, 5), False)


async def test_long_texts_are_counted_in_threads_in_portions(channel, monkeypatch):
    prepared = []
    prepare = Preparation.prepare

    async def noted(self, caller, build):
        prepared.append(build)
        return await prepare(self, caller, build)

    monkeypatch.setattr(Preparation, "prepare", noted)
    texts = ["cat " * (PORTION_CHARACTERS // 8)] * 5
    counted = await method(channel, "CountTokens")(model="en", texts=texts)
    expected = 1 + len(GENERATION.tokenizer.encode(texts[0]))
    assert [one.tokens for one in counted.counts] == [expected] * 5
    assert len(prepared) == 3
    prepared.clear()
    await method(channel, "CountTokens")(model="en", texts=["a cat"] * 5)
    assert prepared == []


def test_portions_hold_every_text_once():
    texts = [str(number) * (number * 1000) for number in range(1, 30)]
    portions = list(token_calls._portions(texts))
    assert [text for portion in portions for text in portion] == texts
    assert all(len(portion) == 1 or sum(map(len, portion)) <= PORTION_CHARACTERS for portion in portions)


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("Tokenize", {"text": "a", "target": "b"}, "target: must be empty with text"),
        ("Tokenize", {"model": "en", "target": "b"}, "target: must be empty: model 'en' translates nothing"),
        ("Tokenize", {"text": "a" * 20000}, "text: must be at most 16384 bytes, got 20000"),
        (
            "Tokenize",
            {"text": "a", "target_language": "de", "source_language": "xx"},
            "source_language: must be left out",
        ),
        ("CountTokens", {}, "texts: must be 1..1024 texts, got 0"),
        ("CountTokens", {"texts": ["a"] * (MAX_TEXTS + 1)}, "texts: must be 1..1024 texts, got 1025"),
        ("CountTokens", {"texts": ["a", "b" * 20000]}, "texts[1]: must be at most 16384 bytes, got 20000"),
        ("CountTokens", {"texts": ["a"], "source_language": "xx"}, "source_language: must be left out"),
        ("Generate", {"text": "a", "prompt_tokens": [5]}, "prompt_tokens: must be empty with text"),
        ("Generate", {"prompt_tokens": [5, 999]}, "prompt_tokens[1]: must be a token 0.."),
        ("Generate", {"prompt_tokens": [5] * 17}, "prompt_tokens: must be 1..16 tokens, got 17"),
        ("StreamGenerate", {"prompt_tokens": [-1]}, "prompt_tokens[0]: must be a token 0.."),
        (
            "Score",
            {"model": "en", "text": "a", "text_tokens": [5], "target": "b"},
            "text_tokens: must be empty with text",
        ),
        (
            "Score",
            {"model": "en-de", "text_tokens": [5], "target": "b"},
            "text_tokens: must be empty: model 'en-de' reads",
        ),
        ("Score", {"model": "en", "text_tokens": [999], "target": "b"}, "text_tokens[0]: must be a token 0.."),
    ],
)
async def test_bad_requests_name_their_field(channel, name, fields, problem):
    defaults = {"Tokenize": {"model": "en-de"}, "CountTokens": {"model": "en-de"}}.get(name, {})
    error, details = await failure(method(channel, name)(**{**defaults, **fields}))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(problem)
    assert details["BadRequest"].field_violations[0].field == problem.partition(":")[0]


async def test_a_prompt_of_tokens_is_continued_as_given(edge, channel):
    ids = [1, *GENERATION.tokenizer.encode(TEXT)[:10]]
    response = await method(channel, "Generate")(prompt_tokens=ids, options={"echo": True, "token_logprobs": True})
    request = edge.pools["en"].requests[0]
    text = GENERATION.tokenizer.decode(ids)
    assert (request.prompt, request.continued_text) == (tuple(ids), text)
    assert response.text == text + "zwei rote Häuser" == response.hypotheses[0].text
    stream = method(channel, "StreamGenerate")(prompt_tokens=ids, options={"echo": True})
    assert "".join([message.text async for message in stream]) == response.text


async def test_a_prompt_of_tokens_is_scored_as_given(edge, channel):
    ids = GENERATION.tokenizer.encode("a black")
    edge.pools["en"].answer = (edge.pools["en"].answer[-1],)
    await method(channel, "Score")(model="en", text_tokens=ids, target="a cat")
    request = edge.pools["en"].requests[0]
    assert (request.prompt, request.prefix) == (tuple(ids), (*GENERATION.tokenizer.encode("a cat"), 2))


async def test_counting_waits_for_no_engine(edge, channel):
    for pool in edge.pools.values():
        pool.prediction = 100.0
    await method(channel, "CountTokens")(model="en", texts=["a"], timeout=1.0)
    await method(channel, "Tokenize")(model="en", text="a", timeout=1.0)
    error, _ = await failure(method(channel, "Generate")(text="a", timeout=1.0))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
