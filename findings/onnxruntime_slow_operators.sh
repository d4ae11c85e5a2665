#!/usr/bin/env bash
# Three operators of ONNX Runtime 1.31.1 on CPUs take longer for less.
#
# Whom: who decodes language models and computes scores or the best token in the graph, 32 rows of 32,000 here. Cost:
# milliseconds of every step. ReduceLogSumExp returns one number a row and takes several times as long as LogSoftmax,
# which returns the whole row; TopK of one token takes longer than of four; ArgMax takes several times as long as
# ReduceMax, which reads the same numbers.
# Source: the ONNX operators; nothing is said about cost.
# Expected: each first one is at most as slow as the second. Seen: about 8, 2 and 5 times as slow.
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
x = np.random.default_rng(0).standard_normal((32, 32000)).astype(np.float32)
tensors = {"axes": np.array([-1]), "one": np.array([1]), "four": np.array([4])}


def took(operator, *more, kind=TensorProto.FLOAT, **attributes):
    outputs = ["y", "i"] if operator == "TopK" else ["y"]
    node = helper.make_node(operator, ["x", *more], outputs, **attributes)
    used = {name: value for name, value in tensors.items() if name in more}
    one = session([node], [("x", TensorProto.FLOAT, ["n", 32000])], [("y", kind, ["n", "m"])], used)
    return microseconds(lambda: one.run(None, {"x": x}))


pairs = {
    "ReduceLogSumExp / LogSoftmax": (took("ReduceLogSumExp", "axes"), took("LogSoftmax", axis=-1)),
    "TopK of 1 / of 4": (took("TopK", "one"), took("TopK", "four")),
    "ArgMax / ReduceMax": (took("ArgMax", kind=TensorProto.INT64, axis=-1), took("ReduceMax", "axes")),
}
for name, (less, more) in pairs.items():
    print(f"{name}: expected at most 1, seen {less / more:.1f} ({less:.0f} and {more:.0f} us)")
sys.exit(any(less / more < 1.1 for less, more in pairs.values()))
PYTHON
