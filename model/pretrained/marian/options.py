"""The YAML of options, in a model's file or beside it."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Without aliases, by which a short text stands for a long one."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias; write its value")
        return super().compose_node(parent, index)


def read_yaml(text: bytes) -> Any:
    """The values of a text. Raises ValueError."""
    try:
        return yaml.load(text.decode(), _Loader)
    except Exception as error:  # a value that is none of its type raises whatever its conversion does
        raise ValueError(f"{error!s:.200}") from error
