"""Verification is only worth something if it refuses: faults are put into graphs that passed, one at a time, and each
must be caught by the check that is there for it."""

import shutil
from functools import partial

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from export.bundle import load_bundle
from export.export_errors import ParityError
from export.passes.calibrate import calibrate
from export.passes.integer_weights import symmetric_columns
from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from export.verification.inputs import sample_inputs
from export.verification.verifier import make_report, verify_graphs
from tests.tiny import tiny_config, tiny_model

STEPS = "cached steps against the full sequence"
ENCODE = "encode against PyTorch"
PREFILL = "prefill against PyTorch"
ALONE = "steps in a batch as alone"
NORMALISER = "normaliser against PyTorch"
SUMS = "probabilities of a row add up to one"
ATTENTION = "attention against PyTorch"
EVERY_ATTENTION = "every attention against PyTorch"
BEST = "best tokens are those of the sorted row"
UNASKED = "prefill without requested logits"
OWN_WORDS, OWN_WORDS_ALONE = "shortlist logits against PyTorch", "shortlists in a batch as alone"


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


# ---- faults, by the name of the graph they are put into


def encode_without_padding_mask(graph):
    first, *_ = attentions = nodes(graph, "GroupQueryAttention")
    insert(graph, first, helper.make_node("Max", [first.input[5], first.input[6]], ["behind"]))
    insert(graph, first, helper.make_node("Sub", ["behind", constant(graph, "one", np.int32(1))], ["last"]))
    for node in attentions:
        node.input[5] = "last"


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


def positions_off_by_one(graph):
    weight(graph, positions(graph), lambda table: np.roll(table, 1, axis=0))


def position_table_one_short(graph):
    weight(graph, positions(graph), lambda table: np.concatenate((table[:-1], table[-2:-1])))


def attention_with_another_scale(graph):
    for node in self_attentions(graph):
        node.attribute.append(helper.make_attribute("scale", 0.36))  # 1/sqrt(8) is 0.3536


def attention_without_the_newest_position(graph):
    first = self_attentions(graph)[0]
    insert(graph, first, helper.make_node("Sub", [first.input[5], constant(graph, "one", np.int32(1))], ["stale"]))
    first.input[5] = "stale"


def attention_to_a_window(graph):
    for node in self_attentions(graph):
        node.attribute.append(helper.make_attribute("local_window_size", 6))


def attention_without_causal_mask(graph):
    for node in self_attentions(graph):
        node.attribute.append(helper.make_attribute("causal", 0))


def attention_with_keys_and_values_swapped(graph):
    first = cross_attentions(graph)[0]
    first.input[3], first.input[4] = first.input[4], first.input[3]


def attention_to_another_layers_source(graph):
    one, two = cross_attentions(graph)
    one.input[3], two.input[3] = two.input[3], one.input[3]


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


def vocabulary_cut_short(graph):
    table = next(node.input[0] for node in nodes(graph, "Gather") if node.input[1] == "tokens")
    weight(graph, table, lambda matrix: matrix[:-1])


def two_words_exchanged(graph):
    table = next(node.input[0] for node in nodes(graph, "Gather") if node.input[1] == "tokens")
    weight(graph, table, lambda matrix: matrix[[*range(len(matrix) - 2), len(matrix) - 1, len(matrix) - 2]])


def norm_with_another_epsilon(graph):
    for node in nodes(graph, "LayerNormalization"):
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-3


def another_activation(graph):
    for node in nodes(graph, "Relu"):
        node.CopyFrom(helper.make_node("Gelu", list(node.input), list(node.output)))


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
    """Also where nobody asks."""
    (gather,) = nodes(graph, "GatherND")
    first = constant(graph, "first", np.zeros((1, 2), np.int64))
    insert(graph, gather, helper.make_node("Concat", [gather.input[1], first], ["with_first"], axis=0))
    gather.input[1] = "with_first"


# ---- faults of the graphs for rows with words of their own


def words_of_their_neighbours(graph):
    weight(graph, "word_weight.table", lambda table: np.roll(table, 1, axis=0))


def words_behind_a_rows_own(graph):
    (where,) = nodes(graph, "Where")
    for node in graph.node:
        node.input[:] = [where.input[1] if name == "logits" else name for name in node.input]


