#!/usr/bin/env bash
# transformers 5.23.0 reads Gemma 3's attn_logit_softcapping, saves it, and computes as if it were not there.
#
# Whom: who fine-tunes or converts a Gemma 3 with a soft cap of attention scores, as Gemma 2 has one, or compares another
# engine with transformers. Cost: the model trains and answers without the cap; engines that apply what config.json says
# compute other logits, and nobody is told which is wrong.
# Source: the documentation of Gemma3TextConfig lists attn_logit_softcapping as the cap of attention scores, as that of
# Gemma2Config does.
# Expected: a cap of 2 changes the logits of both models. Seen: it changes those of Gemma 2 alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.13.0
"$folder/bin/python" - <<'PYTHON'
import sys

import torch
import transformers

sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
sizes |= {"num_key_value_heads": 2, "vocab_size": 64, "initializer_range": 0.5, "final_logit_softcapping": None}
kinds = {
    "Gemma 2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "Gemma 3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
}
ids, changes = torch.arange(16)[None], {}
for name, (configuration, kind) in kinds.items():
    logits = []
    for cap in (None, 2.0):
        torch.manual_seed(0)
        config = configuration(**sizes, attn_logit_softcapping=cap, attn_implementation="eager")
        assert config.to_dict()["attn_logit_softcapping"] == cap
        with torch.no_grad():
            logits.append(kind(config).eval()(ids).logits)
    changes[name] = (logits[0] - logits[1]).abs().max().item()
print(f"transformers {transformers.__version__}, logits changed by a cap of 2.0: {changes}")
sys.exit(not (changes["Gemma 2"] > 0.01 and changes["Gemma 3"] == 0.0))
PYTHON
