"""HTML → segments. Block elements separate texts, all other tags stay in their sentence; everything but text is copied.

Translated are the text of elements and the attributes TRANSLATED_ATTRIBUTES; not scripts, styles, comments, code
(UNTRANSLATED), and what `translate="no"` or the class notranslate covers. Inline tags become part of their
sentence's text, or separate texts (`runs`). Entities are characters to the model; of its answer &, < and > become
entities.
"""

from __future__ import annotations

import html
import html.entities
import re
from collections import Counter
from collections.abc import Iterator

from service.text.documents.html_tokens import Token, attributes, tokens
from service.text.documents.runs import Run, escaped, sentences_of, spaced
from service.text.segmentation import Splitter
from service.text.segments import DocumentError, Segment, Text, copied, has_words
from service.text.spans import Span

MAX_TAGS = 200_000  # of a document
MAX_DEPTH = 256  # of elements in each other
_ATTRIBUTES = "title alt placeholder aria-label"
_UNTRANSLATED = "script style pre code kbd samp var tt textarea xmp iframe noembed noframes template svg math object"
# What is no part of a line by the standard's style sheet (HTML, 15.3), with line breaks, parts of lists and tables that
# are drawn by themselves, and what is not shown.
_BLOCK = """
address area article aside base blockquote body br caption center col colgroup dd details dialog dir div dl dt fieldset
figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html legend li link listing main
map menu meta nav noframes noscript ol optgroup option p param plaintext pre script search section select source style
summary table tbody td template textarea tfoot th thead title tr track ul xmp
"""
_VOID = "area base br col embed hr img input link meta param source track wbr"
_IMPLIED_END = "p li dt dd tr td th option thead tbody tfoot optgroup colgroup"  # elements that may lack an end tag
TRANSLATED_ATTRIBUTES, UNTRANSLATED = frozenset(_ATTRIBUTES.split()), frozenset(_UNTRANSLATED.split())
BLOCK, VOID, IMPLIED_END = (frozenset(names.split()) for names in (_BLOCK, _VOID, _IMPLIED_END))
FOREIGN = frozenset(("svg", "math"))  # where a slash ends an element, as it ends no other one


def check(source: str) -> str:
    """The language that <html> names, or an empty one. Raises DocumentError for a document with too many tags, or too
    many elements in each other."""
    elements, count, language = _Elements(), 0, ""
    for token in tokens(source):
        if token.kind in ("open", "close"):
            count += 1
            if token.name == "html" and token.kind == "open" and not language:
                language = next((one.value for one in attributes(source, token) if one.name == "lang"), "")
            elements.read(source, token)
            if elements.depth > MAX_DEPTH:
                raise DocumentError(f"must have at most {MAX_DEPTH} elements in each other, <{token.name}> is one more")
    if count > MAX_TAGS:
        raise DocumentError(f"must have at most {MAX_TAGS} tags, got {count}; split it")
    return language


def segments(source: str, splitter: Splitter) -> Iterator[Segment]:
    """The segments of a document that `check` accepts. Their spans tile it."""
    done = 0
    for segment in _translated(source, splitter):
        yield from copied(source, done, segment.span.start)
        yield segment
        done = segment.span.end
    yield from copied(source, done, len(source))