def words_by_their_places(graph):
    (gather,) = [node for node in graph.node if "top_ids" in node.output]
    gather.CopyFrom(helper.make_node("Identity", [gather.input[1]], ["top_ids"]))


def words_with_a_little_of_all_rows(graph):
    (where,) = nodes(graph, "Where")
    axes = constant(graph, "axes.all", np.array([0, 1]))
    insert(graph, where, helper.make_node("ReduceMean", ["states", axes], ["mean"], keepdims=1))
    insert(
        graph, where, helper.make_node("Mul", ["mean", constant(graph, "little", np.float32(1e-6))], ["mean.little"])
    )
    insert(graph, where, helper.make_node("Add", [where.input[1], "mean.little"], ["with_mean"]))
    where.input[1] = "with_mean"


def logits_in_another_order(graph):
    """What only a batch shows: the rows of the answer are turned round."""
    (head,) = [node for node in graph.node if "logits" in node.output]
    head.output[0] = "upright"
    graph.node.extend(turned_round(graph, "upright", "logits"))


def ranked_in_another_order(graph):
    (softmax,) = nodes(graph, "LogSoftmax")
    insert(graph, softmax, *turned_round(graph, "logits", "reversed"))
    softmax.input[0] = "reversed"


def turned_round(graph, upright, turned):
    """Nodes that give the rows of `upright` in the other order."""
    shape = helper.make_node("Shape", [upright], ["shape"])
    rows = helper.make_node("Gather", ["shape", constant(graph, "nought", np.int64(0))], ["rows"], axis=0)
    words = helper.make_node("Gather", ["shape", constant(graph, "unit", np.array([1]))], ["words"], axis=0)
    count = helper.make_node("Expand", ["rows", "words"], ["count"])
    turn = helper.make_node("ReverseSequence", [upright, "count"], [turned], batch_axis=1, time_axis=0)
    return shape, rows, words, count, turn


def softmax_in_half_precision(graph):
    """A CPU, which has no such kernel, takes it to pieces in float32, and their sums change with the rows beside."""
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
    """Puts nodes behind whatever writes the output `name`, which the last of them writes now."""
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
    """The ids are right; the values told beside them are logits."""
    (gather,) = nodes(graph, "GatherElements")
    gather.input[0] = "logits"


def best_of_the_first_row_for_all(graph):
    size = helper.make_node("Shape", ["logits"], ["size"], end=1)
    nought = helper.make_tensor("nought", TensorProto.INT64, [1], [0])
    zeros = helper.make_node("ConstantOfShape", ["size"], ["firsts"], value=nought)
    gather = helper.make_node("Gather", ["raw_top_ids", "firsts"], ["top_ids"], axis=0)
    after_best(graph, "top_ids", size, zeros, gather)


def best_of_equals_the_later(graph):
    """The row is turned round before and the ids after: right, but for words that are as good as each other."""
    (best,) = nodes(graph, "TopK")
    last = constant(graph, "last", np.array([-1], np.int64))
    bounds = [last, constant(graph, "least", np.array([-(2**31)], np.int64)), constant(graph, "words", np.array([1]))]
    turn = helper.make_node("Slice", [best.input[0], *bounds, last], ["turned"])
    insert(graph, best, turn)
    best.input[0] = "turned"
    size = constant(graph, "highest", np.int64(tiny_config().vocab_size - 1))
    after_best(graph, "top_ids", helper.make_node("Sub", [size, "raw_top_ids"], ["top_ids"]))


def only_behind_the_last_token(graph):
    """Whatever was asked of a row, the answer is about what follows its block."""
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


def choices(graph):
    """The nodes that hide positions: of self-attention first, then of attention to the source, layer by layer."""
    return nodes(graph, "Where")


def align_with_two_layers_swapped(graph):
    (stack,) = [node for node in graph.node if node.output[0] == "cross_attention"]
    stack.input[0], stack.input[1] = stack.input[1], stack.input[0]


def align_to_another_layers_source(graph):
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in ("cross_key.0", "cross_key.1"):
                node.input[i] = f"cross_key.{1 - int(name[-1])}"


