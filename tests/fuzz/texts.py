"""Readers of what clients send as text: documents, marks, terms, sentences, grammars.

Documents have properties besides: segments tile the source, and the document whose texts are replaced by words with
characters that every format reserves has these words in the same places, when it is read again.
"""

import dataclasses
import json
import random
from collections.abc import Callable
from functools import partial
from xml.etree import ElementTree

from glossa.v1 import glossa_pb2 as pb
from service.decoding.grammar import Grammar
from service.decoding.vocabulary import Vocabulary
from service.edge.rpcs.document_formats import format_of
from service.errors import InvalidRequest, Unsatisfiable
from service.options import MAX_GRAMMAR_BYTES, GrammarKind
from service.text.glossary import Glossary, forms_in, read_terms
from service.text.inline_markup import MarkupError, extract
from service.text.languages import Languages
from service.text.mark_scanner import Kinds
from service.text.segmentation import splitter_for
from service.text.segments import DocumentError, Segment, Text
from service.text.source_sentences import split
from tests.fuzz.reader import Reader, text_of
from tests.grammars import KEYWORDS, LARK, REGEX, near_valid
from tests.service.text.documents.test_html import PAGE
from tests.service.text.documents.test_po import HEADER, PLURAL
from tests.service.text.documents.test_subtitles import SUBRIP
from tests.service.text.documents.test_xliff import VERSION_1, VERSION_2

AreFound = Callable[[list[Segment], list[Segment], str], bool]  # segments before and after, and the translated document

ANSWER = "Wort \"< & '\\é"  # what a model may answer with: every format has to write some of it in another way
HTML_WORDS = (
    *("<p>", "</p>", "<b>", "</b>", "<br>", "<!--", "-->", "<script>", "</script>", "<style>", "<textarea>", "<svg>"),
    *("<title>", "&amp;", "&lt", "&#x41;", "lang=", "alt=", "title=", "translate=no", "<![CDATA[", "<!DOCTYPE", "<?"),
)
XLIFF_WORDS = (
    *("<source>", "</source>", "<target>", "</target>", "<segment>", "</segment>", "<unit>", "<trans-unit ", "<g id="),
    *("<pc id=", "<ph id=", "<mrk ", 'translate="no"', 'state="final"', 'approved="yes"', "<![CDATA[", "]]>", "<!--"),
    *("<xliff ", "<?xml ", "&amp;", "&#0;", "<!DOCTYPE", "<seg-source>", "<ec ", "<sm ", "<em "),
)
CUE_WORDS = ("00:00:01,000 --> 00:00:02,000", "00:01.000 --> 00:02.000", "<i>", "</i>", "NOTE", "STYLE", "WEBVTT", "\r")
PO_WORDS = ("msgid", "msgstr", "msgstr[0]", "msgid_plural", "msgctxt", "#, fuzzy", "#~ ", "#| ", '"\n"', "\\n", "\\x41")
VTT = "WEBVTT\n\nNOTE a note\n\n" + SUBRIP.replace(",", ".") + "\n\nSTYLE\n::cue {}\n"


def document(name: str, are_found: AreFound) -> Callable[[bytes], None]:
    """Reads a document of a format, and translates it. are_found: whether its answers are where they belong."""
    format = format_of(pb.DocumentFormat.Value(f"DOCUMENT_FORMAT_{name}"))

    def segments_of(text: str, named: str) -> list[Segment]:
        try:
            return list(format.segments(text, splitter_for(named), Languages(named, "de")))
        except DocumentError as error:  # which the server expects of a check alone
            raise AssertionError("a document that was checked is refused") from error

    def read(data: bytes) -> None:
        text = text_of(data)
        if not text.strip():
            return
        named = format.check(text, "de")
        found = segments_of(text, named)
        assert "".join(text[slice(*one.span)] for one in found) == text, "segments do not tile the source"
        for answer in (None, ANSWER):
            changed = "".join(written(one, text, answer) for one in found)
            try:
                again = segments_of(changed, format.check(changed, "de"))
            except DocumentError as error:
                raise AssertionError(f"the translation is refused: {error}") from error
            if answer is not None:
                assert are_found(found, again, changed), changed

    return read


