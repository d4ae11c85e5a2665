import asyncio
import contextlib
import gzip
import json
import math

import pytest

from cli.connection import Connection
from cli.load.load_generator import OK, SendFailed, Window, drawn, run_closed_loop
from cli.load.load_settings import LoadTest
from cli.load.load_test import measure, next_rate, read_texts, search, sender
from cli.terminal import UsageError
from glossa.client import AsyncClient, ClientError
from service.errors import Overloaded
from tests.edge import running
from tests.virtual_time import run_virtually

TEXT = "a cat"
SHORT = {"warm_up_s": 0.05, "duration_s": 0.2}


def bench(address="127.0.0.1:1", **changes):
    connection = Connection(address=address)
    return LoadTest(**{"connection": connection, "texts": [TEXT], "rate": [50.0], **SHORT, **changes})


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


async def counts(send, text):
    async with contextlib.aclosing(send(text)) as answer:
        return [count async for count in answer]


# ---- asking a server


@pytest.mark.parametrize(("task", "model"), [("translation", "en-de"), ("generation", "en")])
async def test_tokens_are_counted_as_they_arrive(edge, task, model):
    async with AsyncClient(edge.address, timeout_s=5) as client:
        streamed = await counts(sender(client, task, options={"model": model}), TEXT)
        whole = await counts(sender(client, task, is_streamed=False, options={"model": model}), TEXT)
    assert sum(streamed) == 5
    assert whole == [5]


async def test_decoding_options_are_sent(edge):
    async with AsyncClient(edge.address, timeout_s=5) as client:
        await counts(sender(client, "translation", options={"beam_size": 3, "max_tokens": 7}), TEXT)
    (request,) = edge.pool.requests
    assert (request.options.beam_size, request.max_tokens) == (3, 7)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_rejections_are_not_retried(edge, is_streamed):
    tries = []

    def full(request, loop, sink):
        tries.append(request)
        raise Overloaded("full", retry_after_s=0.01, limit=1)

    edge.pool.submit = full
    async with AsyncClient(edge.address, timeout_s=5, retries=False) as client:
        with pytest.raises(SendFailed) as caught:
            await counts(sender(client, "translation", is_streamed=is_streamed, options={}), TEXT)
    assert caught.value.status == "RESOURCE_EXHAUSTED"
    assert "full" in caught.value.message
    assert len(tries) == 1


async def test_calls_take_turns_on_connections():
    """A server that allows one call a connection answers as many at once as there are connections."""
    async with running(max_concurrent_streams=1) as edge:
        edge.pool.hold = True
        async with AsyncClient(edge.address, timeout_s=5, connections=3) as client:
            for _ in range(3):
                await client.get_model("en-de")  # the limit is known to a client once it is connected
            calls = [asyncio.create_task(client.translate(TEXT)) for _ in range(5)]
            await edge.pool.until(lambda: len(edge.pool.sinks) == 3)
            edge.pool.hold = False
            for sink in edge.pool.sinks:
                edge.pool.send(sink, edge.pool.answer)
            answers = await asyncio.gather(*calls)
    assert [answer.text for answer in answers] == ["zwei rote Häuser"] * 5


# ---- whole measurements


async def test_rates_are_measured_one_after_another(edge):
    shown: list[str] = []
    settings = bench(
        address=edge.address,
        model="en-de",
        rate=[50.0, 100.0],
        slo_e2e_ms=math.inf,
    )
    report = await measure(settings, shown.append)
    assert [load.rate for load in report.loads] == [50.0, 100.0]
    assert [load.statuses.keys() for load in report.loads] == [{OK}] * 2
    assert all(load.first_token_ms is not None and load.tokens == 5 * load.requests for load in report.loads)
    assert report.highest_rate == 100.0
    assert shown[0].startswith(
        f"en-de (translation, fp32) at {edge.address}, streamed; 1 texts, seed 0\nopen loop, Poi"
    )
    assert shown[-1] == "highest sustained rate: 100/s"


async def test_a_closed_loop_is_labelled_as_such(edge):
    shown: list[str] = []
    settings = bench(address=edge.address, model="en", rate=(), concurrency=[2], stream=False)
    report = await measure(settings, shown.append)
    (load,) = report.loads
    assert (load.concurrency, load.rate, load.most_outstanding) == (2, None, 2)
    assert load.first_token_ms is None
    assert "CLOSED loop" in shown[0]
    assert "unary" in shown[0]
    assert (report.as_json()["loop"], report.as_json()["highest_sustained_rate"]) == ("closed", None)


async def test_the_json_report(edge):
    settings = bench(address=edge.address, model="en-de", seed=7, options={"max_tokens": 9})
    data = (await measure(settings, lambda text: None)).as_json()
    assert json.loads(json.dumps(data, allow_nan=False))["loads"][0]["rate"] == 50.0
    assert (data["schema"], data["seed"], data["options"], data["texts"]) == (1, 7, {"max_tokens": 9}, 1)
    assert data["objectives"] == {
        "percentile": 99.0,
        "end_to_end_ms": 1000.0,
        "first_token_ms": None,
        "inter_token_ms": None,
    }
    assert data["model"]["task"] == "translation"
    assert data["client"].keys() == {"glossa", "grpcio", "python", "system", "processor", "cpus"}


async def test_a_request_that_is_always_rejected_fails_before_the_load(edge):
    with pytest.raises(UsageError, match=r"a first request failed: INVALID_ARGUMENT: .*max_tokens"):
        await measure(
            bench(address=edge.address, model="en-de", options={"max_tokens": 1000}),
            lambda text: None,
        )
    assert edge.pool.requests == []
    with pytest.raises(ClientError, match="NOT_FOUND"):
        await measure(bench(address=edge.address, model="nobody"), lambda text: None)


