"""Fewer bits: passes that turn the fp32 graphs of `export.passes.optimize` into those of a `QuantizationScheme`.

Products read int8 or 4-bit weights, embeddings become int8, and caches may hold int8. Norms, softmax, biases and
residuals stay float32. Forms, and what each is for:

    w8a8-dynamic            u8 activations, one scale per row from its largest magnitude; no calibration
    w8a8-static             u8 activations, one calibrated scale and zero point per product; the fastest for many rows
    w8a8-dynamic-kv8        the same two with an int8 KV cache, of the target and of the source
    w8a8-static-kv8
    w8-block64              int8 weights in blocks of 64 inputs, activations quantized per block: fast for 1 to 4 rows
    w4-block32, w4-block128 the same with 4-bit weights in blocks of 32 or 128 in the decoder; the encoder, whose
                            products have many rows, uses "w8a8-dynamic"

Weights of products of integers are from -64 to 64: processors without VNNI add up pairs of products in 16 bits, and two
of such a weight and an unsigned byte fit. So a product is exact whatever its kernel, its threads and the number of
rows, and "w8a8-dynamic" and "w8a8-static" answer a request alone and in a batch with the same bits, as fp32 does.
`MatMulNBits` does
so for blocks up to 64 (8-bit) and, where there is AVX-512, up to 32 (4-bit). With larger ones rows differ between even
and odd batches; without AVX-512 a single row differs from the same row among others.

Signed activations are avoided: their kernel is 10 to 40 times slower than that of unsigned ones. So is
`DynamicQuantizeMatMul`, whose step depends on all rows of a batch.

Nothing here runs a graph; what a scheme costs in quality is measured by `export.select_scheme`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from export.bundle import Quantization, Role
from export.passes.calibrate import Ranges
from export.passes.optimize import attributes_of, makers_of, remove_unused, sum_in_norms
from export.passes.unpad_encoder import unpad_encoder

Precision = Literal["fp32", "fp16", "int8", "int4"]
Activations = Literal["dynamic", "static", "block"]

MICROSOFT = "com.microsoft"
SCATTER_OPSET = 24  # TensorScatter
INT8_MAX = 127
MOST_WEIGHT = 64  # 2 * 64 * 255 is below 2^15
ROW_ZERO = 128  # zero point of activations that are as often negative as positive
WORST_SHARE = 1e-12  # of a scale: keeps weights that are all zero from dividing by it
BLOCK_CLIPS = np.linspace(0.7, 1.0, 7, dtype=np.float32)  # of a block's largest magnitude; the best one is taken
INVARIANT_BLOCKS = {4: 32, 8: 64}  # the largest block of MatMulNBits whose rows do not depend on their number


@dataclass(frozen=True, kw_only=True)
class QuantizationScheme:
    """How products and caches are computed. fp32 and fp16 are schemes too, of which nothing is left to do here."""

    name: str
    precision: Precision
    weight_bits: int = 32
    block_size: int = 0
    activations: Activations | None = None
    has_int8_cache: bool = False

    @property
    def is_quantized(self) -> bool:
        return self.activations is not None

    @property
    def needs_ranges(self) -> bool:
        return self.activations == "static" or self.has_int8_cache

    @property
    def is_batch_invariant(self) -> bool:
        """Unless this processor has another kernel: `verifier.is_batch_invariant` measures it."""
        return self.block_size <= INVARIANT_BLOCKS.get(self.weight_bits, 0)

    def quantization(self) -> Quantization | None:
        """What a manifest says of it."""
        if self.activations is None:
            return None
        return Quantization(
            scheme=self.name,
            weight_bits=self.weight_bits,
            block_size=self.block_size,
            activations=self.activations,
            kv_cache="int8" if self.has_int8_cache else "float32",
            batch_invariant=self.is_batch_invariant,
        )

    def for_role(self, role: Role) -> QuantizationScheme:
        """Blocks are for few rows; graphs whose products always have many do without. `attend` keeps no caches."""
        scheme = SCHEMES["w8a8-dynamic"] if self.activations == "block" and role != "decode" else self
        return dataclasses.replace(scheme, has_int8_cache=False) if role == "attend" else scheme


SCHEMES: Mapping[str, QuantizationScheme] = {
    scheme.name: scheme
    for scheme in (
        QuantizationScheme(name="fp32", precision="fp32"),
        QuantizationScheme(name="fp16", precision="fp16", weight_bits=16),
        QuantizationScheme(name="w8a8-dynamic", precision="int8", weight_bits=8, activations="dynamic"),
        QuantizationScheme(name="w8a8-static", precision="int8", weight_bits=8, activations="static"),
        QuantizationScheme(
            name="w8a8-dynamic-kv8", precision="int8", weight_bits=8, activations="dynamic", has_int8_cache=True
        ),
        QuantizationScheme(
            name="w8a8-static-kv8", precision="int8", weight_bits=8, activations="static", has_int8_cache=True
        ),
        QuantizationScheme(name="w8-block64", precision="int8", weight_bits=8, block_size=64, activations="block"),
        QuantizationScheme(name="w4-block32", precision="int4", weight_bits=4, block_size=32, activations="block"),
        QuantizationScheme(name="w4-block128", precision="int4", weight_bits=4, block_size=128, activations="block"),
    )
}


def is_kept(weight: str) -> bool:
    """Whether a weight stays float32 in every scheme: a router's, since a rounded logit may choose another expert
    (Fedus et al. 2022, 2.4), and vectors of distances, which are few."""
    return weight.removesuffix(".T").endswith((".router.weight", ".shaw.vectors"))


def quantize(model: ModelProto, role: Role, scheme: QuantizationScheme, ranges: Ranges | None = None) -> ModelProto:
    """The graph of `role`, optimised and with named weights, in a scheme. ranges: where `scheme.needs_ranges`."""
    if not scheme.is_quantized:
        return model
    assert ranges is not None or not scheme.needs_ranges, scheme.name
    scheme = scheme.for_role(role)
    rewriter = _Rewriter(model.graph, scheme, ranges)
    if scheme.has_int8_cache:
        rewriter.narrow_caches()
        for opset in model.opset_import:
            opset.version = max(opset.version, SCATTER_OPSET) if opset.domain == "" else opset.version
    rewriter.quantize_embeddings()
    rewriter.quantize_products()
    if role == "encode":
        model = unpad_encoder(model)
    if scheme.activations == "block":
        model = sum_in_norms(model)
    if not any(opset.domain == MICROSOFT for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return remove_unused(model)


@dataclass
class _Product:
    """x @ weight + bias, as one or two nodes of the graph."""

    x: str
    weight_name: str
    weight_KN: np.ndarray
    bias_N: np.ndarray | None
    nodes: tuple[NodeProto, ...]  # the last one gives the result
    per_output_N: np.ndarray | float = 1.0  # what the result is to be divided by: the steps of a cache

    @property
    def output(self) -> str:
        return self.nodes[-1].output[0]


class _Rewriter:
    """Rewrites one graph in place. Nodes are replaced where they stood, so that the order stays topological."""

    def __init__(self, graph: GraphProto, scheme: QuantizationScheme, ranges: Ranges | None) -> None:
        self.graph, self.scheme, self.ranges = graph, scheme, ranges
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.quantized: dict[tuple[str, str], tuple[str, str, str]] = {}  # (x, step) → u8, its scale, its zero point
        self.divided: dict[str, np.ndarray] = {}  # by the output of a product: see `_Product.per_output_N`
        self.makers: dict[str, NodeProto] = {}  # of the values that products read
        self.count = 0

    # ---- names, nodes, constants

    def name(self, what: str) -> str:
        self.count += 1
        return f"{self.scheme.name}.{what}.{self.count}"

    def constant(self, name: str, array: np.ndarray) -> str:
        array = np.ascontiguousarray(array)  # and of one axis at least
        if name in self.constants and not np.array_equal(self.array(name), array):
            name = self.name(name)  # products that share a weight need not share their bias, or the step of a cache
        if name not in self.constants:
            tensor = numpy_helper.from_array(array, name)
            self.graph.initializer.append(tensor)
            self.constants[name] = self.graph.initializer[-1]
        return name

    def scalar(self, value: Any) -> str:
        return self.constant(f"{value.dtype.name}.{value!s}", np.asarray(value))

    def node(
        self, op: str, inputs: list[str], outputs: int | list[str] = 1, domain: str = "", **attributes: Any
    ) -> NodeProto:
        names = outputs if isinstance(outputs, list) else [self.name(op) for _ in range(outputs)]
        made: NodeProto = helper.make_node(op, inputs, names, domain=domain, name=self.name(op), **attributes)
        return made

    def array(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self.constants[name])

    def replace(self, replacements: Mapping[int, list[NodeProto]]) -> None:
        """Puts other nodes in the places of those with these positions; an empty list removes one."""
        nodes = [new for i, node in enumerate(self.graph.node) for new in replacements.get(i, [node])]
        kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(kept)

    def users(self, name: str) -> list[NodeProto]:
        return [node for node in self.graph.node if name in node.input]

    # ---- products

    def products(self) -> Iterator[_Product]:
        """Every product by a constant matrix of float32, with its bias where that is added next."""
        for node in self.graph.node:
            if node.op_type not in ("MatMul", "Gemm") or len(node.input) < 2 or node.input[1] not in self.constants:
                continue
            tensor = self.constants[node.input[1]]
            if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != 2 or is_kept(node.input[1]):
                continue
            weight = numpy_helper.to_array(tensor)
            bias: np.ndarray | None = None
            nodes: tuple[NodeProto, ...] = (node,)
            if node.op_type == "Gemm":
                attributes = attributes_of(node)
                assert attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0
                assert not attributes.get("transA", 0)
                weight = weight.T if attributes.get("transB", 0) else weight
                if len(node.input) == 3:
                    bias = self.array(node.input[2])
                    assert bias.shape == (weight.shape[1],), bias.shape
            else:
                users = self.users(node.output[0])
                if len(users) == 1 and users[0].op_type == "Add":
                    other = next((name for name in users[0].input if name != node.output[0]), "")
                    if other in self.constants and list(self.constants[other].dims) == [weight.shape[1]]:
                        bias, nodes = self.array(other), (node, users[0])
            divided: np.ndarray | float = self.divided.get(nodes[-1].output[0], 1.0)
            yield _Product(node.input[0], node.input[1].removesuffix(".T"), weight, bias, nodes, divided)

    def quantize_products(self) -> None:
        replacements: dict[int, list[NodeProto]] = {}
        places = {node.output[0]: i for i, node in enumerate(self.graph.node)}
        compute = {"dynamic": self.by_row, "static": self.statically, "block": self.by_blocks}
        assert self.scheme.activations is not None
        self.makers = makers_of(self.graph)
        for product in list(self.products()):
            for node in product.nodes:
                replacements[places[node.output[0]]] = []
            replacements[places[product.nodes[0].output[0]]] = compute[self.scheme.activations](product)
        self.replace(replacements)

    def integers(self, product: _Product) -> tuple[str, str]:
        """Names of the int8 weights (K, N) and of their scales (N,)."""
        name = f"{product.weight_name}.int8"
        weight_KN, scale_N = symmetric_columns(product.weight_KN)
        scale_N = (scale_N / product.per_output_N).astype(np.float32)
        return self.constant(f"{name}.weight", weight_KN), self.constant(f"{name}.scale", scale_N)

    def bias(self, product: _Product) -> str:
        """The name of the bias; "" for none."""
        if product.bias_N is None:
            return ""
        bias_N = (product.bias_N / product.per_output_N).astype(np.float32)
        return self.constant(f"{product.weight_name}.int8.bias", bias_N)

    def by_row(self, product: _Product) -> list[NodeProto]:
        """x → u8 with zero point 128 and step top / 127, `top` the row's largest magnitude; an all-zero row divides by
        zero, but whatever comes of that is multiplied by zero."""
        unit, zero = self.scalar(np.float32(1 / INT8_MAX)), self.scalar(np.uint8(ROW_ZERO))
        nodes: list[NodeProto] = []
        key = (product.x, "")
        if key not in self.quantized:
            magnitude = self.node("Abs", [product.x])
            # Of no rows, which `decode` may be asked for, and an expert chosen by, the runtime's maximum over the last
            # axis is as wide as they are, unless the axis is counted from the first one.
            is_flat = product.nodes[0].op_type == "Gemm"
            axis = self.constant("axes.1", np.array([1])) if is_flat else self.constant("axes.last", np.array([-1]))
            top = self.node("ReduceMax", [magnitude.output[0], axis], keepdims=1)
            nodes += [magnitude, top]
            share = self.node("Div", [product.x, top.output[0]])
            x_u8 = self.node("QuantizeLinear", [share.output[0], unit, zero])
            nodes += [share, x_u8]
            self.quantized[key] = x_u8.output[0], top.output[0], zero
        x_u8_name, top_name, _ = self.quantized[key]
        weight, scale = self.integers(product)
        raw = self.node("MatMulIntegerToFloat", [x_u8_name, weight, unit, scale, zero], domain=MICROSOFT)
        bias = self.bias(product)
        scaled = self.node("Mul", [raw.output[0], top_name], 1 if bias else [product.output])
        nodes += [raw, scaled]
        if bias:
            nodes.append(self.node("Add", [scaled.output[0], bias], [product.output]))
        return nodes

    def statically(self, product: _Product) -> list[NodeProto]:
        """x → u8 with a constant step and zero point. That of a rectified x is 0, and saturation is the rectifier."""
        assert self.ranges is not None
        if product.weight_name not in self.ranges.inputs:
            return self.by_row(product)  # of an expert that no sample chose
        step, zero = self.ranges.input_grid(product.weight_name)
        nodes: list[NodeProto] = []
        key = (product.x, f"{step!r} {zero!r}")
        if key not in self.quantized:
            step_name, zero_name = self.scalar(step), self.scalar(zero)
            maker = self.makers.get(product.x)
            source = maker.input[0] if zero == 0 and maker is not None and maker.op_type == "Relu" else product.x
            x_u8 = self.node("QuantizeLinear", [source, step_name, zero_name])
            nodes.append(x_u8)
            self.quantized[key] = x_u8.output[0], step_name, zero_name
        x_u8_name, step_name, zero_name = self.quantized[key]
        weight, scale = self.integers(product)
        inputs = [x_u8_name, weight, step_name, scale, zero_name, "", self.bias(product)]
        nodes.append(self.node("MatMulIntegerToFloat", inputs, [product.output], domain=MICROSOFT))
        return nodes

    def by_blocks(self, product: _Product) -> list[NodeProto]:
        bits, block = self.scheme.weight_bits, self.scheme.block_size
        packed, scale = symmetric_blocks(product.weight_KN, bits=bits, block=block)
        name = f"{product.weight_name}.int{bits}"
        inputs = [
            product.x,
            self.constant(f"{name}.weight", packed),
            self.constant(f"{name}.scale", scale.reshape(-1)),
            "",
            "",
            self.bias(product),
        ]
        inputs_N, outputs_N = product.weight_KN.shape
        return [
            self.node(
                "MatMulNBits",
                inputs,
                [product.output],
                domain=MICROSOFT,
                K=inputs_N,
                N=outputs_N,
                bits=bits,
                block_size=block,
                accuracy_level=4,  # integer products; other levels unpack the weights in every call
            )
        ]

    # ---- embeddings

    def quantize_embeddings(self) -> None:
        """Gather(float32 table) → Gather(int8 table) times Gather(one scale a row). Tables of positions stay."""
        replacements: dict[int, list[NodeProto]] = {}
        for i, node in enumerate(self.graph.node):
            if node.op_type != "Gather" or not node.input[0].endswith(".embedding.tokens.weight"):
                continue
            table_NK = self.array(node.input[0])
            rows_KN, scale_N = symmetric_columns(table_NK.T, most=INT8_MAX)
            name = f"{node.input[0]}.rows.int8"
            rows = self.constant(f"{name}.weight", rows_KN.T)
            scales = self.constant(f"{name}.scale", scale_N[:, None])
            row, scale = self.node("Gather", [rows, node.input[1]]), self.node("Gather", [scales, node.input[1]])
            cast = self.node("Cast", [row.output[0]], to=TensorProto.FLOAT)
            result = self.node("Mul", [cast.output[0], scale.output[0]], [node.output[0]])
            replacements[i] = [row, scale, cast, result]
        self.replace(replacements)

    # ---- caches

    def narrow_caches(self) -> None:
        """int8 keys and values. Whoever writes them divides by the step, which costs nothing in a product's scales; the
        attention operator multiplies by it."""
        for value in (*self.graph.input, *self.graph.output):
            if value.name.partition(".")[0] in ("past", "present", "cross_key", "cross_value"):
                value.type.tensor_type.elem_type = TensorProto.INT8
        replacements: dict[int, list[NodeProto]] = {}
        for i, node in enumerate(self.graph.node):
            if node.op_type == "GroupQueryAttention" and node.input[3]:
                is_own = node.input[3].startswith("past.")
                replacements[i] = self.attend_own(node) if is_own else self.attend_source(node)
        self.replace(replacements)
        self.narrow_written_sources()
        self.widen_read_sources()

    def attend_own(self, node: NodeProto) -> list[NodeProto]:
        """Self-attention: quantises the new keys and values and puts them into the caches before attending.

        The operator could do both itself, but quantises slowly (6 nodes, 64 rows: 0.55 ms). With rotary positions or
        blocks of tokens it has to: keys are turned after the product, and a block has no place of its own in each row.
        """
        layer = node.input[3].rpartition(".")[2]
        caches = [f"past.self_key.{layer}", f"past.self_value.{layer}"]
        assert list(node.input[3:5]) == caches, list(node.input)
        assert self.ranges is not None
        steps = self.ranges.cache_steps(f"self.{layer}")
        attributes = attributes_of(node)
        if node.input[1] or attributes.get("do_rotary") or not self.has_single_tokens():
            return [self.with_steps(node, steps, list(node.output))]
        heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        width = self.width_of(node.input[0])
        head_dim = width // (heads + 2 * kv_heads)
        own, theirs = heads * head_dim, kv_heads * head_dim
        self.divided[node.input[0]] = np.repeat(np.array([1.0, *steps], np.float32), [own, theirs, theirs])
        split = self.node("Split", [node.input[0], self.sizes(own, 2 * theirs)], 2, axis=-1)
        new = self.node("QuantizeLinear", [split.output[1], self.scalar(np.float32(1)), self.scalar(np.int8(0))])
        parts = self.node("Split", [new.output[0], self.sizes(theirs, theirs)], 2, axis=-1)
        shape = self.constant(f"shape.{kv_heads}.{head_dim}", np.array([-1, kv_heads, 1, head_dim]))
        nodes, presents = [split, new, parts], [f"present.self_{part}.{layer}" for part in ("key", "value")]
        for part, past, present in zip(parts.output, caches, presents, strict=True):
            token = self.node("Reshape", [part, shape])
            nodes += [token, self.node("TensorScatter", [past, token.output[0], "starts"], [present], axis=2)]
        nothing = self.nothing()
        attend = NodeProto()
        attend.CopyFrom(node)
        attend.input[:5] = [split.output[0], nothing, nothing, *presents]
        passed = [self.output(f"passed.self_{part}.{layer}", f"past.self_{part}.{layer}") for part in ("key", "value")]
        return [*nodes, self.with_steps(attend, steps, [node.output[0], *passed])]

    def attend_source(self, node: NodeProto) -> list[NodeProto]:
        """Cross-attention. The operator insists on handing an int8 cache through."""
        assert self.ranges is not None
        layer = node.input[3].rpartition(".")[2]
        steps = self.ranges.cache_steps(f"cross.{layer}")
        passed = [self.output(f"passed.cross_{part}.{layer}", f"cross_{part}.{layer}") for part in ("key", "value")]
        return [self.with_steps(node, steps, [node.output[0], *passed])]

    def with_steps(self, node: NodeProto, steps: tuple[float, float], outputs: list[str]) -> NodeProto:
        """GroupQueryAttention over int8 caches of these steps, inputs 12 and 13."""
        attributes = attributes_of(node)
        attributes.update(kv_cache_bit_width=8, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")
        names = [self.constant(f"step.{step!r}", np.array([step], np.float32)) for step in map(float, steps)]
        inputs = [*node.input, *[""] * (12 - len(node.input)), *names]
        return self.node("GroupQueryAttention", inputs, outputs, domain=MICROSOFT, **attributes)

    def narrow_written_sources(self) -> None:
        """`encode`: product → Split → Reshape → Transpose → cross_key.I, with int8 from the product on."""
        makers = makers_of(self.graph)
        quantized: dict[str, str] = {}
        replacements: dict[int, list[NodeProto]] = {}
        for value in self.graph.output:
            part, _, layer = value.name.partition(".")
            if part != "cross_key":
                continue
            split = makers[makers[makers[value.name].input[0]].input[0]]
            assert split.op_type == "Split", split.op_type
            other = makers[makers[makers[f"cross_value.{layer}"].input[0]].input[0]]
            assert other.output[0] == split.output[0], "keys and values of a source must be one product"
            product = split.input[0]
            width = self.width_of(product)
            assert self.ranges is not None
            steps = self.ranges.cache_steps(f"cross.{layer}")
            self.divided[product] = np.repeat(np.array(steps, np.float32), width // 2)
            new = self.node("QuantizeLinear", [product, self.scalar(np.float32(1)), self.scalar(np.int8(0))])
            quantized[product] = new.output[0]
            place = next(i for i, node in enumerate(self.graph.node) if product in node.output)
            replacements[place] = [self.graph.node[place], new]
        for node in self.graph.node:
            if node.op_type == "Split" and node.input[0] in quantized:
                node.input[0] = quantized[node.input[0]]
        self.replace(replacements)

    def widen_read_sources(self) -> None:
        """`align` attends in plain operators, which read float32."""
        nodes: list[NodeProto] = []
        for value in self.graph.input:
            part, _, layer = value.name.partition(".")
            readers = [node for node in self.users(value.name) if node.op_type not in ("GroupQueryAttention", "Shape")]
            if part not in ("cross_key", "cross_value") or not readers:
                continue
            assert self.ranges is not None
            step = self.ranges.cache_steps(f"cross.{layer}")[part == "cross_value"]
            wide = self.node("DequantizeLinear", [value.name, self.scalar(np.float32(step))])
            nodes.append(wide)
            for node in readers:
                node.input[:] = [wide.output[0] if name == value.name else name for name in node.input]
        self.replace({0: [*nodes, self.graph.node[0]]})

    def has_single_tokens(self) -> bool:
        """Whether `decode` reads one token of each row, as it does where there is an encoder."""
        return any(value.name == "source_lengths" for value in self.graph.input)

    def nothing(self) -> str:
        """No new keys and values, (B, 0, E): what the cross-attention of the graph is given already."""
        source = next(
            n for n in self.graph.node if n.op_type == "GroupQueryAttention" and n.input[3].startswith("cross")
        )
        return str(source.input[1])

    def width_of(self, output: str) -> int:
        """The last dimension of a product's result, with or without bias."""
        (maker,) = (node for node in self.graph.node if output in node.output)
        constant = next(name for name in maker.input if name in self.constants)
        return int(self.constants[constant].dims[-1])

    def sizes(self, *sizes: int) -> str:
        return self.constant(f"sizes.{'.'.join(map(str, sizes))}", np.array(sizes))

    def output(self, name: str, like: str) -> str:
        """A new output of the graph, of the type and shape of an input."""
        value = ValueInfoProto()
        value.CopyFrom(next(value for value in self.graph.input if value.name == like))
        value.name = name
        self.graph.output.append(value)
        return name


