#!/usr/bin/env bash
# Quantizing a model's specification in CTranslate2 4.8.5 overwrites the arrays that it was given.
#
# Whom: who converts a model from memory by ctranslate2.specs, and goes on to use it. Cost: its weights are multiplied
# by the scales of quantization, without an error: the model in memory is spoiled. Copy the arrays first.
# Source: the documentation says nothing of what becomes of the arrays; the code multiplies them in place.
# Expected: the array of before. Seen: other values, up to 127.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check ctranslate2==4.8.5 numpy==2.4.6
"$folder/bin/python" - <<'PYTHON'
import sys

import ctranslate2
import numpy as np
from ctranslate2.specs.common_spec import LinearSpec

print(f"ctranslate2 {ctranslate2.__version__}, numpy {np.__version__}")
weights = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
before = weights.copy()
layer = LinearSpec()
layer.weight, layer.bias = weights, np.zeros(4, np.float32)
layer.validate()
layer.optimize(quantization="int8")
print(f"expected {before[0, :4]}, seen {weights[0, :4]}")
sys.exit(np.array_equal(weights, before))
PYTHON
