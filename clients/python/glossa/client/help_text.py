"""What `help()` shows of a call: its options and the fields of its result, with the words of their classes.

Python does not keep docstrings and comments beside annotations, so they are read from the sources, once. Without the
sources a call has its own docstring alone.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from glossa.client import documents, options, requests, types

WIDTH = 100


def with_help(method: Any, build: Callable[..., Any], returns: str = "{}") -> Any:
    """A method, after its docstring and signature got the options and the result of `build`, which makes its call.

    returns: the type of what the method returns, around that of the result.
    """
    signature = inspect.signature(build)
    result = re.sub(r"^\w*Call\[(.*)\]$", r"\1", str(signature.return_annotation))
    method.__signature__ = signature.replace(return_annotation=returns.format(result))
    parts = [inspect.cleandoc(build.__doc__ or "")]
    for kind in re.findall(r"Unpack\[(\w+)\]", str(signature)):
        parts.append(f"Options ({kind}):\n{_listed(kind)}")
    for kind in re.findall(r"\w+", returns.format(result)):
        if kind in _classes():
            parts.append(f"Fields of {kind}:\n{_listed(kind)}")
    method.__doc__ = "\n\n".join(parts)
    return method


@functools.cache
def _listed(kind: str) -> str:
    return "\n".join(
        textwrap.fill(f"{name}: {words}", WIDTH, initial_indent="  ", subsequent_indent="      ")
        for name, words in _fields(kind)
    )


def _fields(kind: str) -> Iterator[tuple[str, str]]:
    """The fields of a class, those of its bases first, each with its type and what is said of it."""
    if kind not in _classes():
        return
    node, lines = _classes()[kind]
    for base in node.bases:
        yield from _fields(ast.unparse(base))
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            words = str(after.value.value) if is_told else lines[field.lineno - 1].partition("  # ")[2]  # type: ignore[union-attr]
            yield field.target.id, f"{ast.unparse(field.annotation)}. {' '.join(words.split())}".removesuffix(". ")


@functools.cache
def _classes() -> dict[str, tuple[ast.ClassDef, list[str]]]:
    """The classes of options and results by name, and the lines of their modules."""
    found: dict[str, tuple[ast.ClassDef, list[str]]] = {}
    for module in (options, requests, types, documents):
        with contextlib.suppress(OSError, TypeError):  # no sources
            source = inspect.getsource(module)
            classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
            found |= {node.name: (node, source.splitlines()) for node in classes}
    return found
