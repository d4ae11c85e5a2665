"""Vectors as a model's card promises them, through the whole service: layers after the pooling, prompts, truncation."""

import itertools

import numpy as np
import pytest
import torch

from glossa.client import Client, ClientError
from glossa.v1 import glossa_pb2 as pb
from tests.e2e.process import serving
from tests.tiny import EMBEDDER, TEXTS, tiny_config, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
MODEL = tiny_model(tiny_config("encoder", **EMBEDDER))
PROMPT = dict(MODEL.config.prompts)["query"]
LONG = " ".join(TEXTS)


@pytest.fixture(scope="module")
def client(exported):
    with serving(models={"own": str(exported(MODEL))}) as server, Client(server.address) as client:
        yield client


@torch.inference_mode()
def vector_of(text, prompt=PROMPT):
    """By definition: the mean of the states after the prompt's, then the layers, then length 1."""
    ids = [1, *TOKENIZER.encode(prompt + text)[: MODEL.config.max_source_len - 2], 2]
    states = MODEL(torch.tensor([ids]), torch.tensor([len(ids)]))[0]
    first = 1 + len(prompt.split()) if prompt else 0
    (vector,) = MODEL.project(states[first:].mean(0)[None]).numpy()
    return vector / np.linalg.norm(vector)


def test_vectors_are_those_of_the_definition(client):
    for text, name in itertools.product(TEXTS, (None, "query", "plain", "")):
        expected = vector_of(text, PROMPT if name in (None, "query") else "")
        found = client.embed(text, prompt_name=name)
        assert found == pytest.approx(expected, abs=1e-5)
        assert not found.truncated
    assert len(client.embed(TEXTS[0], pooling="mean")) == 32, "a named pooling returns what it makes of the states"


def test_a_long_text_is_refused_or_truncated(client):
    with pytest.raises(ClientError, match="text: must be at most 16 tokens, got 34; shorten or split it, or set trunc"):
        client.embed(LONG)
    found = client.embed(LONG, truncate=True)
    assert found == pytest.approx(vector_of(LONG), abs=1e-5)
    assert (found.truncated, found.prompt_tokens) == (True, 16)
    assert client.count_tokens([LONG, TEXTS[1]])[0].tokens == 34
    plain = client.count_tokens([LONG, TEXTS[1]], prompt_name="")
    assert [(count.tokens, count.exceeds_limit) for count in plain] == [(31, True), (9, False)]


def test_a_batch_is_embedded_as_its_texts_are(client):
    items = [*TEXTS, LONG, pb.EmbedRequest(text=TEXTS[0], prompt_name="")]
    found = list(client.embed_batch(items, truncate=True))
    assert found == [client.embed(text, truncate=True) for text in (*TEXTS, LONG)] + [
        client.embed(TEXTS[0], prompt_name="")
    ]
    assert [one.truncated for one in found] == [False] * len(TEXTS) + [True, False]


def test_queries_and_passages_have_prompts_of_their_own(client):
    found = client.similarity(TEXTS[:2], TEXTS[2:], prompt_name="query", others_prompt_name="", measure="dot")
    queries, passages = (
        [vector_of(text, prompt) for text in texts] for texts, prompt in ((TEXTS[:2], PROMPT), (TEXTS[2:], ""))
    )
    assert np.array(found) == pytest.approx(np.array(queries) @ np.array(passages).T, abs=1e-5)
    with pytest.raises(ClientError, match="others_prompt_name: must be one of query, plain, got 'passage'"):
        client.similarity([TEXTS[0]], [TEXTS[1]], others_prompt_name="passage")
    with pytest.raises(ClientError, match=r"items\[1\].text: must be at most 16 tokens, got 34; shorten or split it$"):
        client.similarity([TEXTS[0], LONG])
    with pytest.raises(ClientError, match="INVALID_ARGUMENT: others_prompt_name: must be left out: no text is among"):
        client.similarity(TEXTS[:2], others_prompt_name="")
    with pytest.raises(ClientError, match="INVALID_ARGUMENT: prompt_name: must be left out: no text is among items"):
        client.similarity([[0.5] * 8], TEXTS[:2], prompt_name="query")


def test_a_prompt_that_the_model_lacks_is_refused(client):
    for call in (client.embed, lambda text, **how: client.count_tokens([text], **how)):
        with pytest.raises(ClientError, match="INVALID_ARGUMENT: prompt_name: must be one of query, plain, got 'qu'"):
            call(TEXTS[0], prompt_name="qu")


def test_a_model_tells_its_vectors_and_prompts(client):
    model = client.get_model()
    assert dict(model.prompts) == {"query": PROMPT, "plain": ""}
    assert (model.default_prompt_name, model.embedding_size, model.embeddings_normalized) == ("query", 8, True)


@pytest.mark.slow
def test_an_encoder_of_t5_is_served(exported):
    """Its layers: RMS norms before blocks, a bias of positions by buckets, scores without a scale."""
    blocks = {"norm": "rms", "positions": "bucketed", "position_range": 32, "attention_scale": 1.0, "bias": False}
    model = tiny_model(tiny_config("encoder", **blocks, gated=True, activation="gelu_tanh"))
    with serving(models={"t5": str(exported(model))}) as server, Client(server.address) as client:
        for text in TEXTS:
            ids = torch.tensor([[1, *TOKENIZER.encode(text), 2]])
            with torch.inference_mode():
                states = model(ids, torch.tensor([ids.shape[1]]))[0]
            assert client.embed(text) == pytest.approx(states.mean(0).numpy(), abs=1e-5)
