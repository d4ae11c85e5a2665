"""Attributes of a page that a translation changes: texts that readers see or hear (`translated_attributes`), and what
says the language, the direction and the encoding of the page (`page_changes`).

The texts are those of the HTML standard (3.2.6.2) and WAI-ARIA, but for names of files (`download`), which readers'
programs use, and pages in attributes (`srcdoc`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from service.text.documents.html_tokens import Attribute, Token
from service.text.documents.runs import Change
from service.text.languages import Languages, is_right_to_left, language_tag, primary_language
from service.text.spans import Span

_TEXTS = """
title alt placeholder aria-label aria-description aria-placeholder aria-roledescription aria-valuetext
"""
_DESCRIPTIONS = """
description keywords og:title og:description og:image:alt twitter:title twitter:description twitter:image:alt
"""
TEXTS, DESCRIPTIONS = frozenset(_TEXTS.split()), frozenset(_DESCRIPTIONS.split())
_OF_ELEMENTS = {"th": {"abbr"}, "optgroup": {"label"}, "option": {"label"}, "track": {"label"}}
LANGUAGE = ("lang", "xml:lang")


def translated_attributes(element: str, values: Mapping[str, str]) -> frozenset[str]:
    """The names of an element's attributes that are translated. values: of all its attributes."""
    names = set(_OF_ELEMENTS.get(element, ()))
    if element == "meta":
        described = (values.get(name, "").strip().lower() for name in ("name", "property", "itemprop"))
        names |= {"content"} if not DESCRIPTIONS.isdisjoint(described) else set()
    if element == "input":
        kind = values.get("type", "").strip().lower()
        is_sent = kind == "submit" and values.get("name")  # to a program, which may compare it
        names |= {"value"} if kind in ("button", "reset", "submit") and not is_sent else set()
    return TEXTS | names


def named_language(attributes: Iterable[Attribute]) -> str:
    """The language that a tag names, or an empty one."""
    return next((one.value for one in attributes if one.name in LANGUAGE), "")


def page_changes(source: str, tag: Token, attributes: Sequence[Attribute], languages: Languages) -> list[Change]:
    """What a tag says of the translated page instead of the page, where the languages are known: the target's, in place
    of the source's, and on <html> in place of any; and UTF-8 for the encoding that the page declares."""
    if tag.name == "meta":
        return [change for one in attributes if (change := _meta(one, attributes, languages))]
    if not languages.target:
        return []
    read, code, is_page = primary_language(languages.source), language_tag(languages.target), tag.name == "html"
    found, names = list[Change](), set[str]()
    for one in attributes:
        is_language = one.name in LANGUAGE
        if is_language and (is_page or (read and primary_language(one.value) == read)):
            found.append(_changed(source, one, code))
            names.add("lang")
        elif is_page and one.name == "dir" and one.value.lower() in ("ltr", "rtl"):
            found.append(_changed(source, one, _direction(code)))
            names.add("dir")
    missing = ""
    if is_page:
        missing += "" if "lang" in names else f' lang="{code}"'
        missing += "" if "dir" in names or not is_right_to_left(code) else ' dir="rtl"'
    place = tag.start + 1 + len(tag.name)
    return [Change(Span(place, place), (missing,)), *found] if missing else found


def _direction(code: str) -> str:
    return "rtl" if is_right_to_left(code) else "ltr"


def _changed(source: str, attribute: Attribute, value: str) -> Change:
    """A change of an attribute's value, which may be left out."""
    is_missing = attribute.start == attribute.end and not attribute.quote and source[attribute.start - 1] != "="
    return Change(Span(attribute.start, attribute.end), (f'="{value}"' if is_missing else value,))


def _meta(attribute: Attribute, attributes: Sequence[Attribute], languages: Languages) -> Change | None:
    """The change of a <meta> that names the page's encoding or language."""
    name, value = attribute.name, attribute.value.lower()
    if name == "charset" or (name == "content" and "charset=" in value):
        start = attribute.start if name == "charset" else attribute.start + value.rfind("charset=") + len("charset=")
        declared = value[start - attribute.start :].strip()
        if declared and declared not in ("utf-8", "utf8"):
            return Change(Span(start, attribute.end), ("utf-8",))
    is_language = any(one.name == "http-equiv" and one.value.lower() == "content-language" for one in attributes)
    if name == "content" and is_language and languages.target:
        return Change(Span(attribute.start, attribute.end), (language_tag(languages.target),))
    return None
