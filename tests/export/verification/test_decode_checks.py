"""Faults in `decode` and `logprobs` are refused by the check that compares what they change."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from export.verification.inputs import sample_inputs
from export.verification.verifier import verify_graphs
from tests.export.verification.faults import (
    ALONE,
    PREFILL,
    STEPS,
    a_bias_dropped,
    assert_refused,
    attention_to_another_layers_source,
    attention_with_another_scale,
    attention_without_causal_mask,
    checks_with_fault,
    constant,
    cross_attentions,
    insert,
    logits_in_another_order,
    named,
    nodes,
    norm_with_another_epsilon,
    nothing_is_fed,
    position_table_one_short,
    positions_off_by_one,
    reversed_rows,
    self_attentions,
    state_choices,
    two_layers_swapped,
    weight,
)
from tests.tiny import tiny_config, tiny_model

NORMALISER = "normaliser against PyTorch"
SUMS = "probabilities of a row add up to one"
BEST = "best tokens are those of the sorted row"
WITHOUT_LOGITS = "prefill without requested logits"


def attention_without_the_newest_position(graph):
    first = self_attentions(graph)[0]
    insert(graph, first, helper.make_node("Sub", [first.input[5], constant(graph, "one", np.int32(1))], ["stale"]))
    first.input[5] = "stale"


def attention_to_a_window(graph):
    for node in self_attentions(graph):
        node.attribute.append(helper.make_attribute("local_window_size", 6))


def attention_with_keys_and_values_swapped(graph):
    first = cross_attentions(graph)[0]
    first.input[3], first.input[4] = first.input[4], first.input[3]


def attention_to_the_whole_padded_source(graph):
    for node in cross_attentions(graph):
        full = f"full_{node.name}"
        insert(
            graph, node, helper.make_node("Max", [node.input[5], constant(graph, f"long_{full}", np.int32(15))], [full])
        )
        node.input[5] = full


def caches_of_the_first_row_for_all(graph):
    first = self_attentions(graph)[0]
    zeros = helper.make_node("Sub", ["lengths", "lengths"], ["zeros"])
    gather = helper.make_node("Gather", [first.input[3], "zeros"], ["stolen"], axis=0)
    insert(graph, first, zeros, gather)
    first.input[3] = "stolen"


def presents_of_two_layers_swapped(graph):
    one, two = self_attentions(graph)
    one.output[1], two.output[1] = two.output[1], one.output[1]


def vocabulary_cut_short(graph):
    table = next(node.input[0] for node in nodes(graph, "Gather") if node.input[1] == "tokens")
    weight(graph, table, lambda matrix: matrix[:-1])


def two_words_exchanged(graph):
    table = next(node.input[0] for node in nodes(graph, "Gather") if node.input[1] == "tokens")
    weight(graph, table, lambda matrix: matrix[[*range(len(matrix) - 2), len(matrix) - 1, len(matrix) - 2]])


def weights_rounded_to_half_precision(graph):
    for tensor in list(graph.initializer):
        if tensor.name.endswith("weight.T"):
            weight(graph, tensor.name, lambda matrix: matrix.astype(np.float16).astype(np.float32))


def logits_of_the_token_before_the_last(graph):
    (gather,) = nodes(graph, "GatherND")
    index = constant(graph, "back", np.array([[0, 1]]))
    zero = constant(graph, "zero", np.int64(0))
    shifted = [
        helper.make_node("Sub", [gather.input[1], index], ["shifted"]),
        helper.make_node("Max", ["shifted", zero], ["before"]),
    ]
    insert(graph, gather, *shifted)
    gather.input[1] = "before"


def logits_of_the_padding(graph):
    (gather,) = nodes(graph, "GatherND")
    gather.CopyFrom(
        helper.make_node("Gather", [gather.input[0], constant(graph, "end", np.int64(-1))], list(gather.output), axis=1)
    )


def logits_of_the_first_token_always(graph):
    """Also where no logits are requested."""
    (gather,) = nodes(graph, "GatherND")
    first = constant(graph, "first", np.zeros((1, 2), np.int64))
    insert(graph, gather, helper.make_node("Concat", [gather.input[1], first], ["with_first"], axis=0))
    gather.input[1] = "with_first"


def ranked_in_another_order(graph):
    (softmax,) = nodes(graph, "LogSoftmax")
    insert(graph, softmax, *reversed_rows(graph, "logits", "reversed"))
    softmax.input[0] = "reversed"


def softmax_in_half_precision(graph):
    """A CPU has no such kernel: its float32 replacement has sums that depend on the other rows."""
    (softmax,) = nodes(graph, "LogSoftmax")
    halve = helper.make_node("Cast", [softmax.input[0]], ["halved"], to=TensorProto.FLOAT16)
    insert(graph, softmax, halve)
    softmax.input[0] = "halved"
    widen = helper.make_node("Cast", ["rough"], list(softmax.output), to=TensorProto.FLOAT)
    softmax.output[0] = "rough"
    graph.node.insert(list(graph.node).index(softmax) + 1, widen)


def softmax_over_the_rows(graph):
    (softmax,) = nodes(graph, "LogSoftmax")
    softmax.CopyFrom(helper.make_node("LogSoftmax", list(softmax.input), list(softmax.output), axis=0))


def normaliser_of_two_words(graph):
    (minus,) = [node for node in nodes(graph, "Sub") if node.output[0] == "normaliser"]
    gather = next(node for node in nodes(graph, "Gather") if node.output[0] == minus.input[0])
    gather.input[1] = constant(graph, "next_word", np.int64(1))


def normaliser_with_the_other_sign(graph):
    (minus,) = [node for node in nodes(graph, "Sub") if node.output[0] == "normaliser"]
    minus.input[0], minus.input[1] = minus.input[1], minus.input[0]


def after_best(graph, name, *new):
    """Puts nodes after the one that writes the output `name`, which the last of them writes now."""
    (best,) = [node for node in graph.node if name in node.output]
    best.output[list(best.output).index(name)] = f"raw_{name}"
    for node in reversed(new):
        graph.node.insert(list(graph.node).index(best) + 1, node)


def best_ids_off_by_one(graph):
    one = constant(graph, "next_id", np.int64(1))
    after_best(graph, "top_ids", helper.make_node("Add", ["raw_top_ids", one], ["top_ids"]))


def best_off_by_one_column(graph):
    """The second best is called the best: the ids of one column more, without the first."""
    ids = helper.make_node("Slice", ["raw_top_ids", *slice_arguments(graph)], ["top_ids"])
    after_best(graph, "top_ids", ids)
    (best,) = nodes(graph, "TopK")
    insert(graph, best, helper.make_node("Add", ["top_k", "from"], ["more"]))
    best.input[1] = "more"


def slice_arguments(graph):
    values = {"from": [1], "to": [2**31], "axis": [1]}
    return [constant(graph, name, np.array(value, np.int64)) for name, value in values.items()]


def best_in_no_order(graph):
    (best,) = nodes(graph, "TopK")
    best.attribute.append(helper.make_attribute("sorted", 0))


def best_of_the_log_probabilities_of_another_place(graph):
    """The ids are right; the values returned with them are logits."""
    (gather,) = nodes(graph, "GatherElements")
    gather.input[0] = "logits"


def best_of_the_first_row_for_all(graph):
    size = helper.make_node("Shape", ["logits"], ["size"], end=1)
    nought = helper.make_tensor("nought", TensorProto.INT64, [1], [0])
    zeros = helper.make_node("ConstantOfShape", ["size"], ["firsts"], value=nought)
    gather = helper.make_node("Gather", ["raw_top_ids", "firsts"], ["top_ids"], axis=0)
    after_best(graph, "top_ids", size, zeros, gather)


def best_of_equals_the_later(graph):
    """The row is reversed before the search and the ids after it: right, but for tokens with equal logits."""
    (best,) = nodes(graph, "TopK")
    last = constant(graph, "last", np.array([-1], np.int64))
    bounds = [last, constant(graph, "least", np.array([-(2**31)], np.int64)), constant(graph, "words", np.array([1]))]
    turn = helper.make_node("Slice", [best.input[0], *bounds, last], ["turned"])
    insert(graph, best, turn)
    best.input[0] = "turned"
    size = constant(graph, "highest", np.int64(tiny_config().vocab_size - 1))
    after_best(graph, "top_ids", helper.make_node("Sub", [size, "raw_top_ids"], ["top_ids"]))


def logits_after_the_last_token_only(graph):
    """Whatever positions are requested, the logits are those after the last token of the row's block."""
    (gather,) = nodes(graph, "GatherND")
    first, second = constant(graph, "first", np.array([0])), constant(graph, "second", np.array([1]))
    minus, axis = constant(graph, "minus_one", np.int64(1)), constant(graph, "columns", np.array([1]))
    insert(
        graph,
        gather,
        helper.make_node("Slice", ["positions", first, second, axis], ["asked_rows"]),
        helper.make_node("Cast", ["lengths"], ["ends"], to=TensorProto.INT64),
        helper.make_node("Sub", ["ends", "starts"], ["sizes"]),
        helper.make_node("Sub", ["sizes", minus], ["last_places"]),
        helper.make_node("Gather", ["last_places", "asked_rows"], ["asked_places"]),
        helper.make_node("Concat", ["asked_rows", "asked_places"], ["positions_taken"], axis=1),
    )
    gather.input[1] = "positions_taken"


