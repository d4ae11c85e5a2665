"""Which elements are open while the tags of a page are read, and whether their text is translated (`Elements`).

Follows the tree builder of the HTML standard (13.2.6) where that decides about a text: end tags that may be left out,
end tags that end nothing, elements of SVG and MathML. It builds no tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.text.documents.html_tokens import BREAKOUT, FOREIGN, INTEGRATION, Token
from service.text.languages import primary_language

# What is no part of a line by the standard's style sheet (15.3), with line breaks, and the parts of lists and tables
# that are drawn by themselves.
_BLOCK = """
address article aside base blockquote body br caption center col colgroup dd details dialog dir div dl dt fieldset
figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html legend li listing main
menu nav noframes ol optgroup option p plaintext pre search section summary table tbody td tfoot th thead title tr ul
xmp
"""
_UNTRANSLATED = """
script style pre code kbd samp var tt textarea xmp iframe noembed noframes template math object metadata rt rtc rp
"""
_FORMATTING = "a b big code em font i nobr s small strike strong tt u"  # end although a block inside is open
_VOID = "area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr"
_ORDINARY = "dialog legend option optgroup"  # blocks that the standard does not call special
_SPECIAL = "applet button iframe marquee noembed noscript object script select style template textarea"
_SCOPES = "html table template td th caption marquee object applet button"  # no tag inside ends an element around these
_PARAGRAPH_ENDS = """
address article aside blockquote center dd details dialog dir div dl dt fieldset figcaption figure footer form h1 h2 h3
h4 h5 h6 header hgroup hr li listing main menu nav ol p plaintext pre search section summary table ul xmp
"""
_ROWS, _GROUPS = "td th", "tbody thead tfoot caption colgroup"
_TABLE_PARTS = frozenset(f"{_ROWS} tr {_GROUPS}".split())
BLOCK, UNTRANSLATED, VOID = (frozenset(names.split()) for names in (_BLOCK, _UNTRANSLATED, _VOID))
FORMATTING, SCOPES = frozenset(_FORMATTING.split()), frozenset(_SCOPES.split())
SPECIAL = BLOCK - frozenset(_ORDINARY.split()) | frozenset(_SPECIAL.split())  # which ordinary end tags do not pass
# Which open elements an opening tag ends, and which elements around hide them.
_ENDED: dict[str, tuple[frozenset[str], frozenset[str]]] = {}


def _ends(tags: str, elements: str, hidden_by: Iterable[str]) -> None:
    for tag in tags.split():
        before = _ENDED.get(tag, (frozenset[str](), frozenset[str]()))[0]
        _ENDED[tag] = (before | frozenset(elements.split()), frozenset(hidden_by))


_TABLES = frozenset(("html", "table", "template"))
_ends(_PARAGRAPH_ENDS, "p", SCOPES)
_ends("li", "li p", SPECIAL - {"address", "div", "p", "li"})
_ends("dd dt", "dd dt p", SPECIAL - {"address", "div", "p", "dd", "dt"})
_ends("option", "option", ("select", "datalist"))
_ends("optgroup hr", "option optgroup", ("select", "datalist"))
_ends("td th", _ROWS, _TABLES | {"tr"})
_ends("tr", f"{_ROWS} tr caption colgroup", _TABLES)
_ends(_GROUPS, f"{_ROWS} tr {_GROUPS}", _TABLES)
_ends("rt rp", "rt rp", ("ruby", "rtc"))
_ends("rb rtc", "rt rp rb rtc", ("ruby",))
_ends("a", "a", SCOPES)
_ends("button", "button", SCOPES - {"button"})
_ends("nobr", "nobr", SCOPES)
_ends("select", "select", SCOPES)
_ends("body", "head", ("html",))
PREFORMATTED = ("pre", "textarea", "listing", "xmp")
_HIDES_PARTS = frozenset(("table", "template"))
_ONCE = frozenset(("html", "head", "body"))


@dataclass(eq=False)
class Element:
    """An open element. own: whether its attributes say that its text is translated; None: they do not. named: its
    `lang`. translates: whether its text is, by these and the elements around. language: of its text, empty: unknown."""

    name: str
    own: bool | None
    named: str | None
    translates: bool = True
    language: str = ""
    is_open: bool = True


class Elements:
    """The open elements. source_language: the one that is translated; empty: every one is. Text in an element of
    another `lang` is in none that the model reads."""

    def __init__(self, source_language: str) -> None:
        self._source = primary_language(source_language)
        self._open: list[Element] = []
        self._counts = Counter[str]()
        self._foreign = 0  # of the open elements, how many are <svg> or <math>

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def reads(self) -> bool:
        """Whether a text here is translated."""
        return not self._open or self.is_translated(self._open[-1])

    @property
    def is_foreign(self) -> bool:
        """Whether the innermost element is one of SVG or MathML."""
        if self._foreign:
            for element in reversed(self._open):
                if element.name in FOREIGN:
                    return True
                if element.name in INTEGRATION:
                    return False
        return False

    @property
    def keeps_space(self) -> bool:
        """Whether white space is shown as it is written."""
        return any(self._counts[name] for name in PREFORMATTED)

    def open(self, tag: Token, attributes: Mapping[str, str], *, is_empty: bool) -> Element:
        """The element that an opening tag begins; it is not among the open ones if it has no end.

        attributes: of the tag, by name. is_empty: the tag ends with a slash.
        """
        if self._foreign and tag.name in BREAKOUT and self.is_foreign:
            while self.is_foreign:
                self._pop()
        if tag.name in _ENDED and not self.is_foreign:
            self._end(*_ENDED[tag.name])
        element = Element(tag.name, _own(attributes), attributes.get("lang", attributes.get("xml:lang")))
        self._inherit(element, self._open[-1] if self._open else None)
        is_foreign = tag.name in FOREIGN or self.is_foreign
        has_end = not is_empty if is_foreign else tag.name not in VOID
        element.is_open = has_end and not (tag.name in _ONCE and self._counts[tag.name])
        if element.is_open:
            self._open.append(element)
            self._counts[tag.name] += 1
            self._foreign += tag.name in FOREIGN
        return element

    def close(self, name: str) -> bool:
        """Ends the element that an end tag ends, and those inside; whether there is one."""
        if not self._counts[name]:
            return False
        for place in range(len(self._open) - 1, -1, -1):
            found = self._open[place].name
            if found == name:
                if name in FORMATTING and any(one.name in BLOCK for one in self._open[place + 1 :]):
                    self._remove(place)
                else:
                    self._pop_to(place)
                return True
            if found in (_HIDES_PARTS if name in _TABLE_PARTS or name == "table" else SCOPES):
                break
            if found in SPECIAL and not (name in SPECIAL or name in FORMATTING):
                break
        return False

    def _end(self, names: frozenset[str], hidden_by: frozenset[str]) -> None:
        """Ends elements of some names, but none around one of `hidden_by`."""
        last = -1
        for place in range(len(self._open) - 1, -1, -1):
            name = self._open[place].name
            if name in names:
                last = place
            elif name in hidden_by:
                break
        if last >= 0:
            self._pop_to(last)

    def _inherit(self, element: Element, around: Element | None) -> None:
        """Sets what an element has of the one around it. An explicit yes holds whatever its language is."""
        inherited = around is None or around.translates
        element.translates = inherited and element.name not in UNTRANSLATED if element.own is None else element.own
        element.language = around.language if around else ""
        if element.own or element.name == "html":
            element.language = ""
        elif element.named is not None:
            element.language = primary_language(element.named)

    def is_translated(self, element: Element) -> bool:
        """Whether the text of an element is translated."""
        return element.translates and (not self._source or element.language in ("", "und", "mul", self._source))

    def _remove(self, place: int) -> None:
        """Ends one element, but not those inside, which another tag ends."""
        removed = self._open.pop(place)
        self._forget(removed)
        for later in range(place, len(self._open)):
            self._inherit(self._open[later], self._open[later - 1] if later else None)

    def _pop_to(self, place: int) -> None:
        while len(self._open) > place:
            self._pop()

    def _pop(self) -> None:
        self._forget(self._open.pop())

    def _forget(self, element: Element) -> None:
        element.is_open = False
        self._counts[element.name] -= 1
        self._foreign -= element.name in FOREIGN


def _own(attributes: Mapping[str, str]) -> bool | None:
    """What the attributes of a tag say about the translation of its text."""
    if "notranslate" in attributes.get("class", "").split():
        return False
    return {"": True, "yes": True, "no": False}.get(attributes.get("translate", "?").lower())
