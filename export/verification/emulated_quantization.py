"""PyTorch with the roundings of a quantized graph: the reference for such a graph, and the check of its weights against
the checkpoint.

A graph of fewer bits differs much from the float32 model, and the difference does not reveal faults. Therefore its
roundings (weights, steps of activations and of caches) are read from the graph and built into a copy of the model,
which is equalized first if the graph's model was. The copy must compute the same as the graph, up to values that lie
between two integers. A separate check, `weight_error`, compares the integers with the model's weights.
`export.select_scheme` measures the loss of quality by rounding.

This module reads graphs; it neither writes nor runs them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from onnx import ModelProto, NodeProto, numpy_helper
from torch import Tensor, nn

from export.passes.equalize import Exponents
from export.passes.integer_weights import INT8_MAX, MOST_WEIGHT, unpack
from export.passes.optimize import attributes_of, makers_of, with_inner
from export.passes.quantize_products import SPREAD, is_kept
from export.passes.rounding_notes import read_notes
from export.verification.input_rounding import Round, round_blocks, round_rows, round_spread, round_to_grid
from export.verification.measure import Array, Measured, largest_error, worst
from model.architectures import Model
from model.attention import Attend, PositionBias
from model.layers import Block
from model.transformer import Decoder, EncoderDecoder

# Steps by which a weight may lie beyond the last integer, by bits. A block's scale makes the largest magnitude 128, but
# the integer 128 does not exist; at 4 bits the scale may clip three tenths of the magnitude, 8 / 0.7 - 7, or of the
# range, 15 / 0.7 - 14.
BEYOND = {8: 1.0, 4: 7.5}
# Root mean squared distance, in steps, of an output's weights that were rounded with feedback: of the worst output, by
# bits, and of the median one. SmolLM2-135M has 0.48 and 3.2, where a few inputs are large and weights reach the last
# integer, and 0.43 and 0.73. The nearest integers have 0.29.
WORST_FEEDBACK = {8: 1.0, 4: 4.5}
MEDIAN_FEEDBACK = 1.0


@dataclass(frozen=True)
class RoundedWeight:
    """integers * scales, both (N, K), in the order of the checkpoint: outputs first."""

    integers_NK: Array
    scales_NK: Array
    bits: int = 8
    beyond: float = 0.5  # steps by which a weight may lie beyond the last integer
    low_NK: Array | float = -128.0  # the first and the last integer
    high_NK: Array | float = 127.0
    has_feedback: bool = False  # the errors of some inputs make up for those of others
    most: int = 128  # largest magnitude of an integer whose products are exact on every processor
    round_input: Round | None = None  # for the weight of a product, x @ weight.T

    @property
    def values_NK(self) -> Array:
        """float32 (N, K)."""
        values: Array = (self.integers_NK * self.scales_NK).astype(np.float32)
        return values


@dataclass
class Roundings:
    """The roundings in the graphs of one variant, by the names of the model's weights and of the states."""

    products: dict[str, RoundedWeight] = field(default_factory=dict)
    tables: dict[str, RoundedWeight] = field(default_factory=dict)  # of embeddings
    steps: dict[str, float] = field(default_factory=dict)  # of int8 states
    exponents: Exponents | None = None  # of the equalized model that was rounded

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


def read_roundings(graphs: Iterable[ModelProto]) -> Roundings:
    """The roundings in one variant's graphs; if two round a weight differently, the later one counts."""
    roundings = Roundings()
    for model in graphs:
        _Reader(model, roundings).read()
    return roundings


