"""Round trips of real documents: the files of a folder in each format but text, translated into themselves and by a
model.

With each text translated into itself, nothing may change but white space within texts and how characters are written.
With a model (--bundle), tags, comments, scripts, times, and everything beside the targets of XLIFF and gettext must
stay. Both are compared by other parsers than the product's (`round_trip_checks`, `text_checks`). Counted are documents
that are refused, by reason, and those that lost something. Files that real tools wrote are the point: none are in this
repository.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.answers.round_trip_checks import html_problems, xliff_problems
from bench.answers.text_checks import po_problems, subtitle_problems
from bench.case import Flag, case
from bench.load.peer_server import glossa_server
from bench.measure import Verdict, report
from glossa.client import Client
from glossa.client.errors import ClientError
from glossa.v1 import glossa_pb2 as pb
from service.edge.rpcs.document_formats import format_of
from service.text.languages import Languages
from service.text.segmentation import splitter_for
from service.text.segments import DocumentError

SUFFIXES = {
    "html": (".html", ".htm"),
    "xliff": (".xlf", ".xlf2", ".xliff", ".sdlxliff", ".mxliff", ".mqxliff"),
    "srt": (".srt",),
    "vtt": (".vtt",),
    "po": (".po", ".pot"),
}
SHOWN = 12  # files with problems


def identity(text: str, kind: str) -> str:
    """A document with each text translated into itself. kind: a key of SUFFIXES. Raises DocumentError."""
    format = format_of(pb.DocumentFormat.Value(f"DOCUMENT_FORMAT_{kind.upper()}"))
    splitter = splitter_for(format.check(text, ""))
    return "".join(
        (segment.joined or "".join)(
            [part if isinstance(part, str) else part.written(part.text) for part in segment.parts]
        )
        for segment in format.segments(text, splitter, Languages())
    )


class Counts:
    """What became of the documents of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind, self.documents, self.failed, self.units = kind, 0, 0, 0
        self.refused: Counter[str] = Counter()
        self.problems: list[str] = []

    def add(self, name: str, source: str, translate: Callable[[str], str], *, is_identity: bool) -> None:
        """Translates a document, and checks it."""
        try:
            found = translate(source)
        except (DocumentError, ClientError) as error:
            self.refused[re.sub(r"line.*|[\d.]+|'[^']*'", "#", str(error))[:70]] += 1
            return
        self.documents += 1
        if self.kind == "html":
            problems = list(html_problems(source, found, is_identity=is_identity))
        elif self.kind in ("srt", "vtt"):
            is_webvtt = self.kind == "vtt"
            problems = list(subtitle_problems(source, found, is_webvtt=is_webvtt, is_identity=is_identity))
        elif self.kind == "po":
            translated, problems = po_problems(source, found, is_identity=is_identity)
            self.units += translated
        else:
            units, problems = xliff_problems(source, found, is_identity=is_identity)
            self.units += units.translated
        if problems:
            self.failed += 1
            self.problems.append(f"{name}: {problems[0]} ({len(problems)} in all)")

    def figures(self, how: str) -> dict[str, Any]:
        """For the report."""
        return {
            f"{self.kind}, {how}: documents": self.documents,
            **({f"{self.kind}, {how}: units translated": self.units} if self.units else {}),
            f"{self.kind}, {how}: documents that lost something": self.failed,
            **{f"{self.kind}, {how}: refused, {reason}": count for reason, count in sorted(self.refused.items())},
        }


def texts_of(folder: Path) -> tuple[dict[str, list[tuple[str, str]]], Counter[str]]:
    """The names and texts of the documents of a folder by kind, and how many of a kind are not UTF-8. Raises SystemExit
    if there are none."""
    texts: dict[str, list[tuple[str, str]]] = {kind: [] for kind in SUFFIXES}
    encodings = Counter[str]()
    for file in sorted(folder.rglob("*")):
        kind = next((kind for kind, suffixes in SUFFIXES.items() if file.suffix.lower() in suffixes), "")
        if not kind or not file.is_file():
            continue
        try:
            texts[kind].append((str(file.relative_to(folder)), file.read_bytes().decode("utf-8-sig")))
        except UnicodeDecodeError:
            encodings[kind] += 1
    if not any(texts.values()):
        endings = ", ".join(sorted(suffix for suffixes in SUFFIXES.values() for suffix in suffixes))
        raise SystemExit(f"{folder}: no such folder, or one without a document in UTF-8; give one with {endings}")
    return texts, encodings


@case(
    "folder",
    bundle=Flag(type=Path, help="a bundle that translates them too"),
    most_bytes=Flag(40_000, "of a document that the model translates"),
    most_documents=Flag(60, "of each kind that the model translates, spread over all"),
)
def round_trips(args: argparse.Namespace) -> None:
    """See above."""
    texts, encodings = texts_of(args.folder)
    figures: dict[str, Any] = {f"{kind}, not UTF-8": count for kind, count in encodings.items()}
    verdicts, problems, skipped = list[Verdict](), list[str](), dict[str, str]()

    def tried(how: str, few: Callable[[list[Any]], list[Any]], translate: Callable[[str, str], str]) -> None:
        for kind, documents in texts.items():
            counts = Counts(kind)
            for name, text in few(documents):
                counts.add(name, text, lambda text, kind=kind: translate(text, kind), is_identity=how == "identity")  # type: ignore[misc]
            figures.update(counts.figures(how) if documents else {})
            problems.extend(f"{how}: {problem}" for problem in counts.problems[:SHOWN])
            if counts.documents:
                verdicts.append(Verdict(f"{kind}, {how}: lost something", counts.failed, 0, "", is_limit=True))
            elif documents:
                skipped[f"{kind}, {how}"] = "no document was translated"

    tried("identity", list, identity)
    if args.bundle is not None:

        def some(documents: list[tuple[str, str]]) -> list[tuple[str, str]]:
            short = [one for one in documents if len(one[1].encode()) <= args.most_bytes]
            return short[:: max(1, -(-len(short) // args.most_documents))]

        with glossa_server(args.bundle.resolve()) as (address, _), Client(address, timeout_s=600) as client:
            tried(
                "model",
                some,
                lambda text, kind: client.translate_document(text, format=kind, max_tokens=60).text,  # type: ignore[arg-type]
            )
    print("\n".join(problems))
    report(figures, verdicts, as_json=args.json, skipped=skipped)
    if not verdicts:
        raise SystemExit(f"{args.folder}: none of its documents was translated; give others")
