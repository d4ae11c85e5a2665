"""Decoding options in a file: `--options FILE` of verbs that decode many texts, in place of a flag for each option.

The file is a mapping in JSON or YAML; names and ranges are those of `service.options.OPTIONS`. Rules between options
are left to the server that gets them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cli.flags import OPTION_FLAGS, Flags, flag, flag_name, parse_options, with_flags
from cli.terminal import UsageError
from cli.text_input import read_text

FLAG = "--options"
_HELP = "JSON or YAML file of decoding options, such as {length_penalty: 0.6, stop: [END]}; -: standard input"
_KINDS: Mapping[str, tuple[str, str, tuple[type, ...]]] = {  # type of an option → one value, several, types of a value
    "int": ("a whole number", "whole numbers", (int,)),
    "float": ("a number", "numbers", (int, float)),
    "bool": ("true or false", "truth values", (bool,)),
    "str": ("text", "texts", (str,)),
}


def beam(help: str, **settings: Any) -> Any:
    """The flag of the beam's size of a verb whose other options are in the file."""
    return flag(int, help, "--beam", "--beam-size", **settings)


def with_options_file(flags: Flags) -> Callable[[Any], Any]:
    """Add `--options FILE` and some flags to a verb, which gets the options as its keyword argument `options`.

    flags: of single options and of the model, by field name; those that were omitted are not among the options.
    """

    def read(given: dict[str, Any]) -> dict[str, Any]:
        file = given.pop("options")
        single = {name: value for name, value in given.items() if value is not None}
        return merged(read_options(file), single) if file else single

    return with_flags("options", {**flags, "options": flag(str, _HELP, FLAG, metavar="FILE")}, read)


def merged(options: dict[str, Any], single: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file and of flags. Raises UsageError for one that is given by both."""
    if twice := options.keys() & single.keys():
        raise UsageError(f"{FLAG}: {min(twice)}: is given by a flag of its own, too")
    return {**single, **options}


def read_options(file: str) -> dict[str, Any]:
    """The options of a file by name, each checked by itself. Raises UsageError, OSError."""
    import yaml

    text = read_text(file)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of a date that does not exist
        problem = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise UsageError(f"{FLAG} {file}: not readable as JSON or YAML: {problem}") from None
    if not isinstance(found, dict):
        got = "nothing" if found is None else json.dumps(found, default=str, ensure_ascii=False)
        example = '{"beam_size": 4}'
        raise UsageError(f"{FLAG} {file}: must be a mapping of options, such as {example}; got {got:.60}")
    return _checked(found, f"{FLAG} {file}")


def _checked(found: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Options with the types of their fields. where: how errors begin. Raises UsageError."""
    from glossa.client import closest
    from service.errors import InvalidRequest
    from service.option_checks import check_values
    from service.options import OPTIONS, DecodingOptions

    options: dict[str, Any] = {}
    for name, value in found.items():
        if name not in OPTIONS:
            raise UsageError(f"{where}: {name}: unknown option; {closest(str(name), OPTIONS)}")
        try:
            options[name] = _typed(value, OPTIONS[name].type)
        except ValueError as error:
            got = json.dumps(value, default=str, ensure_ascii=False)
            raise UsageError(f"{where}: {name}: must be {error}, got {got:.80}") from None
    try:
        check_values(DecodingOptions(**options), options)
    except InvalidRequest as error:
        raise UsageError(f"{where}: {str(error).removeprefix('options.')}") from None
    return options


def _typed(value: Any, kind: str) -> Any:
    """A value as the type of an option. kind: the type, as the list of options writes it. Raises ValueError with what
    it must be."""
    kind = kind.removesuffix(" | None")
    if items := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", kind):
        _, several, types = _KINDS[items[1]]
        if not isinstance(value, list) or any(type(item) not in types for item in value):
            raise ValueError(f"a list of {several}")
        return tuple(value)
    if kind.startswith("Mapping"):
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            return {int(token): float(bias) for token, bias in value.items()}
        raise ValueError("a mapping of tokens to biases, such as {5: -1.5}")
    if kind not in _KINDS:  # a choice, some of which YAML reads as a truth value
        kind, value = "str", str(value).lower() if isinstance(value, bool) else value
    one, _, types = _KINDS[kind]
    if type(value) not in types:
        raise ValueError(one)
    return value


def refuse_moved(arguments: Sequence[str], known: Collection[str]) -> None:
    """Raises UsageError for flags of options that a verb does not have, with the content of a file in their place.

    known: the flags of the verb.
    """
    moved = {flag_name(name): name for name in OPTION_FLAGS} | {"--option": ""}
    flags, written = [], []
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == "--":
            break
        if flag in known or flag not in moved:
            continue
        option = moved[flag]
        kind = OPTION_FLAGS.get(option, {}).get("type")
        if kind == "bool":
            value = "true"
        elif not equals:
            value = "".join(arguments[place + 1 : place + 2])
        if kind == "path":
            value = f"the text of {value}"
        flags.append(flag)
        written.append(f"{option}={value}" if option else value)
    if not flags:
        return
    try:
        content = json.dumps(parse_options(written), ensure_ascii=False)
    except UsageError:
        content = '{"beam_size": 4}'
    raise UsageError(f"{', '.join(dict.fromkeys(flags))} moved to {FLAG} FILE: {content}")
