"""Models in GGUF files against the models of `transformers` from which the files were made."""

from typing import Any

import gguf
import numpy as np
import pytest
import torch

from model.architectures import build
from model.pretrained.files import PretrainedError
from model.pretrained.gguf.folder import as_folder
from model.pretrained.import_checkpoint import import_model
from tests.decoders import make_decoder
from tests.gguf_files import gguf_of, tensors_of

TYPES = gguf.GGMLQuantizationType
NAMES = (
    *("gpt2", "llama", "llama tied, biases", "llama linear", "llama3", "mistral without window"),
    *("qwen2", "qwen3", "qwen3 biases", "gemma", "gemma2", "gemma3_text", "phi", "phi narrow", "phi3"),
)
# What the format cannot say: the scale of scores is the head's, and layers are those of published models.
SAYABLE: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3_text": {
        "query_pre_attn_scalar": 32,
        "num_hidden_layers": 7,
        "layer_types": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
        },
    },
}
Q = "blk.0.attn_q.weight"


def imported(path):
    with as_folder(path) as (folder, stored):
        return import_model(folder, stored=stored)


def logits(found, tokens):
    model = build(found.config).eval()
    model.load_state_dict(found.weights)
    with torch.no_grad():
        return model.decoder.unembedding(model(tokens))


@pytest.fixture(scope="module")
def llama():
    return make_decoder("llama", hidden_size=96, intermediate_size=64)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_original(name, tmp_path):
    theirs = make_decoder(name, **SAYABLE.get(name, {}))
    found = imported(gguf_of(tmp_path / "model.gguf", theirs))
    tokens = torch.randint(0, theirs.config.vocab_size, (2, 150))
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert expected.std() > 1, "flat logits would hide errors"
    torch.testing.assert_close(logits(found, tokens), expected, rtol=0, atol=1e-4)
    assert found.config.vocab_size == theirs.config.vocab_size
    theirs_of = {"sliding_window": getattr(theirs.config, "sliding_window", 0) or 0, "full_attention": 0}
    kinds = getattr(theirs.config, "layer_types", None) or ["sliding_window"] * theirs.config.num_hidden_layers
    expected = [theirs_of[kind.replace("sliding_attention", "sliding_window")] for kind in kinds]
    assert [found.config.layer(layer).sliding_window for layer in range(len(kinds))] == expected


@pytest.mark.parametrize("kind", [TYPES.F16, TYPES.BF16, TYPES.Q8_0, TYPES.Q4_0, TYPES.Q5_1, TYPES.MXFP4])
def test_quantized_tensors_have_the_values_of_the_library(kind, llama, tmp_path):
    matrices = {name: values for name, values in tensors_of(llama).items() if values.ndim == 2}
    rounded = {name: gguf.dequantize(gguf.quantize(values, kind), kind) for name, values in matrices.items()}
    assert not np.array_equal(rounded[Q], matrices[Q])
    found = imported(gguf_of(tmp_path / "model.gguf", llama, types=dict.fromkeys(matrices, kind)))
    expected = imported(gguf_of(tmp_path / "rounded.gguf", llama, more=rounded))
    assert found.weights.keys() == expected.weights.keys()
    assert all(torch.equal(found.weights[name], values) for name, values in expected.weights.items())


def test_an_output_projection_is_the_embedding_only_if_it_is_equal(llama, tmp_path):
    table = tensors_of(llama)["token_embd.weight"]
    for name, drop, more, tied in (
        ("absent", ["output.weight"], {}, True),
        ("equal", [], {"output.weight": table}, True),
        ("other", [], {}, False),
    ):
        found = imported(gguf_of(tmp_path / f"{name}.gguf", llama, drop=drop, more=more))
        assert found.config.tie_embeddings == tied


@pytest.mark.parametrize(
    ("drop", "more", "problem"),
    [
        ([Q], {}, rf"weights: {Q} is missing"),
        (["token_embd.weight"], {}, r"weights: token_embd.weight is missing"),
        (["blk.1.ffn_norm.weight"], {}, r"weights: blk.1.ffn_norm.weight is missing"),
        ([], {Q: (96, 32)}, r"weights: blk.0.attn_q.weight, blk.0.attn_k.weight, .* got \[\(96, 32\), \(32, 96\)"),
        ([], {Q: (95, 96)}, r"weights: blk.0.attn_q.weight must have a multiple of 6 rows, got 95"),
        (
            [],
            {"blk.0.attn_v.weight": (34, 96)},
            r"weights: .*query_key_value.* must have shape .* got \(162, 96\) of blk.0.attn_q.weight, blk.0.a",
        ),
        ([], {"blk.0.ffn_gate_exps.weight": (4, 4)}, r"weights: blk.0.ffn_gate_exps.weight is not covered for llama"),
        ([], {"blk.2.attn_q.weight": (96, 96)}, r"weights: blk.2.attn_q.weight is not covered for llama"),
        ([], {"blk.0.attn_v.scale": (1,)}, r"weights: 1 tensors are not covered: blk.0.attn_v.scale"),
        ([], {"rope_freqs.weight": (5,)}, r"rope_freqs.weight: must have 16 factors, got shape \(5,\)"),
    ],
)
def test_missing_misshapen_and_unknown_tensors_are_named(drop, more, problem, llama, tmp_path):
    others = {name: np.ones(shape, np.float32) for name, shape in more.items()}
    path = gguf_of(tmp_path / "model.gguf", llama, drop=drop, more=others)
    with pytest.raises(PretrainedError, match=problem) as error:
        imported(path)
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).count("\n") == 0


def test_types_that_cannot_be_dequantized_are_named(llama, tmp_path):
    path = gguf_of(tmp_path / "model.gguf", llama, types={Q: TYPES.I32})
    with pytest.raises(PretrainedError, match=rf"{Q}: type I32 cannot be dequantized; quantize the model again in"):
        imported(path)
    stored = path.read_bytes()
    place = stored.index(Q.encode()) + len(Q) + 4 + 16  # after the number of dimensions, and both
    assert stored[place] == TYPES.I32
    path.write_bytes(stored[:place] + bytes([199]) + stored[place + 1 :])
    with pytest.raises(PretrainedError, match=rf"model.gguf: weights: {Q}: type 199 cannot be dequantized"):
        imported(path)
