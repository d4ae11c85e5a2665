import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.documents.xliff import check, segments
from service.text.documents.xliff_units import MAX_DEPTH, MAX_TAGS
from service.text.languages import NO_LANGUAGES, Languages
from service.text.segmentation import Splitter
from service.text.segments import DocumentError

VERSION_2 = """<?xml version="1.0" encoding="utf-16"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de">
 <file id="f"><unit id="1">
  <segment id="s">
    <source>The <pc id="1">red</pc> house 😀. It &amp; he &lt;went&gt;<ph id="2"/>!</source>
  </segment>
  <segment state="initial"><source>é One.</source><target>Alt</target></segment>
  <segment state="final"><source>Two.</source><target>Zwei</target></segment>
  <segment><source>Say <mrk id="m" translate="no">Big Ben</mrk> now.</source></segment>
 </unit><unit id="2" translate="no"><segment><source>Not.</source></segment></unit>
 <unit id="3"><segment><source>12 <![CDATA[a < b]]> done</source><target/></segment></unit>
 </file></xliff>"""
VERSION_1 = """<xliff version="1.2"><file source-language="en-US" target-language="de"><body>
<trans-unit id="1"><source>Click <g id="1">here</g> <bpt id="2">&lt;b&gt;</bpt>now<ept id="2"/>.</source></trans-unit>
<trans-unit id="2" approved="yes"><source>Yes.</source><target>Ja.</target></trans-unit>
<trans-unit id="3"><source>No.</source><target state="new" xml:lang="de">Alt</target></trans-unit>
<trans-unit id="4"><source>Kept.</source><target state="final">Alt</target></trans-unit>
</body></file></xliff>"""


def answer(source, translate=str.upper, languages=NO_LANGUAGES):
    """The document whose texts `translate` has changed."""
    return "".join(
        part if isinstance(part, str) else part.written(translate(part.text))
        for one in segments(source, Splitter("en"), languages)
        for part in one.pieces or one.parts
    )


def test_targets_of_version_2_are_inserted_and_replaced():
    changed = answer(VERSION_2)
    for expected in (
        '<segment id="s" state="translated">\n    <source>The <pc',
        '!</source>\n    <target>THE <pc id="1">RED</pc> HOUSE 😀. IT &amp; HE &lt;WENT&gt;<ph id="2"/>!</target>\n',
        '<segment state="translated"><source>é One.</source><target>É ONE.</target></segment>',
        '<segment state="final"><source>Two.</source><target>Zwei</target></segment>',
        '<target>SAY <mrk id="m" translate="no">Big Ben</mrk> NOW.</target>',
        "<segment><source>Not.</source></segment>",
        "<source>12 <![CDATA[a < b]]> done</source><target>12 A &lt; B DONE</target>",
    ):
        assert expected in changed
    assert check(VERSION_2) == "en"


def unit_of(target, attributes="", after=""):
    """A document of one unit with a target."""
    return (
        '<xliff version="1.2" xmlns:m="m" xmlns:mq="mq" xmlns:sdl="s"><file source-language="en"><body>'
        f'<trans-unit id="1"{attributes}><source>One.</source>{target}{after}</trans-unit></body></file></xliff>'
    )


@pytest.mark.parametrize(
    ("attributes", "after"),
    [
        (' m:locked="true"', ""),
        (' m:confirmed="1"', ""),
        (' mq:status="ManuallyConfirmed"', ""),
        (' mq:locked="locked"', ""),
        ("", '<sdl:seg-defs><sdl:seg id="1" conf="ApprovedSignOff"/></sdl:seg-defs>'),
        ("", '<sdl:seg-defs><sdl:seg id="1" conf="Draft" locked="true"/></sdl:seg-defs>'),
    ],
)
def test_what_a_person_has_finished_in_a_translation_tool_is_kept(attributes, after):
    source = unit_of("<target>Eins.</target>", attributes, after)
    assert answer(source) == source


@pytest.mark.parametrize(
    ("attributes", "after"),
    [(' m:confirmed="0" m:locked="false"', ""), ("", '<sdl:seg-defs><sdl:seg id="1" conf="Draft"/></sdl:seg-defs>')],
)
def test_what_is_not_finished_is_replaced(attributes, after):
    assert ">ONE.</target>" in answer(unit_of("<target>Eins.</target>", attributes, after))


def test_attributes_of_the_old_target_do_not_describe_the_new_one():
    old = '<target state="new" state-qualifier="fuzzy-match" phase-name="p" equiv-trans="no" xml:lang="de">Alt</target>'
    assert '<target state="needs-review-translation" xml:lang="de">ONE.</target>' in answer(unit_of(old))
    changed = answer(VERSION_2.replace('state="initial"', 'state="initial" subState="my:x"'))
    assert '<segment state="translated"><source>é One.' in changed


