"""Models small enough to build and export in a test, and lively enough to show faults: random weights with biases and
norm gains that are not trivial, scaled so that greedy answers vary with the input and end at different lengths."""

import random
from typing import Any

import torch

from model.architecture_config import CLASSES, model_config
from model.architectures import build
from model.config import field_types
from model.tokenizer import Tokenizer

TEXTS = (
    "the small red house stands behind the old tree",
    "a black cat sleeps under the table",
    "three birds sing in the garden",
    "the child gives the dog a ball",
)
SEEDS = {"encoder_decoder": 6, "decoder": 4, "encoder": 1, "recurrent": 4}  # of 1..8 those whose answers differ most


BERT = {"norm_position": "post", "embedding_norm": True, "embedding_scale": 1.0, "positions": "learned"}
ENCODERS: dict[str, dict[str, Any]] = {  # alone, with each head; the mask is the fifth special token
    "masked": {**BERT, "activation": "gelu", "head": "masked", "output_bias": True, "mask_id": 4},
    "classify": {**BERT, "activation": "gelu", "head": "classify", "pooler": "tanh", "labels": ("calm", "loud", "odd")},
    "tokens": {"head": "tokens", "labels": ("B-animal", "B-place", "I-animal", "I-place", "O")},
    "attention": {"head": "attention", "labels": ("indoors", "outdoors"), "multi_label": True},
}


EMBEDDER: dict[str, Any] = {  # an encoder whose vectors pass layers after the pooling, and whose texts have prompts
    **BERT,
    "activation": "gelu",
    "dense": ({"size": 24, "bias": True, "activation": "tanh"}, {"size": 8, "bias": False, "activation": "identity"}),
    "normalized": True,
    "prompts": (("query", "the child gives "), ("plain", "")),
    "default_prompt": "query",
    "pools_prompt": False,
    "max_source_len": 16,
}


def tiny_tokenizer(*, with_mask=False):
    """Closed vocabulary of the words of TEXTS and the four special tokens."""
    return Tokenizer.train(TEXTS, kind="words", vocab_size=64, with_mask=with_mask)


def tiny_encoder(kind):
    """One of ENCODERS, whose tokenizer has a mask."""
    words = tiny_tokenizer(with_mask=True).vocab_size
    return tiny_model(tiny_config("encoder", vocab_size=words, **ENCODERS[kind]))


def tiny_config(architecture="encoder_decoder", **changes):
    """Sizes that the architecture lacks are left out, so that tests may give all of them the same."""
    shape = {
        "vocab_size": tiny_tokenizer().vocab_size,
        "d_model": 32,
        "num_heads": 4,
        "d_ff": 64,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_source_len": 64,
        "max_target_len": 64,
    }
    if architecture == "recurrent":
        shape |= {"encoder_dim": 48, "input_feeding": True}
    others = {key: value for key, value in changes.items() if key not in shape}
    return model_config({**usable(architecture, {**shape, **changes}), **others})


def as_decoder(config, **changes):
    """The decoder-only model of a configuration's shape."""
    return model_config({**usable("decoder", config.to_json()), **changes})


def usable(architecture, shape):
    """The fields of a shape that this architecture has, as `model_config` takes them."""
    known = field_types(CLASSES[architecture])
    return {"architecture": architecture, **{key: value for key, value in shape.items() if key in known}}


def tiny_model(config, seed=None):
    """A model in evaluation mode; the same seed gives the same weights."""
    generator = torch.Generator().manual_seed(SEEDS[config.architecture] if seed is None else seed)
    model = build(config)
    # With larger weights a recurrence is chaotic: what differs in the last bit differs in the first a few steps later.
    gain = 1.0 if config.is_recurrent else 3.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(noise * 0.1 + ("norm.weight" in name))
            else:
                is_table = "tokens" in name or "unembedding" in name
                parameter.copy_(noise * (0.4 if is_table else gain) * parameter.shape[-1] ** -0.5)
        if config.has_decoder:
            model.decoder.unembedding.weight[config.eos_id] *= 1.7
    return model.eval()


def pairs_file(folder, times=1):
    """A TSV of sentence pairs that the tiny models can read."""
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{text}\t{text}\n" for text in TEXTS) * times)
    return path


def recombined(count, seed=7):
    """Different texts of five words that the tiny models know."""
    words = sorted({word for text in TEXTS for word in text.split()})
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=5)) for _ in range(count)]


def imperfect(answers):
    """References by which tiny models can be calibrated: two of three differ from their answer in a word."""
    found = [answer.split() for answer in answers]
    for place, answer in enumerate(found):
        if place % 3 and answer:
            answer[place % len(answer)] = "dog"
    return [" ".join(answer) for answer in found]
