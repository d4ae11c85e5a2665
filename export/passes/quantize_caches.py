"""int8 KV caches for self-attention and cross-attention. `export.passes.calibrate` provides their steps."""

from __future__ import annotations

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
                is_own = node.input[3].startswith("past.")
                replacements[i] = self.attend_own(node) if is_own else self.attend_source(node)
        self.rewriter.replace(replacements)
        self.narrow_written_sources()
        self.widen_read_sources()

    def attend_own(self, node: NodeProto) -> list[NodeProto]:
        """Self-attention: quantize the new keys and values and write them to the caches before attending.

        The operator could do both, but it quantizes slowly (6 nodes, 64 rows: 0.55 ms). Graphs with rotary positions or
        blocks of tokens leave both to the operator: rotation follows the product, and a block has no write
        position of its own in each row.
        """
        layer = node.input[3].rpartition(".")[2]
        caches = [f"past.self_key.{layer}", f"past.self_value.{layer}"]
        assert list(node.input[3:5]) == caches, list(node.input)
        steps = self.ranges.cache_steps(f"self.{layer}")
        attributes = attributes_of(node)
        if node.input[1] or attributes.get("do_rotary") or not self.has_single_tokens():
            return [self.with_steps(node, steps, list(node.output))]
        heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        width = self.rewriter.width_of(node.input[0])
        head_dim = width // (heads + 2 * kv_heads)
        own, theirs = heads * head_dim, kv_heads * head_dim
        self.divided[node.input[0]] = np.repeat(np.array([1.0, *steps], np.float32), [own, theirs, theirs])
        split = self.rewriter.node("Split", [node.input[0], self.rewriter.sizes(own, 2 * theirs)], 2, axis=-1)
        new = self.rewriter.node(
            "QuantizeLinear", [split.output[1], self.rewriter.scalar(np.float32(1)), self.rewriter.scalar(np.int8(0))]
        )
        parts = self.rewriter.node("Split", [new.output[0], self.rewriter.sizes(theirs, theirs)], 2, axis=-1)
        shape = self.rewriter.constant(f"shape.{kv_heads}.{head_dim}", np.array([-1, kv_heads, 1, head_dim]))
        nodes, presents = [split, new, parts], [f"present.self_{part}.{layer}" for part in ("key", "value")]
        for part, past, present in zip(parts.output, caches, presents, strict=True):
            token = self.rewriter.node("Reshape", [part, shape])
            nodes += [token, self.rewriter.node("TensorScatter", [past, token.output[0], "starts"], [present], axis=2)]
        nothing = self.nothing()
        attend = NodeProto()
        attend.CopyFrom(node)
        attend.input[:5] = [split.output[0], nothing, nothing, *presents]
        passed = [
            self.rewriter.output(f"passed.self_{part}.{layer}", f"past.self_{part}.{layer}")
            for part in ("key", "value")
        ]
        return [*nodes, self.with_steps(attend, steps, [node.output[0], *passed])]

    def attend_source(self, node: NodeProto) -> list[NodeProto]:
        """Cross-attention. The operator requires an int8 cache to be an output as well."""
        layer = node.input[3].rpartition(".")[2]
        steps = self.ranges.cache_steps(f"cross.{layer}")
        passed = [
            self.rewriter.output(f"passed.cross_{part}.{layer}", f"cross_{part}.{layer}") for part in ("key", "value")
        ]
        return [self.with_steps(node, steps, [node.output[0], *passed])]

    def with_steps(self, node: NodeProto, steps: tuple[float, float], outputs: list[str]) -> NodeProto:
        """Return a GroupQueryAttention node over int8 caches with these steps as inputs 12 and 13."""
        attributes = attributes_of(node)
        attributes.update(kv_cache_bit_width=8, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")
        names = [self.rewriter.constant(f"step.{step!r}", np.array([step], np.float32)) for step in map(float, steps)]
        inputs = [*node.input, *[""] * (12 - len(node.input)), *names]
        return self.rewriter.node("GroupQueryAttention", inputs, outputs, domain=MICROSOFT, **attributes)

    def narrow_written_sources(self) -> None:
        """`encode`: product → Split → Reshape → Transpose → cross_key.I, with int8 from the product on."""
        makers = makers_of(self.rewriter.graph)
        quantized: dict[str, str] = {}
        replacements: dict[int, list[NodeProto]] = {}
        for value in self.rewriter.graph.output:
            part, _, layer = value.name.partition(".")
            if part != "cross_key":
                continue
            split = makers[makers[makers[value.name].input[0]].input[0]]
            assert split.op_type == "Split", split.op_type
            other = makers[makers[makers[f"cross_value.{layer}"].input[0]].input[0]]
            assert other.output[0] == split.output[0], "keys and values of a source must be one product"
            product = split.input[0]
            width = self.rewriter.width_of(product)
            steps = self.ranges.cache_steps(f"cross.{layer}")
            self.divided[product] = np.repeat(np.array(steps, np.float32), width // 2)
            new = self.rewriter.node(
                "QuantizeLinear", [product, self.rewriter.scalar(np.float32(1)), self.rewriter.scalar(np.int8(0))]
            )
            quantized[product] = new.output[0]
            place = next(i for i, node in enumerate(self.rewriter.graph.node) if product in node.output)
            replacements[place] = [self.rewriter.graph.node[place], new]
        for node in self.rewriter.graph.node:
            if node.op_type == "Split" and node.input[0] in quantized:
                node.input[0] = quantized[node.input[0]]
        self.rewriter.replace(replacements)

    def widen_read_sources(self) -> None:
        """Dequantize the caches for `align`, which attends in plain operators that read float32."""
        nodes: list[NodeProto] = []
        for value in self.rewriter.graph.input:
            part, _, layer = value.name.partition(".")
            readers = [
                node for node in self.rewriter.users(value.name) if node.op_type not in ("GroupQueryAttention", "Shape")
            ]
            if part not in ("cross_key", "cross_value") or not readers:
                continue
            step = self.ranges.cache_steps(f"cross.{layer}")[part == "cross_value"]
            wide = self.rewriter.node("DequantizeLinear", [value.name, self.rewriter.scalar(np.float32(step))])
            nodes.append(wide)
            for node in readers:
                node.input[:] = [wide.output[0] if name == value.name else name for name in node.input]
        self.rewriter.replace({0: [*nodes, self.rewriter.graph.node[0]]})

    def has_single_tokens(self) -> bool:
        """Report whether `decode` reads one token per row, as it does for models with an encoder."""
        return any(value.name == "source_lengths" for value in self.rewriter.graph.input)

    def nothing(self) -> str:
        """Return the name of empty keys and values, (B, 0, E), which the cross-attention of the graph already reads."""
        source = next(
            n for n in self.rewriter.graph.node if n.op_type == "GroupQueryAttention" and n.input[3].startswith("cross")
        )
        return str(source.input[1])
