"""A recurrent model through the whole service, beside a Transformer in one server, which is a process of its own."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
import torch

from glossa.client import Client
from model.reference.beam import beam_search
from model.reference.greedy import cross_attention, greedy, score
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
MODELS = {"recurrent": tiny_model(tiny_config("recurrent")), "transformer": tiny_model(tiny_config())}
WORDS = sorted({word for text in TEXTS for word in text.split()})
MOST = 16  # tokens of an answer: references are slow


@pytest.fixture(scope="module")
def client(tiny_recurrent_bundle, tiny_translation_bundle):
    models = {"recurrent": str(tiny_recurrent_bundle), "transformer": str(tiny_translation_bundle)}
    with serving(models=models) as server, Client(server.address) as client:
        yield client


def source_of(text):
    return [*TOKENIZER.encode(text), 2]


def sentences(count, seed):
    rng = Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 20))) for _ in range(count)]


@pytest.mark.slow
def test_answers_are_those_of_the_reference_beside_all_others(client):
    """40 sentences of each of two models at once."""
    texts = sentences(40, seed=1)
    asks = [(name, text) for text in texts for name in MODELS]

    def ask(one):
        name, text = one
        return client.translate(text, model=name, max_tokens=MOST, include_tokens=True).tokens

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(ask, asks))
    expected = [greedy(MODELS[name], [1], source=source_of(text), max_tokens=MOST) for name, text in asks]
    assert [list(answer) for answer in answers] == expected
    assert len({tuple(tokens) for (name, _), tokens in zip(asks, expected, strict=True) if name == "recurrent"}) > 20


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.6},
        {"beam_size": 3, "num_hypotheses": 2, "coverage_penalty": 0.3},
    ],
)
def test_beams_are_those_of_the_reference(client, options):
    for text in TEXTS[:2]:
        answer = client.translate(text, model="recurrent", max_tokens=MOST, include_tokens=True, **options)
        expected = beam_search(MODELS["recurrent"], [1], source=source_of(text), max_tokens=MOST, **options)
        assert [tuple(hypothesis.tokens) for hypothesis in answer.hypotheses] == [
            tuple(hypothesis.tokens) for hypothesis in expected
        ]


def test_samples_and_streams_are_those_of_their_seed(client):
    options = {"model": "recurrent", "temperature": 1.2, "seed": 7, "max_tokens": MOST}
    one, two = (client.translate(TEXTS[0], **options).text for _ in range(2))
    assert one == two
    assert "".join(piece.text for piece in client.stream_translate(TEXTS[0], **options)) == one


def test_scores_embeddings_and_attention_are_those_of_the_reference(client):
    model, text = MODELS["recurrent"], TEXTS[0]
    source = source_of(text)
    result = client.score(text, TEXTS[2], model="recurrent")
    expected = score(model, [1], [*TOKENIZER.encode(TEXTS[2]), 2], source=source)
    assert [token.logprob for token in result.tokens] == pytest.approx(expected, abs=1e-4)
    with torch.inference_mode():
        states = model.encode(torch.tensor([source]), torch.tensor([len(source)])).states_BSN[0]
    assert client.embed(text, model="recurrent") == pytest.approx(states.mean(0).numpy(), abs=1e-4)
    answer = client.translate(text, model="recurrent", alignment="both", max_tokens=MOST, include_tokens=True)
    alignment = answer.hypotheses[0].alignment
    weights_TS = cross_attention(model, [1, *answer.tokens[:-1]], source=source)[0, 0].numpy()
    assert np.array(alignment.rows) == pytest.approx(weights_TS, abs=1e-4)
    assert np.array(alignment.rows).sum(1) == pytest.approx(1.0, abs=1e-3)