def texts(segment: Segment) -> list[str]:
    """What the model reads of a segment."""
    found = [part for part in segment.parts if isinstance(part, Text)]
    return [extract(part.text, Kinds(tags=part.has_tags), lenient=True).plain for part in found]


def letters(text: str) -> str:
    """A text without anything else: what has no letters belongs to no sentence, or to another one when it is read
    again."""
    return "".join(filter(str.isalpha, text))


def are_again(found: list[Segment], again: list[Segment], _: str) -> bool:
    """Whether every answer is read again."""
    words = letters("".join(plain for one in again for plain in texts(one)))
    return words.count(letters(ANSWER)) == sum(len(texts(one)) for one in found if not one.problem)


def are_beside(found: list[Segment], again: list[Segment], _: str) -> bool:
    """Whether the texts of a catalog are the same: answers stand beside them."""
    before, after = ([texts(one) for one in segments if texts(one)] for segments in (found, again))
    return before == after


def are_parsed(found: list[Segment], _: list[Segment], changed: str) -> bool:
    """Whether another parser finds every answer, if it can parse the document."""
    try:
        root = ElementTree.fromstring(changed.encode())
    except (ElementTree.ParseError, ValueError, LookupError):
        return True
    words = letters("".join("".join(one.text or "" for one in target.iter()) for target in root.iter()))
    return words.count(ANSWER[:4]) >= sum(map(bool, map(texts, found)))


def written(segment: Segment, source: str, answer: str | None) -> str:
    """A segment whose texts are translated into an answer; None: each into itself."""
    if segment.problem:
        return source[slice(*segment.span)]
    parts = []
    for part in segment.parts:
        if isinstance(part, str):
            parts.append(part)
            continue
        try:
            marked = extract(part.text, Kinds(tags=part.has_tags), lenient=True)
        except MarkupError:  # the item fails, and the source stays
            return source[slice(*segment.span)]
        parts.append(part.written(marked.restored(marked.plain if answer is None else answer)))
    return (segment.joined or "".join)(parts)


def marks(data: bytes) -> None:
    """Takes marks of the kinds that the first byte selects out of a text, and puts them back."""
    chosen = data[0] if data else 0
    kinds = Kinds(*(bool(chosen >> bit & 1) for bit in range(4)))
    marked = extract(text_of(data[1:]), kinds, lenient=bool(chosen & 16))
    for translation in ("Ein Wort, und noch eins.", "", "a"):
        restored = marked.restored(translation)
        again = extract(restored, kinds, lenient=True, max_marks=1 << 20, max_depth=1 << 20)
        # numbers that come to stand beside a comma are read as one
        assert kinds.numbers or again.plain == translation, (restored, again.plain)


def terms(data: bytes) -> None:
    """A file of terms, and a text after a NUL."""
    file, _, text = text_of(data).partition("\0")
    found = read_terms(file.splitlines())
    lines = ["\t".join((f" {one.source}", "|".join(one.targets), *["ignore_case"] * one.ignore_case)) for one in found]
    assert read_terms(lines) == found, "the terms differ when they are read again"
    occurrences = Glossary(found, max_terms=len(found)).occurrences(text)
    ends = [0, *(place for one in occurrences for place in (one.start, one.end))]
    assert ends == sorted(ends)
    assert ends[-1] <= len(text)
    assert len(forms_in(found, text)) == len(found)


def sentences(data: bytes) -> None:
    """Splits a text with marks of the kinds that the first byte selects."""
    chosen = data[0] if data else 0
    kinds = Kinds(*(bool(chosen >> bit & 1) for bit in range(4)))
    text = text_of(data[1:])
    found = split(text, splitter_for("en"), kinds, lambda part: len(part) < 40)
    if found is not None:
        whole = "".join(one.before + one.original for one in found.sentences) + found.after
        assert whole == text, "sentences do not tile the text"


