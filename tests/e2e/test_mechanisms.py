"""What lectures teach, as it is served: compressed keys and values, experts, every kind of positions."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from export.bundle.directory import load_bundle
from export.to_onnx import export_bundle
from glossa.client import Client, ClientError
from model.checkpoints.checkpoint import load_checkpoint
from model.presets import find_preset
from model.reference.beam import beam_search
from model.reference.greedy import greedy, score
from model.training.data.embedded import copy_examples
from model.training.train import train
from service.engine.golden_check import decode_single
from service.memory.cache_layout import CacheLayout
from service.request import Request
from service.runtime.onnx_model import OnnxModel
from tests.e2e.process import serving
from tests.export.graphs.kinds import KINDS
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
COMPRESSED = tiny_model(KINDS["compressed"], seed=5)
LEARNED = tiny_model(tiny_config("decoder", positions="learned", num_decoder_layers=1, max_target_len=20))
MOST = 16


@pytest.fixture(scope="module")
def bundles(exported):
    return {"compressed": exported(COMPRESSED), "learned": exported(LEARNED)}


@pytest.fixture(scope="module")
def client(bundles):
    models = {name: str(path) for name, path in bundles.items()}
    with serving(models=models) as server, Client(server.address) as client:
        yield client


def prompt_of(text):
    return [1, *TOKENIZER.encode(text)]


def test_compressed_keys_answer_as_the_reference_does(client):
    for text in (*TEXTS, " ".join(TEXTS[:3])):
        answer = client.generate(text, model="compressed", max_tokens=MOST, include_tokens=True, token_logprobs=True)
        expected = greedy(COMPRESSED, prompt_of(text), max_tokens=MOST)
        assert answer.tokens == tuple(expected)
        logprobs = [token.logprob for token in answer.hypotheses[0].token_logprobs]
        assert logprobs == pytest.approx(score(COMPRESSED, prompt_of(text), expected), abs=1e-4)


def test_beams_keep_their_own_compressed_keys(client):
    for text in TEXTS[:2]:
        answer = client.generate(
            text, model="compressed", max_tokens=MOST, include_tokens=True, beam_size=4, num_hypotheses=4
        )
        expected = beam_search(COMPRESSED, prompt_of(text), max_tokens=MOST, beam_size=4, num_hypotheses=4)
        assert [hypothesis.tokens for hypothesis in answer.hypotheses] == [best.tokens for best in expected]


def test_an_answer_over_compressed_keys_is_the_same_bits_in_company(client):
    def ask(text):
        answer = client.generate(text, model="compressed", max_tokens=MOST, token_logprobs=True)
        return answer.text, answer.hypotheses[0].token_logprobs

    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(ask, TEXTS * 4))
    assert together == [ask(text) for text in TEXTS] * 4


def test_compressed_keys_take_their_share_of_the_memory(bundles):
    states = load_bundle(bundles["compressed"]).variant("fp32").states
    layout, kv_bytes = CacheLayout.of(states), 2 * 2 * 8 * 4  # keys and values of 2 heads of 8 numbers of 4 bytes
    assert (layout.target_bytes, layout.stride_bytes, layout.row_bytes) == (kv_bytes, ((3, kv_bytes),), 2 * kv_bytes)
    assert layout.bytes_per(64) == 64 * kv_bytes + 22 * kv_bytes


def test_a_request_past_the_learned_positions_is_refused_before_it_is_computed(client):
    prompt = prompt_of(" ".join(TEXTS[:2]))
    assert len(prompt) == 17
    answer = client.generate(" ".join(TEXTS[:2]), model="learned", max_tokens=4, include_tokens=True)
    assert answer.tokens == tuple(greedy(LEARNED, prompt, max_tokens=4))
    with pytest.raises(ClientError, match=r"INVALID_ARGUMENT.*max_tokens"):
        client.generate(" ".join(TEXTS[:2]), model="learned", max_tokens=5)
    with pytest.raises(ClientError, match=r"INVALID_ARGUMENT.*20"):
        client.generate(" ".join(TEXTS), model="learned")


POSITIONS = {
    "shaw": {"position_range": 4}, "sinusoidal": {}, "learned": {}, "none": {}, "rotary": {}, "alibi": {},
    "bucketed": {"position_buckets": 8, "position_range": 16},
    "beside": {"positions": "sinusoidal", "position_dim": 8, "tie_embeddings": False},
}  # fmt: skip


@pytest.mark.slow  # `tests.export.graphs` verifies their graphs, and the service knows none of them
@pytest.mark.parametrize(("kind", "changes"), POSITIONS.items(), ids=POSITIONS)
def test_every_kind_of_positions_trains_exports_and_serves(kind, changes, tmp_path):
    preset = find_preset("tiny-copy")
    model = preset.model.replace(**{"positions": kind, **changes})
    settings = preset.train.replace(steps=120, save_every_steps=120, validate_every_steps=120, validation_size=20)
    train(model, settings, data=copy_examples(400, seed=1), out=tmp_path / "run")
    export_bundle(tmp_path / "run", tmp_path / "bundle")
    trained, manifest = load_checkpoint(tmp_path / "run"), load_bundle(tmp_path / "bundle")
    runner = OnnxModel.open(tmp_path / "bundle", manifest, device="cpu").runner(max_rows=2)
    assert trained.metrics["validation_loss"] < 3.0, "guessing one of 27 tokens costs 3.3"
    for text in ("a b c d", "k", "z y x w v u t s r q p o n m l"):
        source = (*trained.tokenizer.encode(text), 2)
        served = decode_single(runner, Request(request_id=text, source=source, prompt=(1,), max_tokens=20))
        assert list(served) == greedy(trained.model, [1], source=source, max_tokens=20)
