"""What hostile clients can do to the log of a whole server."""

import socket
import struct

from bench.load.lean_client import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    literal,
    request_headers,
)
from glossa.client import Client
from tests.e2e.process import serving
from tests.tiny import TEXTS

TRANSLATE = request_headers("/glossa.v1.TranslationService/Translate", "localhost")
EMPTY = frame(DATA, END_STREAM, 1, bytes(5))
FORGED = b'SECRET\n{"event": "forged"}\n\x1b[2J'


def call(name, value):
    return frame(HEADERS, END_HEADERS, 1, TRANSLATE + literal(name, value)) + EMPTY


HOSTILE = {
    "the text of a GOAWAY": frame(GOAWAY, 0, 0, struct.pack(">II", 0, 2) + b"SECRET"),
    "metadata that is not UTF-8": call(b"x-text", b"\xffSECRET"),
    "a token that is not UTF-8": call(b"authorization", b"Bearer SECRET\xff"),
    "a timeout that is none": call(b"grpc-timeout", b"SECRET"),
    "an encoding that is none": call(b"grpc-encoding", b"SECRET"),
    "a request id with an escape sequence": call(b"x-request-id", FORGED),
    "a path that is none": frame(HEADERS, END_HEADERS, 1, request_headers("/SECRET\n", "localhost")) + EMPTY,
    "headers that are none": frame(HEADERS, END_HEADERS, 1, b"\xff" * 50 + b"SECRET"),
    "a frame out of order": frame(9, END_HEADERS, 1, b"SECRET"),
}


def test_no_line_of_the_log_has_bytes_of_a_hostile_client(tiny_translation_bundle):
    with serving(models={"en-de": str(tiny_translation_bundle)}) as server:
        host, _, port = server.address.rpartition(":")
        for data in HOSTILE.values():
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
        with Client(server.address) as client:
            assert client.translate(TEXTS[0]).text
        server.process.terminate()
        assert server.wait() == 0
    assert server.other == []
    assert not any("SECRET" in str(event) or event["event"] == "forged" for event in server.events)
