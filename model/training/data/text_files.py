"""Text files → examples: tab-separated, CSV, JSON lines, TMX or plain text, by the name's suffix; each may be gzipped.

Input is checked strictly: an error names the malformed line, unless bad rows are to be skipped and counted. A byte
order mark at the start of a file is not part of its text.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from model.config import DEFAULT_LANGUAGES, LanguagePair
from model.training.data.examples import DataError, Examples
from model.training.data.tmx import TmxError, Unit, languages_of, read_units, text_in

SURROGATE = re.compile("[\ud800-\udfff]")
PAIR, TEXT = ("source", "target"), ("text",)  # columns by default, of objects in JSON lines and of a header in CSV


@dataclass(frozen=True)
class RowRules:
    """How rows are read. columns: names in the header of TSV and CSV, or keys in JSON lines; (): a file without a
    header has just the columns that are needed. skips: bad rows are left out, and told to `tell`, by file."""

    columns: Sequence[str] = ()
    skips: bool = False
    tell: Callable[[str], object] = field(default=lambda text: None)


STRICT = RowRules()


class _Row(NamedTuple):
    """A row of a file. fields: of the wanted columns; None: it is blank. problem: why it has none, or ""."""

    number: int
    fields: Sequence[str] | None
    problem: str = ""


def read_tsv(paths: Sequence[Path], *, has_documents: bool = False, rules: RowRules = STRICT) -> Examples:
    """Rows of source and target: lines `source<TAB>target`, or CSV (.csv), JSON lines (.jsonl), or TMX. has_documents:
    a document ends at an empty line, and with its file; otherwise an empty line is an error. Raises DataError."""
    pairs, ends = list[tuple[str, str]](), list[int]()
    for path in paths:
        ends.append(len(pairs))
        bad = _BadRows(path, rules)
        for row in _rows(path, rules.columns or PAIR, is_named=bool(rules.columns)):
            if row.fields is None and has_documents:
                ends.append(len(pairs))
            elif problem := row.problem or _empty(row.fields or [""], PAIR):
                bad.add(row.number, problem)
            else:
                source, target = (text.strip() for text in row.fields or ())
                pairs.append((source, target))
        bad.tell()
    return _examples(pairs, paths, ends if has_documents else None)


def read_parallel(source: Path, target: Path, *, has_documents: bool = False, rules: RowRules = STRICT) -> Examples:
    """Line n of one file is the translation of line n of the other. has_documents: a document ends where both lines
    are empty; otherwise they are an error. Raises DataError."""
    sources, targets = list(_decoded(source)), list(_decoded(target))
    if len(sources) != len(targets):
        raise DataError(f"{source} has {len(sources)} lines, {target} has {len(targets)}; they must be the same")
    pairs, ends = list[tuple[str, str]](), list[int]()
    bad = {path: _BadRows(path, rules) for path in (source, target)}
    for (number, left, left_problem), (_, right, right_problem) in zip(sources, targets, strict=True):
        problems = (left_problem or _empty([left], PAIR), right_problem or _empty([right], PAIR[1:]))
        if has_documents and not left.strip() and not right.strip() and not left_problem + right_problem:
            ends.append(len(pairs))
        elif problems[0]:
            bad[source].add(number, problems[0])
        elif problems[1]:
            bad[target].add(number, problems[1])
        else:
            pairs.append((left.strip(), right.strip()))
    for rows in bad.values():
        rows.tell()
    return _examples(pairs, [source, target], ends if has_documents else None)


def read_text(paths: Sequence[Path], *, documents: str, rules: RowRules = STRICT) -> Examples:
    """Text for a language model. documents: "lines", every line that is not blank is a text, as is every row of CSV or
    JSON lines; "stream", a whole file is one text with its line breaks. Raises DataError."""
    texts = list[str]()
    for path in paths:
        bad, found = _BadRows(path, rules), list[str]()
        rows: Iterable[_Row]
        if _kind(path) or rules.columns:
            rows = _rows(path, rules.columns or TEXT, is_named=bool(rules.columns))
        else:
            rows = (_Row(number, [line], problem) for number, line, problem in _decoded(path))
        for row in rows:
            if row.fields is None:
                continue
            if row.problem:
                bad.add(row.number, row.problem)
            else:
                found.append(row.fields[0])
        bad.tell()
        texts += [text.strip() for text in found] if documents == "lines" else ["".join(f"{line}\n" for line in found)]
    return _examples([("", text) for text in texts if text.strip()], paths)


class _BadRows:
    """The rows of a file that cannot be used: the first is an error, or all are counted."""

    def __init__(self, path: Path, rules: RowRules) -> None:
        self._path, self._rules, self._count, self._first = path, rules, 0, ""

    def add(self, number: int, problem: str) -> None:
        """Notes a row, or raises DataError."""
        if not self._rules.skips:
            raise DataError(f"{self._path}:{number}: {problem}")
        self._first = self._first or f"{self._path}:{number}: {problem}"
        self._count += 1

    def tell(self) -> None:
        """Tells of all rows of the file, if there were any."""
        if self._count:
            rows = "1 bad row" if self._count == 1 else f"{self._count:,} bad rows"
            self._rules.tell(f"{rows} of {self._path.name} left out, the first: {self._first}")


def _kind(path: Path) -> str:
    """csv, jsonl, tmx, or "" of lines."""
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    return {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".tmx": "tmx"}.get(suffix, "")


def _rows(path: Path, columns: Sequence[str], *, is_named: bool) -> Iterator[_Row]:
    """The wanted columns of every row. is_named: a header, or JSON, has to have them by name."""
    if _kind(path) == "jsonl":
        yield from _json_rows(path, columns)
        return
    if _kind(path) == "tmx":
        yield from _tmx_rows(path, columns if is_named else ())
        return
    split = _csv_rows(path) if _kind(path) == "csv" else _tsv_rows(path)
    places = list(range(len(columns)))
    width = len(columns)
    is_first = True
    for number, fields, problem in split:
        has_header = is_named or (_kind(path) == "csv" and [name.strip().lower() for name in fields] == list(columns))
        if is_first and has_header and not problem:
            names = [name.strip() for name in fields]
            lacking = [name for name in columns if is_named and name not in names]
            if lacking:
                problem = f"has no column {lacking[0]!r}, which --columns names; it has: {', '.join(names):.200}"
                raise DataError(f"{path}:{number}: {problem}")
            places, width = [names.index(name) for name in columns] if is_named else places, len(names)
            is_first = False
            continue
        is_first = False
        if problem:
            yield _Row(number, [], problem)
        elif not any(text.strip() for text in fields):
            yield _Row(number, None, "" if len(fields) == width else _wrong_count(path, width, fields or [""]))
        elif len(fields) != width:
            yield _Row(number, [], _wrong_count(path, width, fields))
        else:
            yield _Row(number, [fields[place] for place in places])


def _wrong_count(path: Path, width: int, fields: Sequence[str]) -> str:
    separated, separator = ("comma-separated", ",") if _kind(path) == "csv" else ("tab-separated", "\t")
    return f"expected {width} {separated} fields, got {len(fields)}: {_shorten(separator.join(fields))}"


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str], str]]:
    for number, line, problem in _decoded(path):
        yield number, line.split("\t"), problem


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str], str]]:
    """Rows of RFC 4180; a field may have line breaks. The number is that of a row's last line."""
    problems = dict[int, str]()

    def lines() -> Iterator[str]:
        for number, line, problem in _decoded(path):
            if problem:
                problems[number] = problem
            yield f"{line}\n"

    reader = csv.reader(lines(), strict=True)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: not readable as CSV: {error}") from None
        yield reader.line_num, fields, problems.get(reader.line_num, "")


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[_Row]:
    for number, line, problem in _decoded(path):
        if problem or not line.strip():
            yield _Row(number, None if not problem else [], problem or "the row is empty")
            continue
        try:
            values: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield _Row(number, [], f"not readable as JSON: {error}")
            continue
        if not isinstance(values, dict):
            yield _Row(number, [], f"must be a JSON object, got {_shorten(line)}")
        elif lacking := [name for name in columns if not isinstance(values.get(name), str)]:
            found = ", ".join(values).encode(errors="backslashreplace").decode() or "none"
            yield _Row(number, [], f"has no text {lacking[0]!r}; --columns names others; its keys are: {found:.80}")
        elif half := SURROGATE.search("".join(values[name] for name in columns)):
            yield _Row(number, [], f"must be valid Unicode, got a lone surrogate: \\u{ord(half[0]):04x}")
        else:
            yield _Row(number, [values[name] for name in columns])