class _Reader:
    def __init__(self, model: ModelProto, roundings: Roundings) -> None:
        self.graph, self.found = model.graph, roundings
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.makers = makers_of(model.graph)
        self.notes = read_notes(model)

    def read(self) -> None:
        self.found.exponents = self.notes.exponents
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
        step, zero = self.array(node.input[2]).item(), self.array(node.input[4]).item()
        given = _given(node, self.makers)
        round_input: Round = partial(round_rows, zero=zero) if given.by_row else round_to_grid(step, zero, 0, 255)
        if given.inverse:
            inverse_K = self.array(given.inverse)
            scales_NK, round_input = scales_NK * inverse_K, round_spread(round_input, inverse_K)
        weight = RoundedWeight(
            integers_NK, scales_NK, most=MOST_WEIGHT, has_feedback=self.notes.has_feedback, round_input=round_input
        )
        self.found.products[_weight_name(node.input[1])] = weight

    def block_product(self, node: NodeProto) -> None:
        attributes = attributes_of(node)
        bits, block, inputs = attributes["bits"], attributes["block_size"], attributes["K"]
        packed = self.array(node.input[1])  # (N, blocks, bytes)
        scales = self.array(node.input[2]).reshape(len(packed), -1)
        scales_NK = np.repeat(scales, block, axis=1)[:, :inputs]
        zeros_NK: Array | float = float(1 << (bits - 1))
        if len(node.input) > 3 and node.input[3]:
            zeros = self.array(node.input[3]).reshape(len(packed), -1)
            zeros = unpack(zeros, bits)[:, : scales.shape[1]]
            zeros_NK = np.repeat(zeros, block, axis=1)[:, :inputs].astype(np.float32)
        integers_NK = unpack(packed, bits)[:, :inputs].astype(np.float32) - zeros_NK
        is_integer = attributes.get("accuracy_level") == 4  # otherwise activations are multiplied as they are
        round_input: Round = round_blocks(block) if is_integer else lambda x: x
        weight = RoundedWeight(
            integers_NK,
            scales_NK,
            bits,
            BEYOND[bits],
            low_NK=-zeros_NK,
            high_NK=(1 << bits) - 1 - zeros_NK,
            has_feedback=self.notes.has_feedback,
            round_input=round_input,
        )
        self.found.products[_weight_name(node.input[1])] = weight

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
            for side in (0, 1):
                part, _, rest = node.input[3 + side].partition(".")
                name = rest if part in ("past", "present") else node.input[3 + side]
                self.found.steps[name] = float(self.array(node.input[12 + side]).reshape(()))


def _weight_name(integers: str) -> str:
    """NAME.int8.weight and NAME.int4.weight are the integers of the weight NAME."""
    return integers.removesuffix(".weight").rpartition(".")[0]


@dataclass(frozen=True)
class RecordedProduct:
    """The input and output of one product during a run of a graph, with the name of its weight. has_bias: the output
    includes the bias, if there is one."""

    weight: str
    input_RK: Array
    output_RN: Array
    has_bias: bool = True


class ProductValues(NamedTuple):
    """The names of a product's weight, and of its input and output, which are floats; see `RecordedProduct`."""

    weight: str
    given: str
    result: str
    has_bias: bool


def product_values(model: ModelProto) -> list[ProductValues]:
    """The values of every quantized product."""
    found, makers = [], makers_of(model.graph)

    def users(name: str) -> Iterator[NodeProto]:
        return (node for node in model.graph.node if name in node.input)

    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            has_bias = len(node.input) > 5
            found.append(ProductValues(_weight_name(node.input[1]), node.input[0], node.output[0], has_bias))
        elif node.op_type == "MatMulIntegerToFloat":
            given, result = _given(node, makers), node.output[0]
            if given.by_row:  # rescaled before the bias is added
                result = next(users(result)).output[0]
                bias = f"{node.input[1].removesuffix('.weight')}.bias"
                result = next((use.output[0] for use in users(result) if bias in use.input), result)
            found.append(ProductValues(_weight_name(node.input[1]), given.value, result, True))
    return found


class _Given(NamedTuple):
    """What a `MatMulIntegerToFloat` rounds. by_row: with a step for each row. inverse: the name of what multiplies it
    before; "": nothing."""

    value: str
    by_row: bool = False
    inverse: str = ""


