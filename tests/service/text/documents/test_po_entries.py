import pytest

from service.text.documents.po_entries import characters, entries_of, escaped, is_empty
from service.text.segments import DocumentError
from service.text.spans import Span

CATALOG = r"""# A comment
#, c-format
#: a.c
#, no-wrap
#| msgid "old"
msgctxt "menu"
msgid "a" "b"
"c\n"
msgstr ""
"d"

#, fuzzy
#~ msgid "gone"
#~ msgstr "weg"

domain "other"
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "eine"
msgstr[1] ""
"""


def texts(source, part):
    return "".join(run.text for run in characters(source, part.strings))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_entries_have_their_parts_and_flags(newline):
    source = CATALOG.replace("\n", newline)
    one, two = entries_of(source)
    assert [texts(source, part) for part in (one.context, one.source, *one.translations)] == ["menu", "abc\n", "d"]
    assert one.flags == {"c-format", "no-wrap"}
    assert source[one.start :].startswith('#| msgid "old"')
    assert source[: one.flags_end].endswith("#,")
    assert source[one.flags_end :].startswith(" c-format")
    assert [texts(source, part) for part in (two.source, two.plural, *two.translations)] == [
        "%d file", "%d files", "eine", "",
    ]  # fmt: skip
    assert (two.flags, two.flags_end, two.context) == (set(), -1, None)
    assert source[two.start :].startswith("msgid")


def test_characters_are_read_and_written():
    source = r'"" "a\t\"\\" "b\x41\101\z"'
    runs = characters(source, Span(0, len(source)))
    assert "".join(run.text for run in runs) == 'a\t"\\bAAz'
    assert source[runs[0].start : runs[-1].end] == source[4:-1]
    assert all(run.is_entity or source[run.start : run.end] == run.text for run in runs)
    assert escaped('a\t"\\b\n\x07é') == r"a\t\"\\b\n\aé"


@pytest.mark.parametrize(("strings", "expected"), [('""', True), ('"" \n""', True), ('" "', False), ('""\n"a"', False)])
def test_a_blank_is_a_translation(strings, expected):
    assert is_empty(strings, Span(0, len(strings))) is expected


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('msgid "a"\n', "line 1 must have a msgstr, got 'msgid \"a\"'; mend it, or give the document's own format"),
        ('\nmsgid "a"\n# c\nmsgstr ""\n', "line 2 must have a msgstr before the next comment"),
        ('msgid "a"\nmsgid "b"\n', "line 2 must not be there: an entry is msgctxt, msgid, msgstr, or"),
        ('msgid "a"\nmsgstr[0] "b"\n', "line 2 must not be there"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr "c"\n', "line 3 must not be there"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[1] "c"\n', "line 3 must not be there"),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"\n', "line 3 must not be there"),
        ('msgstr "b"\n', "line 1 must not be there"),
        ('msgid "a"\nmsgctxt "b"\n', "line 2 must not be there"),
        ('msgid\nmsgstr "b"\n', "line 1 must have a text in quotation marks, got 'msgid'"),
        ('"a"\n', "line 1 must have a keyword such as msgid before it"),
        ('msgid "a"\nmsgstr "b\n', "line 2 must be a comment, a keyword such as msgid, or a text in quotation marks"),
        ("\n<!DOCTYPE html>", "got '<!DOCTYPE html>'"),
    ],
)
def test_what_is_against_the_format_is_refused_with_its_line(source, problem):
    with pytest.raises(DocumentError) as error:
        list(entries_of(source))
    assert problem in str(error.value)
