"""HTML → tokens (`tokens`): tags, text, and what is neither, with their places. Together they are the source.

Follows the tokenizer of the HTML standard where texts lie: comments, raw text such as scripts, quotes in tags. One
exception is the code of templates (`<?php … ?>`), which no browser sees: it ends at its `?>`. The parser is not the
standard library's, whose time grows with the square of hostile input. Elements and their nesting are in `html`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

# Elements whose content is no markup: up to their end tag it is text (title, textarea) or not for readers.
_RAW = "script style textarea title xmp iframe noembed noframes"
RAW = frozenset(_RAW.split())
FOREIGN = frozenset(("svg", "math"))  # of whose elements none is raw, and a slash ends each
_INTEGRATION = "foreignobject desc title annotation-xml mi mo mn ms mtext"
INTEGRATION = frozenset(_INTEGRATION.split())  # foreign elements with content that is none
_BREAKOUT = """
b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta nobr ol
p pre ruby s small span strong strike sub sup table tt u ul var
"""
BREAKOUT = frozenset(_BREAKOUT.split())  # that end the foreign elements around them
# As the standard's states of a tag read them: a quotation mark opens a value only directly after the equals sign.
_BLANK = r"[\t\n\f\r ]"
_VALUE = r"""(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)'|(?P<bare>(?!["'])[^\t\n\f\r >]*+))"""
_ATTRIBUTE = rf"(?P<name>[^\t\n\f\r />][^\t\n\f\r />=]*+)(?:{_BLANK}*+={_BLANK}*+{_VALUE}|(?!{_BLANK}*+=))"
_ATTRIBUTES = rf"(?:{_BLANK}++|/|{re.sub('[?]P<[a-z]+>', '?:', _ATTRIBUTE)})*+"
_TAG = re.compile(rf"<(/?)([A-Za-z][^\t\n\f\r />]*+){_ATTRIBUTES}>")
_CODE = re.compile(r"<\?(?:php\b|[=\s])", re.IGNORECASE)  # of a template, up to its ?>: $a->b is no end
_NO_COMMENT, _COMMENT_END = re.compile("<!---?>"), re.compile("--!?>")
_SCRIPT = re.compile(r"<!--|-->|<(?P<slash>/?)script(?=[\s/>])", re.IGNORECASE)
_FIND_ATTRIBUTE = re.compile(_ATTRIBUTE)


class Token(NamedTuple):
    """A part of the source. name: of a tag, in lower case."""

    kind: Literal["open", "close", "text", "other"]
    start: int
    end: int
    name: str = ""


class Attribute(NamedTuple):
    """An attribute of a tag. start, end: of its value in the source, without quotes. quote: around it, or empty."""

    name: str
    value: str
    start: int
    end: int
    quote: str


def tokens(source: str) -> Iterator[Token]:
    """The tokens of a document, which tile it. A tag, a comment or a script without an end goes on to the end."""
    place, end, last_code_end = 0, len(source), source.rfind("?>")
    around: list[str] = []  # open elements that begin and end foreign content
    while place < end:
        start = source.find("<", place)
        while start >= 0 and not _is_markup(source, start):
            start = source.find("<", start + 1)
        start = end if start < 0 else start
        if start > place:
            yield Token("text", place, start)
        if start == end:
            return
        if tag := _TAG.match(source, start):
            name = tag[2].lower()
            yield Token("close" if tag[1] else "open", start, tag.end(), name)
            place = tag.end()
            if name in FOREIGN or around:
                _note_foreign(around, name, is_closing=bool(tag[1]), is_empty=source[place - 2] == "/")
            if (
                name in RAW
                and not tag[1]
                and not (around and (around[-1] in FOREIGN or around[-1] == name))
                and (stop := _raw_end(source, name, place)) > place
            ):
                yield Token("text", place, stop)
                place = stop
        elif source[start + 1] in "!?" or (source[start + 1] == "/" and not _is_letter(source[start + 2 : start + 3])):
            is_code = start < last_code_end and _CODE.match(source, start)
            stop = source.index("?>", start) + len("?>") if is_code else _comment_end(source, start)
            yield Token("other", start, stop)
            place = stop
        else:
            yield Token("other", start, end)
            return


def attributes(source: str, tag: Token) -> Iterator[Attribute]:
    """The attributes of an opening tag."""
    for found in _FIND_ATTRIBUTE.finditer(source, tag.start + 1 + len(tag.name), tag.end - 1):
        group = next((name for name in ("double", "single", "bare") if found[name] is not None), None)
        value, span = (found[group], found.span(group)) if group else ("", (found.end(), found.end()))
        quote = {"double": '"', "single": "'"}.get(group or "", "")
        yield Attribute(found["name"].lower(), value, *span, quote)


def _note_foreign(around: list[str], name: str, *, is_closing: bool, is_empty: bool) -> None:
    """Opens or closes foreign content at a tag."""
    if is_closing:
        if name in around:
            del around[len(around) - 1 - around[::-1].index(name) :]
    elif name in BREAKOUT and around[-1] in FOREIGN:
        around.clear()
    elif (name in FOREIGN or (name in INTEGRATION and around[-1] in FOREIGN)) and not is_empty:
        around.append(name)


def _is_markup(source: str, start: int) -> bool:
    following = source[start + 1 : start + 2]
    return following in ("!", "?", "/") or _is_letter(following)


def _is_letter(character: str) -> bool:
    return character.isascii() and character.isalpha()


def _comment_end(source: str, start: int) -> int:
    if source.startswith("<!--", start):
        comment = _NO_COMMENT.match(source, start) or _COMMENT_END.search(source, start + len("<!--"))
        return comment.end() if comment else len(source)
    mark = "]]>" if source.startswith("<![CDATA[", start) else ">"
    found = source.find(mark, start + 2)
    return len(source) if found < 0 else found + len(mark)


def _raw_end(source: str, name: str, place: int) -> int:
    if name == "script":
        return _script_end(source, place)
    found = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(source, place)
    return found.start() if found else len(source)


def _script_end(source: str, place: int) -> int:
    """Where the end tag of a script is: one within <!-- and --> may be that of a script there."""
    is_comment = is_inner = False
    while found := _SCRIPT.search(source, place):
        place = found.end()
        if found[0] == "<!--":
            is_comment, place = True, found.start() + len("<!")
        elif found[0] == "-->":
            is_comment = is_inner = False
        elif not found["slash"]:
            is_inner = is_comment
        elif not is_inner:
            return found.start()
        else:
            is_inner = False
    return len(source)
