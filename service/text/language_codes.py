"""The codes of a model's languages, found by any code that names one of them (`LanguageCodes`): BCP 47 tags such as
de-AT, and the codes of mBART (de_DE), M2M-100 (de) and NLLB (deu_Latn). Nothing here knows models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from service.text.languages import primary_language

# Of languages that are written in several scripts, the one that a code without a script means; of others Latin, if any.
_USUAL_SCRIPT = {"zh": "hans", "ar": "arab", "sr": "cyrl", "ks": "arab", "pa": "guru"}
_SCRIPT_OF_REGION = {("zh", "tw"): "hant", ("zh", "hk"): "hant", ("zh", "mo"): "hant", ("zh", "cn"): "hans"}
_SAME = {"no": "nb", "fil": "tl"}
_NO_REGION = "xx"  # in mBART's en_XX


class _Parts(NamedTuple):
    """Of a code, in lower case; empty: not named."""

    language: str
    script: str = ""
    region: str = ""


def _parts_of(code: str) -> _Parts:
    language, script, region = primary_language(code), "", ""
    language = _SAME.get(language, language)
    for part in re.split("[-_]", code.strip().lower())[1:]:
        if len(part) == 4 and part.isalpha():
            script = script or part
        elif len(part) in (2, 3) and part != _NO_REGION:
            region = region or part
    return _Parts(language, script or _SCRIPT_OF_REGION.get((language, region), ""), region)


class LanguageCodes:
    """Never changed after construction.

    tags: the codes by the shortest tag that finds each: `de` for deu_Latn, `zh` for zho_Hans, `zh-Hant` beside it.
    """

    def __init__(self, codes: Iterable[str]) -> None:
        self._own = frozenset(codes)
        self._by_language: dict[str, list[tuple[_Parts, str]]] = {}
        for code in sorted(self._own):
            parts = _parts_of(code)
            self._by_language.setdefault(parts.language, []).append((parts, code))
        self.tags: Mapping[str, str] = {
            language if self._chosen(_Parts(language)) == code else _tag(parts): code
            for language, found in self._by_language.items()
            for parts, code in found
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def find(self, code: str) -> str:
        """The model's own code of the language that a code names; empty if there is none, or no single one."""
        return code if code in self._own else self._chosen(_parts_of(code))

    def tag(self, code: str) -> str:
        """The shortest tag that finds one of the model's own codes."""
        return next(tag for tag, own in self.tags.items() if own == code)

    def _chosen(self, asked: _Parts) -> str:
        """The code that fits best: another script is another language here, another region is not."""
        scripts = (asked.script, "") if asked.script else None
        fitting = [
            (parts, code)
            for parts, code in self._by_language.get(asked.language, ())
            if scripts is None or not parts.script or parts.script in scripts
        ]
        usual = _USUAL_SCRIPT.get(asked.language, "latn")
        for is_best in (
            lambda parts: parts.region == asked.region and (not asked.script or parts.script == asked.script),
            lambda parts: not parts.region and not parts.script,
            lambda parts: not parts.region and parts.script == (asked.script or usual),
            lambda parts: parts.script == (asked.script or usual),
        ):
            best = [code for parts, code in fitting if is_best(parts)]
            if len(best) == 1:
                return best[0]
        return fitting[0][1] if len(fitting) == 1 else ""


def _tag(parts: _Parts) -> str:
    written = (parts.language, parts.script.title(), parts.region.upper())
    return "-".join(part for part in written if part)
