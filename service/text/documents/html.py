"""HTML → segments. Block elements separate texts, all other tags stay in their sentence; everything but text is copied.

Translated are the text of elements and some attributes (`html_attributes`); not scripts, styles, comments, code
(UNTRANSLATED), what `translate="no"` or the class notranslate covers, and text in another language than the page's.
Inline tags become part of their sentence's text, or separate texts (`runs`). An element in a sentence whose text is no
part of it, such as a list of options or a picture, stays there as one mark, its texts are translated by themselves.
Entities are characters to the model; of its answer &, < and > become entities.
"""

from __future__ import annotations

import functools
import html
import html.entities
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from service.text.documents.html_attributes import named_language, page_changes, translated_attributes
from service.text.documents.html_elements import BLOCK, Element, Elements
from service.text.documents.html_tokens import FOREIGN, Attribute, Token, attributes, tokens
from service.text.documents.layout import paragraphs_of
from service.text.documents.runs import Change, Run, escaped, sentences_of, spaced
from service.text.languages import NO_LANGUAGES, Languages
from service.text.segmentation import Splitter
from service.text.segments import DocumentError, Segment, Text, copied, has_words
from service.text.spans import Span

MAX_TAGS = 200_000  # of a document
MAX_DEPTH = 256  # of elements in each other
# Elements within a line whose text is no part of it. Those of LOOSE may have blocks, which end the line around them.
APART = FOREIGN | {"script", "style", "template", "select", "datalist", "textarea", "iframe", "noembed"}
LOOSE = frozenset(("noscript", "object", "audio", "video", "canvas"))
_DRAWN = frozenset(("text", "desc", "foreignobject"))  # elements of SVG that are texts of their own


def check(source: str, target_language: str = "") -> str:
    """The language that <html> names, or an empty one. Raises DocumentError for a document with too many tags, or too
    many elements in each other."""
    elements, count, language = Elements(""), 0, ""
    for token in tokens(source):
        if token.kind in ("open", "close"):
            count += 1
            if token.kind == "close":
                elements.close(token.name)
                continue
            if token.name == "html" and not language:
                language = named_language(attributes(source, token))
            elements.open(token, {}, is_empty=source[token.end - 2] == "/")
            if elements.depth > MAX_DEPTH:
                raise DocumentError(f"must have at most {MAX_DEPTH} elements in each other, <{token.name}> is one more")
    if count > MAX_TAGS:
        raise DocumentError(f"must have at most {MAX_TAGS} tags, got {count}; split it")
    return language


def segments(source: str, splitter: Splitter, languages: Languages = NO_LANGUAGES) -> Iterator[Segment]:
    """The segments of a document that `check` accepts. Their spans tile it. languages: of the text, which parts in
    another one than the source's are not translated of, and of the translation, which the page says then."""
    done = 0
    for segment in _Page(source, splitter, languages).segments():
        yield from copied(source, done, segment.span.start)
        yield segment
        done = segment.span.end
    yield from copied(source, done, len(source))


@dataclass
class _Apart:
    """An element apart from its sentence, while it is read. runs: of a text that goes on. changes: of texts before."""

    element: Element
    start: int
    changes: list[Change]
    runs: list[Run] = field(default_factory=list)


