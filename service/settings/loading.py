"""Settings as they are read once, at the entry point.

A value comes from the first of: flag, `GLOSSA_…` environment variable, YAML file (`--config` or `GLOSSA_CONFIG`),
default. Unknown keys are errors in each of them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from service.errors import StartupError
from service.settings.config import PREFIX, ServerSettings

_CLIENTS = ("ADDRESS", "ADMIN_ADDRESS", "TLS", "TLS_CA", "CLIENT_CERT", "CLIENT_KEY", "TOKEN", "METADATA")
OTHERS = tuple(f"GLOSSA_{name}" for name in _CLIENTS)  # variables of client commands


def load_settings(flags: Mapping[str, Any]) -> ServerSettings:
    """Settings from flags (those the user gave, by field name), the environment and the YAML file.

    Raises StartupError naming the setting, the value's problem and where it came from.
    """
    known = set(ServerSettings.model_fields)
    for variable in os.environ:
        if variable in OTHERS or not variable.upper().startswith(PREFIX):
            continue
        if variable[len(PREFIX) :].lower() not in known:
            shown = {PREFIX + field.upper() for field in known}
            raise StartupError(f"{variable}: {_unknown(variable, shown)}")
    try:
        return ServerSettings(**flags)
    except ValidationError as error:
        raise StartupError("\n".join(_explain(problem, flags) for problem in error.errors())) from None


_MESSAGES = {  # instead of pydantic's, which name its own types
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "greater_than": "must be above {gt}",
}


def _origin(name: str, flags: Mapping[str, Any]) -> str:
    """A setting as it was given: the name of its flag, of its variable, or its key."""
    if name in flags:
        return "--" + name.replace("_", "-")
    variable = PREFIX + name.upper()
    return variable if variable in os.environ else name


def _explain(problem: Any, flags: Mapping[str, Any]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else "settings"
    origin = _origin(name, flags)
    if problem["type"] == "extra_forbidden":
        return f"{origin}: {_unknown(name, ServerSettings.model_fields)}"
    if problem["type"] == "missing":
        return f"{origin}: not set; name at least one model: NAME=BUNDLE"
    if problem["type"] in _MESSAGES:
        message = _MESSAGES[problem["type"]].format(**problem.get("ctx", {}))
    else:
        message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    if not problem["loc"]:
        message = re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda found: _origin(found[0], flags), message)
    is_told = ", got " in message or not problem["loc"]  # of several settings together
    return f"{origin}: {message}" + ("" if is_told else f", got {problem['input']!r}")


def _unknown(key: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return "unknown setting; " + (f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(known))}")
