import pytest
import safetensors.torch
import torch
import transformers

from model.architectures import build
from model.pretrained.files import PretrainedError
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
