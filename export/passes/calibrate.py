"""Calibration: value ranges of product inputs and cache contents while a model reads sample sentences.

`calibrate` runs the PyTorch model twice over the samples, once for the extremes and once for histograms, and `Ranges`
turns these into steps and zero points. Each range is clipped where the mean squared rounding error is smallest, in the
spirit of Choukroun et al. 2019 and of TensorRT's calibrators: rare outliers saturate so that all other values have a
finer step. This module does not depend on graphs: it identifies products by the names of their weights, and caches by
"self.LAYER" and "cross.LAYER".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from model.architectures import Model, SourceModel
from model.encoder import Encoder

BINS = 2048
LEVELS = 255  # of an unsigned byte
HALF_LEVELS = 127  # of a signed byte, symmetric
CLIPS = np.linspace(0.25, 1.0, 61)
MAX_SENTENCES = 256
MAX_TOKENS = 8192
ROWS_PER_INPUT = 4  # that a product must read for its moments to say something
MOMENT_BLOCK = 1024  # inputs of a product between which moments are kept
SMALLEST_STEP = 1e-12  # for values that are always zero

Ids = Sequence[int]
Moments = Mapping[str, Sequence[np.ndarray]]
"""The second moments x^T x of a product's inputs, float32 (K, K), by weight name: of its first MOMENT_BLOCK inputs, of
the next ones, and so on."""


@dataclass(frozen=True)
class Histogram:
    """Frequencies of values between `low` <= 0 and `high` >= 0, in bins of equal width."""

    low: float
    high: float
    counts: np.ndarray

    @property
    def centres(self) -> np.ndarray:
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        return (edges[:-1] + edges[1:]) / 2

    def clip(self, levels: int) -> float:
        """Return the share of the range to which values should be clipped before rounding to this number of levels."""
        centres, counts = self.centres, self.counts
        errors = []
        for share in CLIPS:
            step = share * (self.high - self.low) / levels
            beyond = np.maximum(centres - share * self.high, 0) + np.maximum(share * self.low - centres, 0)
            errors.append(float((counts * np.where(beyond > 0, beyond**2, step**2 / 12)).sum()))
        return float(CLIPS[int(np.argmin(errors))])


@dataclass(frozen=True)
class Ranges:
    """Calibration results: product inputs by weight name, and cache contents by layer."""

    inputs: Mapping[str, Histogram]
    caches: Mapping[str, tuple[Histogram, Histogram]]  # keys and values; magnitudes, so `low` is 0

    def input_grid(self, weight: str) -> tuple[np.float32, np.uint8]:
        """Return the step and zero point of the unsigned bytes for the inputs of a product."""
        seen = self.inputs[weight]
        share = seen.clip(LEVELS)
        step = np.float32(max(share * (seen.high - seen.low) / LEVELS, SMALLEST_STEP))
        return step, np.uint8(np.clip(np.rint(-share * seen.low / step), 0, LEVELS))

    def cache_steps(self, name: str) -> tuple[float, float]:
        """Return the steps of the signed bytes for the keys and the values of a layer."""
        keys, values = (
            max(seen.clip(HALF_LEVELS) * seen.high / HALF_LEVELS, SMALLEST_STEP) for seen in self.caches[name]
        )
        return keys, values


def calibrate(model: Model, samples: Sequence[tuple[Ids, Ids]]) -> Ranges:
    """Return the ranges of a float32 model in evaluation mode over pairs of source and target ids.

    samples: sources end with eos, and are empty for models without an encoder; targets begin with bos, and are empty
    for models without a decoder. At most MAX_SENTENCES are read, one at a time, so that padding does not count.
    """
    if not samples:
        raise ValueError("calibration needs at least one sample")
    chosen = samples[:MAX_SENTENCES]
    extremes: dict[str, tuple[float, float]] = {}

    def widen(name: str, values: Tensor) -> None:
        low, high = extremes.get(name, (0.0, 0.0))
        extremes[name] = min(low, float(values.min())), max(high, float(values.max()))

    watch(model, chosen, widen)
    counts = {name: np.zeros(BINS) for name in extremes}

    def count(name: str, values: Tensor) -> None:
        low, high = extremes[name]
        counts[name] += torch.histc(values.float(), BINS, low, max(high, low + SMALLEST_STEP)).numpy()

    watch(model, chosen, count)
    seen = {name: Histogram(*extremes[name], counts[name]) for name in extremes}
    caches = [name.removesuffix(".key") for name in seen if name.startswith("cache.") and name.endswith(".key")]
    return Ranges(
        inputs={name.removeprefix("input."): seen[name] for name in seen if name.startswith("input.")},
        caches={name.removeprefix("cache."): (seen[f"{name}.key"], seen[f"{name}.value"]) for name in caches},
    )


def input_moments(model: Model, samples: Sequence[tuple[Ids, Ids]]) -> Moments:
    """Return the second moments of product inputs over such samples as `calibrate` reads; not of products that read too
    few rows to tell how inputs depend on each other."""
    sums, counts = dict[str, list[Tensor]](), dict[str, int]()

    def add(name: str, values: Tensor) -> None:
        if name.startswith("input."):
            rows = values.flatten(0, -2)
            parts = [part.T @ part for part in torch.split(rows, MOMENT_BLOCK, dim=-1)]
            sums[name] = [old + new for old, new in zip(sums[name], parts, strict=True)] if name in sums else parts
            counts[name] = counts.get(name, 0) + len(rows)

    watch(model, samples, add, max_tokens=MAX_TOKENS)
    enough = {name: parts for name, parts in sums.items() if counts[name] >= ROWS_PER_INPUT * len(parts[0])}
    return {name.removeprefix("input."): [part.numpy() for part in parts] for name, parts in enough.items()}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers and parameters of a model by all of their names: tied ones have several."""
    return {**dict(model.named_buffers()), **model.state_dict()}


