"""Attention weights as one self-contained HTML file, which needs no network and no other file.

The template is `attention_page.html` in this package; this module inserts the data as JSON.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from glossa.client.types import Attended

PLACES = 4  # decimal places of a weight: a quarter of one colour step
ORDER = ("encoder", "decoder", "cross")


def page(attended: Attended, *, text: str, model: str = "") -> str:
    """The HTML document. text: the text of the request."""
    data = json.dumps(page_data(attended, text=text, model=model), ensure_ascii=False, separators=(",", ":"))
    template = (resources.files("cli.requests") / "attention_page.html").read_text(encoding="utf-8")
    return template.replace("@DATA@", data.replace("<", "\\u003c"))  # a text may contain </script>


def page_data(attended: Attended, *, text: str, model: str = "") -> dict[str, Any]:
    """The data of the page as JSON values. kinds: layers and heads of each kind; weights: flattened by row."""
    kinds = []
    for kind in ORDER:
        matrices = [matrix for matrix in attended.matrices if matrix.kind == kind]
        if matrices:
            layers, heads = {matrix.layer: 0 for matrix in matrices}, {matrix.head: 0 for matrix in matrices}
            kinds.append({"kind": kind, "layers": list(layers), "heads": list(heads)})
    tokens = {
        name: [{"token": token.token, "text": token.text} for token in getattr(attended, name)]
        for name in ("source", "target", "predicted")
    }
    maps = [
        {
            "kind": matrix.kind,
            "layer": matrix.layer,
            "head": matrix.head,
            "weights": [round(weight, PLACES) for row in matrix.rows for weight in row],
        }
        for matrix in attended.matrices
    ]
    return {"model": model, "text": text, "answer": attended.target_text, **tokens, "kinds": kinds, "matrices": maps}
