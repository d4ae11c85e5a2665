"""What a round trip of subtitles or a catalog loses is found; what the product writes is not."""

import pytest

from bench.answers.round_trips import identity
from bench.answers.text_checks import po_problems, subtitle_problems

SUBRIP = """1
00:00:01,000 --> 00:00:02,000
I would <i>like</i>
to go

2
00:00:02,000 --> 00:00:04,000
home.
"""
WEBVTT = "WEBVTT\n\nNOTE A note\n\nfirst\n00:01.000 --> 00:02.000\nOne &amp; <b>two</b>\n\nNOTE\nThe end\n"
CATALOG = r"""# Note
msgid ""
msgstr ""
"Language: de\n"
"Plural-Forms: nplurals=2; plural=n!=1;\n"

#: a.c
msgid "One\n"
msgstr ""

msgid "%d cat"
msgid_plural "%d cats"
msgstr[0] ""
msgstr[1] ""

msgid "Two"
msgstr "Zwei"

#~ msgid "gone"
#~ msgstr "weg"
"""


def test_documents_translated_into_themselves_lose_nothing():
    assert list(subtitle_problems(SUBRIP, identity(SUBRIP, "srt"), is_webvtt=False, is_identity=True)) == []
    assert list(subtitle_problems(WEBVTT, identity(WEBVTT, "vtt"), is_webvtt=True, is_identity=True)) == []
    assert po_problems(CATALOG, identity(CATALOG, "po"), is_identity=True) == (2, [])


@pytest.mark.parametrize(
    ("source", "old", "new", "problem"),
    [
        (SUBRIP, "00:00:02,000 -->", "00:00:03,000 -->", "00:00:0"),
        (SUBRIP, "2\n00", "3\n00", "became"),
        (SUBRIP, "\n2\n00:00:02,000 --> 00:00:04,000", "", "cues became"),
        (SUBRIP, "home.", "home\nnow.", "has more lines"),
        (SUBRIP, "<i>like</i>", "like", "tags"),
        (SUBRIP, "home.", "house.", "text was changed"),
        (WEBVTT, "NOTE A note", "NOTE", "became"),
        (WEBVTT, "The end", "", "became"),
        (WEBVTT, "first\n", "", "became"),
    ],
)
def test_what_subtitles_lose_is_found(source, old, new, problem):
    assert old in source
    is_webvtt = source is WEBVTT
    found = list(subtitle_problems(source, source.replace(old, new), is_webvtt=is_webvtt, is_identity=True))
    assert any(problem in one for one in found), found


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("# Note", "# Not", "bytes beside translations"),
        ('#~ msgstr "weg"', '#~ msgstr ""', "bytes beside translations"),
        ("Zwei", "Drei", "'Two': its translation was changed"),
        ('#, fuzzy\nmsgid "One', 'msgid "One', "is not marked as fuzzy"),
        (r'msgstr "One\n"', 'msgstr "One"', "begins or ends with a line break"),
        (r'msgstr "One\n"', r'msgstr "Un\n"', "became"),
        ("nplurals=2", "nplurals=3", ""),
        ('"Language: de', '"X: 1\\n"\n"Language: de', "the header was changed"),
    ],
)
def test_what_a_catalog_loses_is_found(old, new, problem):
    changed = identity(CATALOG, "po")
    assert old in changed
    _, found = po_problems(CATALOG, changed.replace(old, new), is_identity=True)
    assert any(problem in one for one in found) if problem else found == []
