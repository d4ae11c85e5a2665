"""Faults for graphs that passed verification, the functions that inject them, and the tools to change graphs.

Verification is only worth something if it refuses: each fault must be caught by the check that it names. The faults of
one module of checks are in its test; those here are used by several.
"""

import shutil
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from export.bundle.directory import load_bundle
from export.export_errors import ParityError
from export.verification.inputs import sample_inputs
from export.verification.verifier import make_report, verify_graphs
from tests.tiny import tiny_config, tiny_model

ARCHITECTURES = {
    "translation": "encoder_decoder",
    "attention": "encoder_decoder",
    "generation": "decoder",
    "recurrent": "recurrent",
}
STEPS = "cached steps against the full sequence"
ENCODE = "encode against PyTorch"
ATTENTION = "attention against PyTorch"
PREFILL = "prefill against PyTorch"
ALONE = "steps in a batch as alone"


# ---- injection


@cache
def model_of(kind):
    """The model of the bundle `tiny_KIND_bundle`."""
    return tiny_model(tiny_config(ARCHITECTURES[kind]))


def named(cases):
    """Parameters with names of their own: tuples with a function, the fault."""
    return [
        pytest.param(*case, id="-".join(part.__name__ if callable(part) else part.split()[0] for part in case))
        for case in cases
    ]


def with_fault(fault, file):
    """Puts a fault into the graph of a file."""
    graph = onnx.load(file)
    before = graph.SerializeToString()
    fault(graph.graph)
    assert graph.SerializeToString() != before, "the fault changed nothing"
    onnx.save(graph, file)


def checks_with_fault(kind, role, fault, tmp_path, request, only=()):
    """The checks of a copy of a bundle's graphs, one of them with a fault."""
    bundle, model = request.getfixturevalue(f"tiny_{kind}_bundle"), model_of(kind)
    variant = load_bundle(bundle).variant("fp32")
    shutil.copytree(bundle / "fp32", tmp_path / "fp32")
    with_fault(fault, tmp_path / variant.graphs[role].file)
    return verify_graphs(tmp_path, variant, model, sample_inputs(model.config), only=only).checks


def assert_refused(checks, expected):
    failed = [check.name for check in checks if not check.passed]
    assert expected in failed, f"caught by {failed}"
    with pytest.raises(ParityError, match=expected):
        raise ParityError(make_report(checks))


# ---- graphs


def nodes(graph, op):
    return [node for node in graph.node if node.op_type == op]


def self_attentions(graph):
    return [node for node in nodes(graph, "GroupQueryAttention") if node.input[3].startswith("past.")]


def cross_attentions(graph):
    return [node for node in nodes(graph, "GroupQueryAttention") if node.input[3].startswith("cross_")]


def weight(graph, name, change):
    """Replaces a weight by a function of it."""
    (tensor,) = [tensor for tensor in graph.initializer if tensor.name == name]
    array = np.ascontiguousarray(change(numpy_helper.to_array(tensor)))
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def insert(graph, before, *new):
    """Puts nodes in front of a node."""
    for node in new:
        graph.node.insert(list(graph.node).index(before), node)


def positions(graph):
    """The name of the table of position vectors."""
    return next(tensor.name for tensor in graph.initializer if tensor.name.endswith("embedding.positions"))


def constant(graph, name, value):
    graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return name


def reversed_rows(graph, upright, reversed_):
    """Nodes that output the rows of `upright` in reverse order."""
    shape = helper.make_node("Shape", [upright], ["shape"])
    rows = helper.make_node("Gather", ["shape", constant(graph, "nought", np.int64(0))], ["rows"], axis=0)
    width = helper.make_node("Gather", ["shape", constant(graph, "unit", np.array([1]))], ["width"], axis=0)
    count = helper.make_node("Expand", ["rows", "width"], ["count"])
    turn = helper.make_node("ReverseSequence", [upright, "count"], [reversed_], batch_axis=1, time_axis=0)
    return shape, rows, width, count, turn


def state_choices(graph):
    return nodes(graph, "Where")


def matching(graph, *endings):
    """The first constant whose name ends like this, in the order of the products."""
    used = [name for node in graph.node for name in node.input]
    names = {tensor.name for tensor in graph.initializer}
    return next(name for ending in endings for name in used if name in names and name.endswith(ending))


def replace_input(graph, node, place, value):
    """Gives one input of a node a constant of its own."""
    node.input[place] = constant(graph, f"wrong_{node.name}_{place}", value)


def value_of(graph, name):
    (tensor,) = [tensor for tensor in graph.initializer if tensor.name == name]
    return numpy_helper.to_array(tensor)


# ---- faults


def encode_without_padding_mask(graph):
    first, *_ = attentions = nodes(graph, "GroupQueryAttention")
    insert(graph, first, helper.make_node("Max", [first.input[5], first.input[6]], ["longest"]))
    insert(graph, first, helper.make_node("Sub", ["longest", constant(graph, "one", np.int32(1))], ["last"]))
    for node in attentions:
        node.input[5] = "last"


def positions_off_by_one(graph):
    weight(graph, positions(graph), lambda table: np.roll(table, 1, axis=0))


def position_table_one_short(graph):
    weight(graph, positions(graph), lambda table: np.concatenate((table[:-1], table[-2:-1])))


def attention_with_another_scale(graph):
    for node in self_attentions(graph):
        node.attribute.append(helper.make_attribute("scale", 0.36))  # 1/sqrt(8) is 0.3536


def attention_without_causal_mask(graph):
    for node in self_attentions(graph):
        node.attribute.append(helper.make_attribute("causal", 0))


def attention_to_another_layers_source(graph):
    one, two = cross_attentions(graph)
    one.input[3], two.input[3] = two.input[3], one.input[3]


def two_layers_swapped(graph):
    swap = {"blocks.0.feed_forward.": "blocks.1.feed_forward.", "blocks.1.feed_forward.": "blocks.0.feed_forward."}
    for node in graph.node:
        for i, name in enumerate(node.input):
            for one, other in swap.items():
                if one in name:
                    node.input[i] = name.replace(one, other)
                    break


def a_bias_dropped(graph):
    weight(graph, "decoder.blocks.1.self_attention.output.bias", np.zeros_like)


def norm_with_another_epsilon(graph):
    for node in nodes(graph, "LayerNormalization"):
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-3


def logits_in_another_order(graph):
    """Visible only in a batch: the rows of the logits are reversed."""
    (head,) = [node for node in graph.node if "logits" in node.output]
    head.output[0] = "upright"
    graph.node.extend(reversed_rows(graph, "upright", "logits"))


def align_with_two_layers_swapped(graph):
    (stack,) = [node for node in graph.node if node.output[0] == "cross_attention"]
    stack.input[0], stack.input[1] = stack.input[1], stack.input[0]


def nothing_is_fed(graph):
    (node,) = [node for node in state_choices(graph) if node.input[2] == "past.fed"]
    node.input[2] = "past.hidden.1"
