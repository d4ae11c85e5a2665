#!/usr/bin/env bash
# transformers 5.23.0 leaves out the rotary factors of a GGUF file, without a word: Llama 3.1 and later are computed with
# the frequencies of Llama 3.0.
#
# Whom: who loads a GGUF file of Llama 3.1, 3.2 or 3.3 in Python, to evaluate, train or convert it. Cost: other logits
# than those of llama.cpp and of the original model, at every position but the first ones, with no error or warning.
# Source: llama.cpp's converter writes the factors of "rope_type": "llama3" as a tensor, rope_freqs.weight; there is no
# key for them. llama.cpp divides the frequencies by them.
# Expected: the logits of the model that was written. Seen: "rope_type": "default", and logits that are far off.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.13.0 gguf==0.19.0 accelerate==1.15.0
"$folder/bin/python" - "$folder" <<'PYTHON'
import re
import sys

import gguf
import torch
import transformers

FACTOR, LOW, HIGH, ORIGINAL, THETA, HEAD, HEADS = 8.0, 1.0, 4.0, 64, 10000.0, 32, 2
scaling = {"rope_type": "llama3", "rope_theta": THETA, "factor": FACTOR, "low_freq_factor": LOW}
scaling |= {"high_freq_factor": HIGH, "original_max_position_embeddings": ORIGINAL}
torch.manual_seed(0)
sizes = {"hidden_size": HEAD * HEADS, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": HEADS}
sizes |= {"num_key_value_heads": HEADS, "vocab_size": 64, "max_position_embeddings": 512}
config = transformers.LlamaConfig(**sizes, rope_parameters=scaling, initializer_range=0.2)
model = transformers.LlamaForCausalLM(config).eval()
names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk"}
names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"}
names |= {f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}
names |= {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
writer = gguf.GGUFWriter(f"{sys.argv[1]}/tiny.gguf", "llama")
writer.add_context_length(512)
writer.add_block_count(2)
writer.add_embedding_length(HEAD * HEADS)
writer.add_feed_forward_length(96)
writer.add_head_count(HEADS)
writer.add_head_count_kv(HEADS)
writer.add_vocab_size(64)
writer.add_layer_norm_rms_eps(config.rms_norm_eps)
writer.add_rope_freq_base(THETA)
writer.add_rope_dimension_count(HEAD)
for name, values in model.state_dict().items():
    stored = re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], name)
    if ".attn_q." in stored or ".attn_k." in stored:  # pairs of dimensions are neighbours in the file
        values = values.reshape(HEADS, 2, HEAD // 2, -1).transpose(1, 2).reshape(values.shape)
    writer.add_tensor(stored, values.contiguous().numpy())
plain = THETA ** -(torch.arange(0, HEAD, 2) / HEAD)
writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
    step()
loaded = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], gguf_file="tiny.gguf", dtype=torch.float32).eval()
ids = torch.arange(48)[None]
with torch.no_grad():
    expected, seen = model(ids).logits[0], loaded(ids).logits[0]
    loaded.model.rotary_emb.inv_freq.copy_(model.model.rotary_emb.inv_freq)
    by_hand = (loaded(ids).logits[0] - expected).abs().max().item()
kind = loaded.config.rope_parameters["rope_type"]
first, *_, off = (seen - expected).abs().amax(-1).cummax(0).values.tolist()
print(f"transformers {transformers.__version__}: rope_type {kind}; logits differ by {off:.2g}, at position 0 by {first:.1g}")
print(f"with the factors of the file set by hand they differ by {by_hand:.1g}")
sys.exit(not (kind == "default" and off > 0.1 and first < 1e-4 and by_hand < 1e-4))
PYTHON
