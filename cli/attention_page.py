"""Attention as one HTML file that needs nothing else: no network, no server, no other file.

The page itself is `attention_page.html` beside this module; here the numbers become the JSON that stands in it.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from glossa.client.types import Attended

PLACES = 4  # of a weight: a quarter of a colour's step
ORDER = ("encoder", "decoder", "cross")


def page(attended: Attended, *, text: str, model: str = "") -> str:
    """The whole file, UTF-8. text: what the client sent."""
    data = json.dumps(page_data(attended, text=text, model=model), ensure_ascii=False, separators=(",", ":"))
    template = (resources.files("cli") / "attention_page.html").read_text(encoding="utf-8")
    return template.replace("@DATA@", data.replace("<", "\\u003c"))  # a text may contain </script>


def page_data(attended: Attended, *, text: str, model: str = "") -> dict[str, Any]:
    """What the page knows, as JSON values. kinds: of each the layers and heads there are; weights: row after row."""
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
