"""Translates Parquet files of any size with Ray Data: every row once, whatever ends in the middle.

Usage: python translate.py IN OUT ADDRESS [--model NAME --column text --workers 2]. Needs `ray[data]` and
`glossa-client`. A row group of a file of IN is a unit of work; its translation is a file of OUT, which appears as a
whole. So a unit that is repeated, because a worker or a server ended, replaces its file by an equal one, and a run that
is started again does what is missing.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import ray

from glossa.client import Client, ClientError

FIXED = {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"}  # of an item: it would fail again
PASSING = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"}  # of a call: a replica ended, or has no place
PATIENCE_S = 300.0  # for servers to take a unit
KEY = b"glossa"  # of a file's metadata


class Job(NamedTuple):
    """What all units of a run share. made_with: in the metadata of each file of `out`."""

    address: str
    column: str
    out: str
    made_with: str


class Unit(NamedTuple):
    """A row group of a Parquet file, and the file of its translations."""

    source: str
    row_group: int
    target: str


class Translate:
    """Translates units; one in each worker."""

    def __init__(self, job: Job) -> None:
        self._job, self._client = job, Client(job.address, connections=2)
        self._options: Any = json.loads(job.made_with)

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        unit = Unit(**row)
        table = pq.ParquetFile(unit.source).read_row_group(unit.row_group)
        translations, errors = self._translated(table[self._job.column].to_pylist())
        table = table.append_column("translation", pa.array(translations, pa.string()))
        table = table.append_column("error", pa.array(errors, pa.string()))
        _write(table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: self._job.made_with}), unit.target)
        return {"rows": len(table), "errors": len(table) - errors.count(None)}

    def _translated(self, texts: list[str | None]) -> tuple[list[str | None], list[str | None]]:
        """Translations and errors of all texts; a text that is null has neither."""
        given = [(place, text) for place, text in enumerate(texts) if text is not None]
        translations: list[str | None] = [None] * len(texts)
        errors: list[str | None] = [None] * len(texts)
        for (place, _), outcome in zip(given, self._outcomes([text for _, text in given]), strict=True):
            if isinstance(outcome, ClientError):
                errors[place] = f"{outcome.code}: {outcome.message}"
            else:
                translations[place] = outcome.text
        return translations, errors

    def _outcomes(self, texts: list[str]) -> list[Any]:
        """A Translation, or a ClientError that would come again, of each text; while servers restart, tries again."""
        until_s, wait_s = time.monotonic() + PATIENCE_S, 0.5
        while True:
            outcomes = []
            try:
                for outcome in self._client.translate_batch(texts, **self._options).outcomes():
                    if isinstance(outcome, ClientError) and outcome.code not in FIXED:
                        raise outcome
                    outcomes.append(outcome)
                return outcomes
            except ClientError as error:
                if error.code not in PASSING or time.monotonic() > until_s:
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 10.0)


def _write(table: pa.Table, target: str) -> None:
    """Writes a file that appears as a whole. Two workers may write the same one."""
    partial = f"{target}.{os.getpid()}.part"
    pq.write_table(table, partial, compression="zstd")
    os.replace(partial, target)


def units_of(source: Path, out: Path, column: str) -> list[Unit]:
    """All units of the Parquet files below a folder."""
    found = []
    for path in sorted(source.rglob("*.parquet")):
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if column not in names or not _is_text(file.schema_arrow.field(column).type):
            sys.exit(f"{path}: must have a column of strings {column!r}, has {', '.join(names)}; fix: --column")
        if taken := {"translation", "error"} & set(names):
            sys.exit(f"{path}: has a column {taken.pop()!r}, which the translations need; fix: rename it")
        stem = str(path.relative_to(source).with_suffix("")).replace("/", "__")
        found += [Unit(str(path), group, f"{out}/{stem}-{group:06d}.parquet") for group in range(file.num_row_groups)]
    return found


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_done(unit: Unit, made_with: str) -> bool:
    """Whether a unit has its file. Ends the program if another model or other options made it."""
    if not Path(unit.target).exists():
        return False
    found = (pq.read_schema(unit.target).metadata or {}).get(KEY, b"").decode()
    if found != made_with:
        sys.exit(f"{unit.target}: was made with {found or 'something else'}, not {made_with}; fix: another folder")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of Parquet files")
    parser.add_argument("out", type=Path, help="folder of their translations")
    parser.add_argument("address", help="HOST:PORT, or dns:///NAME:PORT of a headless service")
    parser.add_argument("--model", default="", help="NAME or NAME@VERSION; default: the only model")
    parser.add_argument("--column", default="text", help="the texts; default: text")
    parser.add_argument("--workers", type=int, default=2, help="units at once; default: 2")
    parser.add_argument("--options", type=json.loads, default={}, help='of translate, such as {"beam_size": 4}')
    given = parser.parse_args()
    source, out = given.source.absolute(), given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with Client(given.address) as client:
        model = client.get_model(given.model)
    # One version from the first row to the last: where it has gone, the run ends instead of mixing two.
    options = {**given.options, "model": f"{model.name}@{model.version}"}
    job = Job(given.address, given.column, str(out), json.dumps(options, sort_keys=True))
    units = units_of(source, out, given.column)
    missing = [unit._asdict() for unit in units if not is_done(unit, job.made_with)]
    print(f"{len(missing)} of {len(units)} units to do", flush=True)
    if not missing:
        return
    began_s, rows, errors = time.monotonic(), 0, 0
    pool = ray.data.ActorPoolStrategy(size=given.workers)  # whose workers wait for servers
    data = ray.data.from_items(missing, override_num_blocks=len(missing))
    done = data.map(Translate, fn_constructor_args=(job,), compute=pool, num_cpus=0.1)
    for unit in done.iter_rows():
        rows, errors = rows + unit["rows"], errors + unit["errors"]
    seconds = time.monotonic() - began_s
    print(f"{rows} rows in {seconds:.1f} s, {rows / seconds:.1f} rows/s; {errors} have an error", flush=True)


if __name__ == "__main__":
    main()
