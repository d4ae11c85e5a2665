"""Where the CUDA provider puts the nodes of exported graphs, which of them it can capture, and what a step launches.

python -m tests.cuda.placement          # the table of all MODELS as Markdown, after `make fake-cuda`
python -m tests.cuda.placement GRAPH …  # on the fake itself: the placement of ONNX files as JSON
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.cuda import fake

SIZES = {"d_model": 128, "num_heads": 2, "d_ff": 256}  # heads of 64, for which the provider has its fastest kernel
GATED = {"norm": "rms", "bias": False, "gated": True}
GROUPED = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
BART = {"norm_position": "post", "embedding_norm": True, "positions": "learned", "activation": "gelu"}
T5 = {**GATED, "positions": "bucketed", "attention_scale": 1.0, "activation": "gelu_tanh"}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # architecture and what differs from `tests.tiny`
    "translation": ("encoder_decoder", SIZES),
    "translation, heads of 8": ("encoder_decoder", {}),
    "grouped queries": ("encoder_decoder", {**SIZES, **GROUPED}),
    "BART": ("encoder_decoder", {**SIZES, **BART}),
    "T5": ("encoder_decoder", {**SIZES, **T5}),
    "rotary translation": ("encoder_decoder", {**SIZES, "positions": "rotary"}),
    "SSRU": ("encoder_decoder", {**SIZES, "decoder_mixing": "ssru"}),
    "sinusoidal": ("decoder", SIZES),
    "llama": ("decoder", {**SIZES, **GROUPED, **GATED, "positions": "rotary", "activation": "silu"}),
    "rotary in part": ("decoder", {**SIZES, "positions": "rotary", "rotary_dims": 32, "parallel_residual": True}),
    "norms of queries and keys": ("decoder", {**SIZES, "positions": "rotary", "qk_norm": True, "norm": "rms"}),
    "ALiBi": ("decoder", {**SIZES, "positions": "alibi"}),
    "bucketed": ("decoder", {**SIZES, "positions": "bucketed"}),
    "Shaw": ("decoder", {**SIZES, "positions": "shaw"}),
    "window": ("decoder", {**SIZES, "sliding_window": 16}),
    "layers that differ": (
        "decoder",
        {
            **SIZES,
            **GATED,
            "positions": "rotary",
            "norm_position": "sandwich",
            "attention_softcap": 20.0,
            "logits_softcap": 30.0,
            "layer_groups": (
                {"layers": (0,), "sliding_window": 16, "rotary_base": 100.0},
                {"layers": (1,), "positions": "none"},
            ),
        },
    ),
    "window of a long context": (
        "decoder",
        {
            **SIZES,
            "positions": "rotary",
            "max_target_len": 512,
            "layer_groups": ({"layers": (0,), "sliding_window": 16},),
        },
    ),
    "compression": ("decoder", {**SIZES, "compression_stride": 4, "sliding_window": 16, "max_target_len": 512}),
    "experts": ("decoder", {**SIZES, "num_experts": 4, "experts_per_token": 2}),
    "LSTM": ("recurrent", {}),
    "GRU": ("recurrent", {"cell": "gru", "score": "additive", "input_feeding": False}),
    "windows in both directions": (
        "encoder",
        {**SIZES, **GATED, "positions": "rotary", "layer_groups": ({"layers": (1,), "sliding_window": 4},)},
    ),
    "masked encoder": ("encoder", {"tiny": "masked"}),
    "classifier": ("encoder", {"tiny": "classify"}),
    "attention pooling": ("encoder", {"tiny": "attention"}),
    "token classifier": ("encoder", {"tiny": "tokens"}),
}


def save_graphs(name: str, folder: Path, scheme: str = "fp16") -> list[Path]:
    """Writes the graphs of a model of MODELS, or of a preset, in a scheme for CUDA, and returns their files. They are
    not verified."""
    from export.passes.quantization_scheme import SCHEMES
    from export.variants import save_variant, trace_model
    from model.presets import PRESETS
    from tests.tiny import (
        tiny_config,
        tiny_encoder,
        tiny_model,
        tiny_tokenizer,
    )  # torch: not for the process on the fake

    if name in PRESETS:
        config, tokenizer = PRESETS[name].model, tiny_tokenizer(with_mask=True)
        mask = {"mask_id": 4} if "masked" in name else {}
        model = tiny_model(config.replace(vocab_size=tokenizer.vocab_size, **labels_of(config), **mask))
    elif "tiny" in MODELS[name][1]:
        model = tiny_encoder(MODELS[name][1]["tiny"])
    else:
        architecture, changes = MODELS[name]
        model = tiny_model(tiny_config(architecture, **changes))
    save_variant(trace_model(model.half()), folder, SCHEMES[scheme])
    return sorted(folder.glob("*/*.onnx"))


def labels_of(config: Any) -> dict[str, Any]:
    """Labels for a classifier whose preset takes them from its corpus."""
    heads = {"classify", "attention", "tokens"}
    return {"labels": ("calm", "loud", "odd")} if getattr(config, "head", "") in heads else {}


# ---- on the fake ----


def placements(files: list[Path]) -> dict[str, Any]:
    """By graph: number of nodes on CUDA, names of operators on the CPU and of Memcpy nodes, whether a graph can be
    captured, and what a decode step launches if no size in it depends on what a kernel computes."""
    return {file.stem: placement(file) for file in files}


def placement(file: Path) -> dict[str, Any]:
    from bench.gpu.placement import place

    placed = place(file)
    captured = not placed.obstacle
    sized_by_kernels = b"NonZero" in file.read_bytes()  # the only such operator in our graphs
    return {
        "cuda": placed.cuda,
        "cpu": placed.cpu,
        "memcpy": placed.memcpy,
        "captured": captured,
        "obstacle": placed.obstacle,  # to a capture
        "error": placed.error,
        "sized_by_kernels": sized_by_kernels,
        **(launches_of(file) if captured and file.stem == "decode" and not sized_by_kernels else {}),
    }


def launches_of(file: Path) -> dict[str, Any]:
    """Launches, products and blocking calls of a run of `decode` for two rows, whose states are on the device."""
    import onnxruntime as ort

    from bench.gpu.placement import opened

    session, _, _ = opened(file, captures=False)
    binding, kept = session.io_binding(), {}
    states = {argument.name for argument in session.get_inputs() if argument.type in FLOATS}
    for argument in session.get_inputs():
        value = _input(argument)
        place = ("cuda", 0) if argument.name in states else ()
        kept[argument.name] = ort.OrtValue.ortvalue_from_numpy(value, *place)
        binding.bind_ortvalue_input(argument.name, kept[argument.name])
    for output in session.get_outputs():
        cache = kept.get(output.name.replace("present", "past", 1)) if output.name.startswith("present") else None
        if cache is None:
            binding.bind_output(output.name, "cuda")
        else:
            binding.bind_ortvalue_output(output.name, cache)
    cuda = fake.FakeCuda()
    try:
        session.run_with_iobinding(binding)
        cuda.reset()
        session.run_with_iobinding(binding)
    except Exception as failed:
        return {"run": str(failed)}
    return {
        "launches": cuda.total("launches"),
        "products": cuda.total("products"),
        "blocking": cuda.counts("blocking"),
        "illegal": cuda.total("illegal in capture"),
    }


TYPES = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
FLOATS = ("tensor(float16)", "tensor(float)")
ROWS, CAPACITY = 2, 16
HOST_INPUTS = ("total_length", "total_slots", "window_total")


def _input(argument: Any) -> np.ndarray:
    """A plausible input of a decode step: two rows, the first position, caches of CAPACITY."""
    if argument.name == "key_positions":
        return np.arange(CAPACITY)
    cache = len(argument.shape) == 4
    sizes = [n if isinstance(n, int) else CAPACITY if axis == 2 else ROWS for axis, n in enumerate(argument.shape)]
    if not cache:
        sizes = [
            ROWS if axis == 0 and not isinstance(n, int) else n if isinstance(n, int) else 1
            for axis, n in enumerate(argument.shape)
        ]
    value = CAPACITY if argument.name in HOST_INPUTS else 1 if "length" in argument.name else 0
    return np.full(sizes, value, TYPES.get(argument.type, np.int32))


# ---- the table ----


def main() -> None:
    from model.presets import PRESETS

    libraries = fake.build()
    print("| model | graph | CUDA | CPU | Memcpy | captured | launches | products | blocking calls |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in [*PRESETS, *MODELS]:
        with tempfile.TemporaryDirectory() as folder:
            files = save_graphs(name, Path(folder))
            found = json.loads(fake.run_python(libraries, "-m", "tests.cuda.placement", *map(str, files)))
        for graph, row in found.items():
            print(
                f"| {name} | {graph} | {row['cuda']} | {_counted(row['cpu'])} | {_counted(row['memcpy'])} "
                f"| {'yes' if row['captured'] else 'no'} | {row.get('launches', '')} | {row.get('products', '')} "
                f"| {sum(row['blocking'].values()) if 'blocking' in row else row.get('run', '')[:60]} |"
            )


def _counted(nodes: list[str]) -> str:
    return ", ".join(f"{count} {node}" for node, count in Counter(nodes).items())


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(placements([Path(name) for name in sys.argv[1:]])))
    else:
        main()