def test_a_spanning_annotation_may_prohibit_translation():
    source = VERSION_2.replace(
        "é One.", 'See <sm id="a" translate="no"/>Big Ben<em startRef="a"/> and <sm id="b"/>one<em startRef="b"/>.'
    )
    expected = (
        'SEE <sm id="a" translate="no"/>Big Ben<em startRef="a"/> AND <sm id="b"/>ONE<em startRef="b"/>.</target>'
    )
    assert expected in answer(source)


def segments_of(*sources, unit=""):
    """A document of version 2 whose only unit has these segments."""
    content = "".join(f"<segment><source>{source}</source></segment>" for source in sources)
    tag = f'<file id="f"><unit id="u"{unit}>{content}</unit></file>'
    return f'<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de">{tag}</xliff>'


@pytest.mark.parametrize(
    ("unit", "sources", "translated"),
    [
        ("", ['<sm id="a" translate="no"/>One.', "Two.", 'Six<em startRef="a"/> three.'], ["THREE"]),
        ("", ['<sm id="a" translate="no"/><sm id="b" translate="yes"/>One.', '<em startRef="b"/>Two.'], ["ONE"]),
        ("", ['<sm id="a" translate="no"/>A <mrk id="b" translate="yes">one</mrk>.<em startRef="a"/>'], ["ONE"]),
        ("", ['<mrk id="b" translate="no">A <sm id="a" translate="yes"/>one<em startRef="a"/>.</mrk>'], ["ONE"]),
        (' translate="no"', ['<sm id="a" translate="yes"/>One.<em startRef="a"/>', "Two."], ["ONE"]),
        (' translate="no"', ["One.", '<mrk id="a" translate="yes">Two.</mrk>'], ["TWO"]),
    ],
)
def test_the_annotation_that_began_last_decides_whatever_segment_it_began_in(unit, sources, translated):
    targets = "".join(re.findall("<target>(.*?)</target>", answer(segments_of(*sources, unit=unit))))
    assert re.findall("[A-Z]{2,}", targets) == translated


def test_a_declared_encoding_becomes_that_of_the_translation():
    assert answer(VERSION_2).startswith('<?xml version="1.0" encoding="UTF-8"?>\n<xliff')
    same = VERSION_2.replace("utf-16", "utf-8")
    assert answer(same).startswith('<?xml version="1.0" encoding="utf-8"?>\n<xliff')


@pytest.mark.parametrize(
    ("attributes", "source", "target"),
    [
        (' xml:space="preserve"', " One\n\tTwo  big &#10;", " ONE\n\tTWO  BIG &#10;"),
        ("", "One\n  big", "ONE BIG"),
    ],
)
def test_white_space_is_kept_where_the_document_asks_for_it(attributes, source, target):
    for where in ("<file", "<trans-unit", "<source"):
        document = unit_of("").replace("One.", source).replace(where, f"{where}{attributes}")
        assert f">{target}</target>" in answer(document)
    document = unit_of("").replace("One.", "a\nb").replace("<file", '<file xml:space="preserve"')
    assert ">A B</target>" in answer(document.replace("<source", '<source xml:space="default"'))


def test_a_document_without_a_target_language_gets_that_of_the_translation():
    languages, version_2 = Languages("en", "deu_Latn"), VERSION_2.replace(' trgLang="de"', "")
    with pytest.raises(DocumentError, match="trgLang"):
        check(version_2)
    assert check(version_2, "deu_Latn") == "en"
    assert ' srcLang="en" trgLang="de">' in answer(version_2, languages=languages)
    assert '<file source-language="en" target-language="de">' in answer(unit_of(""), languages=languages)


def test_targets_of_version_1_are_inserted_and_replaced():
    changed = answer(VERSION_1)
    for expected in (
        '-translation">CLICK <g id="1">HERE</g> <bpt id="2">&lt;b&gt;</bpt>NOW<ept id="2"/>.</target>',
        "<source>Yes.</source><target>Ja.</target>",
        '<source>No.</source><target state="needs-review-translation" xml:lang="de">NO.</target>',
        '<source>Kept.</source><target state="final">Alt</target>',
    ):
        assert expected in changed
    assert check(VERSION_1) == "en-US"


def test_names_may_have_a_prefix():
    source = '<x:xliff xmlns:x="u" version="1.2"><x:trans-unit><x:source>a</x:source></x:trans-unit></x:xliff>'
    assert '</x:source><x:target state="needs-review-translation">A</x:target></x:trans-unit>' in answer(source)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "no <xliff> element"),
        ("text", "well-formed XML: syntax error at line 1, column 1"),
        ("<html/>", "its root is <html>"),
        ('<xliff version="3.0"/>', "version 1.2 or 2.x, got '3.0'"),
        ('<xliff version="2.0"/>', "add the attribute trgLang"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><xliff version="1.2"/>', "no DOCTYPE"),
        ('<xliff version="1.2"><file>', "no element found at line 1"),
        ('<xliff version="1.2"><source>&file;</source></xliff>', "undefined entity"),
        ('<xliff version="1.2">' + "<a>" * MAX_DEPTH, f"at most {MAX_DEPTH} elements in each other, <a> is one more"),
        ('<xliff version="1.2">' + "<a/>" * MAX_TAGS, f"at most {MAX_TAGS} tags"),
    ],
)
def test_documents_that_cannot_be_read_are_refused(source, problem):
    with pytest.raises(DocumentError, match=problem.replace("[", r"\[")):
        check(source)


