"""Graph signatures. This module does not depend on any graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Signature:
    """How a graph is called: example arguments, their dynamic axes, and the names of all tensors.

    finish: a final transformation of the traced graph after all passes; `inputs` and `outputs` then name the tensors
    before it.
    """

    module: nn.Module
    arguments: tuple[Any, ...]
    dynamic_axes: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    finish: Callable[[ModelProto], ModelProto] | None = None
