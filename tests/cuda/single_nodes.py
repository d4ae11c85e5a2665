"""Graphs of one node for each emulated kernel, and a program that computes them on the fake CUDA and on the CPU.

Usage: python -m tests.cuda.single_nodes. Prints by case its error, relative to the largest result of the CPU, or why it
failed. No node may fall back to the CPU.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from export.passes.integer_weights import rounded_blocks

FLOAT, HALF, LONG = np.float32, np.float16, np.int64
ROWS, WIDTH = 5, 64
CONTRIB = "com.microsoft"


class Case(NamedTuple):
    """inputs: by position; None: left out. constants: positions of those that are initializers. domain: or CONTRIB."""

    op: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = MappingProxyType({})
    num_outputs: int = 1
    constants: Sequence[int] = ()
    domain: str = ""


def numbers(*shape: int, dtype: Any = FLOAT, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def indices(most: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, most, shape)


def longs(*values: int) -> Any:
    return np.array(values, LONG)


def elementwise(dtype: Any) -> Iterator[tuple[str, Case]]:
    x, y = numbers(ROWS, 7, WIDTH, dtype=dtype), numbers(ROWS, 7, WIDTH, dtype=dtype, seed=1)
    for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Neg", "Abs", "Gelu"):
        yield op, Case(op, [x])
    yield "gelu of tanh", Case("Gelu", [x], {"approximate": "tanh"})
    yield "SiLU", Case("QuickGelu", [x], {"alpha": 1.0}, domain=CONTRIB)
    yield "QuickGelu", Case("QuickGelu", [x], {"alpha": 1.702}, domain=CONTRIB)
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        yield op, Case(op, [x, y])
    yield "right scalar", Case("Mul", [x, dtype(0.3)], constants=[1])
    yield "left scalar", Case("Sub", [dtype(0.3), x], constants=[0])
    yield "bias", Case("Add", [x, numbers(WIDTH, dtype=dtype)])
    yield "channels of one batch", Case("Add", [numbers(1, 7, 9, dtype=dtype), numbers(7, 1, dtype=dtype)])
    yield "channels of batches", Case("Add", [numbers(4, 7, 9, dtype=dtype), numbers(7, 1, dtype=dtype)])
    yield "both broadcast", Case("Mul", [numbers(ROWS, 1, 9, dtype=dtype), numbers(1, 7, 9, dtype=dtype)])
    yield "Less", Case("Less", [x, y])
    yield "Where", Case("Where", [x > 0, x, y])
    yield "Where broadcast", Case("Where", [x[:, :1] > 0, x, np.array(-1e4, dtype)], constants=[2])
    yield "BiasGelu", Case("BiasGelu", [x, numbers(WIDTH, dtype=dtype)], domain=CONTRIB)
    yield "FastGelu", Case("FastGelu", [x, numbers(WIDTH, dtype=dtype)], domain=CONTRIB)
    yield "cast up", Case("Cast", [x], {"to": TensorProto.FLOAT})
    yield "cast down", Case("Cast", [x], {"to": TensorProto.FLOAT16})


def layout(dtype: Any) -> Iterator[tuple[str, Case]]:
    x, wide = numbers(ROWS, 7, WIDTH, dtype=dtype), numbers(2, 3, 5, WIDTH, dtype=dtype)
    yield "Gather of rows", Case("Gather", [x, indices(ROWS, 2, 3)])
    yield "Gather of columns", Case("Gather", [x, indices(7, 4)], {"axis": 1})
    yield "GatherElements", Case("GatherElements", [x[0], indices(WIDTH, 7, 3)], {"axis": 1})
    yield "GatherElements of columns", Case("GatherElements", [x[0], indices(7, 2, WIDTH)], {"axis": 0})
    yield "GatherElements of blocks", Case("GatherElements", [x, indices(7, ROWS, 2, WIDTH)], {"axis": 1})
    yield "GatherND", Case("GatherND", [x, np.stack([indices(ROWS, 4), indices(7, 4)], 1)])
    yield "Split", Case("Split", [x], {"axis": 2, "num_outputs": 4}, num_outputs=4)
    yield "Split unequal", Case("Split", [x, longs(32, 16, 16)], {"axis": 2}, num_outputs=3, constants=[1])
    yield "Split inside", Case("Split", [x[:, :6]], {"axis": 1, "num_outputs": 2}, num_outputs=2)
    yield "Concat", Case("Concat", [x, -x], {"axis": 1})
    yield "Slice", Case("Slice", [x, longs(1), longs(6), longs(1), longs(2)], constants=[1, 2, 3, 4])
    for order in ((0, 2, 1), (2, 0, 1)):
        yield f"Transpose {order}", Case("Transpose", [x], {"perm": order})
    for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (3, 1, 0, 2)):
        yield f"Transpose {perm}", Case("Transpose", [wide], {"perm": perm})
    yield "Transpose odd", Case("Transpose", [wide[..., :3].copy()], {"perm": (0, 2, 1, 3)})
    yield "Expand", Case("Expand", [x[:, :1].copy(), longs(ROWS, 4, WIDTH)], constants=[1])
    yield "Expand of rows", Case("Expand", [x[0, :1].copy(), longs(9, WIDTH)], constants=[1])
    yield "Expand of one", Case("Expand", [np.full(1, 3, dtype), longs(9, 2)], constants=[1])
    yield "TensorScatter", Case("TensorScatter", [wide, -wide[:, :, :2], longs(3, 1)], {"axis": 2})


def normalisation(dtype: Any) -> Iterator[tuple[str, Case]]:
    x, y = numbers(ROWS, 7, WIDTH, dtype=dtype), numbers(ROWS, 7, WIDTH, dtype=dtype, seed=1)
    gain, shift, bias = (numbers(WIDTH, dtype=dtype, seed=seed) for seed in (2, 3, 4))
    yield "LayerNormalization", Case("LayerNormalization", [x, gain, shift], {"epsilon": 1e-5})
    yield "RMSNormalization", Case("RMSNormalization", [x, gain], {"epsilon": 1e-5})
    skip: dict[str, Any] = {"domain": CONTRIB, "num_outputs": 4}
    yield "SkipLayerNormalization", Case("SkipLayerNormalization", [x, y, gain, shift, bias], **skip)
    yield "SkipSimplifiedLayerNormalization", Case("SkipSimplifiedLayerNormalization", [x, y, gain, bias], **skip)
    for width in (9, 300, 1030):
        scores = numbers(ROWS, width, dtype=dtype) * dtype(3)
        yield f"Softmax of {width}", Case("Softmax", [scores])
        yield f"LogSoftmax of {width}", Case("LogSoftmax", [scores])


def selection(dtype: Any) -> Iterator[tuple[str, Case]]:
    for width in (27, 1000, 5000):
        rows = np.stack([np.random.default_rng(seed).permutation(width) for seed in range(ROWS)])
        # Integers up to 2048 are exact in float16, and so none is equal to another but those that are all below.
        scores = (
            np.minimum(rows, 2000).astype(dtype) if width < 2000 else np.maximum(rows - width + 2000, 0).astype(dtype)
        )
        yield f"TopK of {width}", Case("TopK", [scores, longs(4)], num_outputs=2, constants=[1])


def products(dtype: Any) -> Iterator[tuple[str, Case]]:
    x, weight = numbers(ROWS, 7, WIDTH, dtype=dtype), numbers(WIDTH, 24, dtype=dtype)
    yield "MatMul", Case("MatMul", [x, weight])
    yield "MatMul of batches", Case("MatMul", [x, numbers(ROWS, WIDTH, 9, dtype=dtype)])
    yield "Gemm", Case("Gemm", [x[0], weight.T.copy(), numbers(24, dtype=dtype)], {"transB": 1})


def block_products(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Float16 alone. CUDA has kernels for one row, for up to 16 and for more, which also take any number of outputs."""
    for rows, inputs, outputs in ((1, 96, 24), (2, 96, 24), (16, 40, 24), (17, 96, 24), (2, 96, 27)):
        weight = numbers(inputs, outputs, dtype=dtype, seed=rows)
        packed, scales = rounded_blocks(weight, bits=4, block=32)[:2]
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": 32}
        inputs_of = [numbers(rows, inputs, dtype=dtype), packed, scales.reshape(-1)]
        name = f"{rows} x {inputs} by 4 bits of {outputs}"
        yield name, Case("MatMulNBits", inputs_of, sizes, constants=[1, 2], domain=CONTRIB)
        biased = [*inputs_of, None, None, numbers(outputs, dtype=dtype)]
        yield f"{name}, bias", Case("MatMulNBits", biased, sizes, constants=[1, 2, 5], domain=CONTRIB)


