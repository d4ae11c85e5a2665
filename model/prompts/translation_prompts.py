"""The tokens that a model without an encoder translates from (`TranslationPrompts`): a template with a client's text.

Special tokens come from the template alone, as those of a chat do (`model.prompts.chat_tokens`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from model.prompts.chat_template import ChatTemplate
from model.prompts.chat_tokens import ChatTokens
from model.prompts.translation_template import TranslationTemplate, TranslationTemplateError
from model.tokenizer import Tokenizer

Pair = tuple[str, str]


class TranslationPrompts:
    """Encodes the texts that one model translates. Threads may share one."""

    def __init__(self, template: TranslationTemplate, tokenizer: Tokenizer, chat: ChatTokens | None) -> None:
        """chat: of the model; None if it has no chat template. Raises TranslationTemplateError for a template that
        needs one."""
        if template.is_chat and chat is None:
            problem = "is the message of a chat, and the model has no chat template"
            raise TranslationTemplateError(f"template {template.name}: the prompt {problem}; set is_chat to false")
        self.template, self._prompt = template, ChatTemplate(template.prompt, {})
        self._chat = chat if template.is_chat else None
        self._tokens = self._chat or ChatTokens(tokenizer, self._prompt)

    def encode(
        self,
        text: str,
        source_code: str,
        target_code: str,
        *,
        terms: Iterable[Pair] = (),
        context: Iterable[Pair] = (),
    ) -> list[int]:
        """The tokens of a prompt, without start tokens but for those of a chat. source_code: "" if it is not known.
        terms, context: texts and their translations.

        Raises ChatTemplateError.
        """
        return self._tokens.encode(self._rendered(text, source_code, target_code, terms, context))

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The names that are special tokens in a prompt."""
        return self._tokens.names

    @cached_property
    def tokens_around(self) -> int:
        """The most tokens of a prompt beside its text: for languages with examples or the longest names."""
        names, examples = self.template.languages, self.template.examples
        longest = sorted(names, key=lambda code: len(names[code]))[-2:]
        pairs = {(one.source_language, one.target_language) for one in examples}
        return max(len(self.encode("a", *pair)) for pair in (*pairs, longest, longest[::-1]))

    def _rendered(
        self,
        text: str,
        source_code: str,
        target_code: str,
        terms: Iterable[Pair],
        context: Iterable[Pair],
    ) -> str:
        template = self.template
        names: Mapping[str, str] = {"": "", **template.languages}
        examples = [
            {"source": one.source, "translation": one.translation}
            for one in template.examples
            if (one.source_language, one.target_language) == (source_code, target_code)
        ]
        values = {
            "source_code": source_code,
            "target_code": target_code,
            "source": names[source_code],
            "target": names[target_code],
            "examples": examples,
            "text": self._tokens.marked(text),
            "terms": [self._tokens.marked({"source": one, "target": other}) for one, other in terms],
            "context": [self._tokens.marked({"source": one, "translation": other}) for one, other in context],
        }
        prompt = self._prompt.render((), values, add_generation_prompt=False)
        if self._chat is None:
            return prompt
        return self._chat.template.render([{"role": "user", "content": prompt}])
