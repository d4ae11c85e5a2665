"""The CUDA provider takes every node of the exported graphs but shape arithmetic, copies nothing between host and
device inside a pass, and can capture a decode step."""

import json

import pytest
from onnx import TensorProto, helper, save

from model.presets import PRESETS
from tests.cuda import fake, placement

SHAPE_ARITHMETIC = {"Cast", "Concat", "Gather", "Squeeze"}  # of a few integers, which ONNX Runtime leaves to the CPU

MODELS = [*PRESETS, *placement.MODELS]
RECURRENT = ["articles-recurrent", "demo-recurrent", "tiny-copy-recurrent", "LSTM", "GRU"]
ENCODERS = [
    "masked-scenes",
    "sentence-kinds",
    "scene-animals",
    "scene-entities",
    "windows in both directions",
    "masked encoder",
    "classifier",
    "attention pooling",
    "token classifier",
]
EXPERTS = ["articles-experts", "experts"]
DECODERS = [name for name in MODELS if name not in [*ENCODERS, *EXPERTS]]


@pytest.fixture
def placed(build_cache, fake_cuda):
    """The placements of a model's graphs; see `placement.placements`."""

    def place(name, scheme="fp16"):
        def graphs(folder):
            files = placement.save_graphs(name, folder, scheme)
            return json.loads(fake.run_python(fake_cuda, "-m", "tests.cuda.placement", *map(str, files)))

        return build_cache.once(graphs, name, scheme, str(fake_cuda))

    return place


@pytest.mark.parametrize("name", DECODERS)
def test_a_decode_step_stays_on_the_device_and_can_be_captured(placed, name):
    step = placed(name)["decode"]
    assert (step["memcpy"], step["captured"], step["error"]) == ([], True, ""), step["obstacle"]
    assert not step["sized_by_kernels"]


@pytest.mark.parametrize("name", EXPERTS)
def test_a_step_whose_sizes_the_device_computes_is_not_captured(placed, name):
    step = placed(name)["decode"]
    assert (step["memcpy"], step["captured"], step["error"]) == ([], False, "")
    assert step["obstacle"] == "NonZero computes on the device what the host must know"


@pytest.mark.parametrize("name", MODELS)
def test_only_shape_arithmetic_is_left_to_the_cpu(placed, name):
    assert {graph: set(found["cpu"]) - SHAPE_ARITHMETIC for graph, found in placed(name).items()} == {
        graph: set() for graph in placed(name)
    }


@pytest.mark.parametrize("name", [name for name in MODELS if name not in RECURRENT])
def test_other_graphs_copy_nothing_between_host_and_device(placed, name):
    others = {graph: found for graph, found in placed(name).items() if graph != "decode"}
    assert {graph: (found["memcpy"], found["error"]) for graph, found in others.items()} == {
        graph: ([], "") for graph in others
    }


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_encoders_need_cudnn(placed, name):
    assert "RequireCudnnHandle" in placed(name)["encode"]["error"]


@pytest.mark.parametrize("name", ["demo", "sinusoidal", "window", "demo-recurrent", "LSTM", "GRU"])
def test_a_step_blocks_only_at_its_end(placed, name):
    step = placed(name)["decode"]
    assert step["blocking"] == {"blocking cudaStreamSynchronize": 1, "blocking cudaStreamSynchronize null stream": 1}
    assert 0 < step["products"] < step["launches"]


LAYERS = 2
MOST = {  # kernels and products that a step of two layers starts, and those of a layer
    "translation": (45, 18),
    "translation, heads of 8": (41, 16),
    "BART": (42, 17),
    "llama": (34, 12),
}


@pytest.mark.parametrize("name", MOST)
def test_a_layer_starts_few_kernels(placed, name):
    step, (most, of_layer) = placed(name)["decode"], MOST[name]
    assert step["launches"] + step["products"] <= most
    assert most - LAYERS * of_layer <= 13, "embedding, last norm and logits"


PACKED = ["translation", "BART", "T5", "llama", "Shaw", "compression", "experts", "GRU", "masked encoder"]
OF_INTEGERS = 4  # kernels that 4-bit graphs start beside those of fp16: three for an int8 embedding, one for the logits
OF_INTEGERS_IN_GRU = 5  # besides, a weight with 80 inputs, no multiple of 32, is dequantised first


@pytest.mark.parametrize("name", PACKED)
def test_4_bit_graphs_are_placed_as_those_in_fp16(placed, name):
    for graph, found in placed(name, "w4a16-block32").items():
        half = placed(name)[graph]
        assert set(found["cpu"]) <= SHAPE_ARITHMETIC, graph
        assert {key: found[key] for key in ("memcpy", "captured", "error", "obstacle")} == {
            key: half[key] for key in ("memcpy", "captured", "error", "obstacle")
        }, graph
        if "launches" in half:
            more = OF_INTEGERS_IN_GRU if name == "GRU" else OF_INTEGERS
            assert found["launches"] + found["products"] <= half["launches"] + half["products"] + more
            assert (found["blocking"], found["illegal"]) == (half["blocking"], 0)


def test_an_operator_that_cuda_lacks_is_found(run_fake, tmp_path):
    matrix = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    nodes = [helper.make_node("Relu", ["x"], ["positive"]), helper.make_node("Det", ["positive"], ["y"])]
    graph = helper.make_graph(nodes, "determinant", [matrix], [result])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "g.onnx")
    found = json.loads(run_fake("-m", "tests.cuda.placement", str(tmp_path / "g.onnx")))["g"]
    assert (found["cpu"], found["memcpy"], found["captured"], found["error"]) == (["Det"], ["MemcpyToHost"], False, "")
