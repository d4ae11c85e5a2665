"""Notes on rounding are read as they were written."""

import numpy as np
import pytest
from onnx import ModelProto

from export.passes.rounding_notes import RoundingNotes, read_notes, write_notes


@pytest.mark.parametrize("exponents", [None, {}, {"decoder.blocks.0.feed_forward": np.array([-3, 0, 7], np.int8)}])
@pytest.mark.parametrize("has_feedback", [False, True])
def test_notes_are_read_as_they_were_written(exponents, has_feedback):
    model = ModelProto()
    write_notes(model, RoundingNotes(exponents, has_feedback))
    found = read_notes(model)
    assert found.has_feedback == has_feedback
    assert (found.exponents is None) == (exponents is None)
    for name, values in (exponents or {}).items():
        assert found.exponents is not None
        assert found.exponents[name].tolist() == values.tolist()


def test_graphs_of_older_exports_have_none():
    assert read_notes(ModelProto()) == RoundingNotes()
