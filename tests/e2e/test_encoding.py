"""Encoders alone through the whole service: a process of its own, real bundles, real engines."""

import asyncio
import random
from typing import Any

import numpy as np
import pytest
import torch

from glossa.client import AsyncClient, Client, ClientError
from tests.e2e.process import serving
from tests.tiny import ENCODERS, TEXTS, tiny_encoder, tiny_tokenizer

TOKENIZER = tiny_tokenizer(with_mask=True)
MODELS = {kind: tiny_encoder(kind) for kind in ENCODERS}
WORDS = sorted({word for text in TEXTS for word in text.split()})


@pytest.fixture(scope="module")
def server(tiny_encoder_bundles, tiny_generation_bundle):
    models = {kind: str(path) for kind, path in tiny_encoder_bundles.items()}
    with serving(models={**models, "en": str(tiny_generation_bundle)}) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def ids_of(text):
    words = [4 if word == "<mask>" else TOKENIZER.encode(word)[0] for word in text.split()]
    return [1, *words, 2]


@torch.inference_mode()
def states_of(kind, text):
    """(1, S, M), and the length as a tensor."""
    source = torch.tensor([ids_of(text)])
    lengths = torch.tensor([source.shape[1]])
    return MODELS[kind](source, lengths), lengths


def test_embeddings_are_pooled_states(client):
    for kind, text in (("masked", TEXTS[0]), ("classify", TEXTS[1]), ("attention", "tree")):
        states, _ = states_of(kind, text)
        expected = {"mean": states[0].mean(0).numpy(), "cls": states[0, 0].numpy()}
        if kind == "classify":
            with torch.inference_mode():
                expected["pooler"] = MODELS[kind].pool(states)[0].numpy()
        for pooling, vector in expected.items():
            assert client.embed(text, model=kind, pooling=pooling) == pytest.approx(vector, abs=1e-5)
            normalized = client.embed(text, model=kind, pooling=pooling, normalize=True)
            assert normalized == pytest.approx(vector / np.linalg.norm(vector), abs=1e-5)
        assert client.embed(text, model=kind) == client.embed(text, model=kind, pooling="mean")


def test_similarities_are_those_of_numpy(client):
    texts, given = TEXTS[:3], np.linspace(-1, 1, 32)
    x_NM = np.array([states_of("masked", text)[0][0].mean(0).numpy() for text in texts])
    y_CM = np.array([x_NM[1], given])
    expected = {
        "dot": x_NM @ y_CM.T,
        "cosine": x_NM @ y_CM.T / np.linalg.norm(x_NM, axis=1)[:, None] / np.linalg.norm(y_CM, axis=1),
        "euclidean": np.linalg.norm(x_NM[:, None] - y_CM, axis=2),
    }
    for measure, values_NC in expected.items():
        found = client.similarity(texts, [texts[1], given.tolist()], model="masked", measure=measure)
        assert np.array(found) == pytest.approx(values_NC, abs=1e-4)
    among = client.similarity(texts, model="masked")
    assert [among[place][place] for place in range(3)] == pytest.approx([1.0] * 3)
    assert client.similarity([[3.0, 4.0]], [[4.0, 3.0], [0.0, 0.0]]) == [pytest.approx([0.96, 0.0])]  # no model
    with_pooler = client.similarity(texts[:2], model="classify", pooling="pooler", measure="dot")
    pooled = np.array([client.embed(text, model="classify", pooling="pooler") for text in texts[:2]])
    assert np.array(with_pooler) == pytest.approx(pooled @ pooled.T, rel=1e-6)


def test_large_vectors_are_compared(client):
    x_NM = np.random.default_rng(1).normal(size=(14, 4096)).astype(np.float32)
    found = client.similarity(x_NM.tolist(), measure="dot")
    assert np.array(found) == pytest.approx(x_NM.astype(float) @ x_NM.T.astype(float), rel=1e-9, abs=1e-9)


def test_token_vectors_are_the_states_of_pytorch_alone_and_among_others(client):
    text = TEXTS[0]
    expected_SM = states_of("masked", text)[0][0].numpy()
    found = client.embed_tokens(text, model="masked")
    assert [one.token for one in found] == ids_of(text)
    assert np.array([one.values for one in found]) == pytest.approx(expected_SM, abs=1e-5)
    assert [text[slice(*one.span)].strip() for one in found] == ["", *text.split(), ""]
    second, third = found[2:4]
    chosen = client.embed_tokens(
        text, model="masked", normalize=True, spans=[second.span, (third.span[1] - 1, third.span[1])]
    )
    assert [one.token for one in chosen] == [second.token, third.token]
    norms = np.linalg.norm(expected_SM[2:4], axis=1, keepdims=True)
    assert np.array([one.values for one in chosen]) == pytest.approx(expected_SM[2:4] / norms, abs=1e-5)


