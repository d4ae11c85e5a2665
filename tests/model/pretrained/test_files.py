import pytest
import safetensors.torch
import torch
import transformers

from model.architecture_config import DecoderConfig
from model.architectures import build
from model.pretrained.files import Fields, PretrainedError, Weights, in_blocks, read_weights
from model.pretrained.import_checkpoint import import_model
from tests.decoders import make_decoder, rewritten


def ours(path, **options):
    imported = import_model(path, **options)
    model = build(imported.config).eval()
    model.load_state_dict(imported.weights)
    return model


def logits(model, tokens):
    with torch.no_grad():
        return model.decoder.unembedding(model(tokens))


def test_a_pickle_is_read_only_with_allow_pickle(llama, tmp_path):
    path = rewritten(llama, tmp_path)
    weights = safetensors.torch.load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    with pytest.raises(PretrainedError, match="holds no weights"):
        import_model(path)
    torch.save(weights, path / "pytorch_model.bin")
    with pytest.raises(PretrainedError, match=r"pytorch_model\.bin is a pickle .* --allow-pickle"):
        import_model(path)
    imported = import_model(path, allow_pickle=True)
    assert torch.equal(imported.weights["decoder.norm.weight"], weights["model.norm.weight"])
    # the format before PyTorch 1.6, which is not a zip file
    torch.save(weights, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    imported = import_model(path, allow_pickle=True)
    assert torch.equal(imported.weights["decoder.norm.weight"], weights["model.norm.weight"])
    torch.save(print, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(PretrainedError, match=r"pytorch_model\.bin: cannot be read"):
        import_model(path, allow_pickle=True)
    torch.save(print, path / "pytorch_model.bin")
    with pytest.raises(PretrainedError, match=r"pytorch_model\.bin: cannot be read"):
        import_model(path, allow_pickle=True)


def test_weights_in_several_files_and_in_half_precision_are_read(tmp_path):
    make_decoder("llama").to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.randint(0, 97, (1, 20))
    with torch.no_grad():
        expected = theirs(tokens).logits
    torch.testing.assert_close(logits(ours(tmp_path), tokens), expected, rtol=0, atol=1e-4)


def test_a_context_can_be_shortened(tmp_path):
    make_decoder("gpt2").save_pretrained(tmp_path)
    whole = import_model(tmp_path)
    cut = whole.shortened(40)
    assert (whole.config.max_target_len, cut.config.max_target_len) == (160, 40)
    assert cut.weights["decoder.embedding.positions"].shape == (40, 48)


def test_a_sliding_window_as_long_as_the_context_is_disabled(tmp_path):
    make_decoder("mistral").save_pretrained(tmp_path)
    imported = import_model(tmp_path)
    assert [imported.shortened(length).config.sliding_window for length in (160, 21, 20)] == [20, 20, 0]


NAMES = {
    "decoder.embedding.tokens": "base.table",
    "decoder.norm": "base.norm",
    "decoder.unembedding": "head",
    **in_blocks(
        "decoder",
        "base.layer.{}",
        {
            "self_residual.norm": "norm",
            "feed_forward_residual.norm": "norm",
            "self_attention.query_key_value": ("q", "k", "v"),
            "self_attention.query_key_value.bias": (),
            "self_attention.output": "o",
            "feed_forward.inner": "in",
            "feed_forward.outer": "out",
        },
    ),
}


def small_model(**changes):
    """A configuration of one layer, and its weights by their original names, without the name of the base."""
    config = DecoderConfig(
        vocab_size=11, d_model=4, num_heads=2, d_ff=6, num_decoder_layers=1, tie_embeddings=False, positions="rotary"
    )
    shapes = {"table": (11, 4), "norm": (4,), "head": (11, 4), "layer.0.norm": (4,)}
    shapes |= {f"layer.0.{name}": (4, 4) for name in "qkvo"} | {"layer.0.in": (6, 4), "layer.0.out": (4, 6)}
    tensors = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    biases = ("norm", "layer.0.norm", "layer.0.o", "layer.0.in", "layer.0.out")
    tensors |= {f"{name}.bias": torch.randn(shapes[name][0]) for name in biases}
    return config, tensors | changes


def test_weights_are_read_by_a_table_of_names():
    config, tensors = small_model()
    changes = {"decoder.blocks.{}.feed_forward.inner.weight": lambda stored: stored + 1}
    weights = Weights(tensors)
    ours = read_weights(config, weights, NAMES, changes=changes).weights
    weights.finish()
    build(config).load_state_dict(ours)
    block = "decoder.blocks.0."
    stacked = torch.cat([tensors[f"layer.0.{name}.weight"] for name in "qkv"])
    assert torch.equal(ours[f"{block}self_attention.query_key_value.weight"], stacked)
    assert not ours[f"{block}self_attention.query_key_value.bias"].any()
    assert torch.equal(ours[f"{block}feed_forward.inner.weight"], tensors["layer.0.in.weight"] + 1)
    for norm in ("self_residual.norm", "feed_forward_residual.norm"):
        assert torch.equal(ours[f"{block}{norm}.bias"], tensors["layer.0.norm.bias"])


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        (
            "layer.0.o.weight",
            torch.zeros(4, 3),
            r"self_attention\.output\.weight \(Glossa name\) must have shape \(4, 4\)",
        ),
        ("norm.bias", torch.zeros(4, dtype=torch.int8), "base.norm.bias must be float32, float16 or bfloat16, got"),
    ],
)
def test_unsuitable_tensors_are_refused(name, tensor, problem):
    config, tensors = small_model(**{name: tensor})
    with pytest.raises(PretrainedError, match=problem):
        read_weights(config, Weights(tensors), NAMES)


def test_a_missing_tensor_is_named():
    config, tensors = small_model()
    del tensors["layer.0.k.weight"]
    with pytest.raises(PretrainedError, match=r"weights: base\.layer\.0\.k\.weight is missing"):
        read_weights(config, Weights(tensors), NAMES)


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda fields: fields.count("ratio"), r"config\.json: ratio must be a whole number from 1, got 0.5"),
        (lambda fields: fields.number("kind"), r"config\.json: kind must be a number, got 'x'"),
        (lambda fields: fields.need("null"), r"config\.json: null is missing"),
        (lambda fields: fields.inner("kind"), r"config\.json: kind must be an object, got 'x'"),
        (
            lambda fields: fields.inner("inner").only("a", 2, default=2),
            r"config\.json: inner: a 1 is not covered; covered: 2",
        ),
        (lambda fields: fields.choice("kind", {"y": "ours"}, default="y"), "kind 'x' is not covered; covered: 'y'"),
    ],
)
def test_a_field_with_a_wrong_value_is_refused(read, problem):
    with pytest.raises(PretrainedError, match=problem):
        read(Fields({"ratio": 0.5, "kind": "x", "null": None, "inner": {"a": 1}}))
