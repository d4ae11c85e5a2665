"""How errors are judged: by PyTorch in float64, relative to what PyTorch shows in float32."""

import numpy as np
import onnx
import pytest
import torch

from export.variants import save_variant
from export.verification.inputs import sample_inputs
from export.verification.measure import FLOAT32_FACTOR, LARGEST_TOLERANCE, TOLERANCES, ErrorTracker, judged_tolerance
from export.verification.torch_reference import Expectation, Yardstick
from export.verification.verifier import verify_graphs
from model.architectures import build
from tests.export.test_faults import a_bias_dropped, attention_with_another_scale, with_fault
from tests.tiny import tiny_config

STEPS = "cached steps against the full sequence"
LIVELY = {"d_model": 64, "d_ff": 128, "num_encoder_layers": 3, "num_decoder_layers": 3, "norm_position": "post"}


def lively_model():
    """A Marian with random weights of standard deviation 0.4, which amplifies every rounding error."""
    model, generator = build(tiny_config("encoder_decoder", **LIVELY)), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (0.4 if parameter.ndim > 1 else 0.1) + ("norm.weight" in name))
    return model.eval()


def test_a_sound_graph_of_a_lively_model_passes_and_a_fault_does_not(tmp_path):
    model = lively_model()
    samples, variant = sample_inputs(model.config), save_variant(model, tmp_path, "fp32")
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


def test_the_yardstick_is_the_error_of_float32_by_the_same_measure():
    exact = np.array([100.0, -1.0])
    tracker = ErrorTracker()
    tracker.add("one", exact + 0.002, Expectation(exact, exact + 0.001))
    tracker.add("other", exact + 0.001, Expectation(exact, exact))
    assert tracker.error == pytest.approx(2e-5)
    assert tracker.float32_error == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("float32_error", "expected"),
    [(0.0, 5e-5), (1e-6, 5e-5), (1e-4, 4e-4), (0.5, LARGEST_TOLERANCE), (float("inf"), LARGEST_TOLERANCE)],
)
def test_a_tolerance_is_at_least_its_floor_and_never_without_bound(float32_error, expected):
    assert judged_tolerance(5e-5, float32_error) == pytest.approx(expected)


def test_a_tolerance_above_the_bound_stays():
    assert judged_tolerance(0.15, 1.0) == 0.15


def test_a_reference_in_float64_agrees_with_float32():
    logits = Yardstick(lively_model(), in_float64=True).logits((4, 5, 2), (1, 6))
    assert logits.exact.dtype == np.float64
    assert logits.float32.dtype == np.float32
    assert not np.array_equal(logits.exact, logits.float32)
    np.testing.assert_allclose(logits.exact, logits.float32, rtol=1e-3, atol=1e-3)
