"""How a graph is called. Nothing here knows which graphs there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How a graph is called: example arguments, the axes of each that may change, and the names of all tensors.

    finish: what is still to be done with the traced graph when all passes are; then the names are those before it.
    """

    module: nn.Module
    arguments: tuple[Any, ...]
    dynamic_axes: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    finish: Callable[[ModelProto], ModelProto] | None = None
