"""What a translated document must share with its source, read by parsers that the product does not use.

HTML by `html.parser`: the same tags, comments and untranslated elements. XLIFF by ElementTree, and its bytes by a
pattern: nothing but targets and states may differ. Texts are compared with their white space collapsed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import NamedTuple
from xml.etree import ElementTree

from service.text.documents.html_attributes import translated_attributes
from service.text.documents.html_elements import BLOCK

CODE = ("script", "style", "iframe", "noembed", "noframes", "xmp")  # raw text, which is not translated
WITHOUT_TAGS = ("title", "textarea")  # escapable raw text
KEPT = frozenset(
    ("translated", "final", "signed-off", "reviewed", "Translated", "ApprovedTranslation", "ApprovedSignOff")
)
_TARGET = re.compile(r"\s*<((?:\w+:)?target)\b(?:[^>]*/>|.*?</\1\s*>)", re.DOTALL)
_DECLARED = re.compile(
    r"""(<\?xml[^>]*?\sencoding\s*=\s*["']?|<meta\s[^>]*?charset\s*=\s*["']?)[\w.:-]+""", re.IGNORECASE
)
_STATE = re.compile(r"(<(?:\w+:)?segment\b[^>]*?)\s(?:state|subState)\s*=\s*(?:\"[^\"]*\"|'[^']*')")


def collapsed(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


class _Events(HTMLParser):
    """The events of an HTML document. tags: as they are written, but for the values of translated attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.blocks: list[str] = []  # tags that are not inline
        self.others: list[str] = []  # comments, declarations and code
        self.text: list[str] = []
        self._raw = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = translated_attributes(tag, {name: value or "" for name, value in reversed(attrs)})
        kept = [(name, None if name in names else value) for name, value in attrs]
        written = self.get_starttag_text() or ""
        shown = f"<{tag} {kept}>" if any(name in names for name, _ in attrs) else written
        self.text += [f" {collapsed(value or '')} " for name, value in attrs if name in names]
        self.tags.append(shown)
        if tag in BLOCK:
            self.blocks.append(shown)
        if tag in CODE or tag in WITHOUT_TAGS:
            self._raw = tag
            self.set_cdata_mode(tag)  # Python 3.11 does so for scripts and styles only

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"</{tag}>")
        if tag in BLOCK:
            self.blocks.append(f"</{tag}>")
        self._raw = ""

    def handle_data(self, data: str) -> None:
        if self._raw in CODE:
            self.others.append(data)
        else:
            self.text.append(unescape(data) if self._raw else data)

    def handle_comment(self, data: str) -> None:
        self.others.append(f"<!--{data}")

    def handle_decl(self, decl: str) -> None:
        self.others.append(f"<!{decl}")

    def handle_pi(self, data: str) -> None:
        self.others.append(f"<?{data}")


def _events(html: str) -> _Events:
    events = _Events()
    events.feed(html)
    events.close()
    return events


def html_problems(source: str, translation: str, *, is_identity: bool) -> Iterator[str]:
    """What a translation of HTML has lost or changed. is_identity: each text was translated into itself; then tags must
    stay in their order, and texts as they are. Inline tags of other translations may be in another order."""
    before, after = (_events(_in_utf_8(text)) for text in (source, translation))
    for name in ("others", "blocks", "tags"):
        given, found = getattr(before, name), getattr(after, name)
        if name == "tags" and not is_identity:
            given, found = sorted(given), sorted(found)
        if given != found:
            yield f"{name}: {_difference(given, found)}"
    if is_identity and (given := collapsed("".join(before.text))) != (found := collapsed("".join(after.text))):
        yield f"text: {_difference(given.split(), found.split())}"


def _in_utf_8(text: str) -> str:
    """A document with the encoding of translations, which are text in UTF-8."""
    return _DECLARED.sub(r"\1utf-8", text)


def _difference(given: list[str], found: list[str]) -> str:
    for place, (one, other) in enumerate(zip(given, found, strict=False)):
        if one != other:
            return f"{given[place : place + 3]!r:.200} became {found[place : place + 3]!r:.200}"
    return f"{len(given)} became {len(found)}"


class Units(NamedTuple):
    """Units of an XLIFF document by what became of them."""

    translated: int
    copied: int


def xliff_problems(source: str, translation: str, *, is_identity: bool) -> tuple[Units, list[str]]:
    """What a translation of XLIFF has lost or changed."""
    bare = [_without_states(_TARGET.sub("", _in_utf_8(text))) for text in (source, translation)]
    if bare[0] != bare[1]:
        return Units(0, 0), [f"bytes beside targets: {_difference(*(text.splitlines() for text in bare))}"]
    trees = list[list[tuple[ElementTree.Element, bool]]]()
    for which, document in (("source", source), ("translation", translation)):
        try:
            trees.append(list(_units(_root(document))))
        except (ElementTree.ParseError, ValueError, LookupError) as error:  # the latter two of a declared encoding
            return Units(0, 0), [f"the {which} cannot be parsed: {error}"]
    before, after = trees
    if len(before) != len(after):
        return Units(0, 0), [f"{len(before)} units became {len(after)}"]
    problems, translated = list[str](), 0
    for (unit, is_open), (found, _) in zip(before, after, strict=True):
        name = unit.get("id") or "?"
        (text, old, segmented), (_, target, _) = _parts(unit), _parts(found)
        if segmented is not None and _words(segmented):
            text = segmented  # a tool finds the segments of a target by their marks
        has_words = text is not None and any(map(str.isalpha, _words(text)))
        if (text is None or not is_open or not has_words) and _shape(old) != _shape(target):
            problems.append(f"unit {name}: its target was changed")
            continue
        if text is None or not is_open or not has_words:
            continue
        translated += 1
        if target is None:
            problems.append(f"unit {name}: has no target")
        elif _inline(text) != _inline(target):
            problems.append(f"unit {name}: inline elements {_inline(text)} became {_inline(target)}"[:300])
        elif is_identity and _content(text) != _content(target):
            problems.append(f"unit {name}: {_content(text)!r:.120} became {_content(target)!r:.120}")
    return Units(translated, len(before) - translated), problems


def _without_states(text: str) -> str:
    """Without what says how far a segment's target is."""
    return _STATE.sub(r"\1", _STATE.sub(r"\1", text))  # a segment may have two such attributes


def _root(text: str) -> ElementTree.Element:
    """The root of a document. Some tools write prefixes without a namespace."""
    return ElementTree.fromstring(re.sub(r"(</?|\s)([\w.-]+):(?=[\w.-]+[\s=/>])", r"\1\2..", text).encode())


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2].rpartition("..")[2] if isinstance(element.tag, str) else ""


def _units(root: ElementTree.Element) -> Iterator[tuple[ElementTree.Element, bool]]:
    """The units of a document, and whether they are to be translated."""

    spans: dict[str | None, bool] = {}  # by the id of a spanning annotation that is open: whether it is translated

    def walk(element: ElementTree.Element, is_open: bool) -> Iterator[tuple[ElementTree.Element, bool]]:
        if _local(element) in ("source", "segment") and spans:
            is_open = [*spans.values()][-1]
        if _local(element) == "source":
            for one in element.iter():
                if _local(one) == "sm" and "translate" in one.attrib:
                    spans[one.get("id")] = one.get("translate") == "yes"
                elif _local(one) == "em":
                    spans.pop(one.get("startRef"), None)
        is_open = element.get("translate", "yes" if is_open else "no") != "no"
        if _local(element) in ("trans-unit", "segment"):
            states = {element.get("state"), *(one.get("state") for one in element if _local(one) == "target")}
            states |= {one.get("conf") for one in element.iter() if _local(one) == "seg"}  # of Trados
            yield element, is_open and element.get("approved") != "yes" and not states & KEPT
        for child in element:
            yield from walk(child, is_open)

    return walk(root, True)


def _parts(unit: ElementTree.Element) -> tuple[ElementTree.Element | None, ...]:
    """The source, the target and the segmented source of a unit."""
    children = {_local(child): child for child in reversed(unit)}
    return children.get("source"), children.get("target"), children.get("seg-source")


def _shape(element: ElementTree.Element | None) -> str:
    return "" if element is None else ElementTree.tostring(element, encoding="unicode").strip()


def _inline(element: ElementTree.Element) -> Counter[str]:
    """The inline elements, with their attributes and the text of those that are code."""
    return Counter(f"{_local(one)} {sorted(one.attrib.items())}" for one in element.iter() if one is not element)


def _words(element: ElementTree.Element) -> str:
    """What is translated of a source."""
    if _local(element) in ("bpt", "ept", "ph", "it", "sub") or element.get("translate") == "no":
        return ""
    inner = "".join(f"{_words(child)}{child.tail or ''}" for child in element)
    return "" if element.get("mtype") == "protected" else (element.text or "") + inner


def _content(element: ElementTree.Element) -> str:
    return collapsed("".join(element.itertext()))
