"""Accuracy of quantization schemes through the gRPC service, greedy and with beams: BLEU and changed answers.


Each scheme is exported separately together with fp32, whatever its loss; `--scheme auto` is the exporter's choice.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench.case import Flag, case
from cli.local_server import serving
from export.options import ExportOptions, QuantizationOptions
from export.select_scheme import Development
from export.to_onnx import export_bundle
from glossa.client import Client
from model.training.data.examples import read_tsv
from model.training.evaluate import bleu

MAX_LOSS = 0.3  # BLEU points that the scheme which the exporter takes may lose on a test set; 0.1 is aimed for
PRECISIONS = {"fp32": "fp32", "w4-block32": "int4", "w4-block128": "int4"}


def export(checkpoint: Path, out: Path, scheme: str, pairs: list[tuple[str, str]], development: Path | None) -> str:
    """Exports one scheme alone and returns its name, which `auto` selects."""
    measured = pairs if development is None else list(read_tsv([development]).pairs)
    texts = Development([text for text, _ in measured], [text for _, text in measured], "development text")
    precision = PRECISIONS.get(scheme, "int8")
    quantization = QuantizationOptions(
        scheme="auto" if scheme == "fp32" else scheme,
        development=texts,
        calibration=pairs,
        max_loss=None if scheme == "auto" else 100.0,
    )
    options = ExportOptions(precisions=[precision], quantization=quantization)  # type: ignore[list-item]
    manifest = export_bundle(checkpoint, out, options)
    saved = manifest.variants[0].quantization
    return saved.scheme if saved else "fp32"


@case(
    "checkpoint",
    "data",
    calibration=Flag(Path, required=True),
    development=Flag(Path, help="for --scheme auto; the calibration text if not given"),
    scheme=["w8a8-dynamic", "w8a8-static", "w8a8-dynamic-kv8", "w8a8-static-kv8", "w4-block32"],
    beam=[1, 4],
    count=2000,
)
def quantised_quality(args: argparse.Namespace) -> None:
    examples = read_tsv([args.data]).pairs[: args.count]
    texts, references = [text for text, _ in examples], [text for _, text in examples]
    calibration = list(read_tsv([args.calibration]).pairs[:1000])
    plain: dict[int, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for scheme in ("fp32", *args.scheme):
            bundle = Path(scratch) / scheme
            name = export(args.checkpoint, bundle, scheme, calibration, args.development)
            with serving(bundle) as (address, _), Client(address, timeout_s=600.0) as client:
                for beam in args.beam:
                    started_s = time.perf_counter()
                    answers = [answer.text for answer in client.translate_batch(texts, beam_size=beam)]
                    seconds = time.perf_counter() - started_s
                    expected = plain.setdefault(beam, answers)
                    score, wanted = bleu(answers, references).score, bleu(expected, references).score
                    equal = sum(a == b for a, b in zip(answers, expected, strict=True)) / len(answers)
                    figures = {
                        "scheme": name if scheme == name else f"{scheme}: {name}",
                        "beam": beam,
                        "BLEU": round(score, 2),
                        "lost": round(wanted - score, 2),
                        "equal answers": round(equal, 4),
                        "seconds": round(seconds, 1),
                        "within the bar": wanted - score <= MAX_LOSS,
                    }
                    line = json.dumps(figures) if args.json else "  ".join(f"{k} {v}" for k, v in figures.items())
                    print(line, flush=True)
