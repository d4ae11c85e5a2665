"""Checkpoints of other people compute here what they compute there: `transformers` is the oracle."""

import torch
import transformers

from model.pretrained import import_model
from model.transformer import build


def test_gpt2_has_the_logits_of_transformers(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "n_positions": 40, "n_embd": 48, "n_layer": 2, "n_head": 3}
    config = transformers.GPT2Config(**sizes, bos_token_id=96, eos_token_id=96)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path)
    imported = import_model(tmp_path)
    ours = build(imported.config).eval()
    ours.load_state_dict(imported.weights)
    tokens = torch.randint(0, 97, (3, 17))
    with torch.no_grad():
        torch.testing.assert_close(ours.decoder.unembedding(ours(tokens)), theirs(tokens).logits, rtol=1e-4, atol=1e-4)
