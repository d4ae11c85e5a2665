"""How a model without an encoder is asked to translate (`TranslationTemplate`): a prompt in Jinja, and the languages
that the model was trained for. `glossa import --translate-as` puts it into a checkpoint, the export into a bundle.

The prompt reads these variables; `text` and a target are required:

    text                          the text to translate
    source, target                names of the languages, as `languages` has them
    source_code, target_code      their codes, as a request has them; source and source_code may be empty
    terms                         of a glossary, those of the text: each with `source` and `target`
    context                       sentences before the text: each with `source` and `translation`
    examples                      those of the template for this pair of languages: each with `source` and `translation`

It is rendered as a chat template is (`model.prompts.chat_template`). Needs jinja2 alone: servers read it.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.prompts.chat_template import ChatTemplate, ChatTemplateError

VARIABLES = ("text", "source", "target", "source_code", "target_code", "terms", "context", "examples")
MAX_LANGUAGES, MAX_CODE, MAX_NAME = 1000, 32, 64
MAX_STOPS, MAX_STOP = 4, 16
MAX_CONTEXT = 64
MAX_EXAMPLES, MAX_EXAMPLE = 100, 4096


class TranslationTemplateError(ValueError):
    """A template cannot be used: which field, what is wrong, and the limit."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A sentence and its translation. source_language, target_language: codes."""

    source_language: str
    target_language: str
    source: str
    translation: str


@dataclass(frozen=True, kw_only=True)
class TranslationTemplate:
    """Never changed after construction. `from_values` checks it.

    name: what it is called. prompt: in Jinja: the user's message of a chat if is_chat, else the whole prompt, in which
    names of special tokens are those tokens. languages: the name of each language in the prompt, by its code.
    needs_source: a request must name the language of its text. before_answer: what stands between the prompt and a
    given answer. stop: strings that end an answer beside the model's end tokens. context_sentences: the most that the
    prompt has room for.
    """

    name: str
    prompt: str
    languages: Mapping[str, str]
    is_chat: bool = False
    needs_source: bool = True
    before_answer: str = ""
    stop: tuple[str, ...] = ()
    context_sentences: int = 0
    examples: tuple[Example, ...] = ()
    variables: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def from_values(cls, values: Any) -> TranslationTemplate:
        """From the values of a file. Raises TranslationTemplateError."""
        given = _fields(values, cls, "the template")
        examples = [_example(place, item) for place, item in enumerate(_list(given, "examples"))]
        template = cls(
            **given
            | {"stop": tuple(_list(given, "stop")), "examples": tuple(examples), "variables": _variables_of(given)}
        )
        for problem in _problems(template):
            raise TranslationTemplateError(problem)
        return template

    @classmethod
    def from_json(cls, data: bytes) -> TranslationTemplate:
        """From the content of TRANSLATION_TEMPLATE. Raises TranslationTemplateError."""
        try:
            return cls.from_values(json.loads(data))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TranslationTemplateError(f"must be JSON: {error!r:.200}") from error

    @classmethod
    def from_toml(cls, file: Path) -> TranslationTemplate:
        """From a file that a person wrote. Raises TranslationTemplateError."""
        try:
            return cls.from_values(tomllib.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise TranslationTemplateError(f"{file}: {error}") from error

    def to_json(self) -> bytes:
        """The content of TRANSLATION_TEMPLATE."""
        values = dataclasses.asdict(self)
        del values["variables"]
        return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()


def _fields(values: Any, kind: type, where: str) -> dict[str, Any]:
    """The fields of a dataclass in a plain value: no other ones, none missing, each of its type."""
    if not isinstance(values, dict):
        raise TranslationTemplateError(f"{where} must be an object of fields, got {values!r:.40}")
    fields = {one.name: one for one in dataclasses.fields(kind) if one.name != "variables"}
    if unknown := [name for name in values if name not in fields]:
        raise TranslationTemplateError(f"{where} has no field {unknown[0]!r:.40}; it has {', '.join(fields)}")
    for name, one in fields.items():
        is_missing = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if is_missing and name not in values:
            raise TranslationTemplateError(f"{where} must have the field {name}")
        expected = _TYPES[str(one.type).partition("[")[0]]
        if name in values and type(values[name]) is not expected:
            raise TranslationTemplateError(f"{name} must be {_NAMES[expected]}, got {values[name]!r:.40}")
    return values


_TYPES = {"str": str, "bool": bool, "int": int, "Mapping": dict, "tuple": list}
_NAMES = {str: "a text", bool: "true or false", int: "a whole number", dict: "an object", list: "a list"}


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    found: list[Any] = values.get(name, [])
    return found


def _example(place: int, values: Any) -> Example:
    return Example(**_fields(values, Example, f"examples[{place}]"))


def _variables_of(values: Mapping[str, Any]) -> frozenset[str]:
    try:
        return ChatTemplate(values["prompt"], {}).variables
    except ChatTemplateError as error:
        raise TranslationTemplateError(f"prompt: {error}") from error


def _problems(template: TranslationTemplate) -> list[str]:
    found, languages, reads = list[str](), template.languages, template.variables
    if not 1 <= len(template.name) <= MAX_NAME or not template.name.isprintable():
        found.append(f"name must be 1..{MAX_NAME} printable characters, got {template.name[:MAX_NAME]!r}")
    if unknown := sorted(reads - set(VARIABLES)):
        found.append(f"prompt reads {unknown[0]!r}; it may read {', '.join(VARIABLES)}")
    if "text" not in reads or not reads & {"target", "target_code"}:
        found.append("prompt must read text, and target or target_code")
    if not 2 <= len(languages) <= MAX_LANGUAGES:
        found.append(f"languages must be 2..{MAX_LANGUAGES}, got {len(languages)}")
    for code, name in languages.items():
        if not (code.isascii() and code.replace("-", "").replace("_", "").isalnum() and len(code) <= MAX_CODE):
            found.append(f"languages: a code must be letters, digits, - and _, at most {MAX_CODE}, got {code[:64]!r}")
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            found.append(f"languages.{code} must be a name of 1..{MAX_NAME} characters, got {name!r:.80}")
    if template.needs_source and not reads & {"source", "source_code"}:
        found.append("needs_source must be false: the prompt reads neither source nor source_code")
    if len(template.before_answer) > MAX_STOP:
        found.append(f"before_answer must be at most {MAX_STOP} characters, got {template.before_answer!r:.80}")
    if len(template.stop) > MAX_STOPS:
        found.append(f"stop must be at most {MAX_STOPS} strings, got {len(template.stop)}")
    for text in template.stop:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP:
            found.append(f"stop must be strings of 1..{MAX_STOP} characters, got {text!r:.80}")
    if not 0 <= template.context_sentences <= MAX_CONTEXT:
        found.append(f"context_sentences must be 0..{MAX_CONTEXT}, got {template.context_sentences}")
    if bool(template.context_sentences) != ("context" in reads):
        found.append("context_sentences must be above 0 if the prompt reads context, and else 0")
    if template.examples and "examples" not in reads:
        found.append("examples must be left out: the prompt does not read them")
    if len(template.examples) > MAX_EXAMPLES:
        found.append(f"examples must be at most {MAX_EXAMPLES}, got {len(template.examples)}")
    for place, example in enumerate(template.examples):
        for side in ("source_language", "target_language"):
            if (code := getattr(example, side)) not in languages:
                found.append(f"examples[{place}].{side} must be a code of languages, got {code[:64]!r}")
        if max(len(example.source), len(example.translation)) > MAX_EXAMPLE:
            found.append(f"examples[{place}] must have texts of at most {MAX_EXAMPLE} characters")
    return found
