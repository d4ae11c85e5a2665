"""Families × fields: each value of each field of config.json gives the logits of transformers, or is refused by name.

A field is left out, changed in the file, and changed before the model is made, where its tensors follow it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model.architectures import build
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_model
from tests.decoders import FAMILIES as DECODERS
from tests.decoders import make_decoder
from tests.pretrained_encoder import OWN_HEADS, pairs, saved, theirs_of
from tests.pretrained_seq2seq import MODELS as SEQ2SEQ
from tests.pretrained_seq2seq import TINY, make

HEADS = {"ForMaskedLM": "MaskedLM", "ForSequenceClassification": "SequenceClassification"}
HEADS |= {"ForTokenClassification": "TokenClassification"}
CASES = [*((family, "CausalLM") for family in DECODERS), *((family, "Seq2SeqLM") for family in SEQ2SEQ)]
CASES += [(family, head) for family, head in pairs() if head in HEADS or OWN_HEADS.get(family) == (head,)]
ACTIVATIONS = ["relu", "gelu", "gelu_new", "gelu_fast", "quick_gelu", "silu", "gelu_pytorch_tanh", "tanh", "mish"]
ROPE: dict[str, Any] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}
VALUES: dict[str, list[Any]] = {
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function", "activation", "dense_act_fn"), ACTIVATIONS
    ),
    "feed_forward_proj": [*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS)],
    "layer_types": [["sliding_attention", "full_attention"], ["full_attention"] * 2, ["sliding_attention"] * 2],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        ROPE,
        {**ROPE, "rope_type": "dynamic"},
        {**ROPE, "rope_type": "yarn"},
        {**ROPE, "mrope_section": [2, 2]},
    ],
    "sliding_window": [4, None],
    "max_window_layers": [0, 1],
    "num_key_value_heads": [None, 1],
    "head_dim": [None, 16],
    "n_inner": [None, 33],
    "problem_type": ["multi_label_classification", "regression"],
    "id2label": [{"0": "a", "1": "b"}],
    "architectures": [["Foo"]],
}
COMPUTED = ("dtype", "model_type", "return_dict", "torch_dtype")  # which change how transformers computes or answers
TOKENS = torch.tensor([[7, 20, 31, 9, 44, 8]])


def values_of(name, value):
    """Other values of a field."""
    if name in VALUES:
        return VALUES[name]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2]
    return [value * 1.5 + 0.01] if isinstance(value, float) else [True, 2, 0.3] if value is None else []


def made(family, head, path, **changes):
    """The directory of a model whose configuration has these changes."""
    if head == "CausalLM":
        layers = {"num_hidden_layers": 2, **({"layer_types": None} if family == "gemma3_text" else {}), **changes}
        make_decoder(family, **layers).save_pretrained(path)
    elif head == "Seq2SeqLM":
        make(family, TINY._replace(layers=(1, 1)), **changes).save_pretrained(path)
    else:
        saved(theirs_of(family, head, **changes), path)
    return path


def edited(path: Path, other: Path, fields: dict[str, Any]) -> Path:
    """A copy of a directory with another config.json."""
    other.mkdir()
    for file in path.iterdir():
        if file.is_file():
            (other / file.name).write_bytes(file.read_bytes())
    (other / "config.json").write_text(json.dumps(fields))
    return other


def logits_of_theirs(head, path):
    kind = "AutoModel" if head == "Model" else f"AutoModelFor{HEADS.get(head, head)}"
    model = getattr(transformers, kind).from_pretrained(path, dtype=torch.float32).eval()
    if head == "Model":
        return model(TOKENS).last_hidden_state
    if head == "Seq2SeqLM":
        return model(input_ids=TOKENS, decoder_input_ids=TOKENS[:, :4]).logits
    return model(TOKENS).logits


def logits_of_ours(head, path):
    imported, lengths = import_model(path), torch.tensor([TOKENS.shape[1]])
    model = build(imported.config).eval()
    model.load_state_dict(imported.weights)
    if head == "CausalLM":
        return model.decoder.unembedding(model(TOKENS))
    if head == "Seq2SeqLM":
        return model.decoder.unembedding(model(TOKENS, lengths, TOKENS[:, :4]))
    if head == "Model":  # a decoder unless the file says otherwise
        return model(TOKENS) if imported.config.has_decoder else model(TOKENS, lengths)
    states = model(TOKENS, lengths)
    if head == "ForMaskedLM":
        return model.token_logits(states[0])[None]
    return (
        model.classify(states, lengths).logits_BL if head == "ForSequenceClassification" else model.tag_logits(states)
    )


def compare(head, path):
    """equal, refused, unknown (transformers itself reads no such checkpoint), or the largest difference."""
    try:
        expected = logits_of_theirs(head, path)
    except Exception:  # of many kinds
        return "unknown"
    try:
        found = logits_of_ours(head, path)
    except PretrainedError:
        return "refused"
    return (
        "equal" if found.shape == expected.shape and torch.allclose(found, expected, rtol=0, atol=5e-3) else "different"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), CASES)
@torch.no_grad()
def test_every_value_of_every_field_is_that_of_transformers_or_refused(family, head, tmp_path):
    base, results, count = made(family, head, tmp_path / "base"), {}, 0
    theirs = transformers.AutoConfig.from_pretrained(base)
    fields = json.loads(theirs.to_json_string(use_diff=False))
    for name, value in fields.items():
        if name in COMPUTED:
            continue
        others = values_of(name, value)
        tries = [{key: other for key, other in fields.items() if key != name}, *({**fields, name: v} for v in others)]
        paths = [edited(base, tmp_path / f"{name}-{index}", changed) for index, changed in enumerate(tries)]
        for index, other in enumerate(others):
            try:
                paths.append(made(family, head, tmp_path / f"{name}-made-{index}", **{name: other}))
            except Exception:  # of many kinds: no such model
                continue
        for path in paths:
            count += 1
            results[path.name] = compare(head, path)
    assert {name: result for name, result in results.items() if result == "different"} == {}
    assert count > 60, count
