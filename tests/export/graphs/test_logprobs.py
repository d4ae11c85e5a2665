"""The graph `logprobs`: its values, and its nodes in the runtime."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest

from export.bundle.manifest import SESSION_CONFIG, SESSION_OPTIMIZATION
from export.sessions import open_session


@pytest.mark.parametrize("kind", ["translation", "generation"])
def test_the_runtime_keeps_one_softmax_and_one_choice_of_the_best(kind, request, tmp_path):
    """Under the settings of a server no optimiser may compute either twice, or take the softmax into pieces."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, SESSION_OPTIMIZATION)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    for key, value in SESSION_CONFIG.items():
        options.add_session_config_entry(key, value)
    bundle = request.getfixturevalue(f"tiny_{kind}_bundle")
    onnxruntime.InferenceSession(bundle / "fp32/logprobs.onnx", options, providers=["CPUExecutionProvider"])
    counts = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert (counts["LogSoftmax"], counts["TopK"], counts["ReduceLogSumExp"], counts["Exp"]) == (1, 1, 0, 0)


def test_values_are_those_of_numpy_and_ties_go_to_the_lower_id(tiny_generation_bundle):
    session = open_session(tiny_generation_bundle / "fp32/logprobs.onnx")
    logits_PV = np.random.default_rng(1).standard_normal((3, 27)).astype(np.float32)
    logits_PV[1, [4, 9, 20]] = logits_PV[1].max() + 1
    names = ["logprobs", "normaliser", "top_ids", "top_logprobs"]
    logprobs_PV, normaliser_P, ids_PN, best_PN = session.run(names, {"logits": logits_PV, "top_k": np.array([4])})
    wide_PV = logits_PV.astype(np.float64)
    expected_P = np.log(np.exp(wide_PV).sum(1))
    np.testing.assert_allclose(normaliser_P, expected_P, atol=1e-6)
    np.testing.assert_allclose(logprobs_PV, wide_PV - expected_P[:, None], atol=1e-6)
    order_PN = np.argsort(-logits_PV, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(ids_PN, order_PN)
    np.testing.assert_array_equal(best_PN, np.take_along_axis(logprobs_PV, order_PN, 1))
