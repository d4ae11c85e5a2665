"""Translation memories: pairs by language, inline codes, and what is no such file."""

import gzip

import pytest

from model.training.data.examples import DataError
from model.training.data.text_files import RowRules, read_text, read_tsv

HEADER = '<header creationtool="a" segtype="sentence" adminlang="en" srclang="{}" datatype="PlainText"/>'
BODY = """<tu tuid="1"><note>n</note><prop type="x">p</prop>
<tuv xml:lang="en-US"><seg>a <hi>black</hi> &lt;cat&gt;</seg></tuv><tuv xml:lang="de"><seg>eine
   schwarze Katze</seg></tuv></tu>
<tu><tuv xml:lang="DE"><seg>zwei <bpt i="1">&lt;b&gt;<sub>nicht</sub></bpt>rote<ept i="1">&lt;/b&gt;</ept>
H\u00e4user<ph/></seg></tuv>
<tuv lang="EN-us"><seg>two red houses</seg></tuv></tu>"""
PAIRS = [("a black <cat>", "eine schwarze Katze"), ("two red houses", "zwei rote H\u00e4user")]


def tmx(path, body=BODY, *, source="en-US", encoding="utf-8", before=""):
    document = f'<tmx version="1.4">{HEADER.format(source)}<body>{body}</body></tmx>'
    data = f'<?xml version="1.0" encoding="{encoding}"?>\n{before}{document}'.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.tmx", "a.TMX", "a.tmx.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("columns", [(), ("en", "de"), ("EN-us", "de"), ("en_US", "de")])
def test_pairs_are_those_of_two_languages(name, encoding, columns, tmp_path):
    path = tmx(tmp_path / name, encoding=encoding, before='<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n')
    assert read_tsv([path], rules=RowRules(columns)).pairs == PAIRS


def test_the_order_is_that_of_the_columns_or_of_the_header(tmp_path):
    backwards = [(target, source) for source, target in PAIRS]
    assert read_tsv([tmx(tmp_path / "a.tmx")], rules=RowRules(("de", "en"))).pairs == backwards
    assert read_tsv([tmx(tmp_path / "a.tmx", source="de")]).pairs == backwards


def test_one_language_is_text(tmp_path):
    path = tmx(tmp_path / "a.tmx")
    found = read_text([path], documents="lines", rules=RowRules(("de",)))
    assert [text for _, text in found.pairs] == [target for _, target in PAIRS]


def test_a_language_without_a_region_is_the_first_of_its_regions(tmp_path):
    units = "".join(f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in ("pt-PT", "pt-BR", "en", "pt-BR"))
    path = tmx(tmp_path / "a.tmx", f"<tu>{units}</tu>")
    assert read_tsv([path], rules=RowRules(("pt", "pt-BR"))).pairs == [("pt-PT", "pt-BR")]


def test_a_unit_without_a_language_is_a_bad_row(tmp_path):
    told = list[str]()
    path = tmx(tmp_path / "a.tmx", BODY + '\n<tu><tuv xml:lang="fr"><seg>un</seg></tuv></tu>')
    with pytest.raises(DataError, match=r"a.tmx:8: has no text in 'en', it has: fr"):
        read_tsv([path], rules=RowRules(("en", "de")))
    assert read_tsv([path], rules=RowRules(("en", "de"), skips=True, tell=told.append)).pairs == PAIRS
    assert told[0].startswith("1 bad row of a.tmx left out")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"<tmx><header", "a.tmx:1: not well-formed: unclosed token"),
        (b"", "a.tmx:1: not well-formed: no element found"),
        (b"a\tb\n", "a.tmx:1: not well-formed"),
        (
            b'<?xml version="1.0" encoding="utf-7"?><tmx/>',
            "a.tmx:1: declares an encoding that is not covered: multi-byte",
        ),
        (
            b'<?xml version="1.0" encoding="none"?><tmx/>',
            "encoding that is not covered: unknown .*; convert it to UTF-8",
        ),
        (b"<xliff/>", "a.tmx:1: must be TMX: its first element is <xliff>"),
        (b'<!DOCTYPE tmx [<!ENTITY a "b">]><tmx/>', "a.tmx:1: must not declare entities, has 'a'"),
        (b'<tmx><header srclang="en"/><body/></tmx>', "a.tmx: no text in it"),
        (
            b'<tmx><header srclang="*all*"/><body><tu><tuv xml:lang="en"><seg>a</seg></tuv></tu></body></tmx>',
            "a.tmx:1: name two languages with --columns, such as --columns en,de; it has: en",
        ),
        (
            b'<tmx><header srclang="en"/><body>\n<tu><tuv xml:lang="en"><seg/></tuv><tuv xml:lang="de">'
            b"<seg>b</seg></tuv></tu></body></tmx>",
            "a.tmx:2: the source is empty",
        ),
    ],
)
def test_what_is_no_memory_is_refused(data, problem, tmp_path):
    (tmp_path / "a.tmx").write_bytes(data)
    with pytest.raises(DataError, match=problem):
        read_tsv([tmp_path / "a.tmx"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"a.tmx: cannot be read"):
        read_tsv([tmp_path / "a.tmx"])
