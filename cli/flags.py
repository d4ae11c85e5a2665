"""Flags that several verbs share: a model's name, its languages, and the options of decoding.

`with_flags` adds a group of flags to a verb and passes it one value made of them. Every decoding option has a flag,
taken from a list that `make options` generates, and can be given as `--option NAME=VALUE` with the name and type of its
protobuf field. A new option needs no change here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import typer

from cli.terminal import UsageError, report_errors
from cli.text_input import read_text

ModelName = Annotated[str, typer.Option(help="name on the server; may be omitted when one model fits")]
SourceLanguage = Annotated[str, typer.Option(help="of the text, by its code; auto: detect it, to translate")]
TargetLanguage = Annotated[str, typer.Option(help="of the answer, by its code; chooses a model that translates")]
PivotLanguage = Annotated[str, typer.Option(help="translate by way of this language, by two models")]
SourceUnitName = Annotated[
    Literal["sentence", "text"] | None,
    typer.Option(
        help="what a model that translates reads at a time; servers split texts for one that reads a sentence; "
        "default: by its training data, or its family"
    ),
]
Flags = Mapping[str, Any]  # name of a parameter → its annotation, for typer


def flag(kind: Any, help: str, *names: str, **settings: Any) -> Any:
    """The annotation of an optional flag."""
    annotated: Any = Annotated
    return annotated[kind | None, typer.Option(*names, help=help, **settings)]


def with_fields(
    parameter: str, settings: Any, read: Callable[[dict[str, Any]], Any], *, without: str = ""
) -> Callable[[Any], Any]:
    """`with_flags` for the fields of a dataclass that are annotated with a flag, but for one, with their defaults."""
    annotations = get_type_hints(settings, include_extras=True)
    flags = {name: kind for name, kind in annotations.items() if get_origin(kind) is Annotated and name != without}
    return with_flags(parameter, flags, read, {field.name: field.default for field in dataclasses.fields(settings)})


def with_flags(
    parameter: str, flags: Flags, read: Callable[[dict[str, Any]], Any], defaults: Mapping[str, Any] | None = None
) -> Callable[[Any], Any]:
    """Add flags to a verb and pass the result of `read` as its keyword argument `parameter`.

    read: receives every added flag by name, None if it was omitted and `defaults` has no value for it; may raise
    UsageError or OSError. A flag is not added if the verb has a parameter of that name, such as a seed.
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
            default = (defaults or {}).get(name)
            parameters[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
        return run

    return decorate


def _evaluated(annotation: Any, command: Callable[..., None]) -> Any:
    """An annotation; a string is evaluated in the module of the verb."""
    return eval(annotation, inspect.unwrap(command).__globals__) if isinstance(annotation, str) else annotation


def option_names() -> list[str]:
    """Completions of --option."""
    from glossa.v1 import glossa_pb2 as pb

    return [f"{name}=" for name in pb.DecodingOptions.DESCRIPTOR.fields_by_name]


_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list[str], "path": Path}


OPTION_FLAGS: Mapping[str, Any] = json.loads(  # what `make options` knows of the flag of each
    Path(__file__).with_name("decoding_options.json").read_text(encoding="utf-8")
)


def flag_name(option: str) -> str:
    """The flag of an option of MODEL or DECODING, as it is written."""
    written: str = OPTION_FLAGS.get(option, {}).get("flag", f"--{option.replace('_', '-')}")
    return written


def _option_flags(task: str, *, scoring: bool = False) -> dict[str, Any]:
    """A flag for each decoding option in the generated list, but for those of models with another task; or only for
    those that scoring accepts."""
    flags = {"option": flag(list[str], "NAME=VALUE: any decoding option; may be repeated", autocompletion=option_names)}
    for name, option in OPTION_FLAGS.items():
        if option.get("task", task) != task or (scoring and not option.get("scores")):
            continue
        kind = Literal[tuple(option["choices"])] if "choices" in option else _TYPES[option["type"]]
        item = {"metavar": "<str>"} if option["type"] == "list" else {}  # of which several may be given
        flags[name] = flag(kind, option["help"], flag_name(name), rich_help_panel=option["panel"], **item)
    return flags


MODEL: Flags = {"model": ModelName, "source_language": SourceLanguage, "target_language": TargetLanguage}
DECODING: Flags = _option_flags("generation")
TRANSLATING: Flags = _option_flags("translation")
SCORING: Flags = _option_flags("translation", scoring=True)


def decoding_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The given flags of these groups by name. Files are read. Raises UsageError, OSError."""
    options: dict[str, Any] = {}
    for name, value in flags.items():
        if name == "option" or value is None or value == []:
            continue
        if isinstance(value, list):
            options |= parse_options([f"{name}={item}" for item in value], flag=f"--{name.replace('_', '-')}")
        else:
            options[name] = read_text(value) if isinstance(value, Path) else value
    others = parse_options(flags.get("option") or ())
    if twice := options.keys() & others.keys():
        raise UsageError(f"--option {min(twice)}: is given by a flag of its own, too")
    return options | others


with_decoding_flags = with_flags("options", DECODING, decoding_options)
with_translation_flags = with_flags(
    "options", {**MODEL, "pivot_language": PivotLanguage, **TRANSLATING}, decoding_options
)
with_scoring_flags = with_flags("options", {**MODEL, **SCORING}, decoding_options)
with_model_flags = with_flags("options", MODEL, decoding_options)


def parse_options(written: Iterable[str], *, flag: str = "") -> dict[str, Any]:
    """Options given as NAME=VALUE, by their names. flag: its name in errors, if not --option. Raises UsageError.

    A list option may be repeated, and its numbers may be separated by commas. Biases are written logit_bias=TOKEN:BIAS.
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
    """The items of a list option. Texts are not split, as a comma may be part of one."""
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
