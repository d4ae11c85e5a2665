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
from torch.fx.node import map_arg
from torch.onnx._internal.fx.passes import type_promotion
from torch.onnx._internal.fx.type_utils import from_scalar_type_to_torch_dtype
from torch.utils import _pytree as pytree

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
OTHERS = frozenset(
    (
        ATEN.__and__.Tensor,
        ATEN.item.default,
        ATEN.mT.default,  # whose translation is an Einsum
        ATEN.numpy_T.default,
        ATEN.to.dtype,
        *RESHAPING,
    )
)


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


def run_promoted(interpreter: Any, run: Callable[[Any, Node], Any], node: Node) -> Any:
    """Run a node while PyTorch inserts casts before operators whose arguments differ in their type. Only these nodes
    run: the types of all values tell that others stay as they are.

    run: what PyTorch's interpreter does for each node.
    """
    is_known = node.op == "call_function" and "val" in node.meta
    if is_known and not _is_promoted(node, interpreter.type_promotion_table):
        return node.meta["val"]
    return run(interpreter, node)


def _is_promoted(node: Node, table: Any) -> bool:
    rule = type_promotion.get_type_promotion_rule(node, table)
    if rule is None:
        return False
    args, kwargs = map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
    wanted = rule.preview_type_promotion(args, kwargs)
    types = [(arg, wanted.args_dtypes.get(place)) for place, arg in enumerate(args)]
    types += [(arg, wanted.kwargs_dtypes.get(name)) for name, arg in kwargs.items()]
    return any(dtype not in (None, _type_of(leaf)) for arg, dtype in types for leaf in pytree.tree_leaves(arg))


def _type_of(value: Any) -> torch.dtype | None:
    return value.dtype if isinstance(value, torch.Tensor) else from_scalar_type_to_torch_dtype(type(value))


def _is_operator(node: Node) -> bool:
    """Report whether a node is a function of ATen, and not arithmetic of sizes or an operator of ONNX."""
    return isinstance(node.target, torch._ops.OpOverload)


def _is_covered(node: Node, covered: Set[Any]) -> bool:
    assert isinstance(node.target, torch._ops.OpOverload)
    return node.target in covered and not node.target._schema.is_mutable


def _can_lower(node: Node) -> bool:
    if node.target is ATEN.index_add.default:
        return node.args[1:2] == (0,) and not node.kwargs
    if node.target is ATEN.rsub.Scalar:  # without a factor
        return len(node.args) == 2 and not node.kwargs
    if node.target is ATEN.promote_types.default:  # its result, a type, is known to those that take it
        return not node.users
    return node.target in UNCHANGED | CHECKS | OTHERS


def _lower(node: Node, sizes: _Sizes) -> None:
    if node.target in UNCHANGED:
        node.target = ATEN.alias.default
    elif node.target is ATEN.item.default:
        node.target = ATEN._local_scalar_dense.default
    elif node.target is ATEN.numpy_T.default:  # of a matrix
        node.target, node.args = ATEN.permute.default, (node.args[0], [1, 0])
    elif node.target is ATEN.mT.default:
        node.target, node.args = ATEN.transpose.int, (node.args[0], -2, -1)
    elif node.target is ATEN.__and__.Tensor:
        node.target = ATEN.bitwise_and.Tensor
    elif node.target is ATEN.rsub.Scalar:
        node.target, node.args = ATEN.sub.Tensor, node.args[::-1]
    elif node.target is ATEN.promote_types.default:
        node.graph.erase_node(node)
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