def attend_with_two_layers_swapped(graph):
    (told,) = [node for node in graph.node if node.output[0] == "encoder_attention"]
    (stack,) = [node for node in graph.node if node.output[0] == told.input[0]]
    stack.input[0], stack.input[1] = stack.input[1], stack.input[0]


def attend_without_its_masks(graph):
    for node in choices(graph):
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


def attend_behind_the_ends(graph):
    """What padding attends to is told, too."""
    for name in ("encoder_attention", "decoder_attention", "cross_attention"):
        (told,) = [node for node in graph.node if node.output[0] == name]
        told.CopyFrom(helper.make_node("Identity", [told.input[0]], [name]))


def align_without_the_sources_mask(graph):
    for node in choices(graph)[1::2]:
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


def align_without_causal_mask(graph):
    for node in choices(graph)[::2]:
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


TRANSLATION = [
    ("encode", encode_without_padding_mask, ENCODE),
    ("encode", encode_with_another_scale, ENCODE),
    ("encode", encode_causally, ENCODE),
    ("encode", encode_with_keys_and_values_swapped, ENCODE),
    ("encode", encode_with_positions_off_by_one, ENCODE),
    ("encode", encode_with_mask_one_position_short, ENCODE),
    ("encode", another_activation, ENCODE),
    ("encode", norm_with_another_epsilon, ENCODE),
    ("decode", positions_off_by_one, STEPS),
    ("decode", position_table_one_short, "last position against PyTorch"),
    ("decode", attention_with_another_scale, STEPS),
    ("decode", attention_without_the_newest_position, STEPS),
    ("decode", attention_to_a_window, STEPS),
    ("decode", attention_with_keys_and_values_swapped, STEPS),
    ("decode", attention_to_another_layers_source, STEPS),
    ("decode", attention_to_the_whole_padded_source, STEPS),
    ("decode", caches_of_the_first_row_for_all, ALONE),
    ("decode", presents_of_two_layers_swapped, "caches against PyTorch"),
    ("decode", two_layers_swapped, STEPS),
    ("decode", a_bias_dropped, STEPS),
    ("decode", vocabulary_cut_short, STEPS),
    ("decode", two_words_exchanged, STEPS),
    ("decode", norm_with_another_epsilon, STEPS),
    ("decode", weights_rounded_to_half_precision, STEPS),
    ("decode", logits_in_another_order, ALONE),
    ("logprobs", softmax_in_half_precision, ALONE),
    ("logprobs", softmax_over_the_rows, ALONE),
    ("logprobs", softmax_over_the_rows, SUMS),
    ("logprobs", normaliser_of_two_words, NORMALISER),
    ("logprobs", normaliser_with_the_other_sign, NORMALISER),
    ("logprobs", best_ids_off_by_one, BEST),
    ("logprobs", best_off_by_one_column, BEST),
    ("logprobs", best_in_no_order, BEST),
    ("logprobs", best_of_the_log_probabilities_of_another_place, BEST),
    ("logprobs", ranked_in_another_order, ALONE),
    ("logprobs", best_of_the_first_row_for_all, BEST),
]
GENERATION = [
    ("decode", positions_off_by_one, PREFILL),
    ("decode", attention_without_causal_mask, PREFILL),
    ("decode", attention_to_a_window, PREFILL),
    ("decode", attention_with_another_scale, PREFILL),
    ("decode", caches_of_the_first_row_for_all, ALONE),
    ("decode", presents_of_two_layers_swapped, PREFILL),
    ("decode", logits_of_the_token_before_the_last, PREFILL),
    ("decode", logits_of_the_padding, PREFILL),
    ("decode", only_behind_the_last_token, "several positions of a block against PyTorch"),
    ("decode", logits_in_another_order, "prefill in a batch as alone"),
    ("decode", logits_of_the_first_token_always, UNASKED),
    ("decode", vocabulary_cut_short, PREFILL),
    ("logprobs", normaliser_of_two_words, NORMALISER),
    ("logprobs", best_off_by_one_column, BEST),
]


