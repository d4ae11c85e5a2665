import pytest

from service.text.documents.html_elements import Elements
from service.text.documents.html_tokens import tokens


def open_at(source, place):
    """The open elements before a character of a page."""
    elements = Elements("")
    for token in tokens(source[: source.index(place)]):
        if token.kind == "open":
            elements.open(token, {}, is_empty=source[token.end - 2] == "/")
        elif token.kind == "close":
            elements.close(token.name)
    return [element.name for element in elements._open]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<p><b>x<div>", "div"),
        ("<p><button><p>x</button>", "p"),
        ("<ul><li>x<ul><li>y<li>", "ul li ul li"),
        ("<ul><li><p>x<li>", "ul li"),
        ("<dl><dt>x<dd>y<dt>", "dl dt"),
        ("<table><tr><td>x<td>y<tr>", "table tr"),
        ("<table><tbody><tr><td><table><tr><td>x</table>", "table tbody tr td"),
        ("<table><tr><td><p>x</table>", ""),
        ("<table><tr><td>x</div>", "table tr td"),
        ("<select><optgroup><option>x<optgroup>", "select optgroup"),
        ("<select><option>x</select>", ""),
        ("<ruby>x<rt>y<rp>", "ruby rp"),
        ("<span><p>x</span>", "span p"),
        ("<b><p>x</b>", "p"),
        ("<a>x<a>", "a"),
        ("<template><p>x</div></template>", ""),
        ("<div><template></div>", "div template"),
        ("<svg><g><p>", "p"),
        ("<svg><foreignObject><p>", "svg foreignobject p"),
        ("<svg><path/><g>", "svg g"),
        ("<div/><img/>", "div"),
        ("<html><head><body><body>", "html body"),
    ],
)
def test_elements_end_where_the_standard_ends_them(source, expected):
    assert open_at(f"{source}!", "!") == expected.split()