@pytest.mark.parametrize("text", ["the small <mask> house", "<mask> black cat <mask> under the <mask>", "<mask>"])
def test_masks_are_filled_as_pytorch_fills_them(client, text):
    states, _ = states_of("masked", text)
    places = [place for place, token in enumerate(ids_of(text)) if token == 4]
    with torch.inference_mode():
        probabilities_NV = MODELS["masked"].token_logits(states[0, places]).softmax(-1)
    masks = client.fill_mask(text, top_k=7)  # the only model that can
    assert len(masks) == len(places)
    for fillings, expected_V in zip(masks, probabilities_NV, strict=True):
        best = expected_V.topk(7)
        assert [filling.token for filling in fillings] == best.indices.tolist()
        assert [filling.probability for filling in fillings] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert [filling.text for filling in fillings] == [TOKENIZER.decode([token]) for token in best.indices.tolist()]
    assert [len(fillings) for fillings in client.fill_mask(text)] == [5] * len(places)


def test_token_labels_are_those_of_pytorch(client):
    labels = ENCODERS["tokens"]["labels"]
    for text in TEXTS:
        states, _ = states_of("tokens", text)
        with torch.inference_mode():
            best = MODELS["tokens"].tag_logits(states)[0].softmax(-1).max(-1)
        found = client.tag(text, include_tokens=True)  # the only model that can
        assert [one.token for one in found.tokens] == ids_of(text)
        assert [one.label for one in found.tokens] == [labels[index] for index in best.indices.tolist()]
        assert [one.probability for one in found.tokens] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert [text[slice(*one.span)].strip() for one in found.tokens] == ["", *text.split(), ""]
        named = [word for one in found.spans for word in one.text.split()]
        assert named == [text[slice(*one.span)].strip() for one in found.tokens[1:-1] if one.label != "O"]
        assert all(text[slice(*one.span)] == one.text for one in found.spans)
        assert client.tag(text, model="tokens").tokens == ()


def test_labels_are_those_of_pytorch(client):
    for kind in ("classify", "attention"):
        for text in TEXTS:
            states, lengths = states_of(kind, text)
            with torch.inference_mode():
                reported = MODELS[kind].classify(states, lengths)
            logits, labels = reported.logits_BL[0], ENCODERS[kind]["labels"]
            expected = logits.sigmoid() if kind == "attention" else logits.softmax(-1)
            answer = client.classify(text, model=kind, token_weights=kind == "attention")
            assert {reported.label: reported.probability for reported in answer.labels} == pytest.approx(
                dict(zip(labels, expected.tolist(), strict=True)), abs=1e-5
            )
            probabilities = [reported.probability for reported in answer.labels]
            assert probabilities == sorted(probabilities, reverse=True)
            assert answer.prompt_tokens == len(ids_of(text))
            if kind == "classify":
                assert answer.token_weights == ()
                continue
            assert reported.token_weights_BS is not None
            weights = reported.token_weights_BS[0].tolist()
            assert [token.weight for token in answer.token_weights] == pytest.approx(weights, abs=1e-6)
            pieces = [text[slice(*token.span)].strip() for token in answer.token_weights]
            assert pieces == ["", *text.split(), ""]


async def test_an_answer_does_not_depend_on_concurrent_requests(server):
    """Bit for bit: alone, and among a hundred others of all kinds and lengths."""
    rng = random.Random(7)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 60))) for _ in range(40)]
    masked = [text + " <mask>" for text in texts]
    async with AsyncClient(server.address) as client:
        calls: dict[str, list[Any]] = {
            "embed": [lambda text=text: client.embed(text, model="masked") for text in texts],
            "fill": [lambda text=text: client.fill_mask(text, model="masked") for text in masked],
            "classify": [
                lambda text=text: client.classify(text, model="attention", token_weights=True) for text in texts
            ],
        }
        together = await asyncio.gather(*(call() for kind in calls.values() for call in kind))
        alone = [await call() for kind in calls.values() for call in kind]
    one: Any
    for one, other in zip(together, alone, strict=True):
        if hasattr(one, "labels"):
            one, other = (one.labels, one.token_weights), (other.labels, other.token_weights)
        assert one == other


