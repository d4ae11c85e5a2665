"""PyTorch with the roundings of a quantised graph: the reference for such a graph, and the check of its weights against
the checkpoint.

A graph of fewer bits differs much from the float32 model, and the difference does not reveal faults. Therefore its
roundings (weights, steps of activations and of caches) are read from the graph and built into a copy of the model. The
copy must compute the same as the graph, up to values that lie between two integers. A separate check, `weights_off`,
compares the integers with the checkpoint's weights. `export.select_scheme` measures the loss of quality by rounding.

This module reads graphs; it neither writes nor runs them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper
from torch import Tensor, nn

from export.manifest import Role
from export.passes.integer_weights import INT8_MAX, MOST_WEIGHT
from export.passes.optimize import makers_of, with_inner
from export.passes.quantize_products import is_kept
from model.architectures import Model
from model.attention import Attend, PositionBias
from model.layers import Block
from model.transformer import Decoder, EncoderDecoder

Array = NDArray[Any]
Round = Callable[[Tensor], Tensor]

# Steps by which a weight may lie beyond the last integer, by bits. A block's scale makes the largest magnitude 128, but
# the integer 128 does not exist; at 4 bits the scale may clip three tenths of the magnitude, 8 / 0.7 - 7.
BEYOND = {8: 1.0, 4: 4.5}


@dataclass(frozen=True)
class RoundedWeight:
    """integers * scales, both (N, K), in the order of the checkpoint: outputs first."""

    integers_NK: Array
    scales_NK: Array
    bits: int = 8
    beyond: float = 0.5  # steps by which a weight may lie beyond the last integer
    most: int = 128  # largest magnitude of an integer whose products are exact on every processor

    @property
    def values_NK(self) -> Array:
        """float32 (N, K)."""
        values: Array = (self.integers_NK * self.scales_NK).astype(np.float32)
        return values


@dataclass(frozen=True)
class RoundedProduct:
    """x @ weight.T of a graph: its integers and the rounding of x."""

    weight: RoundedWeight
    round: Round


@dataclass
class Roundings:
    """The roundings in the graphs of one variant, by the names of the model's weights and of the states."""

    products: dict[str, RoundedProduct] = field(default_factory=dict)
    tables: dict[str, RoundedWeight] = field(default_factory=dict)  # of embeddings
    steps: dict[str, float] = field(default_factory=dict)  # of int8 states

    def kept(self, name: str, array: Array) -> Array:
        """Values as the state `name` stores them: int8, or unchanged."""
        if name not in self.steps:
            return array
        return np.clip(np.rint(array / np.float32(self.steps[name])), -INT8_MAX - 1, INT8_MAX).astype(np.int8)

    def values(self, name: str, array: Array) -> Array:
        """The values stored in the state `name`, as float32."""
        if name not in self.steps:
            return array
        values: Array = array.astype(np.float32) * np.float32(self.steps[name])
        return values


@dataclass(frozen=True)
class SeenProduct:
    """The input and output of one product during a run of a graph, with the name of its weight."""

    weight: str
    input_RK: Array
    output_RN: Array


def product_values(model: ModelProto) -> list[tuple[str, str, str]]:
    """For every quantised product: the names of its weight, its float32 input and its float32 output."""
    found = []
    makers = makers_of(model.graph)
    users: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            found.append((_weight_name(node.input[1]), node.input[0], node.output[0]))
        elif node.op_type == "MatMulIntegerToFloat":
            source, result = makers[node.input[0]].input[0], node.output[0]
            divide = makers.get(source)
            if divide is not None and divide.op_type == "Div":  # by row: rescaled before the bias is added
                source, result = divide.input[0], users[result][0].output[0]
                bias = f"{node.input[1].removesuffix('.weight')}.bias"
                result = next((use.output[0] for use in users.get(result, ()) if bias in use.input), result)
            found.append((_weight_name(node.input[1]), source, result))
    return found


