"""Operators of a program that ONNX lacks → operators that it has, without running the program again.

A program of `torch.export` is a graph whose nodes call operators of ATen. Most of them have a translation to ONNX; the
few others that models of ours use have an equal one here. A program with any further operator is decomposed by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

ATEN = torch.ops.aten
UNCHANGED = frozenset((ATEN.alias.default, ATEN.detach.default, ATEN.detach_.default, ATEN.lift_fresh_copy.default))
"""Operators that return their input: nothing here changes a tensor in place, so a copy is not needed."""
CHECKS = frozenset(
    (
        ATEN._assert_async.msg,
        ATEN._assert_scalar.default,
        ATEN._assert_tensor_metadata.default,
        ATEN.sym_constrain_range_for_size.default,
    )
)
"""Operators that the exporter removes."""
RESHAPING = (ATEN.flatten.using_ints, ATEN.unflatten.int)
"""Operators whose translations compute each size again."""
OTHERS = frozenset((ATEN.item.default, ATEN.numpy_T.default, ATEN.to.dtype, *RESHAPING))


def lowered(
    program: ExportedProgram, registry: Any, *, decompose: Callable[[ExportedProgram, Any], ExportedProgram]
) -> ExportedProgram:
    """Return the program with operators that the exporter's registry has; the argument is changed.

    decompose: what PyTorch does with the same arguments.
    """
    covered = {known[0].fx_target for known in registry.functions.values()}
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    if all(_can_lower(node) or _is_covered(node, covered) for node in calls if _is_operator(node)):
        sizes = _Sizes(calls)
        for node in calls:
            _lower(node, sizes)
        return program
    return decompose(program, registry)


def _is_operator(node: Node) -> bool:
    """Report whether a node is a function of ATen, and not arithmetic of sizes or an operator of ONNX."""
    return isinstance(node.target, torch._ops.OpOverload)


def _is_covered(node: Node, covered: Set[Any]) -> bool:
    assert isinstance(node.target, torch._ops.OpOverload)
    return node.target in covered and not node.target._schema.is_mutable


def _can_lower(node: Node) -> bool:
    if node.target is ATEN.index_add.default:
        return node.args[1:2] == (0,) and not node.kwargs
    return node.target in UNCHANGED | CHECKS | OTHERS


def _lower(node: Node, sizes: _Sizes) -> None:
    if node.target in UNCHANGED:
        node.target = ATEN.alias.default
    elif node.target is ATEN.item.default:
        node.target = ATEN._local_scalar_dense.default
    elif node.target is ATEN.numpy_T.default:  # of a matrix
        node.target, node.args = ATEN.permute.default, (node.args[0], [1, 0])
    elif node.target is ATEN.index_add.default:
        given, _, index, added = node.args
        node.target, node.args = ATEN.index_put.default, (given, [index], added, True)
    elif node.target is ATEN.to.dtype:
        given, dtype = node.args[0], node.args[1]
        assert isinstance(given, Node)
        is_same = given.meta["val"].dtype == dtype
        node.target, node.args = (ATEN.alias.default if is_same else ATEN._to_copy.default), (given,)
        node.kwargs = {} if is_same else {"dtype": dtype}
    elif node.target in RESHAPING:
        node.target, node.args, node.kwargs = ATEN.reshape.default, (node.args[0], sizes.after(node)), {}


class _Sizes:
    """The sizes of the tensors of a program: numbers, or nodes for dynamic ones."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._known = dict[str, Node]()  # by symbol
        for node in nodes:
            if node.target is ATEN.sym_size.int:
                self._known.setdefault(str(node.meta["val"]), node)

    def after(self, node: Node) -> list[Any]:
        """Return the sizes of the result of a node in RESHAPING."""
        arguments: list[Any] = list(node.args)
        given, *rest = arguments
        shape = given.meta["val"].shape
        if node.target is ATEN.flatten.using_ints:
            first, last = (axis % max(len(shape), 1) for axis in (*rest, *(0, -1)[len(rest) :]))
            made: list[Any] = [-1]
        else:
            first = last = rest[0] % len(shape)
            made = list(rest[1])
        before, behind = range(first), range(last + 1, len(shape))
        return [*(self._of(node, axis) for axis in before), *made, *(self._of(node, axis) for axis in behind)]

    def _of(self, node: Node, axis: int) -> int | Node:
        given = node.args[0]
        assert isinstance(given, Node)
        size = given.meta["val"].shape[axis]
        if isinstance(size, int):
            return size
        if str(size) not in self._known:
            with node.graph.inserting_before(node):
                made = node.graph.call_function(ATEN.sym_size.int, (given, axis))
            made.meta.update({"val": size, "nn_module_stack": node.meta["nn_module_stack"]})
            self._known[str(size)] = made
        return self._known[str(size)]