@pytest.mark.parametrize(
    ("ask", "code", "message"),
    [
        (lambda c: c.fill_mask("the small house"), "INVALID_ARGUMENT", "must have 1..32 masks, written <mask>, got 0"),
        (lambda c: c.fill_mask("<mask> " * 33), "INVALID_ARGUMENT", "must have 1..32 masks, written <mask>, got 33"),
        (lambda c: c.fill_mask("a <mask>", top_k=0), "INVALID_ARGUMENT", "must be 1..100, got 0"),
        (lambda c: c.fill_mask("a <mask>", top_k=101), "INVALID_ARGUMENT", "must be 1..100, got 101"),
        (lambda c: c.fill_mask("a <mask>", model="classify"), "FAILED_PRECONDITION", "fills no masks"),
        (lambda c: c.fill_mask("a <mask>", model="en"), "FAILED_PRECONDITION", "serves generation"),
        (lambda c: c.fill_mask("a zebra <mask>"), "INVALID_ARGUMENT", "does not know these words: zebra"),
        (lambda c: c.embed("a <mask>", model="masked"), "INVALID_ARGUMENT", "does not know these words: <, mask, >"),
        (lambda c: c.embed("the cat " * 32, model="masked"), "INVALID_ARGUMENT", "must be at most 64 tokens, got 66"),
        (lambda c: c.embed_tokens(" ", model="masked"), "INVALID_ARGUMENT", "must not be empty"),
        (lambda c: c.embed_tokens("cat", model="masked", spans=[(1, 4)]), "INVALID_ARGUMENT", "must have 0 <= start"),
        (lambda c: c.embed_tokens("cat", model="masked", spans=[(0, 2), (2, 2)]), "INVALID_ARGUMENT", r"spans\[1\]"),
        (lambda c: c.embed_tokens("cat  ", model="masked", spans=[(4, 5)]), "INVALID_ARGUMENT", "got blanks only"),
        (lambda c: c.embed_tokens("cat", model="en"), "FAILED_PRECONDITION", "serves generation"),
        (lambda c: c.similarity(["cat", "a zebra"], model="masked"), "INVALID_ARGUMENT", r"items\[1\].text: .*: zebra"),
        (lambda c: c.similarity(["cat"], [" "], model="masked"), "INVALID_ARGUMENT", r"others\[0\].text: must not be"),
        (lambda c: c.similarity(["cat"], [[1.0]], model="masked"), "INVALID_ARGUMENT", "must be 32 values, as the emb"),
        (lambda c: c.similarity([]), "INVALID_ARGUMENT", "items: must be 1..32 texts or vectors, got 0"),
        (lambda c: c.similarity(["cat"], model="en"), "FAILED_PRECONDITION", "serves generation"),
        (lambda c: c.similarity(["cat"], model="masked", pooling="pooler"), "FAILED_PRECONDITION", "has no pooler"),
        (lambda c: c.similarity(["cat"]), "INVALID_ARGUMENT", "must be named when several fit"),
        (lambda c: c.embed(" ", model="masked"), "INVALID_ARGUMENT", "must not be empty"),
        (lambda c: c.embed("cat", model="masked", pooling="pooler"), "FAILED_PRECONDITION", "has no pooler"),
        (lambda c: c.embed("cat"), "INVALID_ARGUMENT", "must be named when several fit"),
        (lambda c: c.tag("cat", model="classify"), "FAILED_PRECONDITION", "has no labels of tokens"),
        (lambda c: c.classify("cat", model="tokens"), "FAILED_PRECONDITION", "has no labels"),
        (lambda c: c.classify("cat", model="masked"), "FAILED_PRECONDITION", "has no labels"),
        (lambda c: c.classify("cat", model="classify", token_weights=True), "FAILED_PRECONDITION", "no token weights"),
        (lambda c: c.classify("cat"), "INVALID_ARGUMENT", "one of: attention, classify$"),
        (lambda c: c.translate("cat", model="masked"), "FAILED_PRECONDITION", "serves encoding"),
        (lambda c: c.score("cat", "dog", model="masked"), "FAILED_PRECONDITION", "serves encoding"),
    ],
)  # fmt: skip
def test_invalid_requests_are_rejected(client, ask, code, message):
    with pytest.raises(ClientError, match=message) as refusal:
        ask(client)
    assert refusal.value.code == code


def test_a_call_after_its_deadline_fails(client):
    with pytest.raises(ClientError) as refusal:
        client.embed(TEXTS[0], model="masked", timeout_s=1e-6)
    assert refusal.value.code == "DEADLINE_EXCEEDED"


def test_models_report_their_capabilities(client):
    reported = {model.name: model for model in client.list_models()}
    assert (reported["masked"].mask_token, list(reported["masked"].labels), reported["masked"].embedding_size) == (
        "<mask>",
        [],
        32,
    )
    assert list(reported["classify"].labels) == list(ENCODERS["classify"]["labels"])
    assert list(reported["tokens"].token_labels) == list(ENCODERS["tokens"]["labels"])
    assert (list(reported["tokens"].labels), list(reported["classify"].token_labels)) == ([], [])
    assert [kind for kind in ENCODERS if reported[kind].has_pooler] == ["classify"]
    assert [kind for kind in ENCODERS if reported[kind].multi_label] == ["attention"]
    assert reported["masked"].limits.max_prompt_tokens == 64
    assert reported["masked"].limits.max_tokens == 0
    assert reported["en"].embedding_size == 0
