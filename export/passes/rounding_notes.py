"""What a quantized graph tells of its rounding, for its verification: JSON in the description of the model."""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

import numpy as np
from onnx import ModelProto

from export.passes.equalize import Exponents


class RoundingNotes(NamedTuple):
    """exponents: of an equalized model; None: the weights are those of the checkpoint. has_feedback: they were rounded
    with `export.passes.error_feedback`."""

    exponents: Exponents | None = None
    has_feedback: bool = False


def write_notes(model: ModelProto, notes: RoundingNotes) -> None:
    """Write the notes to a graph."""
    texts = None
    if notes.exponents is not None:
        texts = {name: base64.b64encode(values.tobytes()).decode() for name, values in notes.exponents.items()}
    model.doc_string = json.dumps({"exponents": texts, "feedback": notes.has_feedback})


def read_notes(model: ModelProto) -> RoundingNotes:
    """Return the notes of a graph; the default for one without."""
    if not model.doc_string:
        return RoundingNotes()
    found = json.loads(model.doc_string)
    texts = found["exponents"]
    if texts is not None:
        texts = {name: np.frombuffer(base64.b64decode(text), np.int8) for name, text in texts.items()}
    return RoundingNotes(texts, found["feedback"])
