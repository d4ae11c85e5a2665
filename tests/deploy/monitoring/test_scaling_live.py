"""The query that autoscalers ask, in a real Prometheus, while more and more requests are in flight at a real server."""

import asyncio
import threading
import time

import pytest

from deploy.monitoring.scaling import SCALING_QUERY, SCALING_THRESHOLD, replicas
from glossa.client import AsyncClient
from tests.deploy.monitoring.prometheus import scraping
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model

pytestmark = pytest.mark.slow
ROWS = 8
TOKENS = 3000  # of an answer: one takes longer than a scrape interval, so that the load stands still meanwhile
LOADS = {0: 0, 8: 2, 32: 6, 128: 23}  # replicas by concurrent requests: of 8 rows each, 0.7 of which are used
WITHIN_S = 120
LOOKS = 3  # equal values in a row, seconds apart


class Held:
    """Requests in flight at a server, in a thread of their own. Each that ends is followed by another one."""

    def __init__(self, address):
        self._address, self._wanted = address, 0
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self.ended = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.hold(None)
        self._thread.join()
        self._loop.close()

    def hold(self, count):
        """Makes it that many requests, as soon as those above the number have ended. None: cancels all."""
        self._wanted = count
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _run(self):
        async with AsyncClient(self._address, connections=2, timeout_s=600) as client:
            tasks = set[asyncio.Task[None]]()
            while self._wanted is not None:
                while len(tasks) < self._wanted:
                    tasks.add(asyncio.create_task(self._ask(client, len(tasks))))
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait([changed, *tasks], return_when=asyncio.FIRST_COMPLETED)
                self._changed.clear()
                changed.cancel()
                for task in [task for task in tasks if task.done()]:
                    tasks.remove(task)
                    task.result()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, client, number):
        await client.generate(TEXTS[number % len(TEXTS)], max_tokens=TOKENS, ignore_eos=True)
        self.ended += 1


@pytest.fixture(scope="module")
def bundle(exported):
    """A decoder with answers long enough."""
    return exported(tiny_model(tiny_config("decoder", max_target_len=TOKENS + 64)))


def test_replicas_follow_the_requests_in_flight(bundle, tmp_path):
    settings = {"engines": 1, "max_rows": ROWS, "max_queue": 256, "device": "cpu", "parking_bytes": 0}
    found = {}
    with (
        serving(models={"text": str(bundle)}, **settings) as server,
        Held(server.address) as held,
        scraping(server.wait_for("serving")["http"], tmp_path) as prometheus,
    ):
        for count in LOADS:
            held.hold(count)
            found[count] = settled(prometheus, count / ROWS)
    print("requests in flight  value of the query  replicas")
    for count, value in found.items():
        print(f"{count:18}  {value:18.2f}  {replicas(value, present=0):8}")
    assert found == {count: count / ROWS for count in LOADS}
    assert {count: replicas(value, present=0) for count, value in found.items()} == LOADS
    assert SCALING_THRESHOLD == 0.7


def settled(prometheus, expected):
    """The value of the query once it has been the expected one for some scrapes, or the last one."""
    end_s, values = time.monotonic() + WITHIN_S, list[float]()
    while time.monotonic() < end_s and values[-LOOKS:] != [expected] * LOOKS:
        found = prometheus.query_range(SCALING_QUERY, LOOKS)
        values = found[0].values if found else []
    return values[-1] if values else None
