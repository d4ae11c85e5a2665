"""Rows of TSV, CSV and JSON lines: columns by name, byte order marks, and bad rows that are counted."""

import codecs
import gzip
import json

import pytest

from model.training.data.examples import DataError
from model.training.data.text_files import RowRules, read_parallel, read_text, read_tsv

PAIRS = [("a cat", "eine Katze"), ('say "x", y', "z")]


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.tsv", 'a cat\teine Katze\nsay "x", y\tz\n', ()),
        ("a.tsv", 'de\tid\ten\neine Katze\t1\ta cat\nz\t2\tsay "x", y\n', ("en", "de")),
        ("a.csv", 'a cat,eine Katze\r\n"say ""x"", y",z\r\n', ()),
        ("a.csv", 'source,target\na cat,eine Katze\n"say ""x"", y",z\n', ()),
        ("a.CSV", 'de,id,en\neine Katze,1,a cat\nz,2,"say ""x"", y"\n', ("en", "de")),
        ("a.jsonl", "".join(f"{json.dumps({'target': b, 'source': a})}\n" for a, b in PAIRS), ()),
        ("a.ndjson", "".join(f"{json.dumps({'en': a, 'de': b, 'n': 1})}\n" for a, b in PAIRS), ("en", "de")),
    ],
)
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_pairs_are_read_from_every_format(name, text, columns, mark, is_compressed, tmp_path):
    data = mark + text.encode()
    path = write(tmp_path / (f"{name}.gz" if is_compressed else name), gzip.compress(data) if is_compressed else data)
    assert read_tsv([path], rules=RowRules(columns)).pairs == PAIRS


def test_a_field_of_csv_may_have_line_breaks(tmp_path):
    path = write(tmp_path / "a.csv", '"a\nb",c\n"",d\n')
    with pytest.raises(DataError, match=r"a.csv:3: the source is empty"):
        read_tsv([path])
    assert read_tsv([path], rules=RowRules(skips=True)).pairs == [("a\nb", "c")]


BAD = {
    "a.tsv": (b"a\tb\n\nc\n\td\n\xff\te\nf\tg\th\ni\tj\n", "5 bad rows", "a.tsv:2: expected 2 tab-separated fields"),
    "a.csv": (b"a,b\n\nc\n,d\nf,g,h\ni,j\n", "4 bad rows", "a.csv:2: expected 2 comma-separated fields, got 1"),
    "a.jsonl": (
        b'{"source": "a", "target": "b"}\n{\n[1]\n{"source": "a"}\n{"source": 1, "target": "b"}\n'
        b'{"source": " ", "target": "b"}\n{"source": "i", "target": "j"}\n',
        "5 bad rows",
        "a.jsonl:2: not readable as JSON",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_end_the_reading_or_are_counted(name, tmp_path):
    data, count, first = BAD[name]
    path, told = write(tmp_path / name, data), list[str]()
    with pytest.raises(DataError, match=first):
        read_tsv([path])
    rules = RowRules(skips=True, tell=told.append)
    assert read_tsv([path], rules=rules).pairs == [("a", "b"), ("i", "j")]
    (line,) = told
    assert line.startswith(f"{count} of {name} left out, the first: ")
    assert first in line


def test_bad_rows_of_parallel_files_are_left_out_of_both(tmp_path):
    left = write(tmp_path / "left", codecs.BOM_UTF8 + b"a\n\nc\n\xff\n")
    right, told = write(tmp_path / "right", b"1\n2\n\n4\n"), list[str]()
    assert read_parallel(left, right, rules=RowRules(skips=True, tell=told.append)).pairs == [("a", "1")]
    assert told == [
        f"2 bad rows of left left out, the first: {left}:2: the source is empty",
        f"1 bad row of right left out, the first: {right}:3: the target is empty",
    ]


def test_documents_end_at_empty_rows(tmp_path):
    for name, text in (("a.tsv", "a\tb\n\t\nc\td\n"), ("a.csv", "a,b\n\nc,d\n")):
        assert read_tsv([write(tmp_path / name, text)], has_documents=True).sizes == [1, 1]


def test_texts_are_read_from_every_format(tmp_path):
    for name, text, columns in (
        ("a.txt", "\ufeffa\n\nb\n", ()),
        ("a.csv", "text\na\nb\n", ()),
        ("a.tsv", "id\tbody\n1\ta\n2\tb\n", ("body",)),
        ("a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n', ()),
    ):
        found = read_text([write(tmp_path / name, text)], documents="lines", rules=RowRules(columns))
        assert found.pairs == [("", "a"), ("", "b")], name


@pytest.mark.parametrize(
    ("name", "text", "columns", "problem"),
    [
        ("a.tsv", "en\tde\na\tb\n", ("en", "fr"), "a.tsv:1: has no column 'fr', which --columns names; it has: en, de"),
        ("a.jsonl", '{"en": "a"}\n', (), "has no text 'source'; --columns names others; its keys are: en"),
        ("a.jsonl", '{"\\ud800": "a"}\n', (), r"its keys are: \\ud800"),
        ("a.jsonl", '{"source": "a\\udc00", "target": "b"}\n', (), r"a.jsonl:1: must be valid Unicode, got .* \\udc00"),
        ("a.csv", '"a\n', (), "not readable as CSV"),
        ("a.tsv", "a\tb\n".encode("utf-16"), (), "byte order mark of UTF-16: convert it to UTF-8"),
    ],
)
def test_what_cannot_be_read_names_file_line_and_fix(name, text, columns, problem, tmp_path):
    with pytest.raises(DataError, match=problem):
        read_tsv([write(tmp_path / name, text)], rules=RowRules(columns))
