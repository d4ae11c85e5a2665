"""Settings from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from service.errors import StartupError


def settings_of(path: Path) -> dict[str, Any]:
    """The settings of a YAML file; an empty one has none. Raises StartupError."""
    if not path.is_file():
        raise StartupError(f"config: no such file: {path}; give the path of a YAML file")
    try:
        settings = yaml.safe_load(path.read_bytes().decode())
    except OSError as error:
        raise StartupError(f"config: cannot be read: {path}: {error.strerror}; check its permissions") from None
    except UnicodeDecodeError as error:
        problem = f"config: must be UTF-8, is not at byte {error.start}: {path}"
        raise StartupError(f"{problem}; convert it, e.g. with iconv") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of a date that does not exist
        problem = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise StartupError(f"config: not readable as YAML: {path}: {problem}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        found = "a list" if isinstance(settings, list) else "text" if isinstance(settings, str) else "a single value"
        problem = f"config: must be a mapping of settings, is {found}: {path}"
        raise StartupError(f"{problem}; write one setting a line, such as max_queue: 64")
    if others := [key for key in settings if not isinstance(key, str)]:
        problem = f"config: must have text as keys, has {others[0]!r}: {path}"
        raise StartupError(f"{problem}; write the name of a setting, such as max_queue: 64")
    return settings
