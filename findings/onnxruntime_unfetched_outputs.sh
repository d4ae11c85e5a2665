#!/usr/bin/env bash
# RunOptions.only_execute_path_to_fetches has no effect in ONNX Runtime 1.31.1.
#
# Whom: who puts a costly output into a graph and fetches it for some requests only. Cost: it is computed in every run.
# The way out is a graph and a session of its own.
# Source: the Python API says "Only execute the nodes needed by fetch list"; maintainers say that only training builds
# do so (microsoft/onnxruntime#16013, about 1.14).
# Expected: of two nodes the one is run whose output is fetched. Seen: both are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
"$folder/bin/python" - <<'PYTHON'
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

nodes = [
    helper.make_node("TopK", ["x", "k"], ["best", "places"], name="not-needed"),
    helper.make_node("Relu", ["x"], ["y"], name="needed"),
]
outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "best")]
inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 10])]
graph = helper.make_graph(nodes, "graph", inputs, outputs, [numpy_helper.from_array(np.array([2]), "k")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
print(f"onnx {onnx.__version__}, onnxruntime {ort.__version__}, numpy {np.__version__}")
with tempfile.TemporaryDirectory() as folder:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, f"{folder}/profile"
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    fetches_alone = ort.RunOptions()
    fetches_alone.only_execute_path_to_fetches = True
    session.run(["y"], {"x": np.zeros((3, 10), np.float32)}, fetches_alone)
    events = json.loads(Path(session.end_profiling()).read_text())
ran = [event["name"].removesuffix("_kernel_time") for event in events if event["name"].endswith("_kernel_time")]
print(f"expected the nodes ['needed'], seen {sorted(ran)}")
sys.exit("not-needed" not in ran)
PYTHON
