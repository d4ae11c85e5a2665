"""A server with models of every architecture, under a load of everything that its metrics count.

Answers, streams, beams and samples of two tenants; cancelled, late and refused calls; connections that are abused; and
what an operator does meanwhile: new versions, tokens and certificates, and an engine process that is killed.
"""

import asyncio
import collections
import contextlib
import functools
import os
import random
import secrets
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from glossa.client import AsyncClient, ClientError
from glossa.client.admin import AdminClient
from glossa.v1 import glossa_pb2 as pb
from service.edge.security.tokens import Holder, line_of, new_token
from tests.bundles import make
from tests.certificates import issue, save
from tests.e2e.process import SERVE, Process, serving
from tests.tiny import TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer

TENANTS = ("acme", "globex")
CALIBRATED = Path(make.__file__).parent / "format-12/bundle"
WORDS = sorted({word for text in TEXTS for word in text.split()})
SETTINGS = {
    "device": "cpu",
    "engines": 1,
    "max_rows": 16,
    "max_queue": 16,
    "draft_tokens": 4,
    "max_resets_per_s": 20,
    "tenant_weights": {"acme": 2},
    "unknown_tenant_priority": "high",
    "commit": "c0ffee",
}
GENERATED = {"model": "text", "max_tokens": 24, "ignore_eos": True}
# Before a server: each scrape's processor time, that of the thread that answers it, becomes a line of a file.
MEASURED = """
import time
from service.edge.observability import ops

class Measured(ops._Server):
    def process_request_thread(self, request, client_address):
        super().process_request_thread(request, client_address)
        with open(PATH, "a") as file:
            print(time.thread_time(), file=file)

ops._Server = Measured
"""
CHUNK = 128  # tokens of a prompt that the prefix cache stores together


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server, and what its clients and its operator need."""

    server: Process
    folder: Path
    tokens: dict[str, str]
    admin: str
    bundles: dict[str, Path]

    @property
    def authority(self):
        return self.folder / "authority.pem"

    @property
    def scrapes_s(self):
        """The processor time of each scrape until now."""
        return [float(line) for line in (self.folder / "scrapes").read_text().splitlines()]

    @property
    def http(self):
        """The address of its ops port."""
        return self.server.wait_for("serving")["http"]


def bundles(exported):
    """A bundle of each architecture, by the name of its model. exported: `BuildCache.exported`."""
    encoders = {kind: exported(tiny_encoder(kind), tiny_tokenizer(with_mask=True)) for kind in ("masked", "classify")}
    pairs = [(text, text) for text in TEXTS]
    return {
        "en-de": exported(tiny_model(tiny_config("encoder_decoder")), attention=True, parallel=pairs),
        "text": exported(tiny_model(tiny_config("decoder", max_target_len=2 * CHUNK))),
        "quiet": exported(tiny_model(tiny_config("decoder"))),
        **encoders,
        "sure": CALIBRATED,
    }


@contextlib.contextmanager
def served(folder, bundles, **settings):
    """A server of bundles by the names of their models; see `bundles`. settings: others than SETTINGS."""
    tokens = {tenant: new_token() for tenant in TENANTS}
    write_tokens(folder, tokens)
    certificate = issue(last=60)
    files = save(folder, certificate)
    (folder / "authority.pem").write_bytes(certificate.pem)
    settings = {
        **SETTINGS,
        "models": {name: str(bundle) for name, bundle in bundles.items()},
        "tokens": str(folder / "tokens"),
        "admin_socket": str(folder / "admin"),
        **{name: str(path) for name, path in files.items()},
        **settings,
    }
    program = MEASURED.replace("PATH", repr(str(folder / "scrapes"))) + SERVE
    with serving(program, **settings) as server:
        yield Served(
            server=server, folder=folder, tokens=tokens, admin=f"unix:{settings['admin_socket']}", bundles=bundles
        )


def write_tokens(folder, tokens):
    """The file of tokens, in one step."""
    unfinished = folder / "tokens.new"
    unfinished.touch(mode=0o600)
    unfinished.write_text("".join(f"{line_of(token, Holder(tenant))}\n" for tenant, token in tokens.items()))
    unfinished.rename(folder / "tokens")


class MixedLoad:
    """Callers in a thread of their own, from `with` to its end. callers: how many of each kind; pause_s: of each caller
    between two calls, on average; 0: none. operates: whether an operator is at work, too."""

    def __init__(self, served, *, callers=2, pause_s=0.02, operates=True):
        self._served, self._callers, self._pause_s, self._operates = served, callers, pause_s, operates
        self.ends = collections.Counter[tuple[str, str]]()  # calls by who made them and what they ended with
        self._random = random.Random(1)
        self._problem = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(RuntimeError):  # the loop has ended with a problem
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self):
        try:
            self._loop.run_until_complete(self._call())
        except BaseException as problem:
            self._problem = problem
        finally:
            self._loop.close()

    async def _call(self):
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self._client(token)) for token in self._served.tokens.values()]
            stranger = await stack.enter_async_context(self._client(new_token()))
            kinds = (translate, be_sure, batch, stream, generate, sample, encode, analyse, cancel, be_late, be_wrong)
            tasks = [
                asyncio.create_task(self._repeat(kind, clients[number % len(clients)]))
                for number in range(self._callers)
                for kind in kinds
            ]
            tasks.append(asyncio.create_task(self._repeat(translate, stranger, pause_s=0.5)))
            tasks.append(asyncio.create_task(self._repeat(crowd, clients[0], pause_s=2)))
            tasks.append(asyncio.create_task(self._repeat(repeat, clients[1])))
            if self._operates:
                tasks.append(asyncio.create_task(self._repeat(self._abuse, None, pause_s=5)))
                tasks.append(asyncio.create_task(self._operate()))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            self._stop.set()
            await asyncio.gather(*tasks)

    def _client(self, token):
        trace = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
        return AsyncClient(
            self._served.server.address,
            tls=self._served.authority,
            token=token,
            metadata={"traceparent": trace},
            retries=False,
        )

    async def _repeat(self, kind, client, pause_s=None):
        name = getattr(kind, "__name__", "")
        while not self._stop.is_set():
            try:
                await kind(client, self._random)
                self.ends[name, "OK"] += 1
            except ClientError as error:
                self.ends[name, error.reason or error.code] += 1
            mean_s = self._pause_s if pause_s is None else pause_s
            if mean_s:
                await self._pause(self._random.expovariate(1 / mean_s))

    async def _pause(self, seconds):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _abuse(self, _client, rng):
        """Opens a connection and resets its calls, until the server closes it."""
        credentials = grpc.ssl_channel_credentials(self._served.authority.read_bytes())
        metadata = (("authorization", f"Bearer {self._served.tokens['acme']}"),)
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        async with grpc.aio.secure_channel(self._served.server.address, credentials, options=own) as channel:
            start: Any = channel.unary_unary("/glossa.v1.GenerationService/Generate")
            message = pb.GenerateRequest(text=prompt(rng), model="text").SerializeToString()
            calls = [start(message, metadata=metadata, timeout=30) for _ in range(60)]
            await asyncio.sleep(0.05)  # they reach the server
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _operate(self):
        """Exchanges what a server reads while it serves, again and again; and kills an engine process once."""
        served, loop = self._served, asyncio.get_running_loop()
        await self._pause(10)  # Prometheus counts only what changes after its first scrape
        os.kill(served.server.engine_pids()[0], signal.SIGKILL)
        for turn in range(1_000_000):
            await self._pause(3)
            if self._stop.is_set():
                return
            write_tokens(served.folder, served.tokens | {f"later-{turn}": new_token()})
            (served.folder / "tls_certificate.pem").write_bytes(b"no certificate")
            await self._pause(3)
            (served.folder / "tls_certificate.pem").write_bytes(served.authority.read_bytes())
            await loop.run_in_executor(None, functools.partial(self._reload, "en-de", f"v{turn}"))

    def _reload(self, model, version):
        with AdminClient(self._served.admin) as admin:
            try:
                admin.load(model, str(self._served.bundles[model]), version=version)
                self.ends["reload", "OK"] += 1
            except ClientError as error:
                self.ends["reload", error.reason or error.code] += 1


def prompt(rng):
    """A text with one of few beginnings that the prefix cache stores, and an end of its own."""
    beginning = random.Random(rng.randint(1, 3)).choices(WORDS, k=CHUNK)
    return " ".join([*beginning, *rng.choices(WORDS, k=rng.randint(1, 8))])


def sentence(rng):
    """A short text."""
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 12)))


async def translate(client, rng):
    await client.translate(sentence(rng), model="en-de", beam_size=rng.choice([1, 1, 4]), timeout_s=30)


async def be_sure(client, rng):
    await client.translate(sentence(rng), model="sure", confidence=True, timeout_s=30)


async def batch(client, rng):
    """Texts that have a term, whose form a beam can always be made to have."""
    terms = dict.fromkeys(WORDS, "house")
    texts = [sentence(rng) for _ in range(4)]
    async for _ in client.translate_batch(texts, model="en-de", glossary=terms, beam_size=2, timeout_s=30):
        pass


async def stream(client, rng):
    calls = (
        client.stream_translate(sentence(rng), model="en-de", timeout_s=30),
        client.stream_generate(prompt(rng), timeout_s=30, **GENERATED),
    )
    for call in calls:
        async for _ in call:
            pass


async def generate(client, rng):
    await client.generate(prompt(rng), timeout_s=30, **GENERATED)


async def repeat(client, rng):
    """The only request of its model, and a plain one: such a request gets drafts."""
    await client.generate(sentence(rng), model="quiet", max_tokens=40, timeout_s=30)


async def sample(client, rng):
    await client.generate(prompt(rng), model="text", temperature=1.0, num_sequences=3, max_tokens=16, timeout_s=30)


async def encode(client, rng):
    await client.embed(sentence(rng), model="masked", timeout_s=30)
    await client.fill_mask("the small <mask> house", model="masked", timeout_s=30)
    await client.classify(sentence(rng), model="classify", timeout_s=30)


async def analyse(client, rng):
    await client.list_models()
    await client.score(TEXTS[0], TEXTS[1], model="en-de", timeout_s=30)
    await client.attend(sentence(rng), model="en-de", target=TEXTS[1], timeout_s=30)


async def cancel(client, rng):
    async with contextlib.aclosing(client.stream_generate(prompt(rng), timeout_s=30, **GENERATED)) as pieces:
        async for _ in pieces:
            return


async def be_late(client, rng):
    await client.generate(prompt(rng), timeout_s=rng.uniform(0.002, 0.02), **GENERATED)


async def be_wrong(client, rng):
    if rng.random() < 0.5:
        await client.translate(sentence(rng), model="nobody")
    await client.translate(sentence(rng), model="en-de", beam_size=4000)


async def crowd(client, rng):
    """More calls than may wait."""
    calls = [client.generate(prompt(rng), timeout_s=30, **GENERATED) for _ in range(80)]
    for end in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(end, Exception) and not isinstance(end, ClientError):
            raise end
