#!/usr/bin/env bash
# A fusion that ONNX Runtime 1.31.1 applies by default makes Add and LayerNormalization slower on CPUs.
#
# Whom: who serves Transformers in float32 on CPUs, at the default optimization level. Cost: 3 to 6 times the time of
# each norm; a decoder of 6 layers with 32 rows made 27 % more tokens per second without it. The way out:
# InferenceSession(..., disabled_optimizers=["SkipLayerNormFusion"]).
# Source: the page on graph optimizations of ONNX Runtime lists Skip Layer Normalization Fusion among those that fuse
# nodes for speed, for CPU and GPU.
# Expected: the fused node is at least as fast. Seen: it takes 3 to 6 times as long.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
"$folder/bin/python" - <<'PYTHON'
import sys
import time

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


def microseconds(run, times=20):
    """Least processor time of this thread, in which a session of one thread computes."""
    found = []
    for _ in range(times):
        began_s = time.thread_time()
        run()
        found.append(1e6 * (time.thread_time() - began_s))
    return min(found[1:])


print(f"onnx {onnx.__version__}, onnxruntime {ort.__version__}, numpy {np.__version__}")
size, took = 512, {}
x = np.random.default_rng(0).standard_normal((32, 1, size)).astype(np.float32)
nodes = [
    helper.make_node("Add", ["x", "residual"], ["sum"]),
    helper.make_node("LayerNormalization", ["sum", "gain", "bias"], ["y"], axis=-1, epsilon=1e-5),
]
shape = ["n", 1, size]
inputs = [("x", TensorProto.FLOAT, shape), ("residual", TensorProto.FLOAT, shape)]
tensors = {"gain": np.ones(size, np.float32), "bias": np.zeros(size, np.float32)}
for name, disabled in (("fused", None), ("not fused", ["SkipLayerNormFusion"])):
    norm = session(nodes, inputs, [("y", TensorProto.FLOAT, shape)], tensors, disabled_optimizers=disabled)
    took[name] = microseconds(lambda norm=norm: norm.run(None, {"x": x, "residual": x}), times=300)
    print(f"{name}: {took[name]:.0f} us")
ratio = took["fused"] / took["not fused"]
print(f"expected at most 1 times as long when fused, seen {ratio:.1f} times")
sys.exit(ratio < 1.5)
PYTHON