def products_off(model: Model, roundings: Roundings, seen: Sequence[SeenProduct]) -> tuple[float, str]:
    """The root mean squared error of the output of the worst product, as a share of the output's standard deviation,
    and the name of that product.

    The expected output is computed from the product's input, the rounded weights and the checkpoint's bias, so that the
    rounding of one product does not affect another. Keys and values may be in units of a cache's steps.
    """
    names, worst, note = _names(model), 0.0, "no products"
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    by_weight = {alias: name for name in reversed(linears) for alias in names[f"{name}.weight"]}
    for product in seen:
        if not len(product.input_RK):
            continue  # of an expert to which no row was routed
        name, rounding = by_weight[product.weight], roundings.products[product.weight]
        bias = linears[name].bias
        scale_N = _divided(name, linears[name].weight.shape[0], model, roundings)
        x_RK = torch.from_numpy(product.input_RK)
        expected_RN = rounding.round(x_RK).numpy().astype(np.float64) @ rounding.weight.values_NK.T
        expected_RN += 0 if bias is None else bias.detach().numpy() / scale_N
        difference = float(np.sqrt(np.square(product.output_RN - expected_RN).mean()))
        error = difference / max(float(expected_RN.std()), 1e-6)
        if not error <= worst:
            worst, note = error if np.isfinite(error) else float("inf"), f"worst in {name}"
    return worst, note


def read_roundings(graphs: Mapping[Role, ModelProto]) -> Roundings:
    """The roundings in one variant's graphs; if two round a weight differently, the later one counts."""
    roundings = Roundings()
    for model in graphs.values():
        _Reader(model, roundings).read()
    return roundings


class _Reader:
    def __init__(self, model: ModelProto, roundings: Roundings) -> None:
        self.graph, self.found = model.graph, roundings
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.makers = makers_of(model.graph)

    def read(self) -> None:
        readers = {
            "MatMulIntegerToFloat": self.integer_product,
            "MatMulNBits": self.block_product,
            "Gather": self.table,
            "GroupQueryAttention": self.cache,
        }
        for node in with_inner(self.graph.node):
            if node.op_type in readers:
                readers[node.op_type](node)

    def array(self, name: str) -> Array:
        return numpy_helper.to_array(self.constants[name])

    def integer_product(self, node: NodeProto) -> None:
        """Inputs: A, B, scale of A, scale of B, their zero points. B (K, N) has one scale per column, or one in all."""
        integers_KN, scales = self.array(node.input[1]), self.array(node.input[3])
        integers_NK = integers_KN.T.astype(np.float32)
        scales_NK = np.broadcast_to(scales.reshape(-1, 1), integers_NK.shape)
        weight = RoundedWeight(integers_NK, scales_NK, most=MOST_WEIGHT)
        quantize = self.makers[node.input[0]]
        divide = self.makers.get(quantize.input[0])
        if divide is not None and divide.op_type == "Div":
            rounding: Round = round_rows
        else:
            step, zero = self.array(node.input[2]).item(), self.array(node.input[4]).item()
            rounding = _static(step, zero)
        self.found.products[_weight_name(node.input[1])] = RoundedProduct(weight, rounding)

    def block_product(self, node: NodeProto) -> None:
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        bits, block, inputs = attributes["bits"], attributes["block_size"], attributes["K"]
        packed = self.array(node.input[1])  # (N, blocks, bytes)
        unsigned = packed
        if bits == 4:
            unsigned = np.stack((packed & 15, packed >> 4), axis=-1)
        half = 1 << (bits - 1)
        integers_NK = unsigned.reshape(len(packed), -1)[:, :inputs].astype(np.float32) - half
        scales = self.array(node.input[2]).reshape(len(packed), -1)
        weight = RoundedWeight(integers_NK, np.repeat(scales, block, axis=1)[:, :inputs], bits, BEYOND[bits])
        self.found.products[_weight_name(node.input[1])] = RoundedProduct(weight, _blocks(block))

    def table(self, node: NodeProto) -> None:
        """Gather(int8 rows) * Gather(one scale per row)."""
        name = node.input[0]
        if not name.endswith(".rows.int8.weight"):
            return
        rows, scales = self.array(name), self.array(f"{name.removesuffix('weight')}scale")
        self.found.tables[name.removesuffix(".rows.int8.weight")] = RoundedWeight(
            rows.astype(np.float32), np.broadcast_to(scales.reshape(-1, 1), rows.shape)
        )

    def cache(self, node: NodeProto) -> None:
        """Inputs 3 and 4 are keys and values; inputs 12 and 13 are their steps if they are int8."""
        if len(node.input) > 13 and node.input[12]:
            for place in (0, 1):
                part, _, rest = node.input[3 + place].partition(".")
                name = rest if part in ("past", "present") else node.input[3 + place]
                self.found.steps[name] = float(self.array(node.input[12 + place]).reshape(()))


