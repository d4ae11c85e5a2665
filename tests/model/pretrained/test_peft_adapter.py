"""Adapters in the format of PEFT: the merged model computes what the base and the adapter's matrices do by hand."""

import json

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from cli.main import app
from model.architectures import build
from model.checkpoints.checkpoint import load_checkpoint
from model.pretrained.files import PretrainedError, Stored, load_weights
from model.pretrained.import_checkpoint import import_model
from model.pretrained.peft_adapter import is_adapter, read_adapter
from tests.chats import chat_tokenizer
from tests.decoders import make_decoder

TOKENS = torch.arange(24).reshape(2, 12)
LINEAR, TABLE = ("lora_A.weight", "lora_B.weight"), ("lora_embedding_A", "lora_embedding_B")
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}


def adapter_in(folder, base, tensors, **config):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps({**CONFIG, "base_model_name_or_path": str(base), "use_dora": False, "loftq_config": {}, **config})
    )
    save_file(
        {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def matrices(layer, inputs, outputs, *, rank=4, ends=LINEAR):
    generator = torch.Generator().manual_seed(rank)
    a, b = torch.randn(rank, inputs, generator=generator), torch.randn(outputs, rank, generator=generator)
    return {f"{layer}.{ends[0]}": 0.3 * a, f"{layer}.{ends[1]}": 0.3 * b}


def product(tensors):
    a, b = tensors.values()
    return b @ a


def imported(base, folder):
    adapter = read_adapter(folder)
    stored = Stored(files=adapter.files, origin={}, load=lambda: adapter.merged(load_weights(base)))
    found = import_model(base, stored=stored)
    model = build(found.config).eval()
    model.load_state_dict(found.weights)
    with torch.no_grad():
        return model.decoder.unembedding(model(TOKENS))


def expected(model, changed):
    """The logits of the model of transformers with other weights, by name; a table that is two gets a copy."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    weights = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, tensor in changed.items():
            weights[f"{name}.weight"].copy_(tensor(weights[f"{name}.weight"]))
        return model(TOKENS).logits


def saved(tmp_path, family="llama", **fields):
    model = make_decoder(family, **fields)
    model.save_pretrained(tmp_path / "base")
    return model


Q, K = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (2.0, 2.0)),
        ({"use_rslora": True}, (4.0, 4.0)),
        ({"alpha_pattern": {"k_proj": 2}}, (2.0, 0.5)),
        ({"alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 1}}, (0.25, 2.0)),
        ({"alpha_pattern": {"proj": 1}}, (2.0, 2.0)),  # a pattern matches whole components
    ],
)
def test_matrices_are_added_by_their_scale(config, scales, tmp_path):
    model = saved(tmp_path)
    q, k = (dict(model.named_parameters())[f"{name}.weight"].shape for name in (Q, K))
    first, second = matrices(Q, q[1], q[0]), matrices(K, k[1], k[0])
    folder = adapter_in(tmp_path / "a", tmp_path / "base", first | second, **config)
    changed = {Q: lambda w: w + scales[0] * product(first), K: lambda w: w + scales[1] * product(second)}
    torch.testing.assert_close(imported(tmp_path / "base", folder), expected(model, changed), rtol=0, atol=1e-4)


def test_weights_that_are_stored_the_other_way_round(tmp_path):
    model, layer = saved(tmp_path, "gpt2"), "transformer.h.0.attn.c_attn"
    inputs, outputs = model.transformer.h[0].attn.c_attn.weight.shape
    own = matrices(layer, inputs, outputs)
    folder = adapter_in(tmp_path / "a", tmp_path / "base", own, fan_in_fan_out=True)
    changed = {layer: lambda w: w + 2 * product(own).T}
    torch.testing.assert_close(imported(tmp_path / "base", folder), expected(model, changed), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma", "gpt2"])
@pytest.mark.parametrize("side", ["embedding", "output"])
@pytest.mark.parametrize("has_copy", [False, True])
def test_of_a_table_that_is_two_the_named_one_changes(family, side, has_copy, tmp_path):
    model = saved(tmp_path, family, tie_word_embeddings=True)
    embedding = "transformer.wte" if family == "gpt2" else "model.embed_tokens"
    table = model.get_input_embeddings().weight.detach().clone()
    size, width = table.shape
    if side == "embedding":
        layer, own = embedding, matrices(embedding, size, width, ends=TABLE)
        changed = {embedding: lambda w: w + 2 * product(own).T}
    else:
        layer, own = "lm_head", matrices("lm_head", width, size)
        changed = {"lm_head": lambda w: w + 2 * product(own)}
    copy = {f"{layer}.base_layer.weight": table} if has_copy else {}
    folder = adapter_in(tmp_path / "a", tmp_path / "base", own | copy)
    torch.testing.assert_close(imported(tmp_path / "base", folder), expected(model, changed), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", ["lm_head", "model.embed_tokens", "model.layers.0.input_layernorm"])
def test_whole_tensors_replace_those_of_the_base(layer, tmp_path):
    model = saved(tmp_path, tie_word_embeddings=True)
    own = torch.randn(model.get_submodule(layer).weight.shape, generator=torch.Generator().manual_seed(0))
    folder = adapter_in(tmp_path / "a", tmp_path / "base", {f"{layer}.weight": own}, modules_to_save=[layer])
    found = imported(tmp_path / "base", folder)
    torch.testing.assert_close(found, expected(model, {layer: lambda _: own}), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not covered; covered: 'LORA'"),
        ({"use_dora": True}, "use_dora True is not covered"),
        ({"target_parameters": ["a"]}, "target_parameters .* is not covered"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices .* is not covered"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            "'pissa_niter_4' is not covered: it changes the base",
        ),
        ({"new_field": 5}, "new_field 5 is not covered"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path names no base; write the directory"),
        ({"lora_alpha": "8"}, "lora_alpha: must be a number, got '8'"),
    ],
)
def test_a_field_that_is_not_covered_is_named(config, problem, tmp_path):
    model = saved(tmp_path)
    outputs, inputs = model.model.layers[0].self_attn.q_proj.weight.shape
    folder = adapter_in(tmp_path / "a", tmp_path / "base", matrices(Q, inputs, outputs), **config)
    with pytest.raises(PretrainedError, match=problem):
        imported(tmp_path / "base", folder)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        (
            matrices("model.layers.9.self_attn.q_proj", 8, 8),
            "base has no model.layers.9.self_attn.q_proj.weight",
        ),
        (matrices(Q, 8, 8), r"q_proj.weight has the shape \(8, 8\), and in .*base it has \("),
        ({f"{Q}.lora_A.weight": torch.zeros(4, 8)}, r"q_proj.lora_B.weight is missing"),
        (
            {f"{Q}.lora_magnitude_vector": torch.zeros(4)},
            "lora_magnitude_vector is not covered; covered: LoRA",
        ),
        ({"lm_head.base_layer.weight": torch.zeros(2, 2)}, r"lm_head.weight has the shape \(2, 2\)"),
        ({"model.other.weight": torch.zeros(2, 2)}, "has no model.other.weight"),
    ],
)
def test_an_adapter_of_another_base_is_refused(tensors, problem, tmp_path):
    saved(tmp_path)
    with pytest.raises(PretrainedError, match=problem):
        imported(tmp_path / "base", adapter_in(tmp_path / "a", tmp_path / "base", tensors))


def test_another_table_than_that_of_the_base_is_refused(tmp_path):
    table = saved(tmp_path).get_input_embeddings().weight.detach() + 1
    own = {"model.embed_tokens.base_layer.weight": table.contiguous()}
    with pytest.raises(PretrainedError, match=r"embed_tokens.weight differs from that of .*; it is of another base"):
        imported(tmp_path / "base", adapter_in(tmp_path / "a", tmp_path / "base", own))


def test_weights_that_cannot_be_read_are_named(tmp_path):
    folder = adapter_in(tmp_path / "a", tmp_path / "base", {})
    (folder / "adapter_model.safetensors").unlink()
    saved(tmp_path)
    with pytest.raises(PretrainedError, match=r"cannot be read: .*save the adapter as adapter_model.safetensors"):
        imported(tmp_path / "base", folder)


def test_the_command_imports_an_adapter_with_its_base(tmp_path, monkeypatch):
    tokenizer = chat_tokenizer("chatml")
    model = saved(tmp_path, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(tmp_path / "base")
    outputs, inputs = model.model.layers[0].self_attn.q_proj.weight.shape
    folder = adapter_in(tmp_path / "a", "base", matrices(Q, inputs, outputs))
    assert is_adapter(folder)
    assert not is_adapter(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["import", "a", "ours"])
    assert done.exit_code == 0, done.output
    lineage = load_checkpoint(tmp_path / "ours").lineage
    assert (lineage["imported_from"], lineage["adapter"]) == ("base", "a")
    assert {"model.safetensors", "adapter_model.safetensors", "adapter_config.json"} <= lineage["files_sha256"].keys()
    failed = CliRunner().invoke(app, ["import", "a", "other", "--revision", "main"])
    assert "a is an adapter, whose adapter_config.json has it" in failed.output