ALIGNMENT = [
    ("align", align_with_two_layers_swapped, ATTENTION),
    ("align", align_to_another_layers_source, ATTENTION),
    ("align", align_without_the_sources_mask, ATTENTION),
    ("align", align_without_the_sources_mask, "attention stays within the source"),
    ("align", align_without_causal_mask, ATTENTION),
    ("align", align_with_mask_one_position_long, ATTENTION),
    ("align", align_with_a_little_everywhere, "attention stays within the source"),
    ("align", align_of_the_scores, ATTENTION),
    ("align", align_with_another_scale, ATTENTION),
    ("align", positions_off_by_one, ATTENTION),
    ("align", position_table_one_short, ATTENTION),
    ("align", a_bias_dropped, ATTENTION),
    ("project_shortlist", words_of_their_neighbours, OWN_WORDS),
    ("shortlist_logprobs", words_behind_a_rows_own, OWN_WORDS),
    ("shortlist_logprobs", words_by_their_places, OWN_WORDS),
    ("shortlist_logprobs", words_with_a_little_of_all_rows, OWN_WORDS_ALONE),
    ("attend", attend_with_two_layers_swapped, EVERY_ATTENTION),
    ("attend", attend_without_its_masks, EVERY_ATTENTION),
    ("attend", attend_without_its_masks, "every attention stays within its rows"),
    ("attend", attend_behind_the_ends, "every attention stays within its rows"),
    ("attend", align_with_another_scale, EVERY_ATTENTION),
    ("attend", positions_off_by_one, EVERY_ATTENTION),
    ("attend", a_bias_dropped, EVERY_ATTENTION),
]


# ---- faults of recurrent graphs


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


def beginnings(graph):
    return nodes(graph, "Where")


def first_states_never_taken(graph):
    for node in beginnings(graph):
        node.CopyFrom(helper.make_node("Identity", [node.input[2]], list(node.output)))


def first_states_taken_in_every_step(graph):
    for node in beginnings(graph):
        if not node.input[2].endswith("fed"):
            node.CopyFrom(helper.make_node("Identity", [node.input[1]], list(node.output)))


def nothing_is_fed(graph):
    (node,) = [node for node in beginnings(graph) if node.input[2] == "past.fed"]
    node.input[2] = "past.hidden.1"


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
    node = beginnings(graph)[0]
    zeros = helper.make_node("Sub", ["starts", "starts"], ["zeros"])
    insert(graph, node, zeros, helper.make_node("Gather", [node.input[2], "zeros"], ["stolen"], axis=0))
    node.input[2] = "stolen"


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


CARRIED = "caches against PyTorch"
RECURRENT = [
    ("encode", layers_without_lengths, ENCODE),
    ("encode", a_layer_in_one_direction, ENCODE),
    ("encode", gates_in_another_order, ENCODE),
    ("encode", first_states_exchanged, ENCODE),
    ("decode", first_states_never_taken, STEPS),
    ("decode", first_states_taken_in_every_step, STEPS),
    ("decode", nothing_is_fed, STEPS),
    ("decode", states_of_two_layers_exchanged, CARRIED),
    ("decode", attention_with_a_scale, CARRIED),
    ("decode", attention_one_position_short, STEPS),
    ("decode", state_and_attention_in_another_order, STEPS),
    ("decode", forget_gates_always_open, STEPS),
    ("decode", states_of_the_first_row_for_all, ALONE),
    ("logprobs", softmax_over_the_rows, SUMS),
    ("align", align_without_carrying, ATTENTION),
    ("align", align_from_other_first_states, ATTENTION),
    ("align", align_without_the_padding_mask, "attention stays within the source"),
]


# ---- faults of quantised graphs


def matching(graph, *endings):
    """The first constant whose name ends like this, in the order of the products."""
    used = [name for node in graph.node for name in node.input]
    names = {tensor.name for tensor in graph.initializer}
    return next(name for ending in endings for name in used if name in names and name.endswith(ending))


def integer_products(graph):
    return nodes(graph, "MatMulIntegerToFloat")


def replace_input(graph, node, place, value):
    """Gives one input of a node a constant of its own."""
    node.input[place] = constant(graph, f"wrong_{node.name}_{place}", value)


def value_of(graph, name):
    (tensor,) = [tensor for tensor in graph.initializer if tensor.name == name]
    return numpy_helper.to_array(tensor)