def first_states_never_taken(graph):
    for node in state_choices(graph):
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


def first_states_taken_in_every_step(graph):
    for node in state_choices(graph):
        if not node.input[2].endswith("fed"):
            node.CopyFrom(helper.make_node("Identity", [node.input[1]], list(node.output)))


def states_of_two_layers_exchanged(graph):
    for node in graph.node:
        for i, name in enumerate(node.output):
            if name in ("present.hidden.0", "present.hidden.1"):
                node.output[i] = f"present.hidden.{1 - int(name[-1])}"


def attention_with_a_scale(graph):
    (node,) = nodes(graph, "GroupQueryAttention")
    for attribute in node.attribute:
        if attribute.name == "scale":
            attribute.f = 0.9


def attention_one_position_short(graph):
    (node,) = nodes(graph, "GroupQueryAttention")
    insert(graph, node, helper.make_node("Sub", [node.input[5], constant(graph, "one", np.int32(1))], ["shorter"]))
    insert(graph, node, helper.make_node("Max", ["shorter", constant(graph, "nought", np.int32(0))], ["not_less"]))
    node.input[5] = "not_less"


def state_and_attention_in_another_order(graph):
    for node in nodes(graph, "Concat"):
        if any(name.startswith("GroupQueryAttention") for name in node.input):
            node.input[0], node.input[1] = node.input[1], node.input[0]


