"""Faults in quantized graphs are refused, and no scheme is without a fault."""

import copy
import shutil
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper

from export.export_errors import ParityError
from export.passes.calibrate import calibrate, input_moments
from export.passes.equalize import MAX_EXPONENT, equalized, find_exponents
from export.passes.error_feedback import Feedback
from export.passes.integer_weights import symmetric_columns
from export.passes.quantization_scheme import SCHEMES
from export.passes.rounding_notes import read_notes, write_notes
from export.variants import save_variant, trace_model
from export.verification.checks import STATES
from export.verification.inputs import sample_inputs
from export.verification.verifier import make_report, verify_graphs
from tests.export.passes.test_equalize import MODELS, with_outliers
from tests.export.verification.faults import (
    ALONE,
    ENCODE,
    STEPS,
    assert_refused,
    attention_to_another_layers_source,
    constant,
    cross_attentions,
    insert,
    logits_in_another_order,
    matching,
    model_of,
    named,
    nodes,
    positions_off_by_one,
    replace_input,
    two_layers_swapped,
    value_of,
    weight,
    with_fault,
)
from tests.tiny import tiny_model


def integer_products(graph):
    return nodes(graph, "MatMulIntegerToFloat")


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


def scales_of_all_outputs_in_another_order(graph):
    weight(graph, matching(graph, "self_attention.output.weight.int8.scale"), lambda scale: scale[::-1] * 1.5)


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


EQUALIZED = "equalized model against the checkpoint"
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
    ("w4a16-block32", "encode", halves_of_bytes_swapped, WEIGHTS),
    ("w4a16-block32", "decode", scales_of_two_blocks_swapped, WEIGHTS),
    ("w4a16-block32", "decode", two_layers_swapped, STEPS),
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


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """Directory, variant, model and samples of a scheme of the translation model."""
    model, made = model_of("translation"), {}
    samples = sample_inputs(model.config)
    ranges = calibrate(model, list(zip(samples.sources, samples.targets, strict=True)))
    traced = {False: trace_model(model), True: trace_model(copy.deepcopy(model).half())}

    def of(scheme):
        if scheme not in made:
            directory = tmp_path_factory.mktemp("schemes") / scheme
            source = traced[SCHEMES[scheme].is_half]
            made[scheme] = directory, save_variant(source, directory, SCHEMES[scheme], ranges=ranges)
        return *made[scheme], model, samples

    return of


@pytest.mark.parametrize(
    ("scheme", "role", "fault", "expected"),
    named(QUANTIZED),
)
def test_a_fault_in_a_quantized_graph_is_refused(scheme, role, fault, expected, quantized, tmp_path):
    directory, variant, model, samples = quantized(scheme)
    shutil.copytree(directory / variant.precision, tmp_path / variant.precision)
    with_fault(fault, tmp_path / variant.graphs[role].file)
    assert_refused(verify_graphs(tmp_path, variant, model, samples, only=(expected,)).checks, expected)


def notes_of_another_model(graph_model):
    """The exponents of one channel are those of another one."""
    notes = read_notes(graph_model)
    exponents = {name: np.roll(values, 1) for name, values in (notes.exponents or {}).items()}
    write_notes(graph_model, notes._replace(exponents=exponents))


@pytest.fixture(scope="module", params=["w8a8-dynamic", "w4-block32"])
def equalized_variant(request, tmp_path_factory):
    """Directory, variant, model and samples of an equalized decoder with a few large channels, with feedback."""
    model, directory = with_outliers(tiny_model(MODELS["llama"])), tmp_path_factory.mktemp("equalized")
    samples = sample_inputs(model.config)
    random = np.random.default_rng(4)
    texts = [((), random.integers(4, model.config.vocab_size, 20).tolist()) for _ in range(40)]
    exponents = find_exponents(model, texts)
    made = equalized(model, exponents)
    traced, feedback = trace_model(made), Feedback(input_moments(made, texts))
    variant = save_variant(traced, directory, SCHEMES[request.param], feedback=feedback, exponents=exponents)
    return directory, variant, model, samples


