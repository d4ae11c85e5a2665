"""Similarity of vectors: the fields of a SimilarityRequest, the measures, the response. Pure functions; nothing here
embeds a text.

Shapes: N items, C others, M dimensions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from glossa.v1 import glossa_pb2 as pb
from service.edge.rpcs.proto_conversion import cost_fields, encoder_output
from service.errors import InvalidRequest
from service.progress import Timings
from service.request import Finished

MAX_ITEMS = 32  # of either list: as many embeddings as a prefill takes in one or two batches
MAX_WIDTH = 8192  # values of a vector; encoders in use have at most 4,096
INLINE_PRODUCTS = 1 << 16  # of numbers, computed on the event loop
PROMPT_NAMES = {"items": "prompt_name", "others": "others_prompt_name"}  # by the list whose texts they precede


def _dot(items_NM: np.ndarray, others_CM: np.ndarray) -> np.ndarray:
    products_NC: np.ndarray = items_NM @ others_CM.T
    return products_NC


def _cosine(items_NM: np.ndarray, others_CM: np.ndarray) -> np.ndarray:
    """Each vector is scaled first, by its largest value and then by its norm: squares of large values stay finite."""
    cosines_NC: np.ndarray = np.clip(_dot(_unit(items_NM), _unit(others_CM)), -1.0, 1.0)
    return cosines_NC


def _unit(vectors_NM: np.ndarray) -> np.ndarray:
    """Vectors of length 1; those of zeros stay."""
    largest_N1 = np.abs(vectors_NM).max(axis=1, keepdims=True)
    scaled_NM = vectors_NM / np.where(largest_N1 > 0, largest_N1, 1.0)
    norms_N1 = np.linalg.norm(scaled_NM, axis=1, keepdims=True)
    units_NM: np.ndarray = scaled_NM / np.where(norms_N1 > 0, norms_N1, 1.0)
    return units_NM


def _euclidean(items_NM: np.ndarray, others_CM: np.ndarray) -> np.ndarray:
    """Row by row, of the differences: the identity with dot products cancels digits of close vectors."""
    return np.array([np.linalg.norm(others_CM - item_M, axis=1) for item_M in items_NM])


MEASURES: Mapping[int, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    pb.SIMILARITY_MEASURE_UNSPECIFIED: _cosine,
    pb.SIMILARITY_MEASURE_COSINE: _cosine,
    pb.SIMILARITY_MEASURE_DOT: _dot,
    pb.SIMILARITY_MEASURE_EUCLIDEAN: _euclidean,
}


def similarities(measure: int, items: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    """The measure of each item (M,) with each of the others, of the items with one another if there are none: float64
    (N, C)."""
    items_NM = np.array(items, np.float64)
    return MEASURES[measure](items_NM, np.array(others, np.float64) if others else items_NM)


def given_vectors(request: pb.SimilarityRequest) -> dict[str, np.ndarray]:
    """The vectors of a request, float32, by their fields, such as "others[1]". Raises InvalidRequest for any field but
    texts, and for prompts that stand before none."""
    if not request.items:
        raise InvalidRequest("items", f"must be 1..{MAX_ITEMS} texts or vectors, got 0")
    if request.measure not in MEASURES:
        names = ", ".join(pb.SimilarityMeasure.keys())
        raise InvalidRequest("measure", f"must be one of {names}, got {request.measure}")
    vectors: dict[str, np.ndarray] = {}
    for name, prompt_name in PROMPT_NAMES.items():
        items = getattr(request, name)
        if request.HasField(prompt_name) and not any(item.HasField("text") for item in items):
            raise InvalidRequest(prompt_name, f"must be left out: no text is among {name}")
        if len(items) > MAX_ITEMS:
            raise InvalidRequest(name, f"must be at most {MAX_ITEMS} texts or vectors, got {len(items)}")
        for number, item in enumerate(items):
            field = f"{name}[{number}]"
            if not item.WhichOneof("item"):
                raise InvalidRequest(field, "must have a text or a vector, got neither")
            if item.HasField("vector"):
                vectors[field] = _vector(item.vector, f"{field}.vector.values")
    if first := next(iter(vectors), ""):
        check_widths(vectors, len(vectors[first]), f"as {first}")
    return vectors


def _vector(message: Any, field: str) -> np.ndarray:
    if not 1 <= len(message.values) <= MAX_WIDTH:
        raise InvalidRequest(field, f"must be 1..{MAX_WIDTH} values, got {len(message.values)}")
    values_M = np.array(message.values, np.float32)
    if not np.isfinite(values_M).all():
        place = int(np.flatnonzero(~np.isfinite(values_M))[0])
        raise InvalidRequest(f"{field}[{place}]", f"must be finite, got {values_M[place]}")
    return values_M


def check_widths(vectors: Mapping[str, np.ndarray], width: int, like: str) -> None:
    """Rejects a vector of another width. vectors: by their fields."""
    for field, values_M in vectors.items():
        if len(values_M) != width:
            raise InvalidRequest(f"{field}.vector.values", f"must be {width} values, {like}, got {len(values_M)}")


def texts_of(request: pb.SimilarityRequest) -> dict[str, str]:
    """The texts of a request by their fields."""
    return {
        f"{name}[{number}]": item.text
        for name in PROMPT_NAMES
        for number, item in enumerate(getattr(request, name))
        if item.HasField("text")
    }


@contextlib.contextmanager
def fields_of(field: str, *, prompt_name: str) -> Iterator[None]:
    """Errors of the field `text` become those of one item's text, and of `prompt_name` those of the field of that
    name."""
    names = {"text": f"{field}.text", "prompt_name": prompt_name}
    try:
        yield
    except InvalidRequest as error:
        if error.field not in names:
            raise
        problem = error.problem.removesuffix(", or set truncate")  # which this request cannot
        raise InvalidRequest(names[error.field], problem) from None


def vector_of(finished: Finished) -> np.ndarray:
    """The embedding that was requested, float32."""
    values_M = encoder_output(finished).vector
    assert values_M is not None
    return values_M


def together(ends: Sequence[Finished]) -> Finished:
    """The end of requests that ran one after the other: tokens and times are sums."""
    timings = [end.timings for end in ends]
    return Finished(
        ends[-1].reason,
        prompt_tokens=sum(end.prompt_tokens for end in ends),
        timings=Timings(
            queue_s=sum(one.queue_s for one in timings),
            prefill_s=sum(one.prefill_s for one in timings),
            first_token_s=sum(one.first_token_s for one in timings),
            total_s=sum(one.total_s for one in timings),
        ),
    )


def is_small(request: pb.SimilarityRequest, vectors: Mapping[str, np.ndarray]) -> bool:
    """Whether the event loop may compute the response, in less than a millisecond."""
    pairs = len(request.items) * max(len(request.items), len(request.others))
    return pairs * len(next(iter(vectors.values()))) <= INLINE_PRODUCTS


def similarity_response(
    request: pb.SimilarityRequest, vectors: Mapping[str, np.ndarray], finished: Finished | None
) -> pb.SimilarityResponse:
    """The measure of each item with each of the others. vectors: of all, by their fields. finished: None if no text was
    embedded."""
    counts = {name: len(getattr(request, name)) for name in PROMPT_NAMES}
    items, others = ([vectors[f"{name}[{number}]"] for number in range(count)] for name, count in counts.items())
    rows = similarities(request.measure, items, others).tolist()
    cost = cost_fields(finished) if finished else {}
    return pb.SimilarityResponse(rows=[pb.SimilarityRow(values=row) for row in rows], **cost)
