"""Every way of decoding through the whole service: a process of its own, real bundles, real engines."""

import asyncio
import itertools
import json
import math
import random
import re
from random import Random
from typing import Any, get_args

import grpc
import numpy as np
import pytest
import torch

from export.bundle.directory import load_bundle, load_shortlist
from glossa.client import AsyncClient, Client, ClientError
from glossa.v1 import glossa_pb2 as pb
from model.reference.beam import beam_search
from model.reference.greedy import cross_attention, score
from model.reference.sampling import alternatives, sample
from service.options import GrammarKind
from tests.e2e.process import serving
from tests.grammars import near_valid
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TRANSLATOR, GENERATOR = (tiny_model(tiny_config(kind)) for kind in ("encoder_decoder", "decoder"))
MOST = 24  # tokens of an answer: references are slow


@pytest.fixture(scope="module")
def server(tiny_attention_bundle, tiny_generation_bundle):
    with serving(models={"en-de": str(tiny_attention_bundle), "en": str(tiny_generation_bundle)}) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def source_of(text):
    return [*TOKENIZER.encode(text), 2]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 4, "num_hypotheses": 4},
        {"beam_size": 5, "num_hypotheses": 3, "length_penalty": 0.4, "length_normalization": "gnmt"},
        {"beam_size": 3, "num_hypotheses": 2, "early_stopping": "never", "patience": 2.0},
        {"beam_size": 4, "num_hypotheses": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
        {"beam_size": 4, "num_hypotheses": 2, "coverage_penalty": 0.3},
    ],
)
def test_beams_are_those_of_the_reference(client, options):
    for text in TEXTS[:2]:
        answer = client.translate(text, max_tokens=MOST, include_tokens=True, token_logprobs=True, **options)
        expected = beam_search(TRANSLATOR, [1], source=source_of(text), max_tokens=MOST, **options)
        assert [hypothesis.tokens for hypothesis in answer.hypotheses] == [best.tokens for best in expected]
        for hypothesis, best in zip(answer.hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(best.score, abs=1e-4)
            logprobs = [token.logprob for token in hypothesis.token_logprobs]
            assert logprobs == pytest.approx(best.token_logprobs, abs=1e-4)
        assert answer.text == TOKENIZER.decode(expected[0].tokens) == answer.hypotheses[0].text


def test_beams_of_a_decoder_are_those_of_the_reference(client):
    prompt = [1, *TOKENIZER.encode(TEXTS[0])]
    answer = client.generate(TEXTS[0], beam_size=4, max_tokens=MOST, include_tokens=True)
    (expected,) = beam_search(GENERATOR, prompt, max_tokens=MOST, beam_size=4)
    assert answer.tokens == expected.tokens


def test_a_shortlist_leaves_only_what_it_lists_for_the_source(client, tiny_attention_bundle):
    manifest = load_bundle(tiny_attention_bundle)
    shortlist = load_shortlist(tiny_attention_bundle / manifest.shortlist)
    restricted = 0
    for text in TEXTS:
        answer = client.translate(text, use_shortlist=True, include_tokens=True, max_tokens=MOST)
        allowed = {*shortlist.allowed(tuple(source_of(text))), 2}
        assert set(answer.tokens) <= allowed
        restricted += answer.tokens != client.translate(text, include_tokens=True, max_tokens=MOST).tokens
    assert restricted, "some answer would use other words"


def test_a_target_is_scored_with_its_coverage_as_the_beam_did(client):
    options = {"coverage_penalty": 0.3, "length_penalty": 0.8}
    best = client.translate(TEXTS[0], beam_size=4, include_tokens=True, token_logprobs=True, max_tokens=MOST, **options)
    again = client.score(TEXTS[0], target_tokens=best.tokens, model="en-de", **options)
    assert again.score == pytest.approx(best.hypotheses[0].score, abs=1e-6)
    assert again.cumulative_logprob == pytest.approx(best.hypotheses[0].cumulative_logprob, abs=1e-6)


def test_embeddings_are_the_mean_states_of_the_encoder(client):
    for text in TEXTS:
        source = torch.tensor([source_of(text)])
        with torch.inference_mode():
            states_1SM, _ = TRANSLATOR.encode(source, torch.tensor([source.shape[1]]))
        mean_M = states_1SM[0].mean(0).numpy()
        assert client.embed(text) == pytest.approx(mean_M, abs=1e-4)
        assert client.embed(text, normalize=True) == pytest.approx(mean_M / np.linalg.norm(mean_M), abs=1e-4)


def test_token_vectors_are_the_states_of_the_encoder(client):
    text = TEXTS[0]
    source = torch.tensor([source_of(text)])
    with torch.inference_mode():
        states_1SM, _ = TRANSLATOR.encode(source, torch.tensor([source.shape[1]]))
    found = client.embed_tokens(text)
    assert [one.token for one in found] == source[0].tolist()
    assert np.array([one.values for one in found]) == pytest.approx(states_1SM[0].numpy(), abs=1e-4)
    listed = client.tokenize(text, model="en-de", add_special_tokens=True).tokens
    assert [(one.token, one.text, one.span) for one in found] == [(one.token, one.text, one.span) for one in listed]
    assert found[-1].text == "<eos>"


def test_a_prompt_of_token_ids_is_answered_as_its_text(client):
    found = client.tokenize(TEXTS[0], model="en", add_special_tokens=True)
    ids = [one.token for one in found.tokens]
    text = client.generate(TEXTS[0], max_tokens=8, include_tokens=True, echo=True)
    again = client.generate(prompt_tokens=ids, max_tokens=8, include_tokens=True, echo=True)
    assert (again.text, again.tokens, again.prompt_tokens) == (text.text, text.tokens, found.count)
    assert "".join(piece.text for piece in client.stream_generate(prompt_tokens=ids, max_tokens=8)) in text.text
    scored = client.score(TEXTS[0], "the cat", model="en")
    again = client.score("", "the cat", text_tokens=ids, model="en")
    assert again.cumulative_logprob == scored.cumulative_logprob


def test_a_generation_model_embeds_nothing(client):
    with pytest.raises(ClientError, match="serves generation"):
        client.embed(TEXTS[0], model="en")


def test_a_streamed_beam_is_never_taken_back(client):
    whole = client.translate(TEXTS[1], beam_size=4)
    pieces = list(client.stream_translate(TEXTS[1], beam_size=4))
    assert "".join(piece.text for piece in pieces) == whole.text


def test_samples_are_those_of_the_reference_and_of_their_seed(client):
    filters: dict[str, Any] = {"temperature": 1.3, "top_k": 12, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.99}
    answer = client.generate(TEXTS[1], seed=11, num_sequences=3, max_tokens=MOST, include_tokens=True, **filters)
    prompt = [1, *TOKENIZER.encode(TEXTS[1])]
    for index, hypothesis in enumerate(answer.hypotheses):
        stream = Random(11 << 32 | index)
        uniforms = [stream.random() for _ in range(MOST)]
        assert list(hypothesis.tokens) == sample(GENERATOR, prompt, uniforms=uniforms, **filters)
    assert answer.seed == 11
    assert len({hypothesis.tokens for hypothesis in answer.hypotheses}) == 3
    drawn = client.generate(TEXTS[1], temperature=1.3, max_tokens=MOST)
    again = client.generate(TEXTS[1], temperature=1.3, max_tokens=MOST, seed=drawn.seed)
    assert (again.text, again.seed) == (drawn.text, drawn.seed)


def test_alternatives_are_those_of_the_reference(client):
    prefix = TOKENIZER.encode("the small")
    answer = client.translate(
        TEXTS[0],
        return_alternatives=True,
        num_hypotheses=4,
        min_alternative_probability=0.01,
        prefix="the small",
        max_tokens=MOST,
        include_tokens=True,
    )
    expected = alternatives(
        TRANSLATOR,
        [1],
        source=source_of(TEXTS[0]),
        max_tokens=MOST,
        num_hypotheses=4,
        min_probability=0.01,
        prefix=prefix,
    )
    assert [list(hypothesis.tokens) for hypothesis in answer.hypotheses] == expected
    assert len({hypothesis.tokens[len(prefix)] for hypothesis in answer.hypotheses}) == len(expected) > 1


@pytest.mark.parametrize("text", TEXTS[:2])
def test_scores_are_those_of_the_reference(client, text):
    target = TEXTS[2]
    result = client.score(text, target, model="en-de", length_penalty=0.5)
    expected = score(TRANSLATOR, [1], [*TOKENIZER.encode(target), 2], source=source_of(text))
    assert [token.logprob for token in result.tokens] == pytest.approx(expected, abs=1e-4)
    assert "".join(token.text for token in result.tokens) == target
    assert result.cumulative_logprob == pytest.approx(sum(expected), abs=1e-3)
    assert result.score == pytest.approx(sum(expected) / len(expected) ** 0.5, abs=1e-3)
    assert result.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-3)
    continued = client.score(text, target, model="en", omit_eos=True)
    prompt = [1, *TOKENIZER.encode(text)]
    expected = score(GENERATOR, prompt, TOKENIZER.encode(target))
    assert [token.logprob for token in continued.tokens] == pytest.approx(expected, abs=1e-4)
    alone = client.score("", target, model="en")
    assert len(alone.tokens) == len(expected) + 1