PARTS = (
    "a",
    "B. ",
    "é",
    "😀",
    "&amp;",
    "<g id='1'>x</g>",
    "<x id='2'/>",
    "<![CDATA[<c>]]>",
    "<!-- d -->",
    "\r\n",
    "<?e?>",
)


@settings(max_examples=100)
@given(st.lists(st.lists(st.sampled_from(PARTS)).map("".join), max_size=4))
def test_segments_tile_the_document_and_targets_keep_their_tags(sources):
    units = "".join(f"<trans-unit><source>{source}</source></trans-unit>" for source in sources)
    document = f'<xliff version="1.2"><body>{units}</body></xliff>'
    check(document)
    found = list(segments(document, Splitter("en")))
    assert "".join(document[one.span.start : one.span.end] for one in found) == document
    for unit in ElementTree.fromstring(answer(document, str)).iter("trans-unit"):
        target = unit.find("target")
        if target is not None:
            texts = ["".join(one.itertext()).split() for one in (unit[0], target)]
            tags = [[tag.tag for tag in one.iter()][1:] for one in (unit[0], target)]
            assert (texts[0], tags[0]) == (texts[1], tags[1])


@pytest.mark.parametrize("old", ["", '<target>alt <x id="1"/></target>'])
def test_texts_may_end_with_an_empty_element(old):
    unit = f'<trans-unit id="1"><source>Hello world <x id="1"/></source>{old}</trans-unit>'
    translated = answer(f'<xliff version="1.2"><file source-language="en">{unit}</file></xliff>')
    found = ElementTree.fromstring(translated)[0][0]
    assert [element.tag for element in found] == ["source", "target"]
    assert "".join(found[1].itertext()).strip() == "HELLO WORLD"


def test_a_target_before_its_source_is_copied():
    unit = "<trans-unit><target>alt</target> <source>old</source></trans-unit>"
    source = f'<xliff version="1.2"><file source-language="en">{unit}</file></xliff>'
    assert answer(source) == source


def test_elements_of_any_name_come_back():
    source = 'One <é id="1">red</é> <:a>old</:a> <link>big</link> <br/> <g id="glossa-0">and <x id="glossa-1"/> two</g>'
    document = f'<xliff version="1.2"><file source-language="en"><trans-unit id="1"><source>{source}</source>'
    translated = "".join(
        part if isinstance(part, str) else part.written(part.text)
        for one in segments(f"{document}</trans-unit></file></xliff>", Splitter("en"))
        for part in one.parts
    )
    assert f">{source}</target>" in translated


def test_the_state_follows_the_tag_whatever_its_attributes_are():
    unit = '<unit id="u"><segment id="a&gt;b>c"><source>old</source></segment></unit>'
    source = f'<xliff version="2.0" srcLang="en" trgLang="de"><file id="f">{unit}</file></xliff>'
    (segment,) = ElementTree.fromstring(answer(source)).iter("segment")
    assert segment.attrib == {"id": "a>b>c", "state": "translated"}


SEGMENTED = """<xliff version="1.2"><file source-language="en" target-language="de"><body>
<trans-unit id="1"><source>One <g id="1">red</g> house, two</source>
 <seg-source><mrk mid="0" mtype="seg">One <g id="1">red</g> house</mrk> <mrk mid="1" mtype="seg">two</mrk></seg-source>
 <target/><alt-trans><target>Alt</target></alt-trans></trans-unit>
<trans-unit id="2"><source>Three</source><seg-source><mrk mid="7" mtype="seg">Three</mrk></seg-source></trans-unit>
<trans-unit id="3"><source>Four</source><seg-source/><target>Alt</target></trans-unit>
</body></file></xliff>"""


def test_a_source_that_a_tool_has_segmented_is_translated_segment_by_segment():
    changed = answer(SEGMENTED)
    state = '<target state="needs-review-translation">'
    for expected in (
        f' {state}<mrk mid="0" mtype="seg">ONE <g id="1">RED</g> HOUSE</mrk> '
        '<mrk mid="1" mtype="seg">TWO</mrk></target>'
        "<alt-trans><target>Alt</target></alt-trans>",
        f'Three</mrk></seg-source>{state}<mrk mid="7" mtype="seg">THREE</mrk></target>',
        f"<source>Four</source><seg-source/>{state}FOUR</target>",
    ):
        assert expected in changed
    texts = [
        part.text for one in segments(SEGMENTED, Splitter("en")) for part in one.parts if not isinstance(part, str)
    ]
    assert texts == ['One <g id="glossa-0">red</g> house', "two", "Three", "Four"], "no text has words of two segments"
