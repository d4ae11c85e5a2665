import asyncio
import socket

import pytest

from bench.hostile.hostile_peers import (
    connected,
    delays_between,
    drop_all,
    fall_silent,
    open_headers,
    read_frames,
    read_nothing,
    reset,
    stalled,
)
from bench.load.lean_client import ACK, DATA, END_STREAM, HEADERS, PING, frame
from glossa.v1 import glossa_pb2 as pb
from service.request import TextDelta
from tests.edge import running

MESSAGE = pb.TranslateRequest(text="the small red house").SerializeToString()


@pytest.mark.parametrize(("limit", "closed"), [(0, 0), (20, 2)])
async def test_streams_of_headers_end_with_a_status_or_their_connection(limit, closed):
    async with running(message_timeout_s=0.1, max_resets_per_s=limit) as edge:
        outcome = await asyncio.to_thread(open_headers, edge.address, 300, 0.1)
        assert f"glossa_connections_closed_total {closed}.0" in edge.server.exposition()[0].decode()
    assert outcome.refused_to_end == 0


async def test_streams_that_do_not_end_are_counted(monkeypatch):
    monkeypatch.setattr("bench.hostile.hostile_peers.MESSAGE_S", 0.1)
    monkeypatch.setattr("bench.hostile.hostile_peers.SLACK_S", 0.1)
    async with running(message_timeout_s=60, max_requests=7) as edge:
        outcome = await asyncio.to_thread(open_headers, edge.address, 10, 0.0)
    assert outcome.refused_to_end >= 7


@pytest.mark.parametrize(("limit", "is_open"), [(20, 0), (0, 1)])
async def test_a_connection_that_resets_too_much_is_closed(limit, is_open, monkeypatch):
    monkeypatch.setattr("bench.hostile.hostile_peers.SLACK_S", 1.0 if is_open else 30.0)
    async with running(max_resets_per_s=limit) as edge:
        assert (await asyncio.to_thread(reset, edge.address, 1000)).refused_to_end == is_open


async def test_streams_whose_clients_read_nothing_get_their_status_in_the_end():
    async with running(stall_timeout_s=0.1) as edge:
        edge.pool.answer = (TextDelta("zwei", (5,)), *edge.pool.answer)
        http = f"127.0.0.1:{edge.server.http_port}"
        outcome = await asyncio.to_thread(read_nothing, edge.address, 5, MESSAGE, lambda: stalled(http))
    assert outcome.refused_to_end == 0


@pytest.mark.parametrize("acknowledges", [False, True])
async def test_connections_that_fall_silent_are_closed(acknowledges):
    async with running(keepalive_time_s=1.0, keepalive_timeout_s=0.5) as edge:
        outcome = await asyncio.to_thread(fall_silent, edge.address, 3, acknowledges=acknowledges)
    assert outcome.refused_to_end == 0


def test_what_comes_to_a_vanished_peer_is_not_acknowledged():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        server, _ = listening.accept()
        with client, server:
            assert connected(port) == {client.getsockname()[1]}
            drop_all(client)
            server.sendall(b"x")
            client.settimeout(0.1)
            with pytest.raises(TimeoutError):
                client.recv(1)


def test_only_whole_frames_with_an_end_count_and_pings_are_found():
    received = bytearray(frame(HEADERS, END_STREAM, 1, b"a") + frame(DATA, END_STREAM, 3) + frame(HEADERS, 0, 5, b"b"))
    received += frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, b"87654321")
    received += frame(HEADERS, END_STREAM, 7, b"c")[:-1]
    assert read_frames(received) == (1, [b"12345678"])
    received += b"c"
    assert read_frames(received) == (1, [])
    assert not received


def test_a_call_that_was_open_when_an_attack_began_counts():
    answers = [(1.0, 0.25), (1.5, 0.75), (2.5, 0.5), (3.0, 0.125)]
    assert delays_between(answers, 2.0, 3.0) == [0.75, 0.5]