def test_the_score_of_an_answer_is_its_log_probability(client):
    for options in ({}, {"beam_size": 4}, {"seed": 5}):
        answer = client.translate(TEXTS[0], include_tokens=True, token_logprobs=True, max_tokens=MOST, **options)
        result = client.score(TEXTS[0], target_tokens=answer.tokens, model="en-de")
        (hypothesis,) = answer.hypotheses
        assert result.cumulative_logprob == pytest.approx(hypothesis.cumulative_logprob, abs=1e-4)
        assert [t.logprob for t in result.tokens] == pytest.approx(
            [t.logprob for t in hypothesis.token_logprobs], abs=1e-5
        )


def test_likeliest_tokens_are_told_at_each_place(client):
    answer = client.translate(TEXTS[0], top_logprobs=3, include_tokens=True)
    (hypothesis,) = answer.hypotheses
    for token in hypothesis.token_logprobs:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # greedy
        assert token.top_logprobs[0].logprob == token.logprob
        assert [other.logprob for other in token.top_logprobs] == sorted(
            (o.logprob for o in token.top_logprobs), reverse=True
        )


def test_alignments_are_the_references_attention(client):
    text = TEXTS[0]
    answer = client.translate(
        text, alignment="both", alignment_layer=2, alignment_heads=[1, 3], max_tokens=MOST, include_tokens=True
    )
    alignment = answer.hypotheses[0].alignment
    inputs = [1, *answer.tokens[:-1]]
    weights_LHTS = cross_attention(TRANSLATOR, inputs, source=source_of(text))
    expected_TS = weights_LHTS[1, [0, 2]].mean(0)
    assert len(alignment.rows) == len(alignment.target_spans) == len(answer.tokens)
    for row, expected_S in zip(alignment.rows, expected_TS.tolist(), strict=True):
        assert row == pytest.approx(expected_S, abs=1e-4)
    assert all(0 <= position < len(alignment.source_spans) for position in alignment.positions)
    words = [text[start:end].strip() for start, end in alignment.source_spans]
    assert words == [*text.split(), ""]
    assert "".join(answer.text[start:end] for start, end in alignment.target_spans) == answer.text


