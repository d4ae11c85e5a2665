"""How errors are judged: by PyTorch in float64, relative to what PyTorch shows in float32."""

import numpy as np
import onnx
import pytest
import torch

from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from export.verification.checks import TOLERANCES
from export.verification.inputs import sample_inputs
from export.verification.measure import (
    FLOAT32_FACTOR,
    LARGEST_TOLERANCE,
    SETTLED,
    Expectation,
    count_differences,
    judged_tolerance,
    largest_error,
    worst,
)
from export.verification.verifier import verify_graphs
from model.architectures import build
from tests.export.verification.faults import a_bias_dropped, attention_with_another_scale, with_fault
from tests.tiny import tiny_config

STEPS = "cached steps against the full sequence"


def lively_model():
    """Random weights of standard deviation 2, which amplify every rounding error."""
    model, generator = build(tiny_config("encoder_decoder")), torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (2.0 if parameter.ndim > 1 else 0.1) + ("norm.weight" in name))
    return model.eval()


def test_a_sound_graph_of_a_lively_model_passes_and_a_fault_does_not(tmp_path):
    model = lively_model()
    samples, variant = sample_inputs(model.config), save_variant(trace_model(model), tmp_path, SCHEMES["fp32"])
    (check,) = verify_graphs(tmp_path, variant, model, samples, only=(STEPS,)).checks
    assert check.max_error > TOLERANCES["fp32"], "a fixed limit refuses it"
    assert check.float32_error > TOLERANCES["fp32"], "PyTorch in float32 is over that limit as well"
    assert check.tolerance == FLOAT32_FACTOR * check.float32_error
    assert check.passed
    file = tmp_path / variant.graphs["decode"].file
    sound = onnx.load(file)
    for fault in (a_bias_dropped, attention_with_another_scale):
        onnx.save(sound, file)
        with_fault(fault, file)
        (check,) = verify_graphs(tmp_path, variant, model, samples, only=(STEPS,)).checks
        assert not check.passed, fault.__name__


@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_token_that_a_bias_rules_out_hides_no_error_of_the_others(is_quantized):
    exact = np.array([4.0, 2.0, -2.0, -3e4])
    found = exact + np.array([1.0, -1.0, 1.0, 20.0])
    expected = Expectation(exact, lambda: exact)
    measured = largest_error([("logits", found, expected)], is_quantized=is_quantized)
    assert measured.error == pytest.approx(1 / exact[:3].std() if is_quantized else 1 / 4)
    allowed = np.array([4.0, 2.0, -2.0, 0.0])
    assert largest_error([("logits", allowed, expected)], is_quantized=is_quantized).error > 0.9
    assert largest_error([("states", found, expected)], is_quantized=is_quantized).error < 1e-3


def test_the_error_of_float32_is_measured_like_that_of_the_graph():
    exact = np.array([100.0, -1.0])
    one, other = (
        ("one", exact + 0.002, Expectation(exact + 0.001, lambda: exact)),
        ("other", exact + 0.001, Expectation(exact, lambda: exact)),
    )
    found = largest_error([one, other])
    assert found.error == pytest.approx(2e-5, rel=1e-4)
    assert found.float32_error == pytest.approx(1e-5)
    assert found.note == "worst in one"


def test_another_output_is_computed_only_where_the_own_one_does_not_settle_a_check():
    own = np.array([100.0, -1.0])
    computed = []

    def other():
        computed.append(True)
        return own + 0.001

    row = ("row", own + 0.002, Expectation(own, other))
    settled = largest_error([row], 3.1e-5)
    assert settled.error == pytest.approx(2e-5, rel=1e-4)
    assert not settled.float32_error
    assert not computed
    found = largest_error([row], 2.9e-5)
    assert [found.error, found.float32_error] == pytest.approx([1e-5, 1e-5], rel=1e-4)
    rounded = largest_error([row], 1e-5, is_quantized=True)
    assert [rounded.error, rounded.float32_error] == pytest.approx([0.002 / 50.5, 0.001 / 50.5])
    assert len(computed) == 2
    assert largest_error([row], 1e-4, is_quantized=True).float32_error == 0.0


@pytest.mark.parametrize("float32_error", [0.0, 1e-5, 1.6e-5, 1.7e-5, 5e-5, 1e-3])
def test_what_is_settled_without_float64_also_passes_with_it(float32_error):
    limit = TOLERANCES["fp32"]
    most = float32_error + SETTLED * limit
    assert most <= judged_tolerance(limit, float32_error)


def test_errors_are_measured_as_a_share_of_the_output():
    expected = np.array([100.0, -1.0], np.float32)
    small, nothing = ("small", expected + 0.001, expected), ("nothing", expected[:0], expected[:0])
    found = largest_error([small, nothing])
    assert found.error == pytest.approx(1e-5, rel=0.1)
    assert found.note == "worst in small"
    found = largest_error([small, ("undefined", expected * float("nan"), expected)])
    assert found == (float("inf"), "worst in undefined", 0.0)
    assert not found.error <= TOLERANCES["fp32"]
    found = largest_error([("shape", expected[:1], expected)])
    assert found == (float("inf"), "worst in shape: shape (1,) instead of (2,)", 0.0)


def test_errors_of_rounded_rows_are_measured_as_a_share_of_their_deviation():
    expected = np.array([-101.0, -99.0], np.float32)
    row, value = ("row", expected + 0.1, expected), ("one value", expected[:1] * 1.2, expected[:1])
    assert largest_error([row], is_quantized=True).error == pytest.approx(0.1, rel=1e-4)
    assert largest_error([row, value], is_quantized=True).error == pytest.approx(0.2, rel=1e-5)


def test_differences_are_counted_in_every_bit_and_against_a_scalar():
    ones = np.ones(3, np.float32)
    last_bit = np.nextafter(ones, np.float32(2))
    assert count_differences([("same", ones, ones.copy())]) == (0.0, "no value differs", 0.0)
    found = count_differences([("same", ones, ones), ("last bit", last_bit, ones), ("padding", ones[:2], np.zeros(()))])
    assert found == (5.0, "values that differ in any bit, first in last bit", 0.0)
    assert count_differences([("undefined", ones * np.nan, ones * np.nan)]).error == 3.0


def test_the_worst_of_no_errors_is_0_and_of_nan_infinite():
    assert worst([], "no weights") == (0.0, "no weights", 0.0)
    assert worst([("a", 0.5), ("b", 0.7), ("c", 0.6)]) == (0.7, "worst in b", 0.0)
    assert worst([("a", float("nan")), ("b", float("inf"))]) == (float("inf"), "worst in a", 0.0)


@pytest.mark.parametrize(
    ("float32_error", "expected"),
    [(0.0, 5e-5), (1e-6, 5e-5), (1e-4, 4e-4), (0.5, LARGEST_TOLERANCE), (float("inf"), LARGEST_TOLERANCE)],
)
def test_a_tolerance_is_at_least_its_floor_and_never_without_bound(float32_error, expected):
    assert judged_tolerance(5e-5, float32_error) == pytest.approx(expected)


def test_a_tolerance_above_the_bound_stays():
    assert judged_tolerance(0.15, 1.0) == 0.15