def scale_of_one_product_doubled(graph):
    weight(graph, matching(graph, "feed_forward.inner.weight.int8.scale"), lambda scale: scale * 2)


def scale_of_one_output_off_by_a_hundredth(graph):
    def change(scale):
        scale = scale.copy()
        scale[3] *= 1.01
        return scale

    weight(graph, matching(graph, "feed_forward.outer.weight.int8.scale"), change)


def scales_of_two_outputs_swapped(graph):
    weight(
        graph,
        matching(graph, "self_attention.output.weight.int8.scale"),
        lambda scale: scale[[1, 0, *range(2, len(scale))]],
    )


def weight_transposed(graph):
    weight(graph, matching(graph, "self_attention.output.weight.int8.weight"), np.transpose)


def weights_of_two_blocks_swapped(graph):
    weight(
        graph,
        matching(graph, "feed_forward.outer.weight.int4.weight"),
        lambda packed: packed[:, [1, 0, *range(2, packed.shape[1])]],
    )


def scales_of_two_blocks_swapped(graph):
    name = matching(graph, "feed_forward.outer.weight.int4.scale")
    weight(graph, name, lambda scale: scale.reshape(-1, 2)[:, ::-1].reshape(scale.shape))


def halves_of_bytes_swapped(graph):
    name = matching(graph, "feed_forward.outer.weight.int4.weight")
    weight(graph, name, lambda packed: (packed >> 4) | (packed << 4))


def row_of_a_table_scaled(graph):
    weight(graph, matching(graph, "tokens.weight.rows.int8.scale"), lambda scale: scale * np.float32(1.02))


def zero_point_of_a_product_off_by_one(graph):
    node = integer_products(graph)[2]
    replace_input(graph, node, 4, value_of(graph, node.input[4]) + np.uint8(1))


def zero_points_of_both_sides_zero(graph):
    """Negative activations are cut off, by every product and by what makes its input alike."""
    zero = constant(graph, "nothing_below", np.uint8(0))
    for node in integer_products(graph):
        node.input[4] = zero
    for node in nodes(graph, "QuantizeLinear"):
        node.input[2] = zero


def step_of_an_input_doubled(graph):
    """What makes the input of a product divides by another step than the product multiplies by."""
    node = integer_products(graph)[2]
    replace_input(graph, node, 2, value_of(graph, node.input[2]) * 2)


def steps_of_all_inputs_a_tenth(graph):
    """Alike on both sides: everything saturates."""
    done = set()
    for node in integer_products(graph):
        if node.input[2] not in done:
            done.add(node.input[2])
            weight(graph, node.input[2], lambda step: step * np.float32(0.1))


def rows_scaled_by_another_row(graph):
    """The largest magnitude of all rows for each: an answer depends on the batch."""
    (first, *_) = nodes(graph, "ReduceMax")
    widest = helper.make_node("ReduceMax", [first.output[0]], ["widest"], keepdims=1)
    graph.node.insert(list(graph.node).index(first) + 1, widest)
    for node in graph.node:
        if node.op_type in ("Div", "Mul") and first.output[0] in node.input:
            node.input[:] = ["widest" if name == first.output[0] else name for name in node.input]


def bias_of_a_product_dropped(graph):
    weight(graph, matching(graph, "self_attention.output.weight.int8.bias"), np.zeros_like)


def step_of_a_cache_doubled_where_it_is_read(graph):
    node = self_attentions_of_caches(graph)[0]
    replace_input(graph, node, 12, value_of(graph, node.input[12]) * 2)


def self_attentions_of_caches(graph):
    return [node for node in nodes(graph, "GroupQueryAttention") if node.input[3].startswith("present.")]


def step_of_the_source_doubled_where_it_is_read(graph):
    node = cross_attentions(graph)[0]
    replace_input(graph, node, 13, value_of(graph, node.input[13]) * 2)


def steps_of_keys_and_values_swapped(graph):
    node = self_attentions_of_caches(graph)[0]
    node.input[12], node.input[13] = node.input[13], node.input[12]


