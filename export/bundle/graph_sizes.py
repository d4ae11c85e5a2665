"""A rule for the nodes of a graph that make tensors of a computed shape: requests size them, and constants multiply
that by little.

`ConstantOfShape`, `Expand` and `Range` are the operators of exports whose output is as large as numbers say, not as
their inputs are. Exports take these numbers from shapes, and put constants beside them; products, sums and numbers that
a request gives are not among them. For what grows otherwise, by broadcasting or products of matrices, there is the
memory limit of an engine process. This module uses the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from export.bundle.onnx_reader import Message

SIZES: Mapping[str, tuple[int, ...]] = {"ConstantOfShape": (0,), "Expand": (1,), "Range": (0, 1, 2)}  # inputs
SELECTING = frozenset(["Concat", "Gather", "Slice", "Squeeze", "Unsqueeze"])  # of numbers some or all
MAX_ITEMS = 1 << 20  # for each item that a request sizes; exports write at most the width of a model
MAX_VALUES = 64  # that make one shape

Origins = Mapping[str, list[int] | Message | None]
"""Of a value, by name: its integers, the node that writes it, or None of what is neither."""


def size_problems(node: Message, origins: Origins) -> Iterator[str]:
    """What is wrong with the sizes of a node's output."""
    inputs = node.get("input", [])
    places = () if node.get("domain") else SIZES.get(node.get("op_type", ""), ())
    waiting = [inputs[place] for place in places if place < len(inputs)]
    seen, items = set[str](), 1
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        origin = origins.get(name)
        operator = origin.get("op_type") if isinstance(origin, dict) else None
        if isinstance(origin, list):
            items *= math.prod(max(1, abs(number)) for number in origin)
        elif isinstance(origin, dict) and operator in SELECTING:
            waiting += origin.get("input", [])
        elif operator not in ("Shape", "ConstantOfShape") or len(seen) > MAX_VALUES:
            found = operator or "a number of another kind"
            yield f"must be sized by at most {MAX_VALUES} constants and shapes, got {found}"
            return
    if items > MAX_ITEMS:
        yield f"must make at most {MAX_ITEMS} items for each that a request sizes, got {items}"