def _weight_name(integers: str) -> str:
    """NAME.int8.weight and NAME.int4.weight are the integers of the weight NAME."""
    return integers.removesuffix(".weight").rpartition(".")[0]


# ---- roundings of activations


def round_rows(x: Tensor) -> Tensor:
    """Rounds each row to 127 steps on either side of 0; step 127 is the row's largest magnitude."""
    top = x.abs().amax(-1, keepdim=True)
    steps = torch.where(top > 0, x / top, 0.0).div(1 / INT8_MAX).round()
    return steps * (1 / INT8_MAX) * top


def _static(step: float, zero: int) -> Round:
    return lambda x: ((x / step).round() + zero).clamp(0, 255).sub(zero) * step


def _blocks(block: int) -> Round:
    """Rounds each block of `block` inputs like a row of `round_rows`."""

    def rounded(x: Tensor) -> Tensor:
        inputs = x.shape[-1]
        padded = nn.functional.pad(x, (0, -inputs % block))
        return round_rows(torch.unflatten(padded, -1, (-1, block))).flatten(-2)[..., :inputs]

    return rounded


# ---- the model


AnyModel = TypeVar("AnyModel", bound=Model)


def emulated_model(model: AnyModel, roundings: Roundings) -> AnyModel:
    """A copy of the model with the roundings of the graphs. Raises KeyError if they round no weight of the model."""
    rounded: Any = copy.deepcopy(model)
    names = _names(model)
    linears = {name: module for name, module in rounded.named_modules() if isinstance(module, nn.Linear)}
    tables = {name: module for name, module in rounded.named_modules() if isinstance(module, nn.Embedding)}
    for name, linear in linears.items():
        product = _find(roundings.products, names[f"{name}.weight"])
        if product is not None:
            scale_N1 = _divided(name, linear.weight.shape[0], rounded, roundings)[:, None]
            linear.weight = nn.Parameter(torch.from_numpy(product.weight.values_NK * scale_N1))
            linear.register_forward_pre_hook(lambda _, inputs, round=product.round: (round(inputs[0]),))
    for name, table in tables.items():
        weight = _find(roundings.tables, names[f"{name}.weight"])
        if weight is not None:
            table.weight = nn.Parameter(torch.from_numpy(weight.values_NK))
    blocks = rounded.decoder.blocks if isinstance(rounded, EncoderDecoder | Decoder) else ()
    for i, block in enumerate(blocks):
        assert isinstance(block, Block)
        _round_caches(block, i, roundings)
    result: AnyModel = rounded.eval()
    return result


def weights_off(model: Model, roundings: Roundings, *, is_whole: bool = True) -> tuple[float, str]:
    """The largest distance of a rounded weight from the checkpoint's, in steps, and the name of that weight: half a
    step in a correct graph. A weight of a block beyond the last integer may be up to BEYOND steps away and then counts
    as half a step. Infinite if an integer is too large for exact products.

    is_whole: every weight must be rounded; raises KeyError for one that is not.
    """
    names, worst, note = _names(model), 0.0, "no weights"
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            product = _find(roundings.products, names[f"{name}.weight"])
            weight = None if product is None else product.weight
            scale_N = _divided(name, module.weight.shape[0], model, roundings)
        elif isinstance(module, nn.Embedding):
            weight, scale_N = _find(roundings.tables, names[f"{name}.weight"]), np.ones(module.num_embeddings)
        else:
            continue
        if weight is None and (is_kept(f"{name}.weight") or not is_whole):
            continue
        if weight is None:
            raise KeyError(f"{name}.weight is not rounded")
        off = _off(weight, module.weight.detach().numpy() / scale_N[:, None].astype(np.float32))
        off = off if np.isfinite(off) else float("inf")
        if off > worst:
            worst, note = off, f"worst in {name}.weight"
    return worst, note


