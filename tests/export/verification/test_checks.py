"""All checks together: they refuse a fault, pass a sound graph, and refuse another model."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from export.bundle.directory import load_bundle
from export.verification import decode_checks
from export.verification.checks import run_checks, sum_tolerance
from export.verification.inputs import sample_inputs
from export.verification.measure import Expectation
from export.verification.verifier import verify_graphs
from tests.export.verification.faults import (
    ATTENTION,
    ENCODE,
    PREFILL,
    STEPS,
    align_with_two_layers_swapped,
    assert_refused,
    attention_without_causal_mask,
    checks_with_fault,
    encode_without_padding_mask,
    model_of,
    nothing_is_fed,
)
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize(
    ("kind", "role", "fault", "expected"),
    [
        ("recurrent", "decode", nothing_is_fed, STEPS),
        ("attention", "encode", encode_without_padding_mask, ENCODE),
        ("attention", "align", align_with_two_layers_swapped, ATTENTION),
        ("generation", "decode", attention_without_causal_mask, PREFILL),
    ],
)
def test_the_whole_verification_refuses_a_fault(kind, role, fault, expected, tmp_path, request):
    checks = checks_with_fault(kind, role, fault, tmp_path, request)
    assert len(checks) > 9
    assert_refused(checks, expected)


def test_without_a_fault_nothing_is_refused(tiny_translation_bundle):
    variant = load_bundle(tiny_translation_bundle).variant("fp32")
    model = model_of("translation")
    checks = verify_graphs(tiny_translation_bundle, variant, model, sample_inputs(model.config)).checks
    assert all(check.passed for check in checks)


def test_weights_of_another_model_are_refused(tiny_translation_bundle):
    variant = load_bundle(tiny_translation_bundle).variant("fp32")
    model = tiny_model(tiny_config("encoder_decoder"), seed=2)
    samples = sample_inputs(model.config)
    assert_refused(verify_graphs(tiny_translation_bundle, variant, model, samples, only=(ENCODE,)).checks, ENCODE)


@pytest.mark.parametrize(("step", "passed"), [(0.1, True), (0.3, True), (0.5, False)])
def test_rows_alone_may_differ_by_what_rounding_changes_where_blocks_depend_on_the_batch(step, passed, monkeypatch):
    together_V, exact_V = np.array([1.0, -1.0]), np.array([1.0, -1.0])
    unrounded = Expectation(exact_V, lambda: exact_V + 0.4)  # 0.4 of the standard deviation, above the limit of 0.15
    alone = [("logits", together_V + step, together_V)]
    monkeypatch.setattr(decode_checks, "steps_alone", lambda case: alone)
    monkeypatch.setattr(decode_checks, "steps", lambda case: [("logprobs", exact_V, unrounded)])
    case: Any = SimpleNamespace(
        precision="int4",
        config=tiny_config("encoder_decoder"),
        quantization=SimpleNamespace(batch_invariant=False, block_size=32),
        roundings=SimpleNamespace(exponents=None),
        graphs=SimpleNamespace(
            roles=(), with_window=[], variant=SimpleNamespace(graphs={"encode": SimpleNamespace(outputs=())})
        ),
        samples=SimpleNamespace(describe=lambda: "two values"),
    )
    (check,) = run_checks(case, only=("steps in a batch as alone",))
    assert (check.passed, round(check.tolerance, 6)) == (passed, 0.4)
    assert "2 values differ" in check.note


@pytest.mark.parametrize("vocab_size", [1000, 65_536, 262_144])
def test_the_runtime_sums_probabilities_within_the_limit(vocab_size):
    shape = ["rows", vocab_size]
    node = helper.make_node("LogSoftmax", ["logits"], ["logprobs"], axis=-1)
    read, written = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("logits", "logprobs"))
    graph = helper.make_graph([node], "a", [read], [written])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    logits = np.random.default_rng(0).standard_normal((4, vocab_size), dtype=np.float32) * [[1], [2], [4], [8]]
    (logprobs,) = session.run(None, {"logits": logits.astype(np.float32)})
    error = np.abs(np.exp(logprobs.astype(np.float64)).sum(-1) - 1).max()
    assert error < sum_tolerance(vocab_size)


def test_the_limit_grows_above_65536_tokens_only():
    assert [sum_tolerance(size) for size in (2, 65_536, 262_144)] == [5e-5, 5e-5, 2e-4]
