import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.documents.po import check, segments
from service.text.documents.po_entries import escaped
from service.text.languages import Languages
from service.text.segmentation import Splitter
from service.text.segments import DocumentError

HEADER = r"""msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: pl\n"
"Plural-Forms: nplurals=3; plural=n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<1"
"2 || n%100>14) ? 1 : 2;\n"

"""
PLURAL = '#, c-format\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'


def answer(source, target="", translate=str.upper):
    """The catalog whose texts `translate` has changed."""
    check(source, target)
    return "".join(
        part if isinstance(part, str) else part.written(translate(part.text))
        for one in segments(source, Splitter("en"), Languages("", target))
        for part in one.pieces or one.parts
    )


def test_messages_without_a_translation_get_one_that_is_fuzzy():
    source = '# A note.\nmsgid "One. Two."\nmsgstr ""\n\n#, c-format\nmsgid "Done"\nmsgstr "Fertig"\n'
    assert answer(source) == source.replace('msgid "One', '#, fuzzy\nmsgid "One').replace('""', '"ONE. TWO."')
    crlf = source.replace("\n", "\r\n")
    assert answer(crlf) == answer(source).replace("\n", "\r\n")


def test_fuzzy_translations_are_replaced_and_others_kept():
    source = '#, fuzzy, c-format\n#| msgid "Old"\nmsgctxt "Menu"\nmsgid "New"\nmsgstr "Alt"\n\nmsgid "b"\nmsgstr " "\n'
    assert answer(source) == source.replace("Alt", "NEW")


def test_the_flag_stands_before_other_flags_or_before_what_the_message_was():
    source = '#: a.c\n#, c-format\n#, no-wrap\nmsgid "One"\nmsgstr ""\n'
    assert answer(source).startswith("#: a.c\n#, fuzzy, c-format\n#, no-wrap\nmsgid")
    source = '#: a.c\n#| msgid "Old"\nmsgctxt "x"\nmsgid "One"\nmsgstr ""\n'
    assert answer(source).startswith('#: a.c\n#, fuzzy\n#| msgid "Old"\nmsgctxt "x"\n')


def test_strings_are_joined_and_line_breaks_of_a_message_stay():
    source = r"""msgid ""
"One long line that "
"goes on.\n"
"\n"
"  A \"list\" of C:\\x\n"
msgstr ""
"""
    expected = r"""msgstr ""
"ONE LONG LINE THAT GOES ON.\n"
"\n"
"  A \"LIST\" OF C:\\X\n"
"""
    assert answer(source).endswith(expected)


def test_obsolete_entries_comments_and_messages_without_words_are_copied():
    source = 'msgid "%"\nmsgstr ""\n\n#, fuzzy\n#~ msgid "One"\n#~ msgstr ""\n# The end.\n'
    assert answer(source) == source
    assert answer(f"{HEADER}{source}") == HEADER + source


@pytest.mark.parametrize(
    ("message", "flags", "text"),
    [
        (r"See <a href=\"x y\">this</a> &amp; <br/>that", "", 'See <g id="glossa-0">this</g> <x id="glossa-1"/> '),
        ("Copy %1 to %L2 (%n)", "qt-format", 'Copy <x id="glossa-0"/> to <x id="glossa-1"/> (<x id="glossa-2"/>)'),
        ("Copy %1 now", "", "Copy %1 now"),
        ("Hi %{name} now", "ruby-format", 'Hi <x id="glossa-0"/> now'),
        (r"a < b & \"c\"", "", 'a < b & "c"'),
    ],
)
def test_marks_of_a_message(message, flags, text):
    source = f'#, {flags or "no-wrap"}\nmsgid "{message}"\nmsgstr ""\n'
    (found,) = [part for one in segments(source, Splitter("en")) for part in one.parts if not isinstance(part, str)]
    assert found.text.startswith(text)
    assert found.written(found.text) == message


