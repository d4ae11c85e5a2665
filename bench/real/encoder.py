"""A published encoder of sentence-transformers, whose vectors are compared with those of its own library."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.load.peer_server import glossa_server
from bench.measure import Verdict
from bench.real.commands import exported
from export.select_scheme import nearest
from glossa.client import Client

MAX_LOSS = "0.1"  # so that int8 is there to be measured, whether the exporter would propose it or not


def vectors(folder: Path, cache: Path, texts: Path) -> tuple[dict[str, Any], list[Verdict]]:
    """Cosines with the vectors of sentence-transformers, and the share of texts that keep their nearest other one."""
    flags = ("--precision", "fp32,int8", "--development", texts, "--max-loss", MAX_LOSS)
    bundle = exported(folder, cache / folder.parent.name, *flags)
    lines = texts.read_text(encoding="utf-8").splitlines()
    library = importlib.import_module("sentence_transformers")
    wanted = directions(library.SentenceTransformer(str(folder), device="cpu").encode(lines))
    figures: dict[str, Any] = {"texts": len(lines)}
    verdicts = []
    for precision, least in (("fp32", 0.999999), ("int8", 0.998)):
        with glossa_server(bundle, flags=("--precision", precision)) as (address, _), Client(address) as client:
            found = directions(list(client.embed_batch(lines, truncate=True)))
        cosines, kept = (found * wanted).sum(1), float(np.equal(nearest(list(found)), nearest(list(wanted))).mean())
        error = (kept * (1 - kept) / len(lines)) ** 0.5
        figures[precision] = {
            "mean cosine": round(float(cosines.mean()), 7),
            "least cosine": round(float(cosines.min()), 7),
            "neighbours kept": f"{kept:.4f} ± {error:.4f}",
        }
        verdicts += [
            Verdict(f"{precision}: mean cosine with sentence-transformers", float(cosines.mean()), least, ""),
            Verdict(f"{precision}: nearest neighbours kept", kept, 0.97, ""),
        ]
    return figures, verdicts


def directions(vectors_NM: Sequence[Sequence[float]] | np.ndarray) -> np.ndarray:
    array_NM = np.asarray(vectors_NM, np.float64)
    unit_NM: np.ndarray = array_NM / np.linalg.norm(array_NM, axis=1, keepdims=True)
    return unit_NM