def new_keys_one_position_late(graph):
    scatter = nodes(graph, "TensorScatter")[0]
    insert(graph, scatter, helper.make_node("Add", ["starts", constant(graph, "late", np.int64(1))], ["later"]))
    scatter.input[2] = "later"


def tokens_put_back_one_place_late(graph):
    """All but the first of the batch get the states of their left neighbour."""
    (less_one,) = [node for node in nodes(graph, "Sub") if node.output[0] == "sources.tokens_of_places.flat"]
    (back,) = [node for node in nodes(graph, "Reshape") if less_one.output[0] in node.input]
    two, least = constant(graph, "two", np.int32(2)), constant(graph, "least", np.int32(0))
    less_one.input[1] = two
    insert(graph, back, helper.make_node("Max", [less_one.output[0], least], ["moved"]))
    back.input[0] = "moved"


def positions_counted_over_the_pack(graph):
    (mod,) = nodes(graph, "Mod")
    mod.input[1] = constant(graph, "long", np.int64(32))


def source_written_in_other_steps(graph):
    name = matching(graph, "cross_attention.key_value.weight.int8.scale")
    weight(graph, name, lambda scale: scale / 2)


WEIGHTS = "weights against the checkpoint"
PLAIN = "logits against PyTorch without rounding"
PRODUCTS = "each product against its inputs"
QUANTIZED = [
    ("w8a8-dynamic", "decode", scale_of_one_product_doubled, WEIGHTS),
    ("w8a8-static-kv8", "encode", scale_of_one_product_doubled, WEIGHTS),
    ("w8a8-static", "decode", scale_of_one_output_off_by_a_hundredth, WEIGHTS),
    ("w8a8-dynamic", "decode", scales_of_two_outputs_swapped, WEIGHTS),
    ("w8a8-static-kv8", "decode", weight_transposed, WEIGHTS),
    ("w4-block32", "decode", weights_of_two_blocks_swapped, WEIGHTS),
    ("w4-block32", "decode", scales_of_two_blocks_swapped, WEIGHTS),
    ("w4-block32", "decode", halves_of_bytes_swapped, WEIGHTS),
    ("w8a8-dynamic", "decode", row_of_a_table_scaled, WEIGHTS),
    ("w8a8-dynamic", "encode", bias_of_a_product_dropped, PRODUCTS),
    ("w8a8-static", "decode", bias_of_a_product_dropped, PRODUCTS),
    ("w8a8-static-kv8", "decode", zero_point_of_a_product_off_by_one, PRODUCTS),
    ("w8a8-static", "encode", zero_point_of_a_product_off_by_one, PRODUCTS),
    ("w8a8-static", "decode", zero_points_of_both_sides_zero, PLAIN),
    ("w8a8-static", "decode", step_of_an_input_doubled, PRODUCTS),
    ("w8a8-static", "decode", steps_of_all_inputs_a_tenth, PLAIN),
    ("w8a8-dynamic", "decode", rows_scaled_by_another_row, ALONE),
    ("w8a8-static-kv8", "decode", step_of_a_cache_doubled_where_it_is_read, WEIGHTS),
    ("w8a8-static-kv8", "decode", step_of_the_source_doubled_where_it_is_read, WEIGHTS),
    ("w8a8-dynamic-kv8", "decode", steps_of_keys_and_values_swapped, WEIGHTS),
    ("w8a8-dynamic-kv8", "decode", new_keys_one_position_late, "caches written nowhere else"),
    ("w8a8-static-kv8", "encode", source_written_in_other_steps, WEIGHTS),
    ("w8a8-static-kv8", "encode", tokens_put_back_one_place_late, ENCODE),
    ("w8a8-dynamic", "encode", positions_counted_over_the_pack, ENCODE),
    ("w4-block128", "decode", logits_in_another_order, ALONE),
    ("w4-block32", "decode", two_layers_swapped, STEPS),
    ("w8a8-static-kv8", "decode", two_layers_swapped, STEPS),
    ("w8a8-static-kv8", "decode", attention_to_another_layers_source, STEPS),
    ("w8a8-dynamic", "decode", positions_off_by_one, STEPS),
]


def named(cases):
    return [pytest.param(*case, id=f"{case[0]}-{case[1].__name__}") for case in cases]


