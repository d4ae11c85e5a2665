"""Faults in the graphs of shortlists are refused by their checks."""

import numpy as np
import pytest
from onnx import helper

from tests.export.verification.faults import assert_refused, checks_with_fault, constant, insert, named, nodes, weight

SHORTLISTS, SHORTLISTS_ALONE = "shortlist logits against PyTorch", "shortlists in a batch as alone"


def columns_of_the_next_token(graph):
    weight(graph, "word_weight.table", lambda table: np.roll(table, 1, axis=0))


def tokens_outside_the_shortlist(graph):
    (where,) = nodes(graph, "Where")
    for node in graph.node:
        node.input[:] = [where.input[1] if name == "logits" else name for name in node.input]


def positions_instead_of_ids(graph):
    (gather,) = [node for node in graph.node if "top_ids" in node.output]
    gather.CopyFrom(helper.make_node("Identity", [gather.input[1]], ["top_ids"]))


def logits_with_a_little_of_all_rows(graph):
    (where,) = nodes(graph, "Where")
    axes = constant(graph, "axes.all", np.array([0, 1]))
    insert(graph, where, helper.make_node("ReduceMean", ["states", axes], ["mean"], keepdims=1))
    insert(
        graph, where, helper.make_node("Mul", ["mean", constant(graph, "little", np.float32(1e-6))], ["mean.little"])
    )
    insert(graph, where, helper.make_node("Add", [where.input[1], "mean.little"], ["with_mean"]))
    where.input[1] = "with_mean"


FAULTS = [
    ("attention", "project_shortlist", columns_of_the_next_token, SHORTLISTS),
    ("attention", "shortlist_logprobs", tokens_outside_the_shortlist, SHORTLISTS),
    ("attention", "shortlist_logprobs", positions_instead_of_ids, SHORTLISTS),
    ("attention", "shortlist_logprobs", logits_with_a_little_of_all_rows, SHORTLISTS_ALONE),
]


# Only the named check is made; test_checks.py makes all of them, once for each kind of bundle.
@pytest.mark.parametrize(("kind", "role", "fault", "expected"), named(FAULTS))
def test_a_fault_is_refused(kind, role, fault, expected, tmp_path, request):
    assert_refused(checks_with_fault(kind, role, fault, tmp_path, request, (expected,)), expected)
