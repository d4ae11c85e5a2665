"""int8 KV caches for self-attention and cross-attention. `export.passes.calibrate` provides their steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from export.passes.calibrate import Ranges
from export.passes.graph_rewriter import MICROSOFT, GraphRewriter
from export.passes.optimize import attributes_of, makers_of


class CacheQuantizer:
    """Converts the caches of one graph to int8. divided: divisors of the products that fill the caches."""

    def __init__(self, rewriter: GraphRewriter, ranges: Ranges) -> None:
        self.rewriter, self.ranges = rewriter, ranges
        self.divided: dict[str, np.ndarray | float] = {}  # by the output of a product

    def narrow_caches(self) -> None:
        """Convert keys and values to int8.

        The products that write them divide by the step, at no cost because a product's scales absorb it; the attention
        operator multiplies by the step.
        """
        for value in (*self.rewriter.graph.input, *self.rewriter.graph.output):
            if value.name.partition(".")[0] in ("past", "present", "cross_key", "cross_value"):
                value.type.tensor_type.elem_type = TensorProto.INT8
        replacements: dict[int, list[NodeProto]] = {}
        for i, node in enumerate(self.rewriter.graph.node):
            if node.op_type == "GroupQueryAttention" and node.input[3]:
                (self.attend_own if node.input[3].startswith("past.") else self.attend_source)(node)
                replacements[i] = self.rewriter.added()
        self.rewriter.replace(replacements)
        self.narrow_written_sources()
        self.widen_read_sources()

    def attend_own(self, node: NodeProto) -> None:
        """Self-attention: quantize the new keys and values and write them to the caches before attending.

        The operator could do both, but it quantizes slowly (6 nodes, 64 rows: 0.55 ms). Graphs with rotary positions or
        blocks of tokens leave both to the operator: rotation follows the product, and a block has no write
        position of its own in each row.
        """
        rewriter, layer = self.rewriter, node.input[3].rpartition(".")[2]
        caches = [f"past.self_key.{layer}", f"past.self_value.{layer}"]
        assert list(node.input[3:5]) == caches, list(node.input)
        steps = self.ranges.cache_steps(f"self.{layer}")
        attributes = attributes_of(node)
        has_single_tokens = any(value.name == "source_lengths" for value in rewriter.graph.input)
        if node.input[1] or attributes.get("do_rotary") or not has_single_tokens:
            self.attend_with_steps(node, node.input, steps, node.output)
            return
        heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        head_dim = rewriter.width_of(node.input[0]) // (heads + 2 * kv_heads)
        own, theirs = heads * head_dim, kv_heads * head_dim
        self.divided[node.input[0]] = np.repeat(np.array([1.0, *steps], np.float32), [own, theirs, theirs])
        query, key_value = self.split(node.input[0], own, 2 * theirs)
        parts = self.split(self.rounded(key_value), theirs, theirs)
        shape = rewriter.constant(f"shape.{kv_heads}.{head_dim}", np.array([-1, kv_heads, 1, head_dim]))
        presents = [f"present.self_{part}.{layer}" for part in ("key", "value")]
        for part, past, present in zip(parts, caches, presents, strict=True):
            token = rewriter.add("Reshape", [part, shape])
            rewriter.add("TensorScatter", [past, token, "starts"], present, axis=2)
        # Empty keys and values, (B, 0, E), which the cross-attention of the graph reads.
        nothing = next(
            other.input[1]
            for other in rewriter.graph.node
            if other.op_type == "GroupQueryAttention" and other.input[3].startswith("cross")
        )
        inputs = [query, nothing, nothing, *presents, *node.input[5:]]
        self.attend_with_steps(node, inputs, steps, [node.output[0], *self.passed(caches)])

    def attend_source(self, node: NodeProto) -> None:
        """Cross-attention. The operator requires an int8 cache to be an output as well."""
        steps = self.ranges.cache_steps(f"cross.{node.input[3].rpartition('.')[2]}")
        self.attend_with_steps(node, node.input, steps, [node.output[0], *self.passed(node.input[3:5])])

    def attend_with_steps(
        self, node: NodeProto, inputs: Sequence[str], steps: tuple[float, float], outputs: Sequence[str]
    ) -> None:
        """Add an attention node over int8 caches like `node`, with these steps as inputs 12 and 13."""
        attributes = attributes_of(node)
        attributes.update(kv_cache_bit_width=8, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")
        names = [self.rewriter.constant(f"step.{step!r}", np.array([step], np.float32)) for step in map(float, steps)]
        inputs = [*inputs, *[""] * (12 - len(inputs)), *names]
        self.rewriter.add("GroupQueryAttention", inputs, *outputs, domain=MICROSOFT, **attributes)

    def passed(self, caches: Iterable[str]) -> list[str]:
        """Add an output for each of these inputs, for an attention node that passes its caches on."""
        return [self.rewriter.output(f"passed.{name.removeprefix('past.')}", name) for name in caches]

    def rounded(self, value: str) -> str:
        """Round a value that is divided by its step to int8."""
        one, zero = self.rewriter.scalar(np.float32(1)), self.rewriter.scalar(np.int8(0))
        return self.rewriter.add("QuantizeLinear", [value, one, zero])

    def split(self, value: str, *sizes: int) -> list[str]:
        """Split the last axis of a value."""
        constant = self.rewriter.constant(f"sizes.{'.'.join(map(str, sizes))}", np.array(sizes))
        parts = [self.rewriter.name("Split") for _ in sizes]
        self.rewriter.add("Split", [value, constant], *parts, axis=-1)
        return parts

    def narrow_written_sources(self) -> None:
        """`encode`: product → Split → Reshape → Transpose → cross_key.I, with int8 from the product on."""
        makers = makers_of(self.rewriter.graph)
        quantized: dict[str, str] = {}
        replacements: dict[int, list[NodeProto]] = {}
        for value in self.rewriter.graph.output:
            part, _, layer = value.name.partition(".")
            if part != "cross_key":
                continue
            split, other = (makers[makers[makers[f"cross_{of}.{layer}"].input[0]].input[0]] for of in ("key", "value"))
            assert split.op_type == "Split", split.op_type
            assert other.output[0] == split.output[0], "keys and values of a source must be one product"
            product, steps = split.input[0], self.ranges.cache_steps(f"cross.{layer}")
            self.divided[product] = np.repeat(np.array(steps, np.float32), self.rewriter.width_of(product) // 2)
            quantized[product] = self.rounded(product)
            index = next(i for i, node in enumerate(self.rewriter.graph.node) if product in node.output)
            replacements[index] = [self.rewriter.graph.node[index], *self.rewriter.added()]
        for node in self.rewriter.graph.node:
            if node.op_type == "Split" and node.input[0] in quantized:
                node.input[0] = quantized[node.input[0]]
        self.rewriter.replace(replacements)

    def widen_read_sources(self) -> None:
        """Dequantize the caches for `align`, which attends in plain operators that read float32."""
        for value in self.rewriter.graph.input:
            part, _, layer = value.name.partition(".")
            readers = [
                node for node in self.rewriter.users(value.name) if node.op_type not in ("GroupQueryAttention", "Shape")
            ]
            if part not in ("cross_key", "cross_value") or not readers:
                continue
            step = self.ranges.cache_steps(f"cross.{layer}")[part == "cross_value"]
            wide = self.rewriter.add("DequantizeLinear", [value.name, self.rewriter.scalar(np.float32(step))])
            for node in readers:
                node.input[:] = [wide if name == value.name else name for name in node.input]
        self.rewriter.replace({0: [*self.rewriter.added(), self.rewriter.graph.node[0]]})
