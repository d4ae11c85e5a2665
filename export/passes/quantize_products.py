"""Matrix products over int8 or 4-bit weights.

Weights of integer products range from -64 to 64: processors without VNNI sum pairs of products in 16 bits, and two
products of such a weight and an unsigned byte fit. A product is therefore exact for any kernel, number of threads and
number of rows, and "w8a8-dynamic" and "w8a8-static" are batch-invariant bit for bit, as fp32 is. `MatMulNBits` is
batch-invariant for blocks up to 64 (8-bit) and, with AVX-512, up to 32 (4-bit). With larger blocks, rows differ between
even and odd batches; without AVX-512, a single row differs from the same row in a batch. "w4a16-block32" rounds no
activations: CUDA multiplies up to 16 rows by the packed weights and unpacks them for more, so rows depend on the batch.

The schemes avoid signed activations, whose kernel is 10 to 40 times slower than that of unsigned ones. They also avoid
`DynamicQuantizeMatMul`, whose step depends on all rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto

from export.passes.calibrate import Ranges
from export.passes.error_feedback import Feedback
from export.passes.graph_rewriter import MICROSOFT, GraphRewriter
from export.passes.integer_weights import rounded_blocks, symmetric_columns
from export.passes.optimize import attributes_of, makers_of
from export.passes.quantization_scheme import QuantizationScheme
from export.passes.vector_products import COLUMN

GROUP_INDEX = 4  # the input of MatMulNBits after the zero points, which is not used
ROW_ZERO = 128  # zero point of activations that are as often negative as positive
SPREAD = ".int8.spread"
NORMS = ("LayerNormalization", "RMSNormalization")
ZEROS = {"Relu": 0, "Gelu": 24}
"""Zero points of the rows that an operator makes. GELU is hardly negative: -0.17 at least."""


def is_kept(weight: str) -> bool:
    """Report whether a weight is not rounded in any scheme.

    Those of routers are not, since a rounded logit may choose another expert (Fedus et al. 2022, 2.4), nor vectors of
    distances, which are few, nor the vectors that `widen_vectors` makes columns, nor the layers after the pooling: one
    product for each text, of which every rounding is one of the answer.
    """
    is_few = weight.removesuffix(".T").endswith((".router.weight", ".shaw.vectors", COLUMN))
    return is_few or weight.startswith("dense.")


@dataclass
class _Product:
    """x @ weight + bias, as one or two nodes of the graph."""

    x: str
    weight_name: str
    weight_KN: np.ndarray
    bias_N: np.ndarray | None
    nodes: tuple[NodeProto, ...]  # the last one outputs the result
    per_output_N: np.ndarray | float = 1.0  # divisor of the result: the steps of a cache

    @property
    def output(self) -> str:
        return self.nodes[-1].output[0]


class ProductQuantizer:
    """Quantizes the products of one graph by constant matrices of floats."""

    def __init__(
        self,
        rewriter: GraphRewriter,
        scheme: QuantizationScheme,
        ranges: Ranges | None,
        feedback: Feedback | None,
        divided: Mapping[str, np.ndarray | float],
    ) -> None:
        """divided: by the output of a product, see `_Product.per_output_N`."""
        self.rewriter, self.scheme, self.divided = rewriter, scheme, divided
        self.ranges, self.feedback = ranges, feedback or Feedback({})
        self.quantized: dict[tuple[str, str], tuple[str, str, str]] = {}  # (x, step) → u8, its scale, its zero point
        self.makers: dict[str, NodeProto] = {}  # of the values that products read

    def products(self) -> Iterator[_Product]:
        """Yield every product by a constant matrix of floats, with its bias if the next node adds one."""
        for node in self.rewriter.graph.node:
            if (
                node.op_type not in ("MatMul", "Gemm")
                or len(node.input) < 2
                or node.input[1] not in self.rewriter.constants
            ):
                continue
            tensor = self.rewriter.constants[node.input[1]]
            if (
                tensor.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16)
                or len(tensor.dims) != 2
                or is_kept(node.input[1])
            ):
                continue
            weight = self.rewriter.array(node.input[1])
            bias: np.ndarray | None = None
            nodes: tuple[NodeProto, ...] = (node,)
            if node.op_type == "Gemm":
                attributes = attributes_of(node)
                assert attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0
                assert not attributes.get("transA", 0)
                weight = weight.T if attributes.get("transB", 0) else weight
                if len(node.input) == 3:
                    bias = self.rewriter.array(node.input[2])
                    assert bias.shape == (weight.shape[1],), bias.shape
            else:
                users = self.rewriter.users(node.output[0])
                if len(users) == 1 and users[0].op_type == "Add":
                    other = next((name for name in users[0].input if name != node.output[0]), "")
                    if other in self.rewriter.constants and list(self.rewriter.constants[other].dims) == [
                        weight.shape[1]
                    ]:
                        bias, nodes = self.rewriter.array(other), (node, users[0])
            divided: np.ndarray | float = self.divided.get(nodes[-1].output[0], 1.0)
            yield _Product(node.input[0], node.input[1].removesuffix(".T"), weight, bias, nodes, divided)

    def quantize_products(self) -> None:
        replacements: dict[int, list[NodeProto]] = {}
        indices = {node.output[0]: i for i, node in enumerate(self.rewriter.graph.node)}
        compute = {
            "dynamic": self.by_row,
            "static": self.statically,
            "block": self.by_blocks,
            "float16": self.weights_alone,
        }
        assert self.scheme.activations is not None
        self.makers = makers_of(self.rewriter.graph)
        for product in list(self.products()):
            for node in product.nodes:
                replacements[indices[node.output[0]]] = []
            compute[self.scheme.activations](product)
            replacements[indices[product.nodes[0].output[0]]] = self.rewriter.added()
        self.rewriter.replace(replacements)

    def integers(self, product: _Product, spread_K: np.ndarray | None = None) -> tuple[str, str]:
        """Return the names of the int8 weights (K, N) and of their scales (N,). spread_K: divisors of x."""
        name, weight_KN = f"{product.weight_name}.int8", product.weight_KN
        if spread_K is not None:
            weight_KN = weight_KN * spread_K[:, None]
        feedback = self.feedback.of(product.weight_name, spread_K)
        integers_KN, scale_N = symmetric_columns(weight_KN, feedback=feedback)
        scale_N = (scale_N / product.per_output_N).astype(np.float32)
        return self.rewriter.constant(f"{name}.weight", integers_KN), self.rewriter.constant(f"{name}.scale", scale_N)

    def bias(self, product: _Product) -> str:
        """Return the name of the bias; "" if there is none."""
        if product.bias_N is None:
            return ""
        bias_N = (product.bias_N / product.per_output_N).astype(np.float32)
        return self.rewriter.constant(f"{product.weight_name}.int8.bias", bias_N)

    def by_row(self, product: _Product) -> None:
        """x → u8 with a fixed zero point. The row's step lets its largest value, and its least one, just fit.

        An all-zero row divides by zero, but its result is then multiplied by zero.
        """
        add, constant = self.rewriter.add, self.rewriter.constant
        maker = self.makers[product.x].op_type if product.x in self.makers else ""
        spread_K = None
        if maker in NORMS:  # elsewhere an equalized model has scaled the channels
            spread_K = self.feedback.spread(product.weight_name, product.weight_KN)
        middle = ZEROS.get(maker, ROW_ZERO)
        high = 255 - middle
        unit, zero = self.rewriter.scalar(np.float32(1 / high)), self.rewriter.scalar(np.uint8(middle))
        key = (product.x, product.weight_name if spread_K is not None else "")
        if key not in self.quantized:
            x = product.x
            if spread_K is not None:
                inverse_K = (1 / spread_K).astype(np.float32)
                x = add("Mul", [x, constant(f"{product.weight_name}{SPREAD}", inverse_K)])
            # x may have no rows: `decode` without requested positions, or an expert without tokens. Then the runtime's
            # maximum over the last axis keeps the full width of x, unless the axis is counted from the first one.
            is_flat = product.nodes[0].op_type == "Gemm"
            axis = constant("axes.1", np.array([1])) if is_flat else constant("axes.last", np.array([-1]))
            top = add("ReduceMax", [self.magnitudes(x, middle), axis], keepdims=1)
            share = add("Div", [x, top])
            self.quantized[key] = add("QuantizeLinear", [share, unit, zero]), top, zero
        x_u8, top, _ = self.quantized[key]
        weight, scale = self.integers(product, spread_K)
        raw = add("MatMulIntegerToFloat", [x_u8, weight, unit, scale, zero], domain=MICROSOFT)
        if bias := self.bias(product):
            add("Add", [add("Mul", [raw, top]), bias], product.output)
        else:
            add("Mul", [raw, top], product.output)

    def magnitudes(self, x: str, zero: int) -> str:
        """The smallest value that stands for 255 where x just fits, for each value of x."""
        if zero == 0:
            return x
        if zero == ROW_ZERO:
            return self.rewriter.add("Abs", [x])
        return self.rewriter.add("LeakyRelu", [x], alpha=-(255 - zero) / zero)

    def statically(self, product: _Product) -> None:
        """x → u8 with a constant step and zero point. For a rectified x the zero point is 0; saturation rectifies."""
        assert self.ranges is not None
        if product.weight_name not in self.ranges.inputs:
            self.by_row(product)  # for an expert that no sample chose
            return
        step, zero = self.ranges.input_grid(product.weight_name)
        key = (product.x, f"{step!r} {zero!r}")
        if key not in self.quantized:
            step_name, zero_name = self.rewriter.scalar(step), self.rewriter.scalar(zero)
            maker = self.makers.get(product.x)
            source = maker.input[0] if zero == 0 and maker is not None and maker.op_type == "Relu" else product.x
            x_u8 = self.rewriter.add("QuantizeLinear", [source, step_name, zero_name])
            self.quantized[key] = x_u8, step_name, zero_name
        x_u8, step_name, zero_name = self.quantized[key]
        weight, scale = self.integers(product)
        inputs = [x_u8, weight, step_name, scale, zero_name, "", self.bias(product)]
        self.rewriter.add("MatMulIntegerToFloat", inputs, product.output, domain=MICROSOFT)

    def by_blocks(self, product: _Product) -> None:
        """x and blocks of integer weights with their scales → one node that quantizes x by block itself."""
        inputs, attributes = self.blocks(product)
        inputs += [""] * (GROUP_INDEX - len(inputs)) + ["", self.bias(product)]
        attributes["accuracy_level"] = 4  # integer products; other levels unpack the weights in every call
        self.rewriter.add("MatMulNBits", inputs, product.output, domain=MICROSOFT, **attributes)

    def weights_alone(self, product: _Product) -> None:
        """x and blocks of integer weights with their scales → one node that computes in the type of x.

        The bias stays an Add, which the kernel of a GELU may absorb; else ONNX Runtime makes it an input of the node.
        """
        inputs, attributes = self.blocks(product)
        if product.bias_N is None:
            self.rewriter.add("MatMulNBits", inputs, product.output, domain=MICROSOFT, **attributes)
            return
        result = self.rewriter.add("MatMulNBits", inputs, domain=MICROSOFT, **attributes)
        bias = self.rewriter.constant(f"{product.weight_name.removesuffix('.weight')}.bias", product.bias_N)
        self.rewriter.add("Add", [result, bias], product.output)

    def blocks(self, product: _Product) -> tuple[list[str], dict[str, int]]:
        """Return the first inputs and the attributes of a MatMulNBits: x, integers of the weight, their scales, and
        zero points if the scheme has them."""
        bits, block, has_zeros = self.scheme.weight_bits, self.scheme.block_size, self.scheme.has_zeros
        feedback = self.feedback.of(product.weight_name)
        packed, scale, zeros = rounded_blocks(
            product.weight_KN, bits=bits, block=block, has_zeros=has_zeros, feedback=feedback
        )
        name, constant = f"{product.weight_name}.int{bits}", self.rewriter.constant
        inputs = [product.x, constant(f"{name}.weight", packed), constant(f"{name}.scale", scale.reshape(-1))]
        if zeros is not None:
            inputs.append(constant(f"{name}.zero", zeros.reshape(-1)))
        inputs_N, outputs_N = product.weight_KN.shape
        return inputs, {"K": inputs_N, "N": outputs_N, "bits": bits, "block_size": block}
