#!/usr/bin/env bash
# peft 0.21.2 merges the adapter of a tied table into embedding and output projection, of which it had changed one.
#
# Whom: who trains LoRA on embed_tokens or lm_head of a model that ties them (Gemma, small Llama and Qwen), evaluates the
# adapter, and deploys the merged model. Cost: the merged model computes other logits than the one that was evaluated.
# A warning at the start of training says that merging may have unintended consequences, not which.
# Source: the reference of merge_and_unload, which merges the layers into the base model so that it is used standalone.
# Expected: the same logits before and after, as with an adapter of attention. Seen: they differ by more than 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check peft==0.21.2 transformers==5.23.0 torch==2.13.0
"$folder/bin/python" -W ignore - <<'PYTHON'
import sys

import peft
import torch
import transformers

sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 40}
ids, changes = torch.arange(12)[None], {}
for target in ("q_proj", "embed_tokens", "lm_head"):
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True))
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=[target])).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        before = model(ids).logits
        after = model.merge_and_unload()(ids).logits
    changes[target] = (before - after).abs().max().item()
print(f"peft {peft.__version__}, logits changed by merging the adapter of each layer: {changes}")
sys.exit(not (changes["q_proj"] < 1e-4 and changes["embed_tokens"] > 1 and changes["lm_head"] > 1))
PYTHON