class _Page:
    def __init__(self, source: str, splitter: Splitter, languages: Languages) -> None:
        self._source, self._splitter, self._languages = source, splitter, languages
        self._elements = Elements(languages.source)
        self._block: list[Run] = []
        self._apart: _Apart | None = None
        self._keeps_space = False  # in the text that is read

    def segments(self) -> Iterator[Segment]:
        """The segments with something that changes."""
        for token in tokens(self._source):
            if token.kind == "text" and self._elements.reads:
                self._runs.extend(_text_runs(self._source, token.start, token.end))
                self._keeps_space |= self._elements.keeps_space
            elif token.kind in ("text", "other"):
                self._runs.append(Run(token.start, token.end, is_whole=True))
            elif token.kind == "close":
                yield from self._close(token)
            else:
                yield from self._open(token)
        self._end_apart(len(self._source))
        yield from self._end_block()

    @property
    def _runs(self) -> list[Run]:
        return self._apart.runs if self._apart else self._block

    def _close(self, tag: Token) -> Iterator[Segment]:
        ends = self._elements.close(tag.name)
        if self._apart and not self._apart.element.is_open:
            is_its_own = tag.name == self._apart.element.name
            self._end_apart(tag.end if is_its_own else tag.start)
            if is_its_own:
                return
        yield from self._border(tag)
        self._runs.append(Run(tag.start, tag.end, is_whole=not ends))  # one that ends nothing is a mark

    def _open(self, tag: Token) -> Iterator[Segment]:
        found = list(attributes(self._source, tag)) if tag.end - tag.start > len(tag.name) + 2 else []
        values = {one.name: one.value for one in reversed(found)}  # of two with a name the first counts
        element = self._elements.open(tag, values, is_empty=self._source[tag.end - 2] == "/")
        if self._apart and not self._apart.element.is_open:
            self._end_apart(tag.start)
        yield from self._border(tag)
        changes: list[Change] = []
        if self._elements.is_translated(element):
            names = translated_attributes(tag.name, values)
            changes = [change for one in found if one.name in names for change in self._value(one)]
            changes = sorted(changes + page_changes(self._source, tag, found, self._languages))
        elif tag.name == "meta":
            changes = page_changes(self._source, tag, found, NO_LANGUAGES)
        is_apart = tag.name in APART or (
            tag.name not in BLOCK and (tag.name in LOOSE or not self._elements.is_translated(element))
        )
        if self._apart is None and element.is_open and is_apart:
            self._apart = _Apart(element, tag.start, changes)
        else:
            self._runs.append(Run(tag.start, tag.end, "", tuple(changes), element.is_open))

    def _border(self, tag: Token) -> Iterator[Segment]:
        """Ends the text before a tag that separates texts."""
        if self._apart and tag.name in BLOCK and self._apart.element.name not in APART:
            self._end_apart(tag.start)
        if self._apart and (tag.name in BLOCK or tag.name in _DRAWN):
            self._end_text(self._apart)
        elif tag.name in BLOCK:
            yield from self._end_block()

    def _end_block(self) -> Iterator[Segment]:
        yield from self._sentences(self._block)
        self._block = []

    def _sentences(self, runs: list[Run]) -> Iterator[Segment]:
        keeps_space, self._keeps_space = self._keeps_space, False
        for some in paragraphs_of(runs) if keeps_space else (runs,):
            yield from sentences_of(self._source, some, self._splitter)

    def _end_text(self, apart: _Apart) -> None:
        for segment in self._sentences(apart.runs):
            parts = segment.parts if segment.joined is None else segment.pieces
            alone = (part if isinstance(part, str) else replace(part, is_attribute=True) for part in parts)
            apart.changes.append(Change(segment.span, tuple(alone)))
        apart.runs = []

    def _end_apart(self, end: int) -> None:
        """Ends the element apart, if there is one: it becomes one mark of the text around it."""
        if self._apart is not None:
            self._end_text(self._apart)
            self._block.append(Run(self._apart.start, end, "", tuple(self._apart.changes), is_whole=True))
            self._apart = None

    def _value(self, attribute: Attribute) -> Iterator[Change]:
        """The sentences of an attribute's value."""
        written = _WRITTEN[attribute.quote]
        runs = list(_text_runs(self._source, attribute.start, attribute.end, is_value=True))
        if attribute.quote:
            for sentence in sentences_of(self._source, runs, self._splitter):
                parts = (
                    part if isinstance(part, str) else replace(part, written=written, is_attribute=True)
                    for part in sentence.parts
                )
                yield Change(sentence.span, tuple(parts))
        elif has_words(value := "".join(run.text for run in runs)):  # what is in one pair of quotes is one text
            text = Text(spaced(value), written, is_attribute=True)
            yield Change(Span(attribute.start, attribute.end), (text,))


def _text_runs(source: str, start: int, end: int, *, is_value: bool = False) -> Iterator[Run]:
    """Runs of a text: an entity is one of its own, as its length differs from that of its characters. is_value: the
    text is that of an attribute, where what follows decides about an entity without a semicolon."""
    place = start
    for found in _entity(is_value=is_value).finditer(source, start, end):
        if found.start() > place:
            yield Run(place, found.start(), source[place : found.start()])
        yield Run(*found.span(), html.unescape(found[0]) if len(found[0]) <= _LONGEST_ENTITY else "\ufffd")
        place = found.end()
    if place < end:
        yield Run(place, end, source[place:end])


_CODES, _LONGEST_ENTITY = r"#\d++;?|#[xX][0-9A-Fa-f]++;?|[A-Za-z]\w{1,31};", 34


@functools.cache  # not when a server starts, which it would delay by 50 ms
def _entity(*, is_value: bool) -> re.Pattern[str]:
    """The pattern of an entity. Some names of old are read without a semicolon, also with letters after them."""
    old = "|".join(sorted((name for name in html.entities.html5 if not name.endswith(";")), key=len, reverse=True))
    return re.compile(rf"&(?:{_CODES}|(?:{old}){'(?![=A-Za-z0-9])' if is_value else ''})")


_WRITTEN = {
    "": lambda text: f'"{escaped(text).replace(chr(34), "&quot;")}"',
    '"': lambda text: escaped(text).replace('"', "&quot;"),
    "'": lambda text: escaped(text).replace("'", "&#39;"),
}