class _Elements:
    """The open elements while tags are read, and whether their text is translated."""

    def __init__(self) -> None:
        self._open: list[tuple[str, bool]] = []
        self._counts = Counter[str]()

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def is_translated(self) -> bool:
        return self._open[-1][1] if self._open else True

    def read(self, source: str, tag: Token) -> None:
        """Opens or closes an element; also those whose end tags may be left out."""
        if tag.kind == "close":
            if self._counts[tag.name]:
                while self._pop() != tag.name:
                    pass
            return
        if tag.name in IMPLIED_END and self._counts[tag.name]:
            self._end_implied(tag.name)
        if self.opens(source, tag):
            self._open.append((tag.name, self.translates(source, tag)))
            self._counts[tag.name] += 1

    def opens(self, source: str, tag: Token) -> bool:
        """Whether an opening tag begins an element that has an end."""
        if tag.name in VOID or source[tag.end - 2] != "/":
            return tag.name not in VOID
        return not (tag.name in FOREIGN or any(self._counts[name] for name in FOREIGN))

    def translates(self, source: str, tag: Token) -> bool:
        """Whether the text of an element within the open ones is translated."""
        inherited = self.is_translated and tag.name not in UNTRANSLATED
        for attribute in attributes(source, tag) if tag.end - tag.start > len(tag.name) + 2 else ():
            if attribute.name == "translate":
                inherited = attribute.value.lower() != "no"
            elif attribute.name == "class" and "notranslate" in attribute.value.split():
                return False
        return inherited

    def _end_implied(self, name: str) -> None:
        for place in range(len(self._open) - 1, -1, -1):
            found = self._open[place][0]
            if found == name:
                while len(self._open) > place:
                    self._pop()
                return
            if found not in IMPLIED_END and found in BLOCK:
                return

    def _pop(self) -> str:
        name, _ = self._open.pop()
        self._counts[name] -= 1
        return name


def _translated(source: str, splitter: Splitter) -> Iterator[Segment]:
    elements, block = _Elements(), list[Run]()
    for token in tokens(source):
        if token.kind == "text" and elements.is_translated:
            block += _text_runs(source, token)
            continue
        is_tag = token.kind in ("open", "close")
        if is_tag and token.name in BLOCK:
            yield from sentences_of(source, block, splitter)
            block = []
        if token.kind == "open" and token.name == "meta":
            yield from _charset(source, token)
        if token.kind == "open":
            values = _values(source, token) if elements.translates(source, token) else ()
            block.append(Run(token.start, token.end, "", values, elements.opens(source, token)))
        else:
            block.append(Run(token.start, token.end))
        if is_tag:
            elements.read(source, token)
    yield from sentences_of(source, block, splitter)


def _charset(source: str, tag: Token) -> Iterator[Segment]:
    """The encoding that a page declares, which becomes that of its translation: text in UTF-8."""
    for attribute in attributes(source, tag):
        if attribute.name == "charset" or (attribute.name == "content" and "charset=" in attribute.value.lower()):
            start = attribute.start + attribute.value.lower().rfind("charset=") + len("charset=")
            start = attribute.start if attribute.name == "charset" else start
            if start < attribute.end:
                yield Segment(Span(start, attribute.end), ("utf-8",))


def _text_runs(source: str, token: Token) -> Iterator[Run]:
    """Runs of a text: an entity is one of its own, as its length differs from that of its characters."""
    place = token.start
    for found in _ENTITY.finditer(source, token.start, token.end):
        if found.start() > place:
            yield Run(place, found.start(), source[place : found.start()])
        yield Run(*found.span(), html.unescape(found[0]))
        place = found.end()
    if place < token.end:
        yield Run(place, token.end, source[place : token.end])


def _values(source: str, tag: Token) -> tuple[tuple[Span, Text], ...]:
    """The values of an opening tag's attributes that are translated."""
    return tuple(
        (Span(attribute.start, attribute.end), Text(spaced(value), _WRITTEN[attribute.quote], is_attribute=True))
        for attribute in attributes(source, tag)
        if attribute.name in TRANSLATED_ATTRIBUTES and has_words(value := html.unescape(attribute.value))
    )


# Some names of old are read without a semicolon, also with letters after them.
_OLD = "|".join(sorted((name for name in html.entities.html5 if not name.endswith(";")), key=len, reverse=True))
_ENTITY = re.compile(rf"&(?:#\d{{1,7}};?|#[xX][0-9A-Fa-f]{{1,6}};?|[A-Za-z]\w{{1,31}};|{_OLD})")
_WRITTEN = {
    "": lambda text: f'"{escaped(text).replace(chr(34), "&quot;")}"',
    '"': lambda text: escaped(text).replace('"', "&quot;"),
    "'": lambda text: escaped(text).replace("'", "&#39;"),
}