def watch(
    model: Model,
    samples: Iterable[tuple[Ids, Ids]],
    see: Callable[[str, Tensor], None],
    *,
    max_tokens: int = MAX_TOKENS,
) -> None:
    """Run the model over samples, until it has read `max_tokens`, and pass observed tensors to `see`.

    These are the input of every product, as "input.WEIGHT", and the magnitudes written to each cache, as
    "cache.self.LAYER.key" and so on. Modules that share a weight share its name, as they do in graphs.
    """
    named = named_tensors(model)
    first = dict[tuple[int, ...], str]()
    for name, tensor in named.items():
        first.setdefault((tensor.data_ptr(), *tensor.shape), name)

    def name_of(product: nn.Linear) -> str:
        return first[(product.weight.data_ptr(), *product.weight.shape)]

    handles = []
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            handles.append(module.register_forward_hook(_seeing_input(f"input.{name_of(module)}", see)))
            if path.startswith("decoder.blocks.") and path.endswith(("self_attention.query_key_value", "key_value")):
                handles.append(module.register_forward_hook(_seeing_cache(path, model, see)))
    try:
        with torch.no_grad():
            read = 0
            for source, target in samples:
                if read >= max_tokens:
                    break
                read += len(source) + len(target)
                if isinstance(model, Encoder):
                    _read(model, source)
                    continue
                targets = torch.tensor([list(target)])
                if isinstance(model, SourceModel):
                    states = model(torch.tensor([list(source)]), torch.tensor([len(source)]), targets)
                else:
                    states = model(targets)
                head = model.decoder.unembedding
                if isinstance(head, nn.Linear):  # only its input is seen, and it may be most of the model's operations
                    see(f"input.{name_of(head)}", states)
                else:
                    head(states)
    finally:
        for handle in handles:
            handle.remove()


def _read(model: Encoder, source: Ids) -> None:
    """Compute every output for a text; token-level heads run on all tokens."""
    lengths = torch.tensor([len(source)])
    states = model(torch.tensor([list(source)]), lengths)
    if model.pooler is not None:
        model.pool(states)
    if model.masked is not None:
        model.token_logits(states[0])
    elif model.config.is_classifier:
        model.classify(states, lengths)
    elif model.config.is_tagger:
        model.tag_logits(states)


def _seeing_input(name: str, see: Callable[[str, Tensor], None]) -> Callable[..., None]:
    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        if inputs[0].numel():  # an expert may have received no token
            see(name, inputs[0])

    return hook


def _seeing_cache(path: str, model: Model, see: Callable[[str, Tensor], None]) -> Callable[..., None]:
    _, _, layer, kind, _ = path.split(".")
    config = model.config
    width = config.attention_kv_heads * config.attention_head_dim

    def hook(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        key, value = output[..., -2 * width : -width].abs(), output[..., -width:].abs()
        if config.positions == "rotary" and kind == "self_attention":
            # Rotation acts on pairs of dimensions: at any angle, neither component exceeds the norm of the pair.
            halves = torch.unflatten(key, -1, (config.attention_kv_heads, 2, -1))
            key = halves.square().sum(-2).sqrt()
        name = f"cache.{'self' if kind == 'self_attention' else 'cross'}.{layer}"
        see(f"{name}.key", key)
        see(f"{name}.value", value)

    return hook
