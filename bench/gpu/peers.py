"""The part `peers` of `python -m bench gpu-check`: what others make of the same shape on the same device, with random
weights in fp16: `transformers.generate`, and a decoder step in plain PyTorch that is captured with its best tokens. It
imports torch only when it runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.gpu.findings import Findings, Setting

BATCHES, BY_ROWS = (64, 256), (1, 64, 256)
SOURCE_TOKENS, TOKENS = 21, 32
CAPACITY, CONTEXT, SOURCE = 128, 64, 24  # of the captured step's caches, positions before the step, source positions
WAYS: dict[str, dict[str, Any]] = {
    "dynamic cache": {},
    "static cache, compiled": {"cache_implementation": "static"},
}
COPIED_BYTES = 1 << 32
HALF = 2  # bytes


class _Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    words: int


def peers(setting: Setting, found: Findings) -> None:
    """tokens a second of transformers.generate, and PyTorch's captured step beside the bytes that it reads"""
    import torch

    shape = setting.pick(_Shape(1, 64, 2, 100), _Shape(6, 512, 8, 32000))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found.tell("torch", torch.__version__)
    with torch.inference_mode():
        rate = _copy_rate(device, setting.pick(1 << 20, COPIED_BYTES))
        found.time("TB/s of a copy on the device, read and written", f"{rate / 1e12:.2f}")
        for rows in setting.pick((2,), BY_ROWS):
            step = _Step(shape, rows, device)
            run, note = (step.captured(), "captured") if device == "cuda" else (step.run, "not captured")
            found.time(
                f"a step of {rows} rows in PyTorch, {note}: µs", f"{_seconds(run, setting.pick(1, 50)) * 1e6:.0f}"
            )
            found.time(
                f"{rows} rows: µs to read weights and caches at that rate", f"{step.read_bytes / rate * 1e6:.0f}"
            )
        _generate(shape, device, setting, found)


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _seconds(run: Callable[[], Any], count: int, repetitions: int = 5) -> float:
    """The median of what a run takes."""
    run()
    taken = []
    for _ in range(repetitions):
        _wait()
        began_s = time.perf_counter()
        for _ in range(count):
            run()
        _wait()
        taken.append((time.perf_counter() - began_s) / count)
    return statistics.median(taken)


def _copy_rate(device: str, size: int) -> float:
    """Bytes per second, read and written."""
    import torch

    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), 1)


class _Step:
    """A decoder step whose best tokens are the next one's inputs. read_bytes: of weights and filled cache positions."""

    def __init__(self, shape: _Shape, rows: int, device: str) -> None:
        import torch

        self._shape, self._rows, width = shape, rows, shape.width
        dtype = torch.float16 if device == "cuda" else torch.float32

        def drawn(*size: int) -> Any:
            return torch.randn(*size, device=device, dtype=dtype) * 0.02

        sizes = {"qkv": (3 * width, width), "inner": (4 * width, width), "outer": (width, 4 * width)}
        sizes |= dict.fromkeys(("output", "query", "cross"), (width, width))
        self._words, self._positions = drawn(shape.words, width), drawn(CAPACITY, width)
        self._layers = [
            {name: (drawn(*size), drawn(size[0])) for name, size in sizes.items()} for _ in range(shape.layers)
        ]
        lengths = dict.fromkeys(("key", "value"), CAPACITY) | dict.fromkeys(("cross_key", "cross_value"), SOURCE)
        self._caches = [
            {name: drawn(rows, shape.heads, length, width // shape.heads) for name, length in lengths.items()}
            for _ in range(shape.layers)
        ]
        self._tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self._start = torch.full((1,), CONTEXT, device=device)
        weights = sum(weight.numel() for layer in self._layers for weight, _ in layer.values()) + self._words.numel()
        self.read_bytes = HALF * (weights + shape.layers * rows * 2 * width * (CONTEXT + 1 + SOURCE))

    def run(self) -> None:
        """The step."""
        import torch
        from torch.nn import functional

        width, heads, rows = self._shape.width, self._shape.heads, self._rows

        def normed(x: Any) -> Any:
            return functional.layer_norm(x, (width,))

        def attended(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
            return functional.scaled_dot_product_attention(query, key, value, mask).reshape(rows, width)

        x = self._words[self._tokens] + self._positions[self._start]
        mask = (torch.arange(CAPACITY, device=x.device) <= self._start)[None, None, None]
        for layer, cache in zip(self._layers, self._caches, strict=True):
            qkv = functional.linear(normed(x), *layer["qkv"]).view(rows, 3, heads, 1, width // heads)
            query, key, value = qkv.unbind(1)
            cache["key"].index_copy_(2, self._start, key)
            cache["value"].index_copy_(2, self._start, value)
            x = x + functional.linear(attended(query, cache["key"], cache["value"], mask), *layer["output"])
            query = functional.linear(normed(x), *layer["query"]).view(rows, heads, 1, width // heads)
            x = x + functional.linear(attended(query, cache["cross_key"], cache["cross_value"]), *layer["cross"])
            inner = functional.relu(functional.linear(normed(x), *layer["inner"]))
            x = x + functional.linear(inner, *layer["outer"])
        self._tokens.copy_(functional.linear(normed(x), self._words).argmax(-1))

    def captured(self) -> Callable[[], None]:
        """The same as one CUDA graph."""
        import torch

        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                self.run()
        _wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        return graph.replay


def _generate(shape: _Shape, device: str, setting: Setting, found: Findings) -> None:
    import torch

    try:
        import transformers
    except ImportError:
        found.tell("transformers", "not installed")
        return
    found.tell("transformers", transformers.__version__)
    sides = {
        f"{side}_{field}": value
        for side in ("encoder", "decoder")
        for field, value in {
            "layers": shape.layers,
            "attention_heads": shape.heads,
            "ffn_dim": 4 * shape.width,
        }.items()
    }
    config = transformers.MarianConfig(
        **sides,
        vocab_size=shape.words,
        d_model=shape.width,
        max_position_embeddings=512,
        pad_token_id=0,
        decoder_start_token_id=1,
        eos_token_id=2,
        forced_eos_token_id=None,
        activation_function="relu",
    )
    model = transformers.MarianMTModel(config).eval().to(device, torch.float16 if device == "cuda" else torch.float32)
    tokens = setting.pick(2, TOKENS)
    for way, options in WAYS.items():
        for batch in setting.pick((2,), BATCHES):
            given = torch.randint(4, shape.words, (batch, SOURCE_TOKENS), device=device)
            asked = {
                "attention_mask": torch.ones_like(given),
                "max_new_tokens": tokens,
                "min_new_tokens": tokens,
                **options,
            }

            def answer(given: Any = given, asked: Any = asked) -> Any:
                return model.generate(given, do_sample=False, num_beams=1, **asked)

            answer()
            took_s = _seconds(answer, 1, setting.pick(1, 3))
            found.time(f"transformers.generate, {way}, batch {batch}: tokens/s", f"{batch * tokens / took_s:.0f}")
