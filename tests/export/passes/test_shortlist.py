"""The graphs for rows with words of their own, against numpy and against themselves with other rows and other room."""

import numpy as np
import onnx
import onnxruntime
import pytest

from export.bundle.manifest import SESSION_CONFIG, WORD_MULTIPLE
from export.passes.shortlist import select_rows, shortlist_graphs, shortlist_states

VOCABULARY, WIDTH, ROWS = 300, 48, 7


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for name, value in SESSION_CONFIG.items():
        options.add_session_config_entry(name, value)
    onnx.checker.check_model(model, full_check=True)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Ranked:
    """The graphs of a random last product, and words for each of some rows."""

    def __init__(self, *, is_quantized=True, dtype=np.float32, has_bias=True, vocabulary=VOCABULARY, width=WIDTH):
        rng = np.random.default_rng(5)
        self.weight_VM = rng.standard_normal((vocabulary, width)).astype(dtype)
        self.bias_V = rng.standard_normal(vocabulary).astype(dtype) if has_bias else None
        given = self.weight_VM, self.bias_V
        graphs = shortlist_graphs(*given, is_quantized=is_quantized)
        self.words, self.ranking = session(graphs["project_shortlist"]), session(graphs["shortlist_logprobs"])
        self.states = shortlist_states(*given, is_quantized=is_quantized)
        self.states_RM = rng.standard_normal((ROWS, width)).astype(np.float32)
        counts = [1, 2, 63, 64, 65, 100, 190]
        self.own = [np.sort(rng.choice(vocabulary, count, replace=False)) for count in counts]

    def kept(self, rows, room, dirt=55):
        """What is kept of these rows' words, in buffers full of something else."""
        found = {}
        for state in self.states:
            sizes = {"batch": len(rows), "words": room}
            shape = [sizes[axis] if isinstance(axis, str) else axis for axis in state.shape]
            found[state.name] = np.full(shape, dirt, state.dtype)
        for place, row in enumerate(rows):
            outputs = self.words.run(None, {"ids": self.own[row][None]})
            for output, array in zip(self.words.get_outputs(), outputs, strict=True):
                found[output.name][place, ..., : len(self.own[row])] = array[0]
        return found

    def rank(self, rows, room, top_k=2, **changed):
        feeds = {
            "states": self.states_RM[rows],
            "word_counts": np.array([len(self.own[row]) for row in rows], np.int32),
            "word_places": np.arange(room, dtype=np.int32),
            "top_k": np.array([top_k]),
            **self.kept(rows, room),
        }
        names = [output.name for output in self.ranking.get_outputs()]
        return dict(zip(names, self.ranking.run(names, feeds | changed), strict=True))

    def logits(self, row):
        """Of a row's own words, in float64."""
        weight = self.weight_VM[self.own[row]].astype(np.float64)
        bias = 0.0 if self.bias_V is None else self.bias_V[self.own[row]].astype(np.float64)
        return weight @ self.states_RM[row] + bias


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "tolerance"), [({"is_quantized": False}, 1e-5), ({"is_quantized": True}, 0.05), (None, 3e-3)]
)
def test_logits_of_a_rows_own_words_are_those_of_the_whole_product(kind, tolerance, has_bias):
    ranked = Ranked(**(kind or {"is_quantized": False, "dtype": np.float16}), has_bias=has_bias)
    outputs = ranked.rank(range(ROWS), 192)
    for row, own in enumerate(ranked.own):
        logits, count = ranked.logits(row), len(own)
        error = np.sqrt(np.mean((outputs["logprobs"][row, :count] + outputs["normaliser"][row] - logits) ** 2))
        assert error < tolerance * 7, "their deviation is 7, the root of the width"
        assert np.exp(outputs["logprobs"][row, :count]).sum() == pytest.approx(1, abs=1e-5)
        assert np.isneginf(outputs["logprobs"][row, count:]).all()
        best = np.argsort(-outputs["logprobs"][row, :count], kind="stable")[:2]
        assert outputs["top_ids"][row, : len(best)].tolist() == own[best].tolist()
        assert outputs["top_logprobs"][row, : len(best)].tolist() == outputs["logprobs"][row, best].tolist()
    assert np.isneginf(outputs["top_logprobs"][0, 1]), "there is no second one"


