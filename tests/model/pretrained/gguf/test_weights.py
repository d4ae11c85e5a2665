"""Models from GGUF files against the models of `transformers` from which the files were made."""

import gguf
import pytest
import torch

from model.architectures import build
from model.pretrained.gguf.folder import as_folder
from model.pretrained.import_checkpoint import import_model
from tests.decoders import make_decoder
from tests.gguf_files import gguf_of

TYPES = gguf.GGMLQuantizationType
NAMES = (
    *("gpt2", "llama", "llama tied, biases", "llama linear", "llama3", "mistral without window"),
    *("qwen2", "qwen3", "qwen3 biases", "gemma", "phi", "phi narrow", "phi3"),
)


def imported(path):
    with as_folder(path) as (folder, stored):
        return import_model(folder, stored=stored)


def logits(found, tokens):
    model = build(found.config).eval()
    model.load_state_dict(found.weights)
    with torch.no_grad():
        return model.decoder.unembedding(model(tokens))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_original(name, tmp_path):
    theirs = make_decoder(name)
    found = imported(gguf_of(tmp_path / "model.gguf", theirs))
    tokens = torch.randint(0, theirs.config.vocab_size, (2, 150))
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert expected.std() > 1, "flat logits would hide errors"
    torch.testing.assert_close(logits(found, tokens), expected, rtol=0, atol=1e-4)
    assert found.config.vocab_size == theirs.config.vocab_size
    assert getattr(found.config, "sliding_window", 0) == (getattr(theirs.config, "sliding_window", 0) or 0)
