"""The chat template of a checkpoint directory, as `AutoTokenizer` of transformers finds it, and what ends a turn.

`chat_template.jinja` decides, then `chat_template` of tokenizer_config.json: a template, or a list of named ones, of
which the one named `default` is taken.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from model.pretrained.files import TOKENIZER_CONFIG, Imported, PretrainedError, read_optional_json
from model.pretrained.tokenizer_files import special_texts
from model.prompts.chat_template import ChatTemplate, ChatTemplateError
from model.prompts.chat_tokens import ChatTokens
from model.tokenizer import Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
OTHER_TEMPLATES = "additional_chat_templates"  # a folder of NAME.jinja
DEFAULT = "default"
VARIABLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_QUESTION, _ANSWER = "What is the name of this?", "It is called Example"


class Chat(NamedTuple):
    """What a directory has for chats. others: names of templates that are not taken."""

    template: ChatTemplate | None = None
    others: tuple[str, ...] = ()


def chat_of(path: Path) -> Chat:
    """The template of a directory. Raises PretrainedError for one that is no Jinja."""
    sources = {file.stem: _read(file) for file in sorted((path / OTHER_TEMPLATES).glob("*.jinja"))}
    where = TEMPLATE_FILE
    if (path / TEMPLATE_FILE).is_file():
        sources[DEFAULT] = _read(path / TEMPLATE_FILE)
    elif not sources:
        where = f"{TOKENIZER_CONFIG}: chat_template"
        sources = _named(read_optional_json(path / TOKENIZER_CONFIG).get("chat_template"))
    others = tuple(name for name in sources if name != DEFAULT)
    if DEFAULT not in sources:
        return Chat(others=others)
    texts = special_texts(path)
    variables = {name: texts[name] for name in VARIABLES if texts.get(name)}
    try:
        return Chat(ChatTemplate(sources[DEFAULT], variables), others)
    except ChatTemplateError as error:
        fix = "correct it, or remove it to import the model without chats"
        raise PretrainedError(f"{path}: {where}: {error}; {fix}") from error


def with_ends_of_turns(imported: Imported, template: ChatTemplate, tokenizer: Tokenizer) -> Imported:
    """The model with the token that its template puts after an answer among those that end one."""
    config, end = imported.config, end_of_turn(template, tokenizer)
    if end is None or end in config.eos_ids or end >= config.vocab_size:
        return imported
    return replace(imported, config=config.replace(extra_eos_ids=(*config.extra_eos_ids, end)))


def end_of_turn(template: ChatTemplate, tokenizer: Tokenizer) -> int | None:
    """The special token that follows an answer, but for blanks; None if none does, or the template refuses a chat of a
    question and an answer."""
    chat = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    try:
        after = template.render(chat, add_generation_prompt=False).rpartition(_ANSWER)[2].lstrip()
    except ChatTemplateError:
        return None
    tokens = ChatTokens(tokenizer, template)
    name = next((name for name in tokens.names if after.startswith(name)), None)
    return None if name is None else tokens.encode(name)[0]


def _named(value: Any) -> dict[str, str]:
    """Templates by their names, of a value of tokenizer_config.json."""
    if isinstance(value, str):
        return {DEFAULT: value}
    items = value or []
    if isinstance(items, dict):
        items = [{"name": name, "template": template} for name, template in items.items()]
    try:
        found = {item["name"]: item["template"] for item in items}
    except (TypeError, KeyError):
        found = {"": None}
    if not all(isinstance(part, str) for pair in found.items() for part in pair):
        problem = "must be a text, or a list of objects with name and template"
        raise PretrainedError(f"{TOKENIZER_CONFIG}: chat_template: {problem}, got {value!r:.80}")
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error