@pytest.mark.parametrize("is_quantized", [True, False])
@pytest.mark.parametrize("width", [48, 256, 100])
def test_a_row_is_ranked_alike_alone_among_others_and_in_more_room(is_quantized, width):
    ranked = Ranked(is_quantized=is_quantized, width=width)
    together = ranked.rank(range(ROWS), 192, top_k=4)
    for row in range(ROWS):
        count = len(ranked.own[row])
        for room in range(-(-count // WORD_MULTIPLE) * WORD_MULTIPLE, 700, WORD_MULTIPLE):
            alone = ranked.rank([row], room, top_k=4)
            assert np.array_equal(alone["logprobs"][0, :count], together["logprobs"][row, :count])
            assert np.array_equal(alone["normaliser"][0], together["normaliser"][row])
            assert alone["top_ids"][0, :count].tolist() == together["top_ids"][row, :count].tolist()


def test_integers_are_exact_where_two_products_could_overflow():
    """All weights at their largest, all activations too: 127 * 127 * 2 would not fit into 16 bits."""
    ranked = Ranked(has_bias=False)
    sign = np.where(np.arange(VOCABULARY) % 2, 1, -1)
    ranked.weight_VM[:] = sign[:, None]
    graphs = shortlist_graphs(ranked.weight_VM, None, is_quantized=True)
    ranked.words, ranked.ranking = session(graphs["project_shortlist"]), session(graphs["shortlist_logprobs"])
    ranked.states_RM[:] = 3.0
    outputs = ranked.rank(range(ROWS), 192)
    for row, own in enumerate(ranked.own):
        logits = outputs["logprobs"][row, : len(own)] + outputs["normaliser"][row]
        assert logits == pytest.approx(3.0 * WIDTH * sign[own], rel=1e-5)


def test_what_is_kept_is_what_the_graphs_write_and_read():
    for is_quantized in (True, False):
        ranked = Ranked(is_quantized=is_quantized)
        names = {state.name for state in ranked.states}
        assert {output.name for output in ranked.words.get_outputs()} == names
        assert names < {value.name for value in ranked.ranking.get_inputs()}
        types = {value.name: value.type for value in ranked.ranking.get_inputs()}
        weight = types["word_weight"]
        assert weight == ("tensor(int8)" if is_quantized else "tensor(float)")


def test_a_row_of_zeros_says_the_bias():
    ranked = Ranked(is_quantized=False)
    outputs = ranked.rank(range(ROWS), 192, states=np.zeros((ROWS, WIDTH), np.float32))
    own = ranked.own[5]
    assert ranked.bias_V is not None
    assert outputs["logprobs"][5, : len(own)] + outputs["normaliser"][5] == pytest.approx(ranked.bias_V[own], abs=1e-5)


@pytest.mark.parametrize("name", ["tiny_attention_bundle"])
def test_decode_tells_logits_of_the_rows_it_is_asked_for_and_states_of_all(request, name, tiny_translation_bundle):
    graphs = [onnx.load(path / "fp32/decode.onnx") for path in (tiny_translation_bundle, request.getfixturevalue(name))]
    plain, asking = (session(graph) for graph in graphs)
    rng, rows = np.random.default_rng(2), 3
    feeds = {
        "tokens": np.array([[5], [6], [7]]),
        "starts": np.zeros(rows, np.int64),
        "lengths": np.ones(rows, np.int32),
        "total_length": np.array(8, np.int32),
        "source_lengths": np.array([2, 5, 3], np.int32),
    }
    for value in plain.get_inputs():
        if value.name not in feeds:
            shape = [{"batch": rows, "capacity": 8, "source": 5}.get(size, size) for size in value.shape]
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    (all_logits,) = plain.run(["logits"], feeds)
    for asked in ([0, 1, 2], [2, 0], []):
        logits, states = asking.run(["logits", "states"], {**feeds, "asked": np.array(asked, np.int64)})
        assert np.array_equal(logits, all_logits[asked])
        assert states.shape == (rows, 32)
    again = select_rows(graphs[0], np.zeros((27, 32), np.float32))
    assert [value.name for value in again.graph.output][-1] == "states"
