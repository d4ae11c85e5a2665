"""Replacing nodes of an ONNX graph and adding constants and outputs to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

MICROSOFT = "com.microsoft"


class GraphRewriter:
    """Rewrites one graph in place. Nodes are replaced where they stood, so that the order stays topological."""

    def __init__(self, graph: GraphProto, prefix: str) -> None:
        """prefix: of the names of new nodes and values."""
        self.graph, self.prefix = graph, prefix
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.count = 0

    def name(self, what: str) -> str:
        """A name that is not used yet."""
        self.count += 1
        return f"{self.prefix}.{what}.{self.count}"

    def constant(self, name: str, array: np.ndarray) -> str:
        """The name of a constant with these values, which is added unless the graph has it."""
        array = np.ascontiguousarray(array)  # and of one axis at least
        if name in self.constants and not np.array_equal(self.array(name), array):
            name = self.name(name)  # products that share a weight need not share their bias, or the step of a cache
        if name not in self.constants:
            tensor = numpy_helper.from_array(array, name)
            self.graph.initializer.append(tensor)
            self.constants[name] = self.graph.initializer[-1]
        return name

    def scalar(self, value: Any) -> str:
        """The name of a constant of no axes, of the type of a NumPy scalar."""
        return self.constant(f"{value.dtype.name}.{value!s}", np.asarray(value))

    def node(
        self, op: str, inputs: list[str], outputs: int | list[str] = 1, domain: str = "", **attributes: Any
    ) -> NodeProto:
        """A new node, not in the graph yet. outputs: their names, or how many new ones."""
        names = outputs if isinstance(outputs, list) else [self.name(op) for _ in range(outputs)]
        made: NodeProto = helper.make_node(op, inputs, names, domain=domain, name=self.name(op), **attributes)
        return made

    def array(self, name: str) -> np.ndarray:
        """The values of a constant."""
        return numpy_helper.to_array(self.constants[name])

    def replace(self, replacements: Mapping[int, list[NodeProto]]) -> None:
        """Puts other nodes in the places of those with these positions; an empty list removes one."""
        nodes = [new for i, node in enumerate(self.graph.node) for new in replacements.get(i, [node])]
        kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(kept)

    def users(self, name: str) -> list[NodeProto]:
        """The nodes that read a value."""
        return [node for node in self.graph.node if name in node.input]

    def width_of(self, output: str) -> int:
        """The last dimension of a product's result, with or without bias."""
        (maker,) = (node for node in self.graph.node if output in node.output)
        constant = next(name for name in maker.input if name in self.constants)
        return int(self.constants[constant].dims[-1])

    def sizes(self, *sizes: int) -> str:
        """The name of a constant int64 vector."""
        return self.constant(f"sizes.{'.'.join(map(str, sizes))}", np.array(sizes))

    def output(self, name: str, like: str) -> str:
        """A new output of the graph, of the type and shape of an input."""
        value = ValueInfoProto()
        value.CopyFrom(next(value for value in self.graph.input if value.name == like))
        value.name = name
        self.graph.output.append(value)
        return name