async def test_one_seed_sends_the_same_texts(edge):
    texts = ["the cat", "a house", "the small red house", "a black cat"]
    sent = []
    for seed in (1, 1, 2):
        edge.pool.requests.clear()
        settings = bench(address=edge.address, model="en-de", texts=texts, seed=seed, connections=1)
        await measure(settings, lambda text: None)
        sent.append([request.source for request in edge.pool.requests])
    assert sent[0] == sent[1] != sent[2]


# ---- the search


def test_a_search_doubles_then_halves_the_interval():
    tried: list[tuple[float, bool]] = []
    while (rate := next_rate(tried, 1.0, 0.05)) is not None:
        tried.append((rate, rate <= 11.3))
    assert [rate for rate, _ in tried[:6]] == pytest.approx([1, 2, 4, 8, 16, math.sqrt(128)])
    highest = max(rate for rate, sustained in tried if sustained)
    assert highest <= 11.3 < highest * 1.05
    assert len(tried) < 12


def test_a_search_that_begins_too_high_comes_down():
    assert next_rate([(8.0, False)], 8.0, 0.05) == 4.0
    assert next_rate([(8.0, False), (4.0, True)], 8.0, 0.05) == pytest.approx(math.sqrt(32))


def test_a_search_ends_where_nothing_or_everything_is_sustained():
    assert next_rate([(0.01, False)], 8.0, 0.05) is None
    assert next_rate([(60_000.0, True)], 8.0, 0.05) is None


def test_a_search_stays_below_the_lowest_failed_rate():
    assert next_rate([(4.0, True), (8.0, False), (16.0, True)], 4.0, 0.05) == pytest.approx(math.sqrt(32))


def one_at_a_time(service_s):
    """A service that answers one request after another, and how many it has answered."""
    gate, answered = asyncio.Lock(), []

    async def send(text):
        async with gate:
            await asyncio.sleep(service_s)
        answered.append(text)
        yield 1

    return send, answered


def searched(**changes):
    settings = bench(**{"rate": (), "find_max": True, "warm_up_s": 20, "duration_s": 200, "within_s": 1e5, **changes})

    async def work():
        send, answered = one_at_a_time(0.05)
        loads, ended = await search(settings, send, lambda text: None)
        return loads, ended, len(answered), asyncio.get_running_loop().time()

    return run_virtually(work())


def test_a_search_finds_what_a_queue_sustains():
    """Of a queue with Poisson arrivals and 50 ms of service each, 99 % wait no longer than 1 s up to a load of about
    0.9: waiting times fall off as exp(-2 (1 - load) / load * wait / service)."""
    loads, ended, _, _ = searched()
    assert ended == "known within 5.0%"
    best = max(load.rate for load in loads if load.sustained)
    worst = min(load.rate for load in loads if not load.sustained)
    assert best < worst <= best * 1.05
    wait_s = 1.0 - 0.05
    expected = max(load for load in (n / 1000 for n in range(1, 1000)) if 2 * (1 - load) / load * wait_s / 0.05 > 4.6)
    assert best == pytest.approx(expected / 0.05, rel=0.06)


def test_hopeless_loads_of_a_search_are_cut_short():
    loads, _, _, seconds = searched(rate=[100.0])
    assert loads[0].cut_short
    # 1 % of 20 000 requests, those that were to be sent in the first 2 s, are late 1 s afterwards.
    assert loads[0].requests == pytest.approx(3 * 100, rel=0.1)
    assert seconds < (len(loads) - 1) * 221 + 24


def test_a_search_has_a_limit_of_time():
    loads, ended, _, seconds = searched(within_s=600.0)
    assert len(loads) == 2
    assert seconds <= 600.0
    assert ended == "not yet known within 5.0% after --within-s 600"


def test_a_search_needs_requests():
    loads, ended, _, _ = searched(warm_up_s=0, duration_s=0.01, rate=[0.01])
    assert loads == []
    assert ended == "at 0.01/s no request fell into 0.01 s: use a longer --duration-s"


# ---- what cannot be measured


def test_texts_are_lines_or_the_first_column(tmp_path):
    (tmp_path / "lines.txt").write_text("one, two\n\n  \nthree\r\n")
    assert read_texts(tmp_path / "lines.txt") == ["one, two", "three"]
    with gzip.open(tmp_path / "pairs.tsv.gz", "wt") as file:
        file.write("ein Haus\ta house\nzwei\ttwo\n")
    assert read_texts(tmp_path / "pairs.tsv.gz") == ["ein Haus", "zwei"]


WHOLE = gzip.compress(b"ein Haus\ta house\n", mtime=0)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("truncated.gz", WHOLE[:-12]),
        ("damaged.gz", WHOLE[:10] + b"\xff" + WHOLE[11:]),
        ("plain.gz", b"ein Haus\n"),
    ],
)
def test_a_file_of_texts_that_cannot_be_read_is_named(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=f"{name}: cannot be read: .+"):
        read_texts(tmp_path / name)


def test_the_generator_measures_any_service():
    """What another server is measured by: only a `send` of its own."""
    window = Window(warm_up_s=0, duration_s=1.05)

    async def work():
        send, _ = one_at_a_time(0.1)
        return await run_closed_loop(send, drawn(["x"]), concurrency=2, window=window, wait_s=1)

    assert len(run_virtually(work()).counted) == 12