def named_languages(path: Path, columns: Sequence[str]) -> LanguagePair:
    """The languages of a translation memory's pairs; "" for those of another file. columns: codes; (): as its rows.
    Raises DataError."""
    if _kind(path) != "tmx":
        return DEFAULT_LANGUAGES
    units = _tmx_units(path, columns)
    return LanguagePair(*next((languages for languages, _ in units), ("", "")))


def _tmx_rows(path: Path, languages: Sequence[str]) -> Iterator[_Row]:
    for codes, unit in _tmx_units(path, languages):
        texts = [text_in(unit, language) for language in codes]
        lacking = [language for language, text in zip(codes, texts, strict=True) if text is None]
        found = ", ".join(unit.texts) or "none"
        problem = f"has no text in {lacking[0]!r}, it has: {found:.80}" if lacking else ""
        yield _Row(unit.line, [text or "" for text in texts], problem)


def _tmx_units(path: Path, languages: Sequence[str]) -> Iterator[tuple[Sequence[str], Unit]]:
    """The languages of the rows, and every unit. languages: codes; (): the source language of the file, and its only
    other one. Raises DataError."""
    source = ""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for unit in read_units(file):
                if isinstance(unit, str):
                    source = unit
                    continue
                languages = languages or languages_of(source, unit)
                yield languages, unit
    except TmxError as error:
        raise DataError(f"{path}:{error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _decoded(path: Path) -> Iterator[tuple[int, str, str]]:
    """The number, from 1, and the text without the line break, of every line, and why it is no text, or ""."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                data = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                try:
                    yield number, data.decode("utf-8").rstrip("\r\n"), ""
                except UnicodeDecodeError as error:
                    hint = ""
                    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                        hint = "; it has the byte order mark of UTF-16: convert it to UTF-8, e.g. with iconv"
                    yield number, "", f"invalid UTF-8 at byte {error.start} of the line{hint}"
    except (OSError, EOFError, zlib.error) as error:  # a truncated or damaged gzip file
        raise DataError(f"{path}: cannot be read: {error}") from error


def _empty(fields: Sequence[str], names: Sequence[str]) -> str:
    """Which of some fields is empty, or ""."""
    return next((f"the {name} is empty" for text, name in zip(fields, names, strict=False) if not text.strip()), "")


def _shorten(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")


def _examples(pairs: list[tuple[str, str]], paths: Sequence[Path], ends: list[int] | None = None) -> Examples:
    """ends: of documents, in pairs before them; None: there are none."""
    name = ", ".join(path.name for path in paths)
    if not pairs:
        raise DataError(f"{name}: no text in it")
    bounds = sorted({0, *(ends or ()), len(pairs)})
    return Examples(pairs, name, () if ends is None else [end - start for start, end in pairwise(bounds)])
