"""The tensors of a GGUF file → the weights that transformers would have stored.

Names are those of the `gguf` package, which knows for each layer of transformers its name in GGUF. What llama.cpp's
converter does to the values of an architecture is undone here, so that the family reads what it always reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from torch import Tensor

from model.pretrained.decoder import FAMILIES, DecoderFamily
from model.pretrained.files import PretrainedError, Weights
from model.pretrained.gguf.configuration import ROTARY_FACTORS, architecture_of
from model.pretrained.gguf.file import Gguf

Change = Callable[[str, Tensor], Tensor]  # of a tensor by its GGUF name


def weights_of(gguf: Gguf) -> Weights:
    """All weights in float32, by the names of transformers. Raises PretrainedError for tensors of other layers."""
    name, architecture = architecture_of(gguf)
    layers = _layers(name, architecture.model_type, gguf.fields.count(f"{name}.block_count"))
    changed = _change(gguf, name)
    theirs: dict[str, str] = {}
    for stored in gguf.tensors:
        layer, _, part = stored.rpartition(".")
        if layer in layers:
            theirs[f"{layers[layer]}.{part}"] = stored
        elif not (stored == ROTARY_FACTORS and name == "llama"):  # the configuration has these
            raise PretrainedError(f"weights: {stored} is not covered for {name}")
    tensors = {known: changed(stored, torch.from_numpy(gguf.tensor(stored))) for known, stored in theirs.items()}
    back = {known: stored for stored, known in layers.items()}
    return Weights(tensors, named=lambda known: _named(known, back))


def _layers(architecture: str, model_type: str, blocks: int) -> dict[str, str]:
    """The layers of a family: their names in GGUF → those of transformers."""
    family = FAMILIES[model_type]
    assert isinstance(family, DecoderFamily)
    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
    known = get_tensor_name_map(kind, blocks)
    found = dict[str, str]()
    for names in family.names.values():
        for pattern in (names,) if isinstance(names, str) else names:
            for block in range(blocks if "{}" in pattern else 1):
                theirs = pattern.format(block).removesuffix(".weight")
                ours = known.get_name(theirs)
                if ours is not None:
                    found.setdefault(ours, theirs)  # a family may also name layers that it lacks
    return found


def _named(known: str, back: Mapping[str, str]) -> str:
    layer, _, part = known.rpartition(".")
    return f"{back[layer]}.{part}" if layer in back else known


def _change(gguf: Gguf, name: str) -> Change:
    """What undoes the converter's changes."""
    if name == "llama":
        heads = gguf.fields.count(f"{name}.attention.head_count")
        kv_heads = gguf.fields.get(f"{name}.attention.head_count_kv", heads)
        return partial(_in_halves, heads={"attn_q": heads, "attn_k": kv_heads})
    changes: dict[str, Change] = {"gpt2": _transposed, **dict.fromkeys(("gemma", "gemma2", "gemma3"), _less_one)}
    return changes.get(name, lambda _, stored: stored)


def _in_halves(name: str, stored: Tensor, *, heads: Mapping[str, int]) -> Tensor:
    """Llama: the two dimensions of a rotated pair are neighbours in GGUF, half a head apart in transformers."""
    layer = name.split(".")[-2]
    if layer not in heads:
        return stored
    count, rows = heads[layer], stored.shape[0] if stored.ndim else 0
    if not rows or rows % (2 * count):
        raise PretrainedError(f"weights: {name} must have a multiple of {2 * count} rows, got {rows}")
    pairs = stored.reshape(count, rows // (2 * count), 2, *stored.shape[1:])
    return pairs.transpose(1, 2).reshape(stored.shape)


def _transposed(name: str, stored: Tensor) -> Tensor:
    """GPT-2: transformers stores the matrices of blocks with the input first."""
    return stored.t() if name.startswith("blk.") and stored.ndim == 2 else stored


def _less_one(name: str, stored: Tensor) -> Tensor:
    """Gemma: transformers stores the gains of norms less 1."""
    return stored - 1.0 if name.endswith("norm.weight") else stored
