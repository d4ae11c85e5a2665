"""The graph that draws tokens on a device, run on the CPU: it never claims another token than `Sampler` draws."""

import numpy as np
import onnx
import onnxruntime
import pytest

from export.bundle.onnx_reader import read_model
from service.decoding.sampling import Sampler
from service.options import DecodingOptions
from service.runtime.token_draws import COLUMNS, GREEDY, bounds, draw_graph

WORDS, BEST, ROWS = 400, 64, 100
KINDS = [
    {"temperature": 1.0},
    {"temperature": 0.1},
    {"temperature": 3.0},
    {"temperature": 0.02, "top_p": 0.5},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.999},
    {"temperature": 1.3, "top_k": 40},
    {"top_k": 1},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 0.0001},
    {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "min_p": 0.01},
]


@pytest.fixture(scope="module")
def graph():
    return onnxruntime.InferenceSession(draw_graph(BEST), providers=["CPUExecutionProvider"])


def ran(graph, logprobs_RV, draws):
    """Tokens and places of rows with these draws."""
    ids_RK = np.argsort(-logprobs_RV, axis=1, kind="stable")[:, :BEST]
    sharpness_R1 = np.array([[draw.sharpness] for draw in draws], np.float32)
    draws_R2P = np.array([bounds(draw, 0, BEST) for draw in draws], np.float32)
    inputs = {"logprobs": logprobs_RV, "top_ids": ids_RK, "sharpness": sharpness_R1, "draws": draws_R2P}
    chosen_R1, places_R21 = graph.run(None, inputs)
    return chosen_R1[:, 0].tolist(), places_R21[:, :, 0].tolist()


def distributions(rng, spread):
    """Log-probabilities with equal ones among them."""
    logits = np.round(rng.normal(0.0, spread, (ROWS, WORDS)), 2).astype(np.float32)
    return (logits - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_token_that_is_certain_is_the_one_that_the_host_draws(graph, kind):
    rng, certain, right = np.random.default_rng(1), 0, 0
    for spread in (0.5, 2.0, 5.0):
        logprobs_RV = distributions(rng, spread)
        samplers = [Sampler(DecodingOptions(**kind), seed, 0) for seed in range(ROWS)]
        tokens, places = ran(graph, logprobs_RV, [sampler.ahead(0, 1) for sampler in samplers])
        for row, sampler in enumerate(samplers):
            low, high = places[row]
            expected = sampler.draw(logprobs_RV[row])
            assert 0 <= low <= high <= BEST
            if low == high < BEST:
                assert tokens[row] == expected, (spread, row)
                certain += 1
            right += tokens[row] == expected
    assert right >= certain > 0.2 * 3 * ROWS, "and many are"


def test_rows_without_a_draw_take_their_best_token(graph):
    logprobs_RV = distributions(np.random.default_rng(2), 2.0)
    tokens, places = ran(graph, logprobs_RV, [GREEDY] * ROWS)
    assert tokens == logprobs_RV.argmax(1).tolist()
    assert places == [[0.0, 0.0]] * ROWS


def test_the_graph_is_well_formed():
    for count in (5, BEST):
        model = onnx.load_from_string(draw_graph(count))
        onnx.checker.check_model(model, full_check=True)
        assert [value.name for value in model.graph.output] == ["chosen", "places"]
        nodes = [node["op_type"] for node in read_model(draw_graph(count))["graph"]["node"]]
        assert nodes == [node.op_type for node in model.graph.node]


def test_a_nucleus_beyond_the_best_tokens_is_known_up_to_its_last_token():
    low, high = (dict(zip(COLUMNS, bound, strict=True)) for bound in bounds(GREEDY._replace(top_p=0.9), 0, BEST))
    assert (low["excess"], high["excess"]) == (0.0, 1.0)
    assert low["top_p"] < 0.9 < high["top_p"]