def forget_gates_always_open(graph):
    weight(graph, "decoder.cells.1.hidden.bias", lambda bias: np.where(np.arange(len(bias)) // 32 == 1, 50.0, bias))


def states_of_the_first_row_for_all(graph):
    node = state_choices(graph)[0]
    zeros = helper.make_node("Sub", ["starts", "starts"], ["zeros"])
    insert(graph, node, zeros, helper.make_node("Gather", [node.input[2], "zeros"], ["stolen"], axis=0))
    node.input[2] = "stolen"


CARRIED = "caches against PyTorch"


FAULTS = [
    ("translation", "decode", positions_off_by_one, STEPS),
    ("translation", "decode", position_table_one_short, "last position against PyTorch"),
    ("translation", "decode", attention_with_another_scale, STEPS),
    ("translation", "decode", attention_without_the_newest_position, STEPS),
    ("translation", "decode", attention_to_a_window, STEPS),
    ("translation", "decode", attention_with_keys_and_values_swapped, STEPS),
    ("translation", "decode", attention_to_another_layers_source, STEPS),
    ("translation", "decode", attention_to_the_whole_padded_source, STEPS),
    ("translation", "decode", caches_of_the_first_row_for_all, ALONE),
    ("translation", "decode", presents_of_two_layers_swapped, "caches against PyTorch"),
    ("translation", "decode", two_layers_swapped, STEPS),
    ("translation", "decode", a_bias_dropped, STEPS),
    ("translation", "decode", vocabulary_cut_short, STEPS),
    ("translation", "decode", two_words_exchanged, STEPS),
    ("translation", "decode", norm_with_another_epsilon, STEPS),
    ("translation", "decode", weights_rounded_to_half_precision, STEPS),
    ("translation", "decode", logits_in_another_order, ALONE),
    ("translation", "logprobs", softmax_in_half_precision, ALONE),
    ("translation", "logprobs", softmax_over_the_rows, ALONE),
    ("translation", "logprobs", softmax_over_the_rows, SUMS),
    ("translation", "logprobs", normaliser_of_two_words, NORMALISER),
    ("translation", "logprobs", normaliser_with_the_other_sign, NORMALISER),
    ("translation", "logprobs", best_ids_off_by_one, BEST),
    ("translation", "logprobs", best_off_by_one_column, BEST),
    ("translation", "logprobs", best_in_no_order, BEST),
    ("translation", "logprobs", best_of_the_log_probabilities_of_another_place, BEST),
    ("translation", "logprobs", ranked_in_another_order, ALONE),
    ("translation", "logprobs", best_of_the_first_row_for_all, BEST),
    ("generation", "decode", positions_off_by_one, PREFILL),
    ("generation", "decode", attention_without_causal_mask, PREFILL),
    ("generation", "decode", attention_to_a_window, PREFILL),
    ("generation", "decode", attention_with_another_scale, PREFILL),
    ("generation", "decode", caches_of_the_first_row_for_all, ALONE),
    ("generation", "decode", presents_of_two_layers_swapped, PREFILL),
    ("generation", "decode", logits_of_the_token_before_the_last, PREFILL),
    ("generation", "decode", logits_of_the_padding, PREFILL),
    ("generation", "decode", logits_after_the_last_token_only, "several positions of a block against PyTorch"),
    ("generation", "decode", logits_in_another_order, "prefill in a batch as alone"),
    ("generation", "decode", logits_of_the_first_token_always, WITHOUT_LOGITS),
    ("generation", "decode", vocabulary_cut_short, PREFILL),
    ("generation", "logprobs", normaliser_of_two_words, NORMALISER),
    ("generation", "logprobs", best_off_by_one_column, BEST),
    ("recurrent", "decode", first_states_never_taken, STEPS),
    ("recurrent", "decode", first_states_taken_in_every_step, STEPS),
    ("recurrent", "decode", nothing_is_fed, STEPS),
    ("recurrent", "decode", states_of_two_layers_exchanged, CARRIED),
    ("recurrent", "decode", attention_with_a_scale, CARRIED),
    ("recurrent", "decode", attention_one_position_short, STEPS),
    ("recurrent", "decode", state_and_attention_in_another_order, STEPS),
    ("recurrent", "decode", forget_gates_always_open, STEPS),
    ("recurrent", "decode", states_of_the_first_row_for_all, ALONE),
    ("recurrent", "logprobs", softmax_over_the_rows, SUMS),
]


# Only the named check is made; test_checks.py makes all of them, once for each kind of bundle.
@pytest.mark.parametrize(("kind", "role", "fault", "expected"), named(FAULTS))
def test_a_fault_is_refused(kind, role, fault, expected, tmp_path, request):
    assert_refused(checks_with_fault(kind, role, fault, tmp_path, request, (expected,)), expected)


def test_of_equal_tokens_the_lower_id_comes_first(tmp_path):
    """Three tokens with one output vector: a graph that prefers the later of equals is refused."""
    model = tiny_model(tiny_config("decoder", tie_embeddings=False, num_decoder_layers=1))
    with torch.no_grad():
        head = model.decoder.unembedding.weight
        head[[7, 21]] = head[12].clone()
    samples, variant = sample_inputs(model.config), save_variant(trace_model(model), tmp_path, SCHEMES["fp32"])
    checks = verify_graphs(tmp_path, variant, model, samples).checks
    assert [check.name for check in checks if not check.passed] == []
    file = tmp_path / variant.graphs["logprobs"].file
    graph = onnx.load(file)
    best_of_equals_the_later(graph.graph)
    onnx.save(graph, file)
    checks = verify_graphs(tmp_path, variant, model, samples, only=(BEST,)).checks
    assert BEST in [check.name for check in checks if not check.passed]