def attention(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Float16 alone. Rows of different lengths; past a row's length the caches hold numbers that must not count."""
    heads, kv_heads, capacity, lengths = 4, 2, 40, np.array([30, 9, 17])
    rows = len(lengths)
    for size in (32, 64, 128):
        key, value = (numbers(rows, kv_heads, capacity, size, dtype=dtype, seed=seed) for seed in (1, 2))
        new = [numbers(rows, 1, kv_heads * size, dtype=dtype, seed=seed) for seed in (3, 4)]
        query = numbers(rows, 1, heads * size, dtype=dtype)
        last, total = (lengths - 1).astype(np.int32), np.array(capacity, np.int32)
        tables = [np.cos(angles(size)).astype(dtype), np.sin(angles(size)).astype(dtype)]
        shape = {"num_heads": heads, "kv_num_heads": kv_heads}
        step: dict[str, Any] = {"domain": CONTRIB, "num_outputs": 3, "constants": [6]}
        cached = [query, *new, key, value, last, total]
        yield f"step of {size}", Case("GroupQueryAttention", cached, shape, **step)
        yield (
            f"rotary step of {size}",
            Case("GroupQueryAttention", [*cached, *tables], {**shape, "do_rotary": 1}, **step),
        )
        tokens = [numbers(rows, 16, n * size, dtype=dtype, seed=n) for n in (heads, kv_heads, kv_heads)]
        ends, width = np.array([16, 9, 12], np.int32), np.array(16, np.int32)
        prompt = [*tokens, None, None, ends - 1, width]
        yield f"prompt of {size}", Case("GroupQueryAttention", prompt, shape, **step)
        yield (
            f"rotary prompt of {size}",
            Case("GroupQueryAttention", [*prompt, *tables], {**shape, "do_rotary": 1}, **step),
        )
        wide = [numbers(rows, 16, heads * size, dtype=dtype, seed=seed) for seed in (5, 6, 7)]
        counted = [*wide, None, None, None, ends.astype(LONG)]
        yield f"encoder of {size}", Case("Attention", counted, {"q_num_heads": heads, "kv_num_heads": heads})


def angles(size: int) -> Any:
    """Of the rotary positions of a cache, (positions, size / 2)."""
    return np.arange(64)[:, None] / 100.0 ** (np.arange(size // 2) / (size // 2))


FAMILIES = (elementwise, layout, normalisation, selection, products)
CASES = {
    **{f"{f.__name__}: {n} {d.__name__}": c for f in FAMILIES for d in (FLOAT, HALF) for n, c in f(d)},
    **{f"products: {n}": c for n, c in block_products(HALF)},
    **{f"attention: {n}": c for n, c in attention(HALF)},
    "layout: Range": Case("Range", [np.array(2, LONG), np.array(40, LONG), np.array(3, LONG)]),
    "elementwise: integers": Case("Mod", [indices(90, 30), indices(90, 30) * 0 + 7]),
}


def graph(case: Case) -> bytes:
    """The model of one node."""
    names = ["" if value is None else f"input{i}" for i, value in enumerate(case.inputs)]
    arrays = {name: np.asarray(value) for name, value in zip(names, case.inputs, strict=True) if name}
    fixed = {names[i] for i in case.constants}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
        if name not in fixed
    ]
    outputs = [f"output{i}" for i in range(case.num_outputs)]
    if case.op.startswith("Skip"):
        outputs[1:3] = ["", ""]  # mean and deviation
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    results = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
    constants = [numpy_helper.from_array(arrays[name], name) for name in sorted(fixed)]
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid(CONTRIB, 1)]
    whole = helper.make_graph([node], "graph", inputs, results, constants)
    serialized: bytes = helper.make_model(whole, opset_imports=opsets, ir_version=11).SerializeToString()
    return serialized


def run(case: Case, providers: list[Any]) -> list[Any]:
    """The node's results, where attention wants caches that are extended in place."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if len(providers) == 1 and providers[0] != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(graph(case), options, providers=providers)
    device = "cpu" if providers[0] == "CPUExecutionProvider" else "cuda"
    feed = {f"input{i}": np.array(v) for i, v in enumerate(case.inputs) if v is not None and i not in case.constants}
    binding = session.io_binding()
    held = {name: ort.OrtValue.ortvalue_from_numpy(array, device, 0) for name, array in feed.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    shared = {"output1": "input3", "output2": "input4"} if case.op == "GroupQueryAttention" else {}
    for output in session.get_outputs():
        if shared.get(output.name) in held:
            binding.bind_ortvalue_output(output.name, held[shared[output.name]])
        else:
            binding.bind_output(output.name, device)
    session.run_with_iobinding(binding)
    return [value.numpy().copy() for value in binding.get_outputs()]


def compared(case: Case) -> float | str:
    """The largest difference from the CPU, relative to the largest number there."""
    try:
        found = run(case, [("CUDAExecutionProvider", {"sdpa_kernel": "3", "use_tf32": "0"})])
        expected = run(case, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has no common error class
        return f"{type(error).__name__}: {error}"[:400]
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, expected, strict=True)]
    if case.op in ("GroupQueryAttention", "Attention"):
        pairs = [kept(case, pair, i) for i, pair in enumerate(pairs)]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def kept(case: Case, pair: tuple[Any, Any], output: int) -> tuple[Any, Any]:
    """What of attention's results is defined: queries and cached keys up to each row's length."""
    queries = case.inputs[0].shape[1]
    if queries == 1:
        return pair
    ends = case.inputs[6] if case.op == "Attention" else case.inputs[5] + 1
    axis = 1 if output == 0 else 2
    parts = [[np.take(side[row], range(end), axis - 1).ravel() for row, end in enumerate(ends)] for side in pair]
    return np.concatenate(parts[0]), np.concatenate(parts[1])


if __name__ == "__main__":
    print(json.dumps({name: compared(case) for name, case in CASES.items()}))
