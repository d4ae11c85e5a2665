"""Flags that several verbs share: the connection to a server, a model's languages, and the options of decoding.

`with_flags` adds a group of flags to a verb, which then gets one value made of them. Every decoding option has a flag,
made from a list that `make options` generates, and can be given as `--option NAME=VALUE`, with the names and types of
the protobuf message. A new option needs nothing here.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.terminal import UsageError, report_errors

ModelName = Annotated[str, typer.Option(help="name on the server; may be left out when one model fits")]
SourceLanguage = Annotated[str, typer.Option(help="of the text, by its code; for models that have languages")]
TargetLanguage = Annotated[str, typer.Option(help="of the answer, by its code; for models that have languages")]
OtherOptions = Annotated[list[str] | None, typer.Option("--option", help="NAME=VALUE, such as length_penalty=0.6")]
Flags = Mapping[str, Any]  # name of a parameter → its annotation, for typer


def flag(kind: Any, help: str, *names: str, **settings: Any) -> Any:
    """The annotation of a flag that may be left out."""
    annotated: Any = Annotated
    return annotated[kind | None, typer.Option(*names, help=help, **settings)]


def with_flags(parameter: str, flags: Flags, read: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """Add flags to a verb, and pass it `read` of what was given as its keyword argument `parameter`.

    read: gets every flag by name, None where it was left out; it may raise UsageError or OSError. A flag whose name the
    verb has as a parameter of its own, such as a seed, is not added.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = {
            name: known.replace(annotation=_evaluated(known.annotation, command))
            for name, known in inspect.signature(command).parameters.items()
            if name != parameter
        }
        added = {name: kind for name, kind in flags.items() if name not in parameters}

        @functools.wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in added}
            with report_errors():
                value = read(values)
            command(**given, **{parameter: value})

        for name, kind in added.items():
            parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
        return run

    return decorate


def _evaluated(annotation: Any, command: Callable[..., None]) -> Any:
    """An annotation that may be written as a string, as the module of the verb means it."""
    return eval(annotation, inspect.unwrap(command).__globals__) if isinstance(annotation, str) else annotation


def option_names() -> list[str]:
    """Completions of --option."""
    from glossa.v1 import glossa_pb2 as pb

    return [f"{name}=" for name in pb.DecodingOptions.DESCRIPTOR.fields_by_name]


_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list[str], "path": Path}


def _option_flags() -> dict[str, Any]:
    """A flag for each decoding option, from the generated list."""
    known = json.loads(Path(__file__).with_name("decoding_options.json").read_text(encoding="utf-8"))
    flags: dict[str, Any] = {}
    for name, option in known.items():
        kind = Literal[tuple(option["choices"])] if "choices" in option else _TYPES[option["type"]]
        written = option.get("flag", f"--{name.replace('_', '-')}")
        flags[name] = flag(kind, option["help"], written, rich_help_panel=option["panel"])
    return flags


DECODING: Flags = _option_flags() | {
    "option": flag(list[str], "NAME=VALUE: any decoding option; may be repeated", autocompletion=option_names)
}


def decoding_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of DECODING that were given, by the names of the options. Files are read. Raises UsageError."""
    options: dict[str, Any] = {}
    for name, value in flags.items():
        if name == "option" or value is None or value == []:
            continue
        if isinstance(value, list):
            options |= parse_options([f"{name}={item}" for item in value], flag=f"--{name.replace('_', '-')}")
        else:
            options[name] = value.read_text(encoding="utf-8") if isinstance(value, Path) else value
    others = parse_options(flags.get("option") or ())
    if twice := options.keys() & others.keys():
        raise UsageError(f"--option {min(twice)}: is given by a flag of its own, too")
    return options | others


with_decoding_flags = with_flags("options", DECODING, decoding_options)


def parse_options(written: Iterable[str], *, flag: str = "") -> dict[str, Any]:
    """Options given as NAME=VALUE, by their names. flag: where they come from, if not --option. Raises UsageError.

    An option that is a list may be given several times, and its numbers may be separated by commas. Biases are written
    logit_bias=TOKEN:BIAS.
    """
    from glossa.client import closest
    from glossa.v1 import glossa_pb2 as pb

    fields = pb.DecodingOptions.DESCRIPTOR.fields_by_name
    given: dict[str, Any] = {}
    for text in written:
        name, separator, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not separator:
            raise UsageError(f"--option {text}: must be NAME=VALUE, such as top_k=5")
        if name not in fields:
            raise UsageError(f"--option {name}: unknown option; {closest(name, fields)}")
        field = fields[name]
        try:
            if name == "logit_bias":
                given.setdefault(name, {}).update(_biases(value))
            elif field.is_repeated:
                given[name] = (*given.get(name, ()), *_items(field, value))
            elif name in given:
                raise ValueError("the option is given twice")
            else:
                given[name] = _value(field, value)
        except ValueError as error:
            raise UsageError(f"{flag or f'--option {name}'}: {error}") from None
    return given


def _items(field: Any, text: str) -> list[Any]:
    """Texts are taken whole, as a comma may be part of one."""
    parts = [text] if field.cpp_type == field.CPPTYPE_STRING else text.split(",")
    return [_value(field, part) for part in parts]


def _biases(text: str) -> dict[int, float]:
    pairs = [part.partition(":") for part in text.split(",")]
    try:
        return {int(token): float(bias) for token, _, bias in pairs}
    except ValueError:
        raise ValueError(f"must be TOKEN:BIAS, such as 5:-1.5,6:2; got {text!r}") from None


def _value(field: Any, text: str) -> Any:
    if field.cpp_type in (field.CPPTYPE_STRING, field.CPPTYPE_ENUM):
        return text
    if field.cpp_type == field.CPPTYPE_BOOL:
        if text.lower() not in ("true", "yes", "1", "false", "no", "0"):
            raise ValueError(f"must be true or false, got {text!r}")
        return text.lower() in ("true", "yes", "1")
    is_float = field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT)
    try:
        return float(text) if is_float else int(text)
    except ValueError:
        raise ValueError(f"must be {'a number' if is_float else 'a whole number'}, got {text!r}") from None
