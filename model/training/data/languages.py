"""The languages of training data: which a model's special tokens need, and what is refused before a run starts.

Codes are those of the model's special-token template, such as de_DE (mBART), de (M2M-100) or deu_Latn (NLLB): the ones
that requests to a served model name.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from model.config import (
    DEFAULT_LANGUAGES,
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    ConfigError,
    LanguagePair,
    ModelConfig,
    SpecialTokenTemplate,
    check,
)
from model.config_parts import unnamed_languages
from model.training.data.examples import Examples

SHOWN_CODES = 30  # language codes in an error message; NLLB has 202
SIMILAR = 0.4  # of codes, in difflib's measure: de is similar enough to deu_Latn to be suggested


def check_languages(template: SpecialTokenTemplate, languages: LanguagePair) -> None:
    """Raises ConfigError unless these are codes of the model, and exactly those that its special tokens name."""
    used = {*template.source_prefix, *template.source_suffix, *template.target_prefix}
    for field, token, code in (
        ("source_language", SOURCE_LANGUAGE, languages.source),
        ("target_language", TARGET_LANGUAGE, languages.target),
    ):
        if token in used:
            _check_known(field, code, [known for known, _ in template.languages])
        elif code:
            reason = f"has no token for the {field}" if template.languages else "has no languages"
            raise ConfigError(field, f"must be left out: the model {reason}; got {code!r:.40}")


def read_languages(template: SpecialTokenTemplate, languages: LanguagePair) -> LanguagePair:
    """Those of two languages that the model's special tokens name; "" for one that they do not."""
    own = unnamed_languages(template, languages)
    return LanguagePair("" if own.source else languages.source, "" if own.target else languages.target)


def own_languages(template: SpecialTokenTemplate, languages: Sequence[LanguagePair]) -> LanguagePair:
    """Those of the data that the model's special tokens do not name, and that are the only ones it is for; "" for
    others. languages: of each file. Raises ConfigError for several."""
    found = []
    for place, field in enumerate(("source_language", "target_language")):
        codes = [pair[place] for pair in languages if not read_languages(template, pair)[place]]
        several = list(dict.fromkeys(codes))
        problem = f"must be one for all data: the model has no token for it, got {', '.join(several)!s:.80}"
        check(len(several) < 2, field, problem)
        found.append(several[0] if several else "")
    return LanguagePair(*found)


def _check_known(field: str, code: str, known: Sequence[str]) -> None:
    if code in known:
        return
    codes = ", ".join(sorted(known)[:SHOWN_CODES])
    more = f" and {len(known) - SHOWN_CODES} more" if len(known) > SHOWN_CODES else ""
    if not code:
        fix = f"name that of the data, --{field.replace('_', '-')} CODE"
        raise ConfigError(field, f"must be given, because the model chooses by it; {fix}; codes: {codes}{more}")
    close = difflib.get_close_matches(code, known, n=1, cutoff=SIMILAR)
    hint = f"did you mean {close[0]!r}? Known" if close else "known"
    raise ConfigError(field, f"unknown code {code!r:.40}; {hint} codes: {codes}{more}")


def check_trainable(model: ModelConfig, *data: Examples, has_base: bool) -> None:
    """As `ModelConfig.check_trainable`; and all data must name the languages that the model needs. has_base: training
    continues a checkpoint; a tokenizer trained from scratch has no language tokens."""
    model.check_trainable()
    check(
        has_base or not model.template.languages,
        "special_token_template",
        "must have no languages without a base, whose tokenizer has their tokens; give --from CHECKPOINT",
    )
    check(
        has_base or not model.source_vocab_size,
        "source_vocab_size",
        "must be 0 without a base: training makes one vocabulary; import a model with two, and give --from CHECKPOINT",
    )
    for pair in dict.fromkeys(pair for examples in data for pair in examples.languages or [DEFAULT_LANGUAGES]):
        check_languages(model.template, pair)


def language_pairs(sources: Sequence[str], targets: Sequence[str], *, files: int) -> list[LanguagePair]:
    """The languages of each of some files of data, from one code for all of them or one for each; [] where none are
    given. Raises ConfigError."""
    for field, codes in (("source_language", sources), ("target_language", targets)):
        numbers = " or ".join(dict.fromkeys(("1", str(files))))
        problem = f"must be given once for all data, or once for each file: {numbers} times, got {len(codes)}"
        check(len(codes) in (0, 1, files), field, problem)
    pairs = [LanguagePair(_of_file(sources, file), _of_file(targets, file)) for file in range(files)]
    return pairs if sources or targets else []


def _of_file(codes: Sequence[str], file: int) -> str:
    return codes[file if len(codes) > 1 else 0] if codes else ""


def with_languages(parts: Sequence[Examples], languages: Sequence[LanguagePair]) -> Examples:
    """The examples of some files as one, each part with its languages. The sizes of documents are kept."""
    return replace(
        parts[0],
        pairs=[pair for part in parts for pair in part.pairs],
        name=", ".join(part.name for part in parts),
        sizes=[size for part in parts for size in part.sizes],
        languages=[pair for part, pair in zip(parts, languages, strict=True) for _ in part.pairs],
    )


def counted(languages: Iterable[LanguagePair]) -> list[dict[str, Any]]:
    """For the lineage: each pair of languages and the number of its examples, the most frequent first. A language that
    the model has no token for is left out."""
    named = [
        ({"source_language": pair.source, "target_language": pair.target}, count)
        for pair, count in Counter(languages).most_common()
    ]
    return [{**{field: code for field, code in one.items() if code}, "examples": count} for one, count in named]


def title_of(languages: LanguagePair) -> str:
    """A pair of languages in a report: "de_DE to en_XX", or only the target where the model names no source."""
    return " to ".join(code for code in languages if code)