def test_every_plural_form_of_the_header_is_written():
    assert answer(HEADER + PLURAL) == HEADER + (
        '#, fuzzy, c-format\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%D FILE"\nmsgstr[1] "%D FILES"\n'
        'msgstr[2] "%D FILES"\n'
    )
    translated = PLURAL.replace('msgstr[1] ""', 'msgstr[1] "Dateien"')
    assert answer(HEADER + translated) == HEADER + translated


@pytest.mark.parametrize(
    ("target", "one", "forms"),
    [
        ("de", "One file", ["ONE FILE", "%D FILES"]),
        ("ja", "One file", ["%D FILES"]),
        ("fr", "One file", ["%D FILES", "%D FILES"]),  # its first form is that of 0 too
        ("fr", "%d file", ["%D FILE", "%D FILES"]),
        ("ru", "One file", ["%D FILES"] * 3),  # 21
    ],
)
def test_a_singular_without_its_number_is_for_1_alone(target, one, forms):
    header = 'msgid ""\nmsgstr ""\n"Language: \\n"\n\n'
    translated = answer(header + PLURAL.replace('%d file"', f'{one}"'), target)
    assert translated.split('%d files"\n')[1] == "".join(f'msgstr[{n}] "{form}"\n' for n, form in enumerate(forms))


def test_the_header_of_a_template_becomes_that_of_the_translation():
    template = HEADER.replace("UTF-8", "CHARSET").replace(" pl", " ").partition('"Plural-Forms')[0] + '"X: y\\n"\n\n'
    forms = r'"Plural-Forms: nplurals=2; plural=(n != 1);\n"'
    expected = template.replace("CHARSET", "UTF-8").replace("Language: ", "Language: de_AT")
    assert answer(template, "de-AT") == expected
    with_plural = answer(template + PLURAL, "de-AT")
    assert with_plural.startswith(expected.rstrip("\n") + f"\n{forms}\n\n#, fuzzy, c-format")
    source = template.rstrip("\n") + '\n"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"\n\n' + PLURAL
    assert forms in answer(source, "de")
    assert "EXPRESSION" not in answer(source, "de")
    assert answer(HEADER.replace("UTF-8", "iso-8859-2") + PLURAL).startswith(HEADER)


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ("# Only a comment.\n", "de", 'must be a catalog of gettext: it has no msgid; begin entries with msgid "..."'),
        (PLURAL, "", "line 2 has a plural, but the header's Plural-Forms does not say how many; name the target lang"),
        (PLURAL, "tlh", "write the header Plural-Forms for 'tlh'"),
        (
            HEADER.partition('"Plural-Forms')[0].replace(" pl", " xx") + PLURAL,
            "",
            "line 6 has a plural, but the header's",
        ),
    ],
)
def test_what_cannot_be_translated_is_refused(source, target, problem):
    with pytest.raises(DocumentError) as error:
        check(source, target)
    assert problem in str(error.value)


MESSAGES = st.text(st.sampled_from('aB.? \n\t"\\<b>/&;%1{}é'), max_size=40)


@settings(max_examples=150)
@given(st.lists(st.tuples(MESSAGES, st.booleans()), max_size=5))
def test_segments_tile_the_catalog(messages):
    entries = [f'msgid "{"A" + escaped(text)}"\nmsgstr "{"x" * is_done}"\n' for text, is_done in messages]
    source = HEADER + "\n".join(entries)
    found = list(segments(source, Splitter("en")))
    assert "".join(source[one.span.start : one.span.end] for one in found) == source
    changed = answer(source, translate=str)
    assert changed.count("msgid") == source.count("msgid")
    assert check(changed) == ""


@pytest.mark.parametrize("part", ["a ", r"\n", r"\"", '"\n"', "<b>", "&amp;", "%1", "a. "])
def test_hostile_messages_take_linear_time(part):
    source, began_s = f'#, qt-format\nmsgid "{part * (50_000 // len(part))}a"\nmsgstr ""\n', time.process_time()
    check(source)
    for _ in segments(source, Splitter("en")):
        pass
    assert time.process_time() - began_s < 5
