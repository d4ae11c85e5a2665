"""The bundles that `python -m bench gpu-check` makes on the spot: random weights, in fp32 and fp16, not verified.

usage: python -m bench.gpu.models FOLDER [NAME …]

Made in a process of its own, because it needs torch, which may bring other CUDA libraries than ONNX Runtime. A bundle
that is there already stays.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.gpu.bundles import ROTARY, SMALL, path_of
from bench.gpu.decoding import SCORED
from bench.speed.random_model import ENDLESS, random_model, random_source
from bench.speed.unverified_bundle import random_tokenizer, save_unverified
from model.architecture_config import CLASSES, model_config
from model.architectures import GenerativeModel, build
from model.config import field_types
from service.request import Request

SMALL_WORDS, LARGE_WORDS = 1000, 32000
GAIN, TABLE_GAIN = 3.0, 0.4  # of weights, and of embeddings, as multiples of those that keep the variance: answers vary
CANDIDATES = 16  # for the golden answer, which no rounding may change

LARGE: dict[str, Callable[[], GenerativeModel]] = {
    "6+6 layers, d512": lambda: random_model(words=LARGE_WORDS),
    "rotary, 12 layers, d768": lambda: _decoder(layers=12, width=768),
}


def make(folder: Path, name: str) -> None:
    """Writes the bundle of a model, if it is not there."""
    path = path_of(folder, name)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    model = small_model(*SMALL[name]) if name in SMALL else LARGE[name]()
    tokenizer = random_tokenizer(model.config.vocab_size)
    save_unverified(path, model, tokenizer, also_fp16=True, questions=_questions(model, name))


def small_model(architecture: str, changes: dict[str, Any]) -> GenerativeModel:
    """Two layers with lively weights."""
    shape = {
        "vocab_size": SMALL_WORDS,
        "d_model": 128,
        "num_heads": 2,
        "d_ff": 256,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_source_len": 64,
        "max_target_len": 64,
        **changes,
    }
    known = next(field_types(kind) for name, kind in CLASSES.items() if name == architecture)
    config = model_config({"architecture": architecture, **{key: shape[key] for key in shape if key in known}})
    torch.manual_seed(1)
    model = build(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                gain = TABLE_GAIN if "tokens" in name or "unembedding" in name else GAIN
                parameter.normal_(0.0, gain * parameter.shape[-1] ** -0.5)
    assert isinstance(model, GenerativeModel)
    return model


def _decoder(*, layers: int, width: int) -> GenerativeModel:
    torch.manual_seed(1)
    fields = {**ROTARY, "vocab_size": LARGE_WORDS, "d_model": width, "num_heads": width // 64, "d_ff": 2 * width}
    config = model_config({"architecture": "decoder", **fields, "num_decoder_layers": layers, "max_target_len": 512})
    model = build(config).eval()
    assert isinstance(model, GenerativeModel)
    return model


def _questions(model: GenerativeModel, name: str) -> list[Request]:
    """Candidates for the golden answer."""
    rng, config, made = random.Random(2), model.config, []
    for number in range(CANDIDATES):
        tokens = tuple(rng.randrange(4, config.vocab_size) for _ in range(11))
        source = (*tokens, config.eos_id) if config.has_encoder else ()
        if name == "6+6 layers, d512":
            source = random_source(config, rng, 12, ENDLESS)
        prompt = (config.bos_id,) if source else (config.bos_id, *tokens)
        made.append(Request(request_id=str(number), source=source, prompt=prompt, max_tokens=8, options=SCORED))
    return made


if __name__ == "__main__":
    for wanted in sys.argv[2:] or [*SMALL, *LARGE]:
        make(Path(sys.argv[1]), wanted)
