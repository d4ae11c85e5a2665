"""The client and a name of several addresses, as that of a headless service: calls are spread, and survive replicas."""

import asyncio
import contextlib
import os
import signal
import socket
import struct

import pytest

from cli.local_server import free_port
from glossa.client import AsyncClient, Client
from glossa.client.channel import OPTIONS, REPLICAS, channel_options
from tests.e2e.process import serving
from tests.edge import running

TEXT = "the small red house"
HOSTS = ("127.0.0.2", "127.0.0.3")
A_RECORD, INTERNET = 1, 1


class NameServer(asyncio.DatagramProtocol):
    """Knows one thing: these hosts are the addresses of every name (RFC 1035)."""

    def __init__(self, hosts):
        self._hosts = hosts

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, client):
        end = data.index(b"\0", 12) + 5  # of the question: labels, type, class
        question, (kind,) = data[12:end], struct.unpack(">H", data[end - 4 : end - 2])
        answers = [
            struct.pack(">HHHIH", 0xC00C, A_RECORD, INTERNET, 1, 4) + socket.inet_aton(host)
            for host in (self._hosts if kind == A_RECORD else ())
        ]
        header = data[:2] + struct.pack(">HHHHH", 0x8180, 1, len(answers), 0, 0)
        self._transport.sendto(header + question + b"".join(answers), client)


@contextlib.asynccontextmanager
async def name_server():
    """Its address."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: NameServer(HOSTS), ("127.0.0.1", 0))
    try:
        yield "{}:{}".format(*transport.get_extra_info("sockname"))
    finally:
        transport.close()


def both(port):
    """The address of a list of servers."""
    return "ipv4:" + ",".join(f"{host}:{port}" for host in HOSTS)


@contextlib.asynccontextmanager
async def replicas():
    """Two servers on one port of different addresses, and that port."""
    port = free_port()
    async with running(host=HOSTS[0], port=port) as one, running(host=HOSTS[1], port=port) as other:
        yield one, other, port


async def counts_after(client, calls, edges):
    """How many calls each server got of so many that were answered, once the client knows all servers."""
    async with asyncio.timeout(60):
        while not all(edge.pool.requests for edge in edges):
            await client.translate(TEXT, model="en-de")
    before = [len(edge.pool.requests) for edge in edges]
    for _ in range(calls):
        await client.translate(TEXT, model="en-de")
    return [len(edge.pool.requests) - old for edge, old in zip(edges, before, strict=True)]


async def test_calls_to_a_name_are_spread_over_its_addresses():
    async with (
        replicas() as (one, other, port),
        name_server() as dns,
        AsyncClient(f"dns://{dns}/replicas.test:{port}", retries=False) as client,
    ):
        assert await counts_after(client, 40, (one, other)) == [20, 20]


async def test_calls_to_a_list_of_addresses_are_spread():
    async with replicas() as (one, other, port), AsyncClient(both(port), retries=False) as client:
        assert await counts_after(client, 40, (one, other)) == [20, 20]


async def test_a_replica_that_is_not_ready_gets_no_calls_and_loses_none():
    async with replicas() as (one, other, port), AsyncClient(both(port), retries=False) as client:
        await counts_after(client, 0, (one, other))
        one.server.health.close()
        async with asyncio.timeout(60):
            last = -1
            while last != len(one.pool.requests):  # until the client has heard of it
                last = len(one.pool.requests)
                for _ in range(4):
                    await client.translate(TEXT, model="en-de")
        assert await counts_after(client, 20, (one, other)) == [0, 20]


@pytest.mark.slow
def test_calls_survive_the_death_of_a_replica(tiny_translation_bundle):
    port, models = free_port(), {"model": str(tiny_translation_bundle)}
    with (
        serving(models=models, host=HOSTS[0], port=port) as victim,
        serving(models=models, host=HOSTS[1], port=port),
        Client(both(port)) as client,
    ):
        while not victim.metric(
            "grpc_server_handled_total", grpc_method="Translate"
        ):  # until the client knows it; the call's own deadline ends it
            client.translate(TEXT)
        texts = [TEXT] * 2000
        answers = client.translate_batch(texts, concurrency=8, max_tokens=8)
        for number, answer in enumerate(answers):
            assert answer.generated_tokens
            if number == 200:
                os.kill(victim.process.pid, signal.SIGKILL)
        assert number == len(texts) - 1


def test_one_server_is_not_watched():
    """A server that reports NOT_SERVING still answers the calls that wait for it."""

    async def call():
        async with running() as edge, AsyncClient(edge.address, retries=False) as client:
            edge.server.health.close()
            return (await client.translate(TEXT, model="en-de")).text

    assert asyncio.run(call())


def test_names_and_lists_are_those_of_several_servers():
    assert channel_options("localhost:50051") is channel_options("ipv4:127.0.0.1:1") is OPTIONS
    assert channel_options("unix:/tmp/socket") is channel_options("dns:50051") is OPTIONS
    assert channel_options("dns:///name:1") is channel_options("ipv4:127.0.0.1:1,127.0.0.2:1") is REPLICAS
