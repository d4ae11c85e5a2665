"""Between which languages a model translates (`Directions`), and which of them its requests must name."""

from __future__ import annotations

from dataclasses import dataclass

from export.bundle.manifest import SOURCE_LANGUAGE, TARGET_LANGUAGE, Manifest
from model.prompts.translation_template import TranslationTemplate
from service.text.language_codes import LanguageCodes


@dataclass(frozen=True, kw_only=True)
class Directions:
    """From each of `sources` into each of `targets` but itself; none: unknown.

    reads_source, reads_target: the model's input contains the language, so that requests name it.
    """

    sources: LanguageCodes
    targets: LanguageCodes
    reads_source: bool
    reads_target: bool

    @property
    def are_known(self) -> bool:
        """Whether a request may be given to the model for its languages."""
        return bool(self.sources) and bool(self.targets)

    def serves(self, source: str, target: str) -> bool:
        """Whether the model translates between two languages, by any codes; an empty one: any."""
        own_source, own_target = self.sources.find(source), self.targets.find(target)
        if (source and not own_source) or (target and not own_target):
            return False
        return not own_source or own_source != own_target


def directions_of(manifest: Manifest, template: TranslationTemplate | None) -> Directions:
    """Those of a model. template: of one that translates by its prompts."""
    if template is not None:
        codes = LanguageCodes(template.languages)
        return Directions(sources=codes, targets=codes, reads_source=template.needs_source, reads_target=True)
    own, codes = manifest.template, LanguageCodes(manifest.template.languages)
    used = {*own.source_special_tokens, *own.target_prefix}
    reads_source, reads_target = SOURCE_LANGUAGE in used, TARGET_LANGUAGE in used
    source, target = manifest.source_language, manifest.target_language
    return Directions(
        # A model that reads the target alone translates from each of its languages, unless it has one source language.
        sources=codes if reads_source or not source else LanguageCodes([source]),
        targets=codes if reads_target else LanguageCodes([target] if target else []),
        reads_source=reads_source,
        reads_target=reads_target,
    )
