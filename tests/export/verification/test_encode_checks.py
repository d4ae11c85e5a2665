"""Faults in `encode` and `embed` are refused by the checks of their outputs."""

import shutil

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from export.bundle.directory import load_bundle
from export.export_errors import ParityError
from export.options import ExportOptions
from export.to_onnx import export_model
from export.verification.inputs import sample_inputs
from export.verification.torch_reference import Expectations
from export.verification.verifier import verify_graphs
from tests.export.verification.faults import (
    ENCODE,
    assert_refused,
    checks_with_fault,
    constant,
    encode_without_padding_mask,
    insert,
    named,
    nodes,
    norm_with_another_epsilon,
    positions,
    weight,
    with_fault,
)
from tests.tiny import EMBEDDER, TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer(with_mask=True)


def encode_with_another_scale(graph):
    for node in nodes(graph, "GroupQueryAttention"):
        node.attribute.append(helper.make_attribute("scale", 0.357))  # 1/sqrt(8) is 0.3536


def encode_causally(graph):
    for node in nodes(graph, "GroupQueryAttention"):
        (causal,) = [attribute for attribute in node.attribute if attribute.name == "causal"]
        causal.i = 1


def encode_with_keys_and_values_swapped(graph):
    for node in graph.node:
        for i, name in enumerate(node.output):
            if name.startswith("cross_"):
                node.output[i] = name.replace("key", "KEY").replace("value", "key").replace("KEY", "value")


def encode_with_positions_off_by_one(graph):
    weight(graph, positions(graph), lambda table: np.roll(table, 1, axis=0))


def encode_with_mask_one_position_short(graph):
    first, *_ = attentions = nodes(graph, "GroupQueryAttention")
    insert(graph, first, helper.make_node("Sub", [first.input[5], constant(graph, "one", np.int32(1))], ["shorter"]))
    insert(graph, first, helper.make_node("Max", ["shorter", constant(graph, "zero", np.int32(0))], ["last"]))
    for node in attentions:
        node.input[5] = "last"


def keys_that_depend_on_the_width(graph):
    """Wrong only where the padded width is no multiple of 16."""
    (cross,) = [node for node in graph.node if "cross_key.0" in node.output]
    cross.output[list(cross.output).index("cross_key.0")] = "right"
    graph.node.extend(
        [
            helper.make_node("Shape", ["source"], ["all_widths"], start=1, end=2),
            helper.make_node("Mod", ["all_widths", constant(graph, "sixteen", np.array([16]))], ["odd_width"]),
            helper.make_node("Cast", ["odd_width"], ["error"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Add", ["right", "error"], ["cross_key.0"]),
        ]
    )


def another_activation(graph):
    for node in nodes(graph, "Relu"):
        node.CopyFrom(helper.make_node("Gelu", list(node.input), list(node.output)))


def layer_nodes(graph):
    return nodes(graph, "LSTM")


def layers_without_lengths(graph):
    for node in layer_nodes(graph):
        node.input[4] = ""


def a_layer_in_one_direction(graph):
    """Both directions read from the beginning: the second one reads what the first one does."""
    node = layer_nodes(graph)[0]
    weight(graph, node.input[2], lambda hidden: hidden[[0, 0]])


def gates_in_another_order(graph):
    node = layer_nodes(graph)[1]
    weight(graph, node.input[1], lambda matrix: np.concatenate(np.split(matrix, 4, axis=1)[::-1], axis=1))


def first_states_exchanged(graph):
    for node in graph.node:
        for i, name in enumerate(node.output):
            if name in ("first_hidden.0", "first_cell.0"):
                node.output[i] = "first_cell.0" if name == "first_hidden.0" else "first_hidden.0"


def embed_without_its_bias(graph):
    weight(graph, "dense.0.linear.bias", np.zeros_like)


def embed_with_another_activation(graph):
    for node in nodes(graph, "Tanh"):
        node.CopyFrom(helper.make_node("Sigmoid", list(node.input), list(node.output)))


FAULTS = [
    ("translation", "encode", encode_without_padding_mask, ENCODE),
    ("translation", "encode", encode_with_another_scale, ENCODE),
    ("translation", "encode", encode_causally, ENCODE),
    ("translation", "encode", encode_with_keys_and_values_swapped, ENCODE),
    ("translation", "encode", encode_with_positions_off_by_one, ENCODE),
    ("translation", "encode", encode_with_mask_one_position_short, ENCODE),
    ("translation", "encode", keys_that_depend_on_the_width, "encode in a batch as alone"),
    ("translation", "encode", another_activation, ENCODE),
    ("translation", "encode", norm_with_another_epsilon, ENCODE),
    ("recurrent", "encode", layers_without_lengths, ENCODE),
    ("recurrent", "encode", a_layer_in_one_direction, ENCODE),
    ("recurrent", "encode", gates_in_another_order, ENCODE),
    ("recurrent", "encode", first_states_exchanged, ENCODE),
]


# Only the named check is made; test_checks.py makes all of them, once for each kind of bundle.
@pytest.mark.parametrize(("kind", "role", "fault", "expected"), named(FAULTS))
def test_a_fault_is_refused(kind, role, fault, expected, tmp_path, request):
    assert_refused(checks_with_fault(kind, role, fault, tmp_path, request, (expected,)), expected)


# ---- encoder-only models


def broken(bundle, tmp_path):
    """The graph of a bundle, to be changed, and a function that returns the checks which then fail."""
    manifest = load_bundle(bundle)
    graph = onnx.load(bundle / manifest.variants[0].graphs["encode"].file)

    def failing(model):
        (tmp_path / "fp32").mkdir()
        onnx.save(graph, tmp_path / "fp32/encode.onnx")
        checks = verify_graphs(
            tmp_path, manifest.variants[0], model, sample_inputs(model.config, TOKENIZER, TEXTS)
        ).checks
        return {check.name for check in checks if not check.passed}

    return graph.graph, failing


def test_a_changed_weight_is_found(tiny_encoder_bundles, tmp_path):
    graph, failing = broken(tiny_encoder_bundles["masked"], tmp_path)
    tensor = next(t for t in graph.initializer if t.name.startswith("encoder.blocks.1.feed_forward.outer.weight"))
    weight = numpy_helper.to_array(tensor).copy()
    weight[0, 0] += 0.5
    tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))
    assert "encode against PyTorch" in failing(tiny_encoder("masked"))