@pytest.fixture(scope="module")
def models():
    return {
        architecture: tiny_model(tiny_config(architecture))
        for architecture in ("encoder_decoder", "decoder", "recurrent")
    }


def with_fault(fault, file):
    """Puts a fault into the graph of a file."""
    graph = onnx.load(file)
    before = graph.SerializeToString()
    fault(graph.graph)
    assert graph.SerializeToString() != before, "the fault changed nothing"
    onnx.save(graph, file)


def verified_with(fault, role, bundle, model, tmp_path, only=()):
    """The checks of a copy of the bundle's graphs, one of them with a fault."""
    variant = load_bundle(bundle).variant("fp32")
    shutil.copytree(bundle / "fp32", tmp_path / "fp32")
    with_fault(fault, tmp_path / variant.graphs[role].file)
    return verify_graphs(tmp_path, variant, model, sample_inputs(model.config), only=only).checks


def assert_refused(checks, expected):
    failed = [check.name for check in checks if not check.passed]
    assert expected in failed, f"caught by {failed}"
    with pytest.raises(ParityError, match=expected):
        raise ParityError(make_report(checks))


# Each fault names the check that must see it, and only that one is made: `test_the_whole_verification_refuses_a_fault`
# makes all of them, once for each kind of bundle.


@pytest.mark.parametrize(("role", "fault", "expected"), named(RECURRENT))
def test_a_fault_in_a_recurrent_graph_is_refused(role, fault, expected, tiny_recurrent_bundle, models, tmp_path):
    checks = verified_with(fault, role, tiny_recurrent_bundle, models["recurrent"], tmp_path, (expected,))
    assert_refused(checks, expected)


@pytest.mark.parametrize(("role", "fault", "expected"), named(TRANSLATION))
def test_a_fault_in_a_translation_graph_is_refused(role, fault, expected, tiny_translation_bundle, models, tmp_path):
    checks = verified_with(fault, role, tiny_translation_bundle, models["encoder_decoder"], tmp_path, (expected,))
    assert_refused(checks, expected)


@pytest.mark.parametrize(("role", "fault", "expected"), named(GENERATION))
def test_a_fault_in_a_generation_graph_is_refused(role, fault, expected, tiny_generation_bundle, models, tmp_path):
    checks = verified_with(fault, role, tiny_generation_bundle, models["decoder"], tmp_path, (expected,))
    assert_refused(checks, expected)


@pytest.mark.parametrize(("role", "fault", "expected"), named(ALIGNMENT))
def test_a_fault_in_an_alignment_graph_is_refused(role, fault, expected, tiny_attention_bundle, models, tmp_path):
    checks = verified_with(fault, role, tiny_attention_bundle, models["encoder_decoder"], tmp_path, (expected,))
    assert_refused(checks, expected)


@pytest.mark.parametrize(
    ("kind", "architecture", "role", "fault", "expected"),
    [
        ("recurrent", "recurrent", "decode", nothing_is_fed, STEPS),
        ("attention", "encoder_decoder", "encode", encode_without_padding_mask, ENCODE),
        ("attention", "encoder_decoder", "align", align_with_two_layers_swapped, ATTENTION),
        ("generation", "decoder", "decode", attention_without_causal_mask, PREFILL),
    ],
)
def test_the_whole_verification_refuses_a_fault(kind, architecture, role, fault, expected, models, tmp_path, request):
    bundle = request.getfixturevalue(f"tiny_{kind}_bundle")
    checks = verified_with(fault, role, bundle, models[architecture], tmp_path)
    assert len(checks) > 9
    assert_refused(checks, expected)


@pytest.fixture(scope="module")
def quantized(models, tmp_path_factory):
    """Directory, variant, model and samples of a scheme of the translation model."""
    model, made = models["encoder_decoder"], {}
    samples = sample_inputs(model.config)
    ranges = calibrate(model, list(zip(samples.sources, samples.targets, strict=True)))
    traced = trace_model(model)

    def of(scheme):
        if scheme not in made:
            directory = tmp_path_factory.mktemp("schemes") / scheme
            made[scheme] = directory, save_variant(model, directory, SCHEMES[scheme], ranges=ranges, traced=traced)
        return *made[scheme], model, samples

    return of


