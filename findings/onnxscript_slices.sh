#!/usr/bin/env bash
# The optimizer of onnxscript 0.7.2, which torch.onnx.export runs by default, takes time with the square of the number
# of slices of a graph.
#
# Whom: who exports deep models with rotary positions, whose layers slice queries and keys. Cost: a model of 30 layers
# spends more time in one rule, which matches nothing in it, than in everything else that an export does.
# Source: documented as constant folding and removal of redundancies.
# Expected: four times as many layers take four times as long. Seen: ten times as long, and less than six without the rule
# SlicesSplit, which compares each slice with each other one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check onnxscript==0.7.2 onnx==1.23.2 onnx-ir==1.1.0
"$folder/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
import time

import numpy as np
import onnx_ir
from onnx import TensorProto, helper, numpy_helper
from onnxscript import optimizer, rewriter


def rotary(layers):
    """x → its halves in the other order, in each layer."""
    names = {"zero": 0, "half": 32, "end": 64, "axis": 1}
    constants = [numpy_helper.from_array(np.array([value]), name) for name, value in names.items()]
    nodes = []
    for layer in range(layers):
        for part, (start, stop) in enumerate((("zero", "half"), ("half", "end"))):
            nodes.append(helper.make_node("Slice", [f"x{layer}", start, stop, "axis"], [f"part{layer}.{part}"]))
        nodes.append(helper.make_node("Neg", [f"part{layer}.1"], [f"turned{layer}"]))
        nodes.append(helper.make_node("Concat", [f"turned{layer}", f"part{layer}.0"], [f"x{layer + 1}"], axis=1))
    given, made = (helper.make_tensor_value_info(f"x{end}", TensorProto.FLOAT, ["rows", 64]) for end in (0, layers))
    graph = helper.make_graph(nodes, "rotary", [given], [made], constants)
    return onnx_ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def seconds(layers):
    model, began = rotary(layers), time.process_time()
    optimizer.optimize_ir(model)
    return time.process_time() - began


def growth():
    few, many = min(seconds(60) for _ in range(3)), min(seconds(240) for _ in range(2))
    return few, many, many / few


seconds(10)
all_rules, rules = growth(), rewriter._DEFAULT_REWRITE_RULES
rewriter._DEFAULT_REWRITE_RULES = tuple(rule for rule in rules if rule.name != "SlicesSplit")
without = growth()
print(f"onnxscript {importlib.metadata.version('onnxscript')}: seconds for 60 and 240 layers, and their ratio")
for name, figures in (("all rules", all_rules), ("without SlicesSplit", without)):
    print(name, *(f"{figure:.2f}" for figure in figures))
sys.exit(not (all_rules[2] > 8 and without[2] < 7 and all_rules[1] > 2 * without[1]))
PYTHON