def symmetric_columns(weight_KN: np.ndarray, *, most: int = MOST_WEIGHT) -> tuple[np.ndarray, np.ndarray]:
    """int8 (K, N) and float32 scales (N,), the largest magnitude of each column being `most`: their product is within
    half a scale of the weight."""
    scale_N = np.maximum(np.abs(weight_KN).max(0), WORST_SHARE) / most
    integers = np.rint(weight_KN / scale_N).astype(np.int8)
    return integers, scale_N.astype(np.float32)


def symmetric_blocks(weight_KN: np.ndarray, *, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights of MatMulNBits: uint8 (N, blocks, bytes) with zero point 2^(bits-1), scales float32 (N, blocks).

    Of several scales for a block the one with the least squared error is taken: at 4 bits clipping the largest weight
    a little makes all others finer.
    """
    inputs, outputs = weight_KN.shape
    blocks = -(-inputs // block)
    parts = np.zeros((outputs, blocks * block), np.float32)
    parts[:, :inputs] = weight_KN.T
    parts = parts.reshape(outputs, blocks, block)
    half = 1 << (bits - 1)
    # The magnitude of the most extreme weight lies on the side that has one integer more.
    extreme = np.take_along_axis(parts, np.abs(parts).argmax(2)[..., None], 2)[..., 0]
    widest = np.where(np.abs(extreme) > WORST_SHARE, extreme, WORST_SHARE) / -half
    best_error = np.full((outputs, blocks), np.inf, np.float32)
    scale, integers = np.zeros_like(widest), np.zeros_like(parts)
    for clip in BLOCK_CLIPS if bits == 4 else BLOCK_CLIPS[-1:]:
        tried = (widest * clip).astype(np.float32)
        rounded = np.clip(np.rint(parts / tried[..., None]), -half, half - 1)
        error = np.square(rounded * tried[..., None] - parts).sum(2)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        scale = np.where(better, tried, scale)
        integers = np.where(better[..., None], rounded, integers)
    unsigned: np.ndarray = (integers + half).astype(np.uint8)
    if bits == 4:
        unsigned = unsigned[..., 0::2] | (unsigned[..., 1::2] << 4)
    return unsigned, scale.astype(np.float32)