@pytest.mark.parametrize(
    ("scheme", "role", "fault", "expected"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}-{case[2].__name__}-{case[3].split()[0]}") for case in QUANTIZED],
)
def test_a_fault_in_a_quantized_graph_is_refused(scheme, role, fault, expected, quantized, tmp_path):
    directory, variant, model, samples = quantized(scheme)
    shutil.copytree(directory / variant.precision, tmp_path / variant.precision)
    with_fault(fault, tmp_path / variant.graphs[role].file)
    assert_refused(verify_graphs(tmp_path, variant, model, samples, only=(expected,)).checks, expected)


def test_the_whole_verification_refuses_a_fault_in_a_quantized_graph(quantized, tmp_path):
    directory, variant, model, samples = quantized("w8a8-static-kv8")
    shutil.copytree(directory / variant.precision, tmp_path / variant.precision)
    with_fault(two_layers_swapped, tmp_path / variant.graphs["decode"].file)
    assert_refused(verify_graphs(tmp_path, variant, model, samples).checks, STEPS)


def test_integers_whose_products_saturate_somewhere_are_refused(models, tmp_path, monkeypatch):
    """Processors with VNNI do not show it."""
    monkeypatch.setattr("export.passes.quantize_products.symmetric_columns", partial(symmetric_columns, most=65))
    model = models["encoder_decoder"]
    variant = save_variant(model, tmp_path, SCHEMES["w8a8-dynamic"])
    (check,) = verify_graphs(tmp_path, variant, model, sample_inputs(model.config), only=(WEIGHTS,)).checks
    assert not check.passed
    assert check.max_error > 1e9


@pytest.mark.parametrize(
    "scheme",
    ["w8a8-dynamic", "w8a8-static", "w8a8-dynamic-kv8", "w8a8-static-kv8", "w8-block64", "w4-block32", "w4-block128"],
)
def test_without_a_fault_no_scheme_is_refused(scheme, quantized):
    directory, variant, model, samples = quantized(scheme)
    is_promised = variant.quantization.batch_invariant
    assert not is_promised or scheme != "w4-block128"
    checks = verify_graphs(directory, variant, model, samples).checks
    assert [check.name for check in checks if not check.passed] == []
    alone = [check for check in checks if check.name.endswith("in a batch as alone")]
    assert len(alone) == 2
    for check in alone:
        assert (check.tolerance == 0.0) == is_promised, check
        assert ("may depend on the batch" in check.note) != is_promised, check


def test_of_equal_words_the_lower_id_comes_first(models, tmp_path):
    """Three words with one output vector: a graph that prefers the later of equals is refused."""
    model = tiny_model(tiny_config("decoder", tie_embeddings=False, num_decoder_layers=1))
    with torch.no_grad():
        head = model.decoder.unembedding.weight
        head[[7, 21]] = head[12].clone()
    samples, variant = sample_inputs(model.config), save_variant(model, tmp_path, "fp32")
    checks = verify_graphs(tmp_path, variant, model, samples).checks
    assert [check.name for check in checks if not check.passed] == []
    file = tmp_path / variant.graphs["logprobs"].file
    graph = onnx.load(file)
    best_of_equals_the_later(graph.graph)
    onnx.save(graph, file)
    checks = verify_graphs(tmp_path, variant, model, samples, only=(BEST,)).checks
    assert BEST in [check.name for check in checks if not check.passed]


def test_without_a_fault_nothing_is_refused(tiny_translation_bundle, models):
    variant = load_bundle(tiny_translation_bundle).variant("fp32")
    model = models["encoder_decoder"]
    checks = verify_graphs(tiny_translation_bundle, variant, model, sample_inputs(model.config)).checks
    assert all(check.passed for check in checks)


def test_weights_of_another_model_are_refused(tiny_translation_bundle, models):
    variant = load_bundle(tiny_translation_bundle).variant("fp32")
    model = tiny_model(tiny_config("encoder_decoder"), seed=2)
    samples = sample_inputs(model.config)
    assert_refused(verify_graphs(tiny_translation_bundle, variant, model, samples, only=(ENCODE,)).checks, ENCODE)
