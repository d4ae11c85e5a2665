#!/usr/bin/env bash
# ONNX Attention (opset 24) in ONNX Runtime 1.31.1 on CPUs takes time for the whole buffer, not for what is in it.
#
# Whom: who keeps keys and values in buffers of fixed capacity and gives nonpad_kv_seqlen. Cost: a decode step of short
# texts takes as long as one of the longest that there is room for, here 50 to 90 times as long. GroupQueryAttention of
# the same version takes time for the valid positions (seqlens_k).
# Source: nonpad_kv_seqlen is "the number of valid (ie, non-padding) tokens in each sample".
# Expected: 32 valid positions take about the same time at any capacity. Seen: in proportion to the capacity.
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
rng, rows, heads, size, took = np.random.default_rng(0), 8, 8, 64, {}
for capacity in (32, 256, 2048):
    node = helper.make_node("Attention", ["q", "k", "v", "", "", "", "valid"], ["y"])
    shape = [rows, heads, capacity, size]
    inputs = [("q", TensorProto.FLOAT, [rows, heads, 1, size]), ("k", TensorProto.FLOAT, shape)]
    inputs += [("v", TensorProto.FLOAT, shape), ("valid", TensorProto.INT64, [rows])]
    attention = session([node], inputs, [("y", TensorProto.FLOAT, [rows, heads, 1, size])], opset=24)
    keys = rng.standard_normal(shape).astype(np.float32)
    query = rng.standard_normal((rows, heads, 1, size)).astype(np.float32)
    feeds = {"q": query, "k": keys, "v": keys, "valid": np.full(rows, 32)}
    took[capacity] = microseconds(lambda attention=attention, feeds=feeds: attention.run(None, feeds))
    print(f"32 valid positions of {capacity}: {took[capacity]:.0f} us")
ratio = took[2048] / took[32]
print(f"expected about 1 times as long with 2048 as with 32, seen {ratio:.0f} times")
sys.exit(ratio < 8)
PYTHON