def _off(weight: RoundedWeight, exact_NK: Array) -> float:
    if weight.integers_NK.shape != exact_NK.shape or np.abs(weight.integers_NK).max() > weight.most:
        return float("inf")
    places = exact_NK / weight.scales_NK
    off = np.abs(places - weight.integers_NK)
    half = 1 << (weight.bits - 1)
    is_last = (weight.integers_NK == half - 1) & (places > half - 1)
    is_first = (weight.integers_NK == -half) & (places < -half)
    allowed = np.where(is_last | is_first, weight.beyond, 0.5)
    return float((off / allowed).max() / 2)


def _names(model: Model) -> dict[str, list[str]]:
    """The names of all weights equal to each weight, by name: the graph uses one of them."""
    groups: dict[tuple[tuple[int, ...], bytes], list[str]] = {}
    state = model.state_dict()
    keys = {name: (tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in state.items()}
    for name, key in keys.items():
        groups.setdefault(key, []).append(name)
    return {name: groups[key] for name, key in keys.items()}


def _find(found: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((found[name] for name in names if name in found), None)


def _divided(name: str, outputs: int, model: Model, roundings: Roundings) -> Array:
    """The divisor of each output of a product, (N,): a graph may write int8 keys and values in units of their steps."""
    ones = np.ones(outputs, np.float32)
    part, _, layer = name.rpartition(".")[0], "", ""
    kind = name.rpartition(".")[2]
    if not part.startswith("decoder.blocks.") or kind not in ("query_key_value", "key_value"):
        return ones
    layer = part.split(".")[2]
    state = "self" if kind == "query_key_value" else "cross"
    steps = [roundings.steps.get(f"{state}_{which}.{layer}") for which in ("key", "value")]
    config = model.config
    if steps[0] is None or steps[1] is None or (state == "self" and not folds_steps(config)):
        return ones
    width = config.attention_kv_heads * config.attention_head_dim
    ones[-2 * width : -width], ones[-width:] = steps[0], steps[1]
    return ones


def folds_steps(config: Any) -> bool:
    """Whether the product of self-attention returns keys and values in units of the caches: where the operator takes
    them unchanged, together with the queries, one token at a time."""
    return bool(config.has_encoder and config.positions not in ("rotary", "shaw") and not config.qk_norm)


def _round_caches(block: Block, layer: int, roundings: Roundings) -> None:
    steps = {name.partition(".")[0]: step for name, step in roundings.steps.items() if name.endswith(f".{layer}")}
    if "self_key" in steps:
        attention = block.self_attention
        forward = attention.forward
        keys, values = _cached(steps["self_key"]), _cached(steps["self_value"])

        def attended(x: Tensor, attend: Attend, *cues: Any) -> Tensor:
            def rounding(
                query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
            ) -> Tensor:
                return attend(query_BTE, keys(key_BSE), values(value_BSE), bias)

            return forward(x, rounding, *cues)

        attention.forward = attended  # type: ignore[method-assign,assignment]
    if "cross_key" in steps:
        assert block.cross_attention is not None
        project = block.cross_attention.project_source
        theirs = _cached(steps["cross_key"]), _cached(steps["cross_value"])

        def projected(states: Tensor) -> tuple[Tensor, Tensor]:
            key, value = project(states)
            return theirs[0](key), theirs[1](value)

        block.cross_attention.project_source = projected  # type: ignore[method-assign,assignment]


def _cached(step: float) -> Round:
    return lambda x: (x / step).round().clamp(-INT8_MAX - 1, INT8_MAX) * step