def test_attention_to_padding_is_found(tiny_encoder_bundles, tmp_path):
    """As if lengths were the width of the batch."""
    graph, failing = broken(tiny_encoder_bundles["classify"], tmp_path)
    sub = next(node for node in graph.node if "source_lengths" in node.input)
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int32), "nothing"))
    wide = helper.make_node("Mul", ["source_lengths", "nothing"], ["none"])
    longest = helper.make_node("Add", ["none", "width"], ["longest"])
    attention = next(node for node in graph.node if node.op_type == "GroupQueryAttention")
    place = list(graph.node).index(sub)
    named = helper.make_node("Identity", [attention.input[6]], ["width"])
    maker = next(i for i, node in enumerate(graph.node) if attention.input[6] in node.output)
    sub.input[:] = ["longest" if name == "source_lengths" else name for name in sub.input]
    nodes = list(graph.node)
    nodes.remove(sub)
    nodes[max(maker, place) + (0 if maker < place else 1) :] = [
        named, wide, longest, sub, *nodes[max(maker, place) + (0 if maker < place else 1) :],
    ]  # fmt: skip
    del graph.node[:]
    graph.node.extend(nodes)
    assert failing(tiny_encoder("classify")) >= {"encode against PyTorch", "encode in a batch as alone"}


def test_token_labels_of_another_position_are_found(tiny_encoder_bundles, tmp_path):
    """As if every token had the labels of the token after it."""
    graph, failing = broken(tiny_encoder_bundles["tokens"], tmp_path)
    for name, values in (("one", [1]), ("many", [1 << 30]), ("axis", [1])):
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    maker = next(node for node in graph.node if "token_label_logits" in node.output)
    maker.output[list(maker.output).index("token_label_logits")] = "own"
    graph.node.append(helper.make_node("Slice", ["own", "one", "many", "axis"], ["later"]))
    graph.node.append(helper.make_node("Slice", ["own", "nothing", "one", "axis"], ["first"]))
    graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "nothing"))
    graph.node.append(helper.make_node("Concat", ["later", "first"], ["token_label_logits"], axis=1))
    assert "encode against PyTorch" in failing(tiny_encoder("tokens"))


def test_weights_after_a_text_are_found(tiny_encoder_bundles, tmp_path):
    graph, failing = broken(tiny_encoder_bundles["attention"], tmp_path)
    maker = next(node for node in graph.node if "token_weights" in node.output)
    index = list(maker.output).index("token_weights")
    graph.initializer.append(numpy_helper.from_array(np.array(1e-4, np.float32), "leak"))
    maker.output[index] = "inside"
    for node in graph.node:
        node.input[:] = ["inside" if name == "token_weights" else name for name in node.input]
    graph.node.append(helper.make_node("Add", ["inside", "leak"], ["token_weights"]))
    assert "weights stay within the text" in failing(tiny_encoder("attention"))


def test_places_of_other_rows_are_found(tiny_encoder_bundles, tmp_path):
    graph, failing = broken(tiny_encoder_bundles["masked"], tmp_path)
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "first"))
    gather = next(node for node in graph.node if "places" in node.input)
    gather.input[:] = ["own" if name == "places" else name for name in gather.input]
    nodes = [helper.make_node("Mul", ["places", "first"], ["own"]), *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    assert "encode against PyTorch" in failing(tiny_encoder("masked"))


@pytest.mark.parametrize("fault", [embed_without_its_bias, embed_with_another_activation])
def test_other_layers_after_the_pooling_are_found(exported, fault, tmp_path):
    model = tiny_model(tiny_config("encoder", **EMBEDDER))
    bundle = exported(model)
    shutil.copytree(bundle / "fp32", tmp_path / "fp32")
    with_fault(fault, tmp_path / "fp32/embed.onnx")
    checks = verify_graphs(tmp_path, load_bundle(bundle).variants[0], model, sample_inputs(model.config)).checks
    assert [check.name for check in checks if not check.passed] == ["embed against PyTorch"]


def test_graphs_of_another_model_are_not_written(tmp_path, monkeypatch):
    model = tiny_encoder("classify")
    other = tiny_model(model.config, seed=2)
    monkeypatch.setattr(
        "export.to_onnx.verify_variants", lambda d, v, _, s, **o: verify_other(d, v, Expectations(other), s, **o)
    )
    from export.verification.verifier import verify_variants as verify_other

    with pytest.raises(ParityError, match="encode against PyTorch"):
        export_model(model, TOKENIZER, tmp_path / "bundle", ExportOptions(texts=TEXTS))
    assert not (tmp_path / "bundle").exists()
