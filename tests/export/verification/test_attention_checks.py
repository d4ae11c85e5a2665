"""Faults in the graphs of attention weights are refused by their checks."""

import numpy as np
import pytest
from onnx import helper

from tests.export.verification.faults import (
    ATTENTION,
    a_bias_dropped,
    align_with_two_layers_swapped,
    assert_refused,
    checks_with_fault,
    constant,
    named,
    nodes,
    position_table_one_short,
    positions_off_by_one,
    weight,
)

EVERY_ATTENTION = "every attention against PyTorch"


def masks(graph):
    """The nodes that mask positions: of self-attention first, then of cross-attention, layer by layer."""
    return nodes(graph, "Where")


def align_to_another_layers_source(graph):
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in ("cross_key.0", "cross_key.1"):
                node.input[i] = f"cross_key.{1 - int(name[-1])}"


def attend_with_two_layers_swapped(graph):
    (mask,) = [node for node in graph.node if node.output[0] == "encoder_attention"]
    (stack,) = [node for node in graph.node if node.output[0] == mask.input[0]]
    stack.input[0], stack.input[1] = stack.input[1], stack.input[0]


def attend_without_its_masks(graph):
    for node in masks(graph):
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


def attend_after_the_ends(graph):
    """The weights of padding are returned, too."""
    for name in ("encoder_attention", "decoder_attention", "cross_attention"):
        (node,) = [node for node in graph.node if node.output[0] == name]
        node.CopyFrom(helper.make_node("Identity", [node.input[0]], [name]))


def align_without_the_sources_mask(graph):
    for node in masks(graph)[1::2]:
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


def align_without_causal_mask(graph):
    for node in masks(graph)[::2]:
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


def align_with_mask_one_position_long(graph):
    (less,) = nodes(graph, "Less")
    less.CopyFrom(helper.make_node("LessOrEqual", list(less.input), list(less.output)))


def align_with_a_little_everywhere(graph):
    (stack,) = [node for node in graph.node if node.output[0] == "cross_attention"]
    stack.output[0] = "clean"
    little = constant(graph, "little", np.float32(1e-6))
    graph.node.append(helper.make_node("Add", ["clean", little], ["cross_attention"]))


def align_of_the_scores(graph):
    """Before the softmax."""
    for node in nodes(graph, "Softmax")[1::2]:
        node.CopyFrom(helper.make_node("Identity", list(node.input), list(node.output)))


def align_with_another_scale(graph):
    (scale,) = {node.input[1] for node in nodes(graph, "Mul") if node.input[0].startswith("Transpose")}
    weight(graph, scale, lambda value: value * np.float32(1.01))


def scan(graph):
    (node,) = nodes(graph, "Scan")
    return node


def align_without_carrying(graph):
    """Every step begins from the first states."""
    body = next(attribute.g for attribute in scan(graph).attribute if attribute.name == "body")
    for node in body.node:
        for i, name in enumerate(node.input):
            if name.startswith("before.hidden"):
                node.input[i] = f"first_{name.removeprefix('before.')}"


def align_from_other_first_states(graph):
    node = scan(graph)
    node.input[0], node.input[1] = node.input[1], node.input[0]


def align_without_the_padding_mask(graph):
    body = next(attribute.g for attribute in scan(graph).attribute if attribute.name == "body")
    for node in nodes(body, "Where"):
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


FAULTS = [
    ("attention", "align", align_with_two_layers_swapped, ATTENTION),
    ("attention", "align", align_to_another_layers_source, ATTENTION),
    ("attention", "align", align_without_the_sources_mask, ATTENTION),
    ("attention", "align", align_without_the_sources_mask, "attention stays within the source"),
    ("attention", "align", align_without_causal_mask, ATTENTION),
    ("attention", "align", align_with_mask_one_position_long, ATTENTION),
    ("attention", "align", align_with_a_little_everywhere, "attention stays within the source"),
    ("attention", "align", align_of_the_scores, ATTENTION),
    ("attention", "align", align_with_another_scale, ATTENTION),
    ("attention", "align", positions_off_by_one, ATTENTION),
    ("attention", "align", position_table_one_short, ATTENTION),
    ("attention", "align", a_bias_dropped, ATTENTION),
    ("attention", "attend", attend_with_two_layers_swapped, EVERY_ATTENTION),
    ("attention", "attend", attend_without_its_masks, EVERY_ATTENTION),
    ("attention", "attend", attend_without_its_masks, "every attention stays within its rows"),
    ("attention", "attend", attend_after_the_ends, "every attention stays within its rows"),
    ("attention", "attend", align_with_another_scale, EVERY_ATTENTION),
    ("attention", "attend", positions_off_by_one, EVERY_ATTENTION),
    ("attention", "attend", a_bias_dropped, EVERY_ATTENTION),
    ("recurrent", "align", align_without_carrying, ATTENTION),
    ("recurrent", "align", align_from_other_first_states, ATTENTION),
    ("recurrent", "align", align_without_the_padding_mask, "attention stays within the source"),
]


# Only the named check is made; test_checks.py makes all of them, once for each kind of bundle.
@pytest.mark.parametrize(("kind", "role", "fault", "expected"), named(FAULTS))
def test_a_fault_is_refused(kind, role, fault, expected, tmp_path, request):
    assert_refused(checks_with_fault(kind, role, fault, tmp_path, request, (expected,)), expected)
