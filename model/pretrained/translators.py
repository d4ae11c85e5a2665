"""How language models of published families are asked to translate: templates in `translators/`, each with its source,
and those that a person writes in the same form.
"""

from __future__ import annotations

import re
from pathlib import Path

from model.config import ModelConfig
from model.pretrained.files import PretrainedError
from model.prompts.chat_template import ChatTemplate, ChatTemplateError
from model.prompts.chat_tokens import ChatTokens
from model.prompts.translation_prompts import TranslationPrompts
from model.prompts.translation_template import TranslationTemplate, TranslationTemplateError
from model.tokenizer import Tokenizer

_FOLDER = Path(__file__).parent / "translators"
_TOKEN = re.compile(r"<\|\w+\|>|<\w+_of_\w+>")  # how special tokens of chats are named


def translators() -> list[str]:
    """The names of the templates."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def translator(name: str) -> TranslationTemplate:
    """The template of that name, or in a file NAME.toml. Raises PretrainedError."""
    if name not in translators() and not name.endswith(".toml"):
        known = f"one of {', '.join(translators())}, or a file NAME.toml"
        raise PretrainedError(f"translate-as: must be {known}, got {name!r:.80}")
    try:
        return TranslationTemplate.from_toml(Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml")
    except TranslationTemplateError as error:
        raise PretrainedError(f"translate-as: {error}") from error


def check_translator(
    template: TranslationTemplate | None, config: ModelConfig, chat: ChatTemplate | None, tokenizer: Tokenizer
) -> None:
    """Raises PretrainedError for a template by which this model cannot be asked."""
    if template is None:
        return
    where = f"translate-as: {template.name}"
    if config.architecture != "decoder":
        reason = "translates without a template" if config.has_decoder else "writes no texts"
        raise PretrainedError(f"{where}: must be left out: a model of the architecture {config.architecture} {reason}")
    try:
        prompts = TranslationPrompts(template, tokenizer, ChatTokens(tokenizer, chat) if chat else None)
        first, second = list(template.languages)[:2]
        size = len(prompts.encode("a", first, second))
    except (TranslationTemplateError, ChatTemplateError) as error:
        raise PretrainedError(f"{where}: {error}") from error
    for name in _TOKEN.findall(template.prompt):
        if name not in prompts.special_tokens:
            raise PretrainedError(
                f"{where}: its prompt has {name}, which is no token of this model; is it for another one?"
            )
    if size >= config.max_target_len:
        raise PretrainedError(f"{where}: its prompt has {size} tokens, and the model reads {config.max_target_len}")
