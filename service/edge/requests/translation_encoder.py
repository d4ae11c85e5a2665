"""A text to translate → the token ids that a model without an encoder continues (`TranslationEncoder`), by the
translation template of its bundle. Nothing here knows gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.prompts.chat_template import ChatTemplateError
from model.prompts.translation_prompts import TranslationPrompts
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import ContextSentence, LanguagePair, known_language, unknown_words_problem
from service.errors import InvalidRequest


class TranslationEncoder:
    """Encodes the texts of one model's requests to translate. Raises InvalidRequest with the field's name."""

    def __init__(self, model: ServedModel, prompts: TranslationPrompts) -> None:
        self._model, self._prompts = model, prompts
        self.template = prompts.template

    @classmethod
    def of(cls, model: ServedModel) -> TranslationEncoder | None:
        """That of a model; None for one that does not translate by its prompts."""
        return cls(model, model.translation) if model.translation is not None else None

    def check_languages(self, languages: LanguagePair) -> None:
        """Refuses languages that the template does not name, and none for the answer."""
        self._own(languages)

    def _own(self, languages: LanguagePair) -> LanguagePair:
        """The codes of the template."""
        directions, source = self._model.directions, languages.source
        target = known_language("target_language", languages.target, directions.targets)
        if source or directions.reads_source:
            source = known_language("source_language", source, directions.sources)
        return LanguagePair(source, target)

    def prompt(
        self,
        text: str,
        languages: LanguagePair,
        *,
        terms: Sequence[tuple[str, str]] = (),
        context: Sequence[ContextSentence] = (),
        new_tokens: int = 1,
    ) -> tuple[int, ...]:
        """What the model continues. terms: of a glossary, that the text has. context: sentences before the text. The
        oldest of these are left out, then terms, until there is room for an answer of new_tokens."""
        languages = self._own(languages)
        terms = terms if "terms" in self.template.variables else ()
        while True:
            tokens = self._encoded(text, languages, terms, context)
            if self._model.max_new_tokens(len(tokens)) >= new_tokens:
                break
            if not (context or terms):
                self._check_length(tokens)
                break
            context, terms = context[1:], terms if context else ()
        tokenizer = self._model.tokenizer
        if self._model.manifest.tokens.unk in tokens and (unknown := tokenizer.unknown_words(text)):
            raise InvalidRequest("text", unknown_words_problem(unknown, tokenizer))
        return tokens

    def count(self, text: str, languages: LanguagePair) -> int:
        """The number of tokens of a prompt, above the model's limit, too."""
        languages = self._own(languages)
        return len(self._encoded(text, languages))

    def _encoded(
        self,
        text: str,
        languages: LanguagePair,
        terms: Sequence[tuple[str, str]] = (),
        context: Sequence[ContextSentence] = (),
    ) -> tuple[int, ...]:
        try:
            tokens = self._prompts.encode(text, *languages, terms=terms, context=context)
        except ChatTemplateError as error:
            name = f"the translation template of model {self._model.name!r}"
            raise InvalidRequest("text", f"{name} does not render it: {error}") from error
        start = () if self.template.is_chat else self._model.manifest.template.target_prefix
        return (*(token for token in start if isinstance(token, int)), *tokens)

    def _check_length(self, tokens: Sequence[int]) -> None:
        if len(tokens) > (limit := self._model.max_prompt_tokens):
            own = f"with the prompt that it stands in must be at most {limit} tokens"
            raise InvalidRequest("text", f"{own}, got {len(tokens)}; shorten or split it")