def test_a_model_with_large_channels_passes_once_it_is_equalized(equalized_variant):
    checks = verify_graphs(*equalized_variant).checks
    assert {EQUALIZED, WEIGHTS, STEPS} <= {check.name for check in checks}
    assert [check for check in checks if not check.passed] == []


@pytest.mark.parametrize(
    ("fault", "expected"),
    named(
        [
            (scale_of_one_product_doubled, WEIGHTS),
            (scales_of_all_outputs_in_another_order, WEIGHTS),
            (weight_transposed, WEIGHTS),
            (two_layers_swapped, STEPS),
        ]
    ),
)
def test_a_fault_in_a_graph_of_an_equalized_model_is_refused(fault, expected, equalized_variant, tmp_path):
    directory, variant, model, samples = equalized_variant
    if variant.precision == "int4" and expected == WEIGHTS:
        fault = halves_of_bytes_swapped
    shutil.copytree(directory / variant.precision, tmp_path / variant.precision)
    with_fault(fault, tmp_path / variant.graphs["decode"].file)
    assert_refused(verify_graphs(tmp_path, variant, model, samples, only=(expected,)).checks, expected)


def test_a_graph_of_another_equalized_model_is_refused(equalized_variant, tmp_path):
    directory, variant, model, samples = equalized_variant
    shutil.copytree(directory / variant.precision, tmp_path / variant.precision)
    file = tmp_path / variant.graphs["decode"].file
    graph = onnx.load(file)
    notes_of_another_model(graph)
    onnx.save(graph, file)
    assert_refused(verify_graphs(tmp_path, variant, model, samples, only=(WEIGHTS,)).checks, WEIGHTS)


@pytest.mark.parametrize("scheme", ["w8a8-dynamic", "w4-block32"])
def test_a_scale_that_spoils_the_states_of_an_encoder_is_refused(scheme, tmp_path):
    """As of a channel that no text for the scales had opened: the equalized model and its graphs compute the same."""
    model = model_of("translation")
    samples = sample_inputs(model.config)
    exponents = find_exponents(model, list(zip(samples.sources, samples.targets, strict=True)))
    for name in exponents:
        if name.startswith("encoder."):
            exponents[name][3] = -MAX_EXPONENT
    made = trace_model(equalized(model, exponents))
    variant = save_variant(made, tmp_path, SCHEMES[scheme], exponents=exponents)
    checks = verify_graphs(tmp_path, variant, model, samples, only=(EQUALIZED, ENCODE, STATES)).checks
    assert [check.name for check in checks if not check.passed] == [STATES]
    with pytest.raises(ParityError, match=rf"{STATES}: error [.\d]+ over 0.3 \(median .* tokens.*; fix: .*--scheme"):
        raise ParityError(make_report(checks))


def test_the_whole_verification_refuses_a_fault_in_a_quantized_graph(quantized, tmp_path):
    directory, variant, model, samples = quantized("w8a8-static-kv8")
    shutil.copytree(directory / variant.precision, tmp_path / variant.precision)
    with_fault(two_layers_swapped, tmp_path / variant.graphs["decode"].file)
    assert_refused(verify_graphs(tmp_path, variant, model, samples).checks, STEPS)


def test_integers_whose_products_saturate_somewhere_are_refused(tmp_path, monkeypatch):
    """Processors with VNNI do not show it."""
    monkeypatch.setattr("export.passes.quantize_products.symmetric_columns", partial(symmetric_columns, most=65))
    model = model_of("translation")
    variant = save_variant(trace_model(model), tmp_path, SCHEMES["w8a8-dynamic"])
    (check,) = verify_graphs(tmp_path, variant, model, sample_inputs(model.config), only=(WEIGHTS,)).checks
    assert not check.passed
    assert check.max_error > 1e9


@pytest.mark.parametrize(
    "scheme",
    [
        "w8a8-dynamic",
        pytest.param("w8a8-static", marks=pytest.mark.slow),
        pytest.param("w8a8-dynamic-kv8", marks=pytest.mark.slow),
        "w8a8-static-kv8",
        pytest.param("w8-block64", marks=pytest.mark.slow),
        pytest.param("w4-block32", marks=pytest.mark.slow),
        "w4-block128",
    ],
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