def test_constraints_hold(client):
    plain = client.translate(TEXTS[0], max_tokens=MOST).text.split()
    banned = max(plain, key=plain.count)
    assert banned not in client.translate(TEXTS[0], max_tokens=MOST, bad_words=[banned]).text.split()
    for options in ({}, {"beam_size": 3}, {"seed": 1}):
        assert client.translate(TEXTS[0], prefix="three birds", **options).text.startswith("three birds")
    phrase = client.translate(TEXTS[0], phrases=["black cat", "garden"], beam_size=6, max_tokens=MOST)
    assert "black cat" in phrase.text
    assert "garden" in phrase.text
    for options in ({}, {"beam_size": 3}, {"seed": 1}):
        matched = client.translate(TEXTS[0], regex="(the|a) (small|black) (house|cat)", max_tokens=MOST, **options)
        assert re.fullmatch("(the|a) (small|black) (house|cat)", matched.text)
    allowed = [*TOKENIZER.encode("cat dog"), 2]
    answer = client.translate(TEXTS[0], allowed_tokens=allowed, max_tokens=MOST, include_tokens=True)
    assert set(answer.tokens) <= set(allowed)
    unrepeated = client.generate(
        TEXTS[0], no_repeat_ngram_size=2, ignore_eos=True, max_tokens=MOST, include_tokens=True
    ).tokens
    pairs = list(itertools.pairwise(unrepeated))
    assert len(pairs) == len(set(pairs)) == MOST - 1


