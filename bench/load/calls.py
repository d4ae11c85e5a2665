"""How servers are called: the methods of each task, and a channel that shares and repeats nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from export.bundle.directory import load_manifest
from glossa.v1 import glossa_pb2 as pb

UNARY, STREAM = ("/glossa.v1.TranslationService/" + name for name in ("Translate", "StreamTranslate"))
OWN_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
"""Options of a channel with a connection of its own, whose refused calls are not tried again."""


class Calls(NamedTuple):
    """The methods of a task, unary and streaming, with the types of their requests and responses, and how the client
    streams."""

    path: str
    request: Any
    response: Any
    stream_path: str
    stream_request: Any
    stream_response: Any
    stream: str


CALLS = {
    "translation": Calls(
        "/glossa.v1.TranslationService/Translate",
        pb.TranslateRequest,
        pb.TranslateResponse,
        "/glossa.v1.TranslationService/StreamTranslate",
        pb.StreamTranslateRequest,
        pb.StreamTranslateResponse,
        "stream_translate",
    ),
    "generation": Calls(
        "/glossa.v1.GenerationService/Generate",
        pb.GenerateRequest,
        pb.GenerateResponse,
        "/glossa.v1.GenerationService/StreamGenerate",
        pb.StreamGenerateRequest,
        pb.StreamGenerateResponse,
        "stream_generate",
    ),
}


def calls_of(bundle: Path) -> Calls:
    """How the model of a bundle is asked."""
    return CALLS[load_manifest(bundle).task]