def grammar(kind: GrammarKind, vocabulary: Vocabulary, data: bytes) -> None:
    """Compiles a grammar, and follows it for some tokens."""
    text = text_of(data)
    if len(text.encode()) > MAX_GRAMMAR_BYTES[kind]:
        return
    found = Grammar(kind, text, vocabulary)
    state = found.initial_state()
    for _ in range(4):
        if not (allowed := found._allowed(state).nonzero()[0]).size or state.matcher is None:
            return
        state = found.next_state(state, int(allowed[len(allowed) // 2]))
        if state.matcher is None:
            return


def _vocabulary() -> Vocabulary:
    pieces = [b"", b"", *(bytes([byte]) for byte in range(256)), b" a", b"the", b'{"']
    return Vocabulary(pieces, eos_ids=(1,), strips_leading_space=True)


def _encoded(*found: str) -> list[bytes]:
    return [text.encode("utf-8", "ignore") for text in found]


def readers() -> dict[str, Reader]:
    """By name."""
    draw, vocabulary = random.Random(0), _vocabulary()
    reads = dataclasses.replace  # one line for each format below
    base = Reader(
        read=document("TEXT", are_again),
        errors=(DocumentError,),
        seeds=_encoded("One. Two!\n\n- Three\n\tFour?"),
        max_bytes=1024,
    )
    catalog = 'msgid "One. Two."\nmsgstr ""\n\n#, c-format\nmsgid "Done"\nmsgstr "Fertig"\n'
    pages = [PAGE[place : place + 300] for place in range(0, len(PAGE), 300)]
    found = {
        "text": base,
        "html": reads(base, read=document("HTML", are_again), seeds=_encoded(*pages), words=HTML_WORDS),
        "xliff": reads(
            base,
            read=document("XLIFF", are_parsed),
            seeds=_encoded(VERSION_1, VERSION_2),
            words=XLIFF_WORDS,
        ),
        "srt": reads(base, read=document("SRT", are_again), seeds=_encoded(SUBRIP), words=CUE_WORDS),
        "vtt": reads(base, read=document("VTT", are_again), seeds=_encoded(VTT), words=CUE_WORDS),
        "po": reads(base, read=document("PO", are_beside), seeds=_encoded(HEADER + PLURAL, catalog), words=PO_WORDS),
        "markup": Reader(
            read=marks,
            errors=(MarkupError,),
            seeds=_encoded("\x01The <b>quick</b> fox<br/>", "\x0fThe <i>{name}</i> %d http://a.b/c 12.5 &amp; {{x}}"),
            words=(*HTML_WORDS, "{x}", "{{x}}", "%s", "%(a)s", "http://", "@a.b", "1,000"),
        ),
        "glossary": Reader(
            read=terms,
            errors=(ValueError,),
            seeds=_encoded("# terms\nhouse\tHaus|Hauses\nRed\trot\tignore_case\n\0The red house."),
            words=("\t", "|", "ignore_case", "\0", "\u0130"),
        ),
        "sentences": Reader(
            read=sentences,
            errors=(),
            seeds=_encoded("\x01One <b>red. Two</b> 3.\nFour!", "\0One. Two?"),
            words=HTML_WORDS,
        ),
    }
    kinds: dict[GrammarKind, list[str]] = {
        "regex": REGEX,
        "json_schema": [json.dumps(word) for word in KEYWORDS],
        "lark": LARK,
    }
    for kind, known in kinds.items():
        found[kind] = Reader(
            read=partial(grammar, kind, vocabulary),
            errors=(InvalidRequest, Unsatisfiable),
            seeds=_encoded(*(near_valid(draw, kind) for _ in range(50))),
            words=known,
        )
    return found