def test_what_cannot_be_met_is_a_failed_precondition(client):
    with pytest.raises(ClientError) as caught:
        client.translate(TEXTS[0], allowed_tokens=TOKENIZER.encode("cat"), no_repeat_ngram_size=1, ignore_eos=True)
    assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "CONSTRAINTS_UNSATISFIABLE")
    with pytest.raises(ClientError) as caught:
        client.generate(TEXTS[0], alignment="hard")
    assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "UNSUPPORTED_BY_MODEL")


def asked(rng):
    """Options of a request that fits the tiny models, of any kind."""
    common: dict[str, Any] = {"max_tokens": rng.randint(4, MOST), "include_tokens": True, "token_logprobs": True}
    common |= rng.choice(
        [{}, {"prefix": "the"}, {"bad_words": ["the"]}, {"repetition_penalty": 1.3}, {"regex": "(\\w+ ?)+"}]
    )
    kind = rng.choice(
        [
            {},
            {"beam_size": rng.randint(2, 6), "num_hypotheses": 2, "length_penalty": 0.7},
            {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
            {"seed": rng.randrange(2**64), "top_k": rng.randint(1, 40), "num_sequences": rng.randint(1, 4)},
            {"return_alternatives": True, "num_hypotheses": 3},
        ]
    )
    return common | kind


def test_requests_of_every_kind_at_once_get_what_each_gets_alone(server, client):
    rng = random.Random(3)
    asks = [(rng.choice(TEXTS), asked(rng), rng.choice(["translate", "generate"])) for _ in range(48)]

    def key(answer):
        return answer.text, answer.tokens, answer.hypotheses, answer.seed

    alone = [key(getattr(client, verb)(text, **options)) for text, options, verb in asks]

    async def together():
        async with AsyncClient(server.address) as client:
            calls = [getattr(client, verb)(text, **options) for text, options, verb in asks]
            return [key(answer) for answer in await asyncio.gather(*calls)]

    assert asyncio.run(together()) == alone
    server.settle()


def test_attention_beside_others_is_what_each_gets_alone(server, client):
    """Rows change hands all the time; the attention must be that of the answer's own source, wherever it stands."""
    rng, kinds = random.Random(5), ["soft", "hard", "both"]
    ways: list[dict[str, Any]] = [
        {},
        {"beam_size": 3, "num_hypotheses": 2},
        {"seed": 4, "num_sequences": 3},
        {"beam_size": 4, "num_hypotheses": 4, "coverage_penalty": 0.5},
    ]
    asks = [
        (text, way | {"alignment": rng.choice(kinds), "max_tokens": rng.randint(3, MOST), "ignore_eos": True})
        for text in TEXTS
        for way in ways
    ] * 2
    rng.shuffle(asks)
    alone = [client.translate(text, **options).hypotheses for text, options in asks]
    assert len({hypotheses[0].alignment for hypotheses in alone}) > len(asks) // 3

    async def together():
        async with AsyncClient(server.address) as client:
            calls = [client.translate(text, **options) for text, options in asks]
            return [answer.hypotheses for answer in await asyncio.gather(*calls)]

    assert asyncio.run(together()) == alone


HOSTILE: dict[int, list[Any]] = {
    1: [0, -1, 1, 2, 3, 33, 2**31 - 1, -(2**31)],  # CPPTYPE_INT32
    4: [0, 1, 2**64 - 1],  # UINT64
    5: [0.0, -1.0, 0.5, 1.0, 2.0, 1e308, -1e308, math.nan, math.inf, 5e-324],  # DOUBLE
    7: [False, True],  # BOOL
    8: [0, 1, 2, 3, 99, -1],  # ENUM
    9: [
        "",
        " ",
        "the",
        "the the",
        "(",
        "\0",
        "x" * 10000,
        "{}",
        '{"type": "strin"}',
        "start: /a/",
        "ä" * 300,
    ],  # STRING
}


def hostile(rng):
    """A message of a few options with values at, on and far beyond every border."""
    message = pb.DecodingOptions(max_tokens=rng.choice([0, 4, 8]))
    for field in rng.sample(list(pb.DecodingOptions.DESCRIPTOR.fields), rng.randint(1, 4)):
        if field.name == "logit_bias":
            message.logit_bias.update({rng.choice(HOSTILE[1]): rng.choice(HOSTILE[5]) for _ in range(3)})
        elif field.is_repeated:
            getattr(message, field.name).extend(rng.choices(HOSTILE[field.cpp_type], k=rng.choice([1, 2, 70])))
        elif field.name in get_args(GrammarKind) and rng.random() < 0.7:
            setattr(message, field.name, near_valid(rng, field.name))
        else:
            setattr(message, field.name, rng.choice(HOSTILE[field.cpp_type]))
    return message


def check_hostile(server, seed, count):
    """Whatever the options, a request is answered, or refused with the field's name."""
    rng = random.Random(seed)
    codes: dict[str, int] = {}
    with grpc.insecure_channel(server.address) as channel:
        ask: dict[str, Any] = {
            name: channel.unary_unary(
                f"/glossa.v1.{service}/{name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=getattr(pb, f"{name}Response").FromString,
            )
            for service, name in (
                ("TranslationService", "Translate"),
                ("GenerationService", "Generate"),
                ("ScoringService", "Score"),
            )
        }
        for _ in range(count):
            name, options = rng.choice(list(ask)), hostile(rng)
            fields: dict[str, Any] = {"text": rng.choice(TEXTS), "options": options}
            if name == "Score":
                fields |= {"model": rng.choice(["en", "en-de"]), "target": rng.choice(["", " ", "the", "zebra"])}
            try:
                ask[name](getattr(pb, f"{name}Request")(**fields), timeout=20)
                code = "OK"
            except grpc.RpcError as error:
                call: Any = error
                code = call.code().name
                assert code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION"), (name, options, call.details())
                assert code != "INVALID_ARGUMENT" or re.match(r"(options\.\w+|text|target)", call.details())
            codes[code] = codes.get(code, 0) + 1
    assert codes["OK"] > 0
    server.settle()


def test_hostile_options_are_answered_or_refused(server):
    check_hostile(server, seed=1, count=150)


@pytest.mark.slow
def test_thousands_of_hostile_options_are_answered_or_refused(server):
    check_hostile(server, seed=2, count=5000)


def test_a_json_schema_gives_json(tmp_path, client):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    with pytest.raises(ClientError) as caught:  # the closed vocabulary has no braces
        client.generate(TEXTS[0], json_schema=json.dumps(schema))
    assert caught.value.code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT")
