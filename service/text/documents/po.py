"""Catalogs of gettext → segments: the message of each entry without a translation, and of each fuzzy one, becomes its
`msgstr`, in as many plural forms as the language has. It is marked as fuzzy, as a person has to see it.

Translations that are there and not fuzzy, comments, obsolete entries and the header are copied, but for what the header
must say of the translation: plural forms, the encoding, and a language if it names none. Tags of HTML and references to
characters in a message are marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from service.text.documents.layout import paragraphs_of
from service.text.documents.messages import Characters
from service.text.documents.plural_forms import PluralForms, plural_forms, plural_forms_of
from service.text.documents.po_entries import Entry, characters, entries_of, escaped, is_empty
from service.text.documents.runs import Run, sentences_of
from service.text.languages import NO_LANGUAGES, Languages, language_tag
from service.text.mark_scanner import Kinds, scan
from service.text.segmentation import Splitter
from service.text.segments import DocumentError, Place, Segment, Text, copied
from service.text.spans import Span

FUZZY = "fuzzy"
_ENTITY = r"&(?:[A-Za-z]\w{1,31}|#\d{1,7}|#[xX][0-9A-Fa-f]{1,6});"
# Placeholders that a flag announces and that are none elsewhere.
_OF_FLAGS = {"qt-format": r"%L?\d{1,2}|%n", "kde-format": r"%\d{1,2}", "ruby-format": r"%[<{]\w+[>}]\w?"}
_FIELDS = re.compile(r"(?:(?<=\")|(?<=\\n))(?P<name>[A-Za-z-]+):(?P<value>(?:[^\"\\]|\"\s*\")*+)(?=\\n)")
_CHARSET = re.compile(r"charset=([\w.:-]+)")


def check(source: str, target_language: str = "") -> str:
    """An empty language: a catalog names that of its translations alone. Raises DocumentError for one that is against
    the format, or has messages with a plural but nothing says which forms the translations have."""
    header, plural, is_any = _Header("", Span(0, 0)), None, False
    for entry in entries_of(source):
        is_any = True
        if _is_header(source, entry):
            header = _Header(source, entry.translations[0].strings)
        elif entry.plural and not plural:
            plural = entry
    if not is_any:
        raise DocumentError('must be a catalog of gettext: it has no msgid; begin entries with msgid "..."')
    if plural and not header.forms(target_language):
        line = source.count("\n", 0, plural.start) + 1
        language = target_language or header.language
        fix = f"write the header Plural-Forms for {language!r}" if language else "name the target language"
        raise DocumentError(f"line {line} has a plural, but the header's Plural-Forms does not say how many; {fix}")
    return ""


def segments(source: str, splitter: Splitter, languages: Languages = NO_LANGUAGES) -> Iterator[Segment]:
    """The segments of a catalog that `check` accepts, one for each entry that is translated. Their spans tile it."""
    done, forms, has_plural = 0, None, "msgid_plural" in source
    for entry in entries_of(source):
        if _is_header(source, entry):
            header = _Header(source, entry.translations[0].strings)
            forms = header.forms(languages.target)
            found = list(header.changes(languages.target, has_plural=has_plural))
        else:
            one = _segment(source, entry, splitter, forms)
            found = [one] if one else []
        for segment in found:
            yield from copied(source, done, segment.span.start)
            yield segment
            done = segment.span.end
    yield from copied(source, done, len(source))


def _is_header(source: str, entry: Entry) -> bool:
    assert entry.source
    return entry.context is None and entry.plural is None and is_empty(source, entry.source.strings)


class _Header:
    """The fields of a catalog about its translations. strings: of the header's msgstr."""

    def __init__(self, source: str, strings: Span) -> None:
        self._source, self._end = source, strings.end
        found = _FIELDS.finditer(source, *strings)
        self._fields = {field["name"]: (Span(*field.span("value")), _value(field["value"])) for field in found}
        self.language = self._fields.get("Language", (strings, ""))[1]
        self._forms = plural_forms(self._fields.get("Plural-Forms", (strings, ""))[1])

    def forms(self, target_language: str) -> PluralForms | None:
        """The plural forms, those of the target's language if the header does not say; None if that is unknown."""
        return self._forms or plural_forms_of(target_language or self.language)

    def changes(self, target_language: str, *, has_plural: bool) -> Iterator[Segment]:
        """What becomes of the header, in order."""
        forms, newline = self.forms(target_language) if has_plural else None, _newline(self._source)
        for name, (span, value) in self._fields.items():
            charset = _CHARSET.search(self._source, *span)
            if name == "Content-Type" and charset and charset[1].upper().replace("-", "") != "UTF8":
                yield Segment(Span(*charset.span(1)), ("UTF-8",))  # the translation is text in UTF-8
            elif name == "Language" and target_language and not value:
                yield Segment(span, (f" {language_tag(target_language).replace('-', '_')}",))
            elif name == "Plural-Forms" and forms and not self._forms:
                yield Segment(span, (f" {forms.header}",))
        if forms and "Plural-Forms" not in self._fields:
            yield Segment(Span(self._end, self._end), (f'{newline}"Plural-Forms: {forms.header}\\n"',))


