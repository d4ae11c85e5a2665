"""Helpers that replace nodes of an ONNX graph and add constants and outputs to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto, helper, numpy_helper

from export.passes.held_weights import Weights, values_of
from export.passes.optimize import replace_items

MICROSOFT = "com.microsoft"


class GraphRewriter:
    """Rewrites one graph in place. New nodes take the positions of the old ones, so the order stays topological."""

    def __init__(self, graph: GraphProto, prefix: str, weights: Weights | None = None) -> None:
        """prefix: for the names of new nodes and values. weights: of the graph's model, if the graph lacks some."""
        self.graph, self.prefix, self._weights = graph, prefix, weights or {}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.count = 0
        self._added: list[NodeProto] = []

    def name(self, what: str) -> str:
        """Return an unused name."""
        self.count += 1
        return f"{self.prefix}.{what}.{self.count}"

    def constant(self, name: str, array: np.ndarray) -> str:
        """Return the name of a constant with these values; the constant is added unless the graph has it."""
        array = np.ascontiguousarray(array)  # also turns a scalar into one axis
        if name in self.constants and not np.array_equal(self.array(name), array):
            name = self.name(name)  # products with a shared weight may differ in their bias or in the step of a cache
        if name not in self.constants:
            tensor = numpy_helper.from_array(array, name)
            self.graph.initializer.append(tensor)
            self.constants[name] = self.graph.initializer[-1]
        return name

    def scalar(self, value: Any) -> str:
        """Return the name of a constant of one value, shape (1,), of the type of a NumPy scalar."""
        return self.constant(f"{value.dtype.name}.{value!s}", np.asarray(value))

    def add(self, op: str, inputs: list[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        """Create a node for the next replacement and return its first output; without `outputs` it has a new one."""
        outputs = outputs or (self.name(op),)
        self._added.append(helper.make_node(op, inputs, outputs, domain=domain, name=self.name(op), **attributes))
        return outputs[0]

    def added(self) -> list[NodeProto]:
        """Return the nodes created since the last call."""
        nodes, self._added = self._added, []
        return nodes

    def array(self, name: str) -> np.ndarray:
        """Return the values of a constant."""
        return values_of(self.constants[name], self._weights)

    def replace(self, replacements: Mapping[int, list[NodeProto]]) -> None:
        """Replace the nodes at these positions by other nodes; an empty list removes a node."""
        replace_items(
            self.graph.node, (new for i, node in enumerate(self.graph.node) for new in replacements.get(i, [node]))
        )

    def users(self, name: str) -> list[NodeProto]:
        """Return the nodes that read a value."""
        return [node for node in self.graph.node if name in node.input]

    def width_of(self, output: str) -> int:
        """Return the last dimension of a product's result, with or without bias."""
        (maker,) = (node for node in self.graph.node if output in node.output)
        constant = next(name for name in maker.input if name in self.constants)
        return int(self.constants[constant].dims[-1])

    def output(self, name: str, like: str) -> str:
        """Add an output to the graph, with the type and shape of an input, and return its name."""
        value = ValueInfoProto()
        value.CopyFrom(next(value for value in self.graph.input if value.name == like))
        value.name = name
        self.graph.output.append(value)
        return name
