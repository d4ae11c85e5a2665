"""Encoders of `transformers` with random weights, and the tokenizer files that an import reads."""

import json
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

BERT_SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 30,
}
DISTIL_SIZES = {
    "vocab_size": 61,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 40,
    "max_position_embeddings": 30,
}
# Windows shorter than texts, other angles outside of them.
MODERNBERT_SIZES: dict[str, Any] = {
    **BERT_SIZES,
    "hidden_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 5,
    "local_attention": 6,
    **{"pad_token_id": 0, "bos_token_id": 7, "eos_token_id": 8, "cls_token_id": 7, "sep_token_id": 8},
}
GEMMA_SIZES: dict[str, Any] = {
    **BERT_SIZES,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 30,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    },
    "use_bidirectional_attention": True,
}
IDS = {"pad": 0, "cls": 7, "sep": 8, "mask": 9, "unk": 10}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", BERT_SIZES),
    "roberta": ("Roberta", BERT_SIZES),
    "xlm-roberta": ("XLMRoberta", BERT_SIZES),
    "camembert": ("Camembert", BERT_SIZES),
    "distilbert": ("DistilBert", DISTIL_SIZES),
    "modernbert": ("ModernBert", MODERNBERT_SIZES),
    "gemma3_text": ("Gemma3Text", GEMMA_SIZES),
}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
OWN_HEADS = {"modernbert": HEADS[:2], "gemma3_text": HEADS[:1]}  # of those without some


def pairs():
    """Each family with each head that is imported."""
    return [(family, head) for family in FAMILIES for head in OWN_HEADS.get(family, HEADS)]


def theirs_of(family, head, sizes=None, **settings):
    """One of their models with lively random weights, norms and biases included."""
    name, known = FAMILIES[family]
    torch.manual_seed(3)
    if head.endswith("Classification"):
        settings.setdefault("id2label", {0: "calm", 1: "loud", 2: "odd"})
    model = getattr(transformers, name + head)(
        getattr(transformers, f"{name}Config")(**{**known, **(sizes or {}), **settings})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim > 1 else 0.2))
    return model.eval()


def saved(model, path):
    """With a tokenizer's files, as far as they are read here."""
    model.save_pretrained(path)
    (path / "vocab.txt").write_text(
        "\n".join({at: f"[{name.upper()}]" for name, at in IDS.items()}.get(i, f"w{i}") for i in range(61))
    )
    texts: dict[str, Any] = {f"{name}_token": f"[{name.upper()}]" for name in IDS}
    texts |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}  # which XLM-R puts around a text
    texts["mask_token"] = {"content": "[MASK]", "lstrip": True}
    (path / "tokenizer_config.json").write_text(json.dumps(texts))
    return path