def _value(written: str) -> str:
    """The value of a field, which may go on in a further string."""
    return re.sub(r'"\s*"', "", written).strip()


def _segment(source: str, entry: Entry, splitter: Splitter, forms: PluralForms | None) -> Segment | None:
    """The segment of an entry; None if it stays as it is."""
    assert entry.source
    if FUZZY not in entry.flags and not all(is_empty(source, part.strings) for part in entry.translations):
        return None
    contents = [_Content(source, entry.source.strings, entry.flags, splitter)]
    if entry.plural and forms:
        other = _Content(source, entry.plural.strings, entry.flags, splitter)
        # The form of 1 may be that of 21 too, where a message without the number would be wrong.
        is_singular = forms.is_of_one_alone or (forms.size > 1 and contents[0].placeholders == other.placeholders)
        one = contents[0] if is_singular else other
        contents = [one if number == forms.one else other for number in range(forms.size)]
    if not any(content.sentences for content in contents):
        return None
    start = entry.flags_end if entry.flags_end >= 0 else entry.start
    first, newline = entry.translations[0], _newline(source)
    flag = "" if FUZZY in entry.flags else f" {FUZZY}," if entry.flags_end >= 0 else f"#, {FUZZY}{newline}"
    parts: list[str | Text] = [flag + source[start : first.start]]
    pieces = list(parts)
    for number, content in enumerate(contents):
        opening = f"{newline if number else ''}msgstr[{number}] " if entry.plural else "msgstr "
        parts += [opening, *content.parts(is_whole=True)]
        pieces += [opening, *content.parts(is_whole=False)]
    span = Span(start, entry.translations[-1].strings.end)
    return Segment(span, tuple(parts), tuple(pieces), Place.FIRST)


def _newline(source: str) -> str:
    return "\r\n" if "\r\n" in source else "\n"


class _Content:
    """What becomes of a message: its strings with a translation for each sentence. placeholders: that it has."""

    def __init__(self, source: str, strings: Span, flags: Set[str], splitter: Splitter) -> None:
        self._source, self._strings = source, strings
        runs = list(_with_marks(characters(source, strings), flags))
        text = "".join(run.text for run in runs)
        self.placeholders = sorted(text[mark.start : mark.end] for mark in scan(text, Kinds(placeholders=True)))
        self.sentences = [
            sentence for some in paragraphs_of(runs) for sentence in sentences_of(source, some, splitter, escaped)
        ]

    def parts(self, *, is_whole: bool) -> Iterator[str | Text]:
        """Its parts. is_whole: a sentence with marks is one text."""
        place = self._strings.start
        for sentence in self.sentences:
            yield self._source[place : sentence.span.start]
            yield from sentence.parts if is_whole else sentence.pieces
            place = sentence.span.end
        yield self._source[place : self._strings.end]


def _with_marks(runs: list[Run], flags: Set[str]) -> Iterator[Run]:
    """Runs of a message with its marks apart: tags, references to characters, and placeholders of its flags."""
    text, place = Characters(runs), 0
    patterns = [_ENTITY, *(pattern for flag, pattern in _OF_FLAGS.items() if flag in flags)]
    marks = [(mark.start, mark.end, mark.kind == "point") for mark in scan(text.flat, Kinds(tags=True))]
    marks += [(*found.span(), True) for found in re.finditer("|".join(patterns), text.flat)]
    for start, end, is_whole in sorted(marks):
        if start < place:
            continue  # inside of a tag
        yield from text.cut(place, start)
        inside = text.cut(start, end)
        yield Run(inside[0].start, inside[-1].end, is_whole=is_whole)
        place = end
    yield from text.cut(place, len(text.flat))
