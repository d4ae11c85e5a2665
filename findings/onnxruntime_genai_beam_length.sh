#!/usr/bin/env bash
# Beam scores of onnxruntime-genai 0.18.0 are divided by the length of prompt and answer together.
#
# Whom: who decodes with num_beams above 1 by a decoder-only model. Cost: the longer the prompt, the less the length of
# an answer counts: beside a long prompt short answers win, for the same probabilities.
# Source: the documentation does not say which length; transformers, whose search it follows, leaves the prompt out
# since 2023 (huggingface/transformers#26624 and #27351).
# Expected: a model that sees the last token alone answers alike after 1 and after 12 tokens of prompt. Seen: a long
# answer after the short prompt, an empty one after the long prompt.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check onnxruntime-genai==0.18.0 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
"$folder/bin/python" - "$folder" <<'PYTHON'
import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
from onnx import TensorProto, helper, numpy_helper

print(", ".join(f"{name} {version(name)}" for name in ("onnxruntime-genai", "onnxruntime", "onnx", "numpy")))
SYMBOLS = "_^.abcde"  # padding, begin, end, and five words
NEXT = {"a": {"b": 0.6, ".": 0.4}, "b": {"c": 0.6, "e": 0.4}, "c": {".": 0.8, "d": 0.2}, "d": {"d": 1}, "e": {"e": 1}}
table = np.full((len(SYMBOLS), len(SYMBOLS)), 1e-7, np.float32)
for last, row in NEXT.items():
    for symbol, probability in row.items():
        table[SYMBOLS.index(last), SYMBOLS.index(symbol)] = probability


def value(name, kind, *shape):
    return helper.make_tensor_value_info(name, kind, shape)


nodes = [
    helper.make_node("Gather", ["table", "input_ids"], ["logits"]),
    helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
    helper.make_node("Unsqueeze", ["numbers", "axes"], ["entries"]),  # a cache, because the library wants one
    *(helper.make_node("Concat", [f"past.0.{kind}", "entries"], [f"present.0.{kind}"], axis=2) for kind in "kv"),
]
inputs = [value("input_ids", TensorProto.INT64, "batch", "new"), value("mask", TensorProto.INT64, "batch", "all")]
inputs += [value(f"past.0.{kind}", TensorProto.FLOAT, "batch", 1, "past", 1) for kind in "kv"]
outputs = [value("logits", TensorProto.FLOAT, "batch", "new", len(SYMBOLS))]
outputs += [value(f"present.0.{kind}", TensorProto.FLOAT, "batch", 1, "all", 1) for kind in "kv"]
tensors = [numpy_helper.from_array(np.log(table), "table"), numpy_helper.from_array(np.array([1, 3]), "axes")]
graph = helper.make_graph(nodes, "table", inputs, outputs, tensors)
whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.save(whole, f"{sys.argv[1]}/model.onnx")
sizes = ("head_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
names = {"input_ids": "input_ids", "attention_mask": "mask"}
names |= {"past_key_names": "past.%d.k", "past_value_names": "past.%d.v"}
given = {"logits": "logits", "present_key_names": "present.%d.k", "present_value_names": "present.%d.v"}
decoder = {"filename": "model.onnx", "session_options": {}, "inputs": names, "outputs": given, **dict.fromkeys(sizes, 1)}
tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": len(SYMBOLS), "context_length": 32}
config = {"model": {"type": "llama", "decoder": decoder, **tokens}, "search": {"past_present_share_buffer": False}}
Path(sys.argv[1], "genai_config.json").write_text(json.dumps(config))
model, seen = og.Model(sys.argv[1]), {}
for prompt in ("a", "a" * 12):
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(num_beams=2, early_stopping=True, length_penalty=1.0, max_length=len(prompt) + 8)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array([[SYMBOLS.index(symbol) for symbol in prompt]], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    answer = "".join(SYMBOLS[token] for token in generator.get_sequence(0)[len(prompt) :])
    seen[len(prompt)] = answer.rstrip("_.")
    print(f"prompt of {len(prompt)}: expected 'bc', seen {seen[len(prompt)]!r}")
for answer, probability in (("bc.", 0.6 * 0.6 * 0.8), (".", 0.4)):
    by = [f"{math.log(probability) / (length + len(answer)):.3f} of {length}" for length in (0, 1, 12)]
    print(f"log-probability of {answer!r}, divided by its length and the length of a prompt: {', '.join(by)}")
sys.exit(seen != {1: "bc", 12: ""})
PYTHON
