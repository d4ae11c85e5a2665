#!/usr/bin/env bash
# MatMulNBits and MoE of ONNX Runtime 1.31.1 compute a row differently alone and in a batch.
#
# Whom: who batches requests with 4-bit or 8-bit weights, or with experts. Cost: answers depend on who else asks, and
# tests of "batched equals alone" fail, while the same test of a float32 MatMul passes. Which blocks and accuracy
# levels do depends on the processor; with accuracy_level 4 small blocks often do not.
# Source: the documentation of the operators (ContribOperators.md) promises no bits; MatMul keeps them.
# Expected: no row of 16 differs from itself alone, as with MatMul. Seen: all 16 of MatMulNBits and most of MoE do.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
"$folder/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper


def session(nodes, inputs, outputs, tensors=(), opset=20, **options):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        [numpy_helper.from_array(value, name) for name, value in dict(tensors).items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=10)
    onnx.checker.check_model(model)
    one = ort.SessionOptions()
    one.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), one, providers=["CPUExecutionProvider"], **options)


def differing(one, feeds):
    """Rows of a batch that differ from themselves alone."""
    batch = one.run(None, feeds)[0]
    alone = [one.run(None, {name: x[row : row + 1] for name, x in feeds.items()})[0][0] for row in range(len(batch))]
    return sum(not np.array_equal(*pair) for pair in zip(batch, alone, strict=True))


print(f"onnx {onnx.__version__}, onnxruntime {ort.__version__}, numpy {np.__version__}")
rng, size, experts = np.random.default_rng(0), 256, 8
x = rng.standard_normal((16, size)).astype(np.float32)
scores = rng.standard_normal((16, experts)).astype(np.float32)
inputs, outputs = [("x", TensorProto.FLOAT, ["n", size])], [("y", TensorProto.FLOAT, ["n", size])]


def weights(*shape):
    return (rng.standard_normal(shape) / 16).astype(np.float32)


found = {}
node = helper.make_node("MatMul", ["x", "w"], ["y"])
found["MatMul"] = differing(session([node], inputs, outputs, {"w": weights(size, size)}), {"x": x})
packed = {"w": rng.integers(0, 256, (size, size // 32, 16)).astype(np.uint8), "s": abs(weights(size, size // 32))}
sizes = {"K": size, "N": size, "bits": 4, "block_size": 32}
node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **sizes)
found["MatMulNBits"] = differing(session([node], inputs, outputs, packed), {"x": x})
node = helper.make_node("MoE", ["x", "r", "in", "", "out"], ["y"], domain="com.microsoft", k=2, activation_type="relu")
layers = {"in": weights(experts, 2 * size, size), "out": weights(experts, size, 2 * size)}
routed = session([node], [*inputs, ("r", TensorProto.FLOAT, ["n", experts])], outputs, layers)
found["MoE"] = differing(routed, {"x": x, "r": scores})
for operator, count in found.items():
    print(f"{operator}: expected 0 rows of 16 that differ from themselves alone, seen {count}")
sys.exit(found["MatMul"] > 0 or not found["MatMulNBits"] or not found["MoE"])
PYTHON
