"""What every verb prints: an error as one line on stderr, a result as JSON or as aligned lines. Imports no stage."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import typer

from cli.flag_names import with_flags_named

AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Number = TypeVar("Number", int, float)


class UsageError(Exception):
    """A verb cannot do what its arguments ask for."""


@contextlib.contextmanager
def report_errors(*types: type[Exception]) -> Iterator[None]:
    """Turn the named errors of a stage, and those of the file system, into one line on stderr and exit code 1."""
    expected: tuple[type[Exception], ...] = (UsageError, OSError, *types)
    try:
        yield
    except BrokenPipeError:  # the reader of the output has enough, such as `head`
        raise typer.Exit(1) from None
    except expected as error:
        typer.echo(f"error: {describe(error)}", err=True)
        raise typer.Exit(1) from None


def describe(error: Exception) -> str:
    """The message of an error, with flags for fields; for a failed file operation the path and the reason, without the
    error number."""
    if not isinstance(error, OSError) or not error.filename:
        return with_flags_named(str(error))
    hints = {FileNotFoundError: "; check the path", IsADirectoryError: "; give a file in it"}
    hint = hints.get(type(error), "")
    return with_flags_named(f"{error.filename}: {error.strerror}{hint}")


def print_json(value: Any) -> None:
    """Print one line of JSON; a dataclass becomes an object."""
    plain = dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
    typer.echo(json.dumps(_finite(plain), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """A value with null for numbers that JSON lacks: infinities, and nan of what cannot be computed."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def show(figures: dict[str, Any], as_json: bool) -> None:
    """Print a result as JSON, or as aligned lines. None, null in JSON, is a figure that is unknown."""
    if as_json:
        return print_json(figures)
    width = max(map(len, figures))
    for name, value in figures.items():
        typer.echo(f"{name:{width}}  {'unknown' if value is None else value}")


def one_line(text: str) -> str:
    """A text without line breaks: they are written as \\n and \\r."""
    return text.replace("\n", "\\n").replace("\r", "\\r")


def numbers(flag: str, text: str, kind: type[Number]) -> list[Number]:
    """5,10,20 as numbers. Raises UsageError."""
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError:
        raise UsageError(f"{flag}: must be numbers separated by commas, such as 5,10,20; got {text!r}") from None