def _given(node: NodeProto, makers: Mapping[str, NodeProto]) -> _Given:
    value = makers[node.input[0]].input[0]
    divide = makers.get(value)
    if divide is None or divide.op_type != "Div":
        return _Given(value)
    multiply = makers.get(divide.input[0])
    if multiply is not None and multiply.op_type == "Mul" and multiply.input[1].endswith(SPREAD):
        return _Given(multiply.input[0], True, multiply.input[1])
    return _Given(divide.input[0], True)


class _Part(NamedTuple):
    """A product or table of a model. weight: None if the graphs do not round it."""

    name: str
    module: nn.Linear | nn.Embedding
    aliases: list[str]  # the names of all weights equal to its own: the graph uses one of them
    weight: RoundedWeight | None
    divisors_N1: Array  # a graph may write int8 keys and values in units of their steps


def _parts(model: Model, roundings: Roundings) -> Iterator[_Part]:
    """Every product and table of a model, with its rounding."""
    equal: dict[tuple[tuple[int, ...], bytes], list[str]] = {}
    keys = {name: (tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in model.state_dict().items()}
    for name, key in keys.items():
        equal.setdefault(key, []).append(name)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            found = roundings.products if isinstance(module, nn.Linear) else roundings.tables
            aliases = equal[keys[f"{name}.weight"]]
            weight = next((found[alias] for alias in aliases if alias in found), None)
            yield _Part(name, module, aliases, weight, _divisors(name, len(module.weight), model, roundings))


def _divisors(name: str, outputs: int, model: Model, roundings: Roundings) -> Array:
    divisors_N1, config = np.ones((outputs, 1), np.float32), model.config
    found = re.fullmatch(r"decoder\.blocks\.(\d+)\..+\.(query_key_value|key_value)", name)
    if found is None or (found[2] == "query_key_value" and not folds_steps(config)):
        return divisors_N1
    state = "self" if found[2] == "query_key_value" else "cross"
    steps = [roundings.steps.get(f"{state}_{part}.{found[1]}") for part in ("key", "value")]
    if None not in steps:
        width = config.attention_kv_heads * config.attention_head_dim
        divisors_N1[-2 * width : -width], divisors_N1[-width:] = steps
    return divisors_N1


def folds_steps(config: Any) -> bool:
    """Whether the product of self-attention returns keys and values in units of the caches: where the operator takes
    them unchanged, together with the queries, one token at a time."""
    return bool(config.has_encoder and config.positions not in ("rotary", "shaw") and not config.qk_norm)


def emulated_model(model: Model, roundings: Roundings) -> Model:
    """A copy of the model with the roundings of the graphs."""
    rounded: Any = copy.deepcopy(model)
    for part in _parts(rounded, roundings):
        if part.weight is not None:
            part.module.weight = nn.Parameter(torch.from_numpy(part.weight.values_NK * part.divisors_N1))
            if part.weight.round_input is not None:
                rounding = part.weight.round_input
                part.module.register_forward_pre_hook(lambda _, inputs, rounding=rounding: (rounding(inputs[0]),))
    if isinstance(rounded, EncoderDecoder | Decoder):
        for i, block in enumerate(rounded.decoder.blocks):
            assert isinstance(block, Block)
            _round_caches(block, i, roundings)
    result: Model = rounded.eval()
    return result


def _round_caches(block: Block, layer: int, roundings: Roundings) -> None:
    steps = {name.partition(".")[0]: step for name, step in roundings.steps.items() if name.endswith(f".{layer}")}
    kept = {name: round_to_grid(step, 0, -INT8_MAX - 1, INT8_MAX) for name, step in steps.items()}
    if "self_key" in kept:
        attention = block.self_attention
        forward = attention.forward

        def attended(x: Tensor, attend: Attend, *positions: Any) -> Tensor:
            def rounding(
                query_BTE: Tensor, key_BSE: Tensor, value_BSE: Tensor, bias: PositionBias | None = None
            ) -> Tensor:
                return attend(query_BTE, kept["self_key"](key_BSE), kept["self_value"](value_BSE), bias)

            return forward(x, rounding, *positions)

        attention.forward = attended  # type: ignore[method-assign,assignment]
    if "cross_key" in kept:
        assert block.cross_attention is not None
        project = block.cross_attention.project_source

        def projected(states: Tensor) -> tuple[Tensor, Tensor]:
            key, value = project(states)
            return kept["cross_key"](key), kept["cross_value"](value)

        block.cross_attention.project_source = projected  # type: ignore[method-assign,assignment]


def weight_error(model: Model, roundings: Roundings, *, is_whole: bool = True) -> Measured:
    """The largest distance of a rounded weight from the model's, in steps, and the name of that weight: half a step in
    a correct graph. A weight of a block beyond the last integer may be up to BEYOND steps away and then counts as half
    a step. Weights that were rounded with feedback may be further away, in the mean as far as WORST_FEEDBACK and
    MEDIAN_FEEDBACK, which count as half a step. Infinite if an integer is too large for exact products.

    is_whole: every weight must be rounded; raises KeyError for one that is not.
    """
    errors = []
    for part in _parts(model, roundings):
        name = f"{part.name}.weight"
        if part.weight is not None:
            errors.append((name, _distance(part.weight, part.module.weight.detach().numpy() / part.divisors_N1)))
        elif is_whole and not is_kept(name):
            raise KeyError(f"{name} is not rounded")
    return worst(errors, "no weights")


def _distance(weight: RoundedWeight, exact_NK: Array) -> float:
    if weight.integers_NK.shape != exact_NK.shape or np.abs(weight.integers_NK).max() > weight.most:
        return float("inf")
    in_steps = exact_NK / weight.scales_NK
    if weight.has_feedback:
        distance_N = np.sqrt(np.square(in_steps - weight.integers_NK).mean(1))
        shares = distance_N.max() / WORST_FEEDBACK[weight.bits], np.median(distance_N) / MEDIAN_FEEDBACK
        return float(max(shares)) / 2
    is_last = (weight.integers_NK == weight.high_NK) & (in_steps > weight.high_NK)
    is_first = (weight.integers_NK == weight.low_NK) & (in_steps < weight.low_NK)
    allowed = np.where(is_last | is_first, weight.beyond, 0.5)
    return float((np.abs(in_steps - weight.integers_NK) / allowed).max() / 2)


def product_error(model: Model, roundings: Roundings, recorded: Sequence[RecordedProduct]) -> Measured:
    """The root mean squared error of the output of the worst product, as a share of the output's standard deviation,
    and the name of that product.

    The expected output is computed from the product's input, the rounded weights and the checkpoint's bias, so that the
    rounding of one product does not affect another. Keys and values may be in units of a cache's steps.
    """
    by_weight = dict[str, _Part]()
    for part in _parts(model, roundings):
        if isinstance(part.module, nn.Linear):
            by_weight = {**dict.fromkeys(part.aliases, part), **by_weight}
    errors = []
    for product in recorded:
        if not len(product.input_RK):
            continue  # of an expert to which no row was routed
        part, weight = by_weight[product.weight], roundings.products[product.weight]
        assert weight.round_input is not None, product.weight
        bias = part.module.bias
        x_RK = weight.round_input(torch.from_numpy(product.input_RK.astype(np.float32))).numpy()
        expected_RN = x_RK.astype(np.float64) @ weight.values_NK.T
        if product.has_bias and isinstance(bias, Tensor):
            expected_RN += bias.detach().numpy() / part.divisors_N1[:, 0]
        comparison = "a product", product.output_RN, expected_RN
        errors.append((part.name, largest_error([comparison], is_quantized=True).error))
    return worst(errors, "no products")
