"""The templates by which a model is prompted (`Templates`): files of its checkpoint and of its bundle."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import NamedTuple, TypeVar

from model.prompts.chat_template import ChatTemplate
from model.prompts.template_files import CHAT_TEMPLATE, TEMPLATES, TRANSLATION_TEMPLATE
from model.prompts.translation_template import TranslationTemplate

T = TypeVar("T")


class TemplatesError(ValueError):
    """A file cannot be used: which one, and why."""


class Templates(NamedTuple):
    """chat: how messages become a prompt. translation: how a model without an encoder is asked to translate. None: the
    model has none."""

    chat: ChatTemplate | None = None
    translation: TranslationTemplate | None = None

    @classmethod
    def read(cls, directory: Path, names: Container[str] = TEMPLATES) -> Templates:
        """Those that a directory has, of these names. Raises TemplatesError and OSError."""
        return cls(
            _read(directory, CHAT_TEMPLATE, names, ChatTemplate.from_json),
            _read(directory, TRANSLATION_TEMPLATE, names, TranslationTemplate.from_json),
        )

    def files(self) -> dict[str, bytes]:
        """The content of each file by its name."""
        found = ((CHAT_TEMPLATE, self.chat), (TRANSLATION_TEMPLATE, self.translation))
        return {name: template.to_json() for name, template in found if template is not None}


NO_TEMPLATES = Templates()


def _read(directory: Path, name: str, names: Container[str], parse: Callable[[bytes], T]) -> T | None:
    if name not in names or not (directory / name).is_file():
        return None
    try:
        return parse((directory / name).read_bytes())
    except ValueError as error:
        raise TemplatesError(f"{directory / name}: {error}") from error
