#!/usr/bin/env bash
# ONNX Runtime 1.31.1 does not reduce a negative axis of a tensor without elements, if keepdims is 1.
#
# Whom: who serves graphs with a dimension that can be 0 (no rows, no positions). Cost: a wrong shape with no more than
# a warning; the nodes after it fail, or broadcast it to something else. A positive axis is right.
# Source: the ONNX operators ReduceMax, ReduceSum, ...: axes are of [-r, r-1], and a reduced axis has size 1.
# Expected: both axes give (2, 0, 1), as numpy does. Seen: -1 gives (2, 0, 4), 2 gives (2, 0, 1).
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


print(f"onnx {onnx.__version__}, onnxruntime {ort.__version__}, numpy {np.__version__}")
x, shapes = np.zeros((2, 0, 4), np.float32), {}
for operator in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean"):
    for axis in (-1, 2):
        node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=1)
        inputs, outputs = [("x", TensorProto.FLOAT, [2, "n", 4])], [("y", TensorProto.FLOAT, [2, "n", "m"])]
        reduce = session([node], inputs, outputs, {"axes": np.array([axis])})
        shapes[operator, axis] = reduce.run(None, {"x": x})[0].shape
        print(f"{operator} of axis {axis}: expected (2, 0, 1), seen {shapes[operator, axis]}")
sys.exit(any(shape != ((2, 0, 4) if axis < 0 else (2, 0, 1)) for (_, axis), shape in shapes.items()))
PYTHON
