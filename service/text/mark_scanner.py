"""Finds marks in a raw text: tags, placeholders, URLs and numbers (`scan`), and entities.

The patterns are possessive, and none reads past the next `<`: a text of n characters takes time in O(n), whatever it
contains. Pairing tags is the caller's business.
"""

from __future__ import annotations

import html.entities
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from service.text.spans import Span


class Kinds(NamedTuple):
    """The kinds of marks to find. docs/markup.md lists what each kind matches."""

    tags: bool = False
    placeholders: bool = False
    urls: bool = False
    numbers: bool = False


class Mark(NamedTuple):
    """A mark in a raw text. name: of a tag, as written; empty for others, comments among them."""

    kind: Literal["opening", "closing", "empty", "point"]
    start: int
    end: int
    name: str = ""


_ENTITY = re.compile(r"&(?:#(?P<decimal>\d{1,7})|#[xX](?P<hex>[0-9A-Fa-f]{1,6})|(?P<named>[A-Za-z]\w{1,31}));")
_LAST_ENTITY, _LONGEST_ENTITY = re.compile(_ENTITY.pattern + r"\Z"), 34
# Characters that end a URL, written as they are or as entities: white space, brackets of tags, quotation marks.
_URL_ENDS = "\t\n\r <>\"'\u00a0\u2002\u2003\u2004\u2005\u2007\u2008\u2009\u200a\u202f\u3000«»‹›‘’‚“”„"


def _entities(characters: str) -> str:
    """A pattern of what stands between & and ; for these characters."""
    named = [name[:-1] for name, text in html.entities.html5.items() if name[-1] == ";" and text in {*characters}]
    codes = [f"#(?:0*{ord(character)}|[xX]0*(?i:{ord(character):x}))" for character in characters]
    return "|".join([*sorted(named), *codes])


_ATTRIBUTE = r"""[^\s"'<>/=]++(?:\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'|[^\s"'=<>`]++))?+"""
_PATTERNS = {
    "tags": rf"(?P<section><!--|<\?|<!\[CDATA\[)|(?P<tag><(?P<slash>/?)(?P<name>[^\W\d][\w:.-]*+)"
    rf"(?:\s++{_ATTRIBUTE})*+\s*+(?P<empty>/?)>)"
    rf"|(?P<entity>{_ENTITY.pattern})",
    "urls": rf"""(?P<url>\b(?i:https?)://(?:[^\s<>"&]|&(?!(?:{_entities(_URL_ENDS)});))++)"""
    r"|(?P<mail>(?<!\w)\w[\w.+-]{0,63}+@[\w-]{1,63}+(?:\.[\w-]{1,63}+)++)",
    "placeholders": r"(?P<placeholder>\{\{\{[^{}<>\n]{1,64}+\}\}\}"
    r"|\{\{[^{}<>\n]{1,64}+\}\}"
    r"|\$\{[^{}<>\s]{1,64}+\}"
    r"|\{[\w.$@\[\]-]{0,64}+(?:[!:,][^{}<>\n]{0,64}+)?+\}"
    r"|%\([A-Za-z_]\w{0,63}+\)[-+#0]?\d{0,3}+(?:\.\d{0,3}+)?+[diouxXeEfFgGcrsa]"
    r"|%(?:\d{1,2}+\$)?+[-+#0]?(?:\d{1,3}+|\*)?+(?:\.(?:\d{1,3}+|\*))?+(?:hh?|ll?|[Lqjzt])?"
    r"[diouxXeEfFgGaAcCsSpn@](?!\w))",
    "numbers": r"(?P<number>(?<!\w)(?<!\d[.,:/'’\u00a0\u202f-])(?:(?<![^\s(\[])[+\u2212-])?+"
    r"[$€£¥]?+\d++(?:[.,:/'’\u00a0\u202f-]\d++)*+[%‰°$€£¥]?+(?!\w))",
}
SENTENCE_ENDS = ".,;:!?'’”“»"  # after a URL, no part of it
_SECTION_ENDS = {"<!--": "-->", "<?": "?>", "<![CDATA[": "]]>"}
_BRACKETS = {")": "(", "]": "[", "}": "{"}
VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "wbr"))
BREAKS = frozenset(("br", "hr"))  # these separate words


def scan(raw: str, kinds: Kinds) -> Iterator[Mark]:
    """The marks of a raw text, in order. At each place the first of tag, URL, placeholder and number counts."""
    wanted = [pattern for name, pattern in _PATTERNS.items() if getattr(kinds, name)]
    if not wanted:
        return
    find, place, missing = re.compile("|".join(wanted)).search, 0, set[str]()
    while match := find(raw, place):
        start, place = match.span()
        if kinds.urls and match["url"]:
            place = _url_end(raw, start, place)
            if not raw.endswith("://", start, place):  # which is none
                yield Mark("point", start, place)
        elif kinds.tags and (section := match["section"]):
            end = _SECTION_ENDS[section]
            if section not in missing and (found := raw.find(end, place)) >= 0:
                place = found + len(end)
                yield Mark("point", start, place)
            else:
                missing.add(section)  # nor is there one further on
        elif kinds.tags and match["tag"]:
            kind: Literal["opening", "closing", "empty"] = "empty" if match["empty"] else "opening"
            yield Mark("closing" if match["slash"] else kind, start, place, match["name"])
        elif not (kinds.tags and match["entity"]):  # which is a character, although it may have a number in it
            yield Mark("point", start, place)


def characters(raw: str, within: Span, *, has_entities: bool) -> Iterator[tuple[str, Span]]:
    """The characters of a part of a raw text with their places; an entity is one, as of `decoded`."""
    place = within.start
    while place < within.end:
        entity = _ENTITY.match(raw, place, within.end) if has_entities and raw[place] == "&" else None
        end = entity.end() if entity else place + 1
        yield _character(entity) if entity else raw[place], Span(place, end)
        place = end


def decoded(raw: str) -> str:
    """A raw text with its entities as characters. An entity that is unknown, or not a character of XML, stays."""
    return _ENTITY.sub(_character, raw) if "&" in raw else raw


def encoded(text: str) -> str:
    """A text with the characters that markup reserves as entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _url_end(raw: str, start: int, end: int) -> int:
    """The end of a URL without the punctuation of the sentence around it."""
    opened = {bracket: raw.count(bracket, start, end) for bracket in "([{"}
    closed = {bracket: raw.count(bracket, start, end) for bracket in _BRACKETS}
    while end > start:
        last = raw[end - 1]
        entity = _LAST_ENTITY.search(raw, max(start, end - _LONGEST_ENTITY), end) if last == ";" else None
        if entity and (character := _character(entity)) != entity[0]:
            if character not in SENTENCE_ENDS:
                break
            end = entity.start()
            continue
        if last in _BRACKETS and closed[last] > opened[_BRACKETS[last]]:
            closed[last] -= 1
        elif last not in SENTENCE_ENDS:
            break
        end -= 1
    return end


def _character(entity: re.Match[str]) -> str:
    if named := entity["named"]:
        return html.entities.html5.get(f"{named};", entity[0])
    code = int(entity["decimal"]) if entity["decimal"] else int(entity["hex"], 16)
    is_valid = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return chr(code) if is_valid else entity[0]
