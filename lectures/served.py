"""A trained model, exported and served by a server in a process of its own, for claims about answers of the API."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.local_server import serving
from export.options import ExportOptions
from export.to_onnx import export_model
from glossa.client import Client
from model.checkpoints.checkpoint import Checkpoint


@contextlib.contextmanager
def client_of(checkpoint: Checkpoint, texts: Sequence[str]) -> Iterator[Client]:
    """A client of a server that serves this model in fp32, and nothing else. texts: for the export's verification."""
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        export_model(checkpoint.model, checkpoint.tokenizer, bundle, ExportOptions(texts=tuple(texts)))
        with serving(bundle) as (address, _), Client(address) as client:
            yield client
