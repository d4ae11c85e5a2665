"""Versions of a model exchanged under load: a real server, engine processes, tiny bundles with different answers."""

import asyncio
import collections
import contextlib
import hashlib
import shutil

import grpc
import pytest

from export.bundle.manifest import MANIFEST, TOKENIZER
from glossa.v1 import admin_pb2 as pb
from glossa.v1 import admin_pb2_grpc
from tests.cli.command import run
from tests.e2e.load import WITHIN_S
from tests.e2e.process import serving
from tests.edge import method
from tests.sealed_manifest import read_manifest, write_manifest
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

OPTIONS = {"max_tokens": 20, "ignore_eos": True}
RELOADS = 2  # even: the last one is of the first bundle


def digest_of(bundle):
    return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def bundles(exported):
    """Two translation models with different answers."""
    return [exported(tiny_model(tiny_config("encoder_decoder"), seed)) for seed in (6, 3)]


@pytest.fixture(scope="module")
def admin_server(bundles, tmp_path_factory):
    """A server of the first bundle, and the address of its admin socket."""
    socket = tmp_path_factory.mktemp("admin") / "socket"
    settings = {"models": {"en-de": str(bundles[0])}, "admin_socket": str(socket), "engines": 2, "device": "cpu"}
    with serving(**settings) as server:
        yield server, f"unix:{socket}"


@contextlib.contextmanager
def administrator(address):
    with grpc.insecure_channel(address) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


def serve_alone(admin, bundle):
    """Makes a bundle the only version, whatever an earlier test left."""
    admin.LoadVersion(pb.LoadVersionRequest(model="en-de", path=str(bundle)))
    while len(versions := admin.ListVersions(pb.ListVersionsRequest()).versions) > 1:
        for version in versions:
            if version.state == pb.VERSION_STATE_SERVING and not version.is_default:
                admin.UnloadVersion(pb.UnloadVersionRequest(model="en-de", version=version.version))
    return versions[0]


async def until_alone(admin):
    """Returns when the versions that drain have ended."""
    async with asyncio.timeout(WITHIN_S):
        while len((await admin.ListVersions(pb.ListVersionsRequest())).versions) > 1:
            await asyncio.sleep(0)


async def answers_of(channel, model="en-de"):
    """The answer to each text, and the bundle that gave it."""
    translate = method(channel, "Translate")
    found = {}
    for text in TEXTS:
        call = translate(text=text, model=model, options=OPTIONS, timeout=WITHIN_S)
        answer = (await call).text
        found[text] = answer, dict(await call.trailing_metadata())["x-glossa-bundle-sha256"]
    return found


async def test_reloads_under_load_lose_no_call_and_mix_no_versions(admin_server, bundles):
    server, address = admin_server
    with administrator(address) as admin:
        serve_alone(admin, bundles[0])
    server.wait_for_beats()
    processes = len(server.engine_pids())
    seen, stop = collections.Counter[tuple[str, str, str]](), asyncio.Event()
    async with (
        grpc.aio.insecure_channel(server.address, options=[("grpc.enable_retries", 0)]) as channel,
        grpc.aio.insecure_channel(address) as admin_channel,
    ):
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)
        translate, stream = method(channel, "Translate"), method(channel, "StreamTranslate")

        async def ask(number):
            while not stop.is_set():
                text = TEXTS[number % len(TEXTS)]
                call = (stream if number % 2 else translate)(text=text, options=OPTIONS, timeout=WITHIN_S)
                pieces = [piece.text async for piece in call] if number % 2 else [(await call).text]
                digest = dict(await call.trailing_metadata())["x-glossa-bundle-sha256"]
                seen[text, "".join(pieces), digest] += 1

        callers = [asyncio.create_task(ask(number)) for number in range(16)]
        for turn in range(1, RELOADS + 1):
            path = str(bundles[turn % 2])
            loaded = await admin.LoadVersion(pb.LoadVersionRequest(model="en-de", path=path), timeout=WITHIN_S)
            assert loaded.version.is_default
            assert loaded.version.bundle_sha256 == digest_of(bundles[turn % 2])
            answered = seen.total()
            while seen.total() < answered + 32 and not any(caller.done() for caller in callers):
                await asyncio.sleep(0)
        stop.set()
        await asyncio.gather(*callers)  # raises what any call ended with
        await until_alone(admin)
        expected = {(text, *found) for text, found in (await answers_of(channel)).items()}
        await admin.LoadVersion(pb.LoadVersionRequest(model="en-de", path=str(bundles[1])))
        expected |= {(text, *found) for text, found in (await answers_of(channel)).items()}
        await until_alone(admin)
    assert set(seen) == expected, "each answer is one version's, and the digest is that version's"
    assert len(expected) == 2 * len(TEXTS)
    assert len(server.engine_pids()) == processes
    assert server.metric("glossa_model_versions") == 1
    ((labels, _),) = server.samples("glossa_model_info")
    assert labels["bundle"] == digest_of(bundles[1])
    assert server.metric("glossa_engine_process_up") == processes


def edited(change):
    """A sealed change of the manifest's values."""

    def damage(bundle):
        manifest = read_manifest(bundle)
        change(manifest)
        write_manifest(bundle, manifest)

    return damage


def replace_file(name, data):
    """A file with other content, listed with the digest that it has."""

    def damage(bundle):
        (bundle / name).write_bytes(data(bundle))
        content = (bundle / name).read_bytes()
        entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        edited(lambda manifest: manifest["files"].update({name: entry}))(bundle)

    return damage


def flip_bit(bundle):
    graph = bundle / read_manifest(bundle)["variants"][0]["graphs"]["decode"]["file"]
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)


def without_a_graph(bundle):
    (bundle / read_manifest(bundle)["variants"][0]["graphs"]["encode"]["file"]).unlink()


def not_a_graph(bundle):
    name = read_manifest(bundle)["variants"][0]["graphs"]["decode"]["file"]
    replace_file(name, lambda _: b"no graph")(bundle)


def with_another_tokenizer(bundle):
    """One with more words than the model knows."""
    tiny_tokenizer(with_mask=True).save(bundle / TOKENIZER)
    replace_file(TOKENIZER, lambda _: (bundle / TOKENIZER).read_bytes())(bundle)


def other_golden_decode(manifest):
    output = manifest["golden"]["output"]
    manifest["golden"]["output"] = [output[0] % 20 + 4, *output[1:]]


def for_a_gpu_alone(manifest):
    manifest["variants"][0]["precision"] = "fp16"


def a_folder_for_a_manifest(bundle):
    (bundle / MANIFEST).unlink()
    (bundle / MANIFEST).mkdir()


BAD = {
    "a missing file": (without_a_graph, "is missing"),
    "a wrong digest": (flip_bit, "has the wrong SHA-256"),
    "a damaged graph": (not_a_graph, "decode.onnx"),
    "another format": (edited(lambda manifest: manifest.update(format_version=99)), "unknown format_version"),
    "a wrong golden decode": (edited(other_golden_decode), "self-check failed"),
    "no manifest": (lambda bundle: (bundle / MANIFEST).unlink(), "is not a bundle"),
    "an unreadable manifest": (a_folder_for_a_manifest, "manifest.json"),
    "no graphs for the CPU": (edited(for_a_gpu_alone), "fp16"),
    "another model's tokenizer": (with_another_tokenizer, TOKENIZER),
    "a tokenizer that is none": (replace_file(TOKENIZER, lambda _: b"{}"), TOKENIZER),
    "a file too many": (lambda bundle: (bundle / "more.json").write_text("{}"), "is not listed"),
}


@pytest.fixture
def offered(bundles, admin_server):
    with administrator(admin_server[1]) as admin:
        return serve_alone(admin, bundles[0])


# `tests.export.bundle` and `tests.service.edge.versions` refuse the others.
QUICK = ("a wrong digest", "a wrong golden decode")


@pytest.mark.parametrize(
    "kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in BAD if kind not in QUICK)]
)
async def test_a_bad_bundle_is_refused_and_the_old_one_goes_on_serving(admin_server, bundles, offered, tmp_path, kind):
    server, address = admin_server
    damage, reason = BAD[kind]
    bundle = tmp_path / "bundle"
    shutil.copytree(bundles[1], bundle)
    damage(bundle)
    await refused(server, address, offered, str(bundle), reason)


async def refused(server, address, offered, path, reason):
    """A path is refused for a reason, which the log has as well; the version that was offered serves as before."""
    before, pids = server.metric("glossa_model_loads_total", outcome="loaded"), server.engine_pids()
    async with (
        grpc.aio.insecure_channel(server.address) as channel,
        grpc.aio.insecure_channel(address) as admin_channel,
    ):
        expected = await answers_of(channel)
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)
        loading = asyncio.ensure_future(admin.LoadVersion(pb.LoadVersionRequest(model="en-de", path=path)))
        while not loading.done():
            assert await answers_of(channel) == expected
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await loading
        error: grpc.aio.AioRpcError = caught.value
        details = error.details() or ""
        assert (error.code(), reason in details) == (grpc.StatusCode.FAILED_PRECONDITION, True), details
        assert await answers_of(channel) == expected
        (version,) = (await admin.ListVersions(pb.ListVersionsRequest())).versions
    assert (version.state, version.bundle_sha256) == (pb.VERSION_STATE_SERVING, offered.bundle_sha256)
    assert any(details == event.get("reason") for event in server.events if event["event"] == "version_refused")
    assert server.metric("glossa_model_loads_total", outcome="loaded") == before
    assert server.engine_pids() == pids
    assert server.metric("glossa_ready") == 1


async def test_what_is_no_directory_or_serves_another_task_is_refused(
    admin_server, offered, tmp_path, tiny_generation_bundle
):
    server, address = admin_server
    (tmp_path / "file").write_text("")
    await refused(server, address, offered, str(tmp_path / "file"), "directory")
    await refused(server, address, offered, str(tmp_path / "nothing"), "nothing")
    await refused(
        server, address, offered, str(tiny_generation_bundle), "serves translation, and the bundle generation"
    )


@pytest.mark.slow
async def test_versions_side_by_side_by_the_command_line(admin_server, bundles, tmp_path):
    server, address = admin_server
    with administrator(address) as admin:
        first = serve_alone(admin, bundles[0])

    def command(*arguments, fails=False):
        return run("admin", *arguments, "--address", address, fails=fails)

    assert "en-de@two" in command("load", "en-de", bundles[1], "--version", "two", "--keep-default")
    async with grpc.aio.insecure_channel(server.address) as channel:
        default, two = await answers_of(channel), await answers_of(channel, "en-de@two")
        assert default != two
        assert await answers_of(channel, f"en-de@{first.version}") == default
        described = await method(channel, "GetModel")(model="en-de@two")
        assert (described.model.version, described.model.is_default) == ("two", False)
        listed = (await method(channel, "ListModels")()).models
        assert [(model.name, model.version, model.is_default) for model in listed] == [
            ("en-de", first.version, True),
            ("en-de", "two", False),
        ]
        assert "is the default of model en-de" in command("unload", "en-de", first.version, fails=True)
        assert "serving, default" in command("default", "en-de", "two")
        assert await answers_of(channel) == two
        assert "serving, default" in command("rollback", "en-de", "--keep-previous")
        assert await answers_of(channel) == default
        command("unload", "en-de", "two")
        while "two" in command("versions"):
            pass
        assert "NOT_FOUND" in run("translate", "a cat", "--model", "en-de@two", "--address", server.address, fails=True)
        assert "serving, default" in command("rollback", "en-de"), "its bundle is opened again"
        assert await answers_of(channel) == two


@pytest.mark.slow
async def test_a_version_whose_answers_are_worse_is_refused(admin_server, bundles, tmp_path):
    server, address = admin_server
    with administrator(address) as admin:
        serve_alone(admin, bundles[0])
    async with grpc.aio.insecure_channel(server.address) as channel:
        translate = method(channel, "Translate")
        answers = {text: (await translate(text=text)).text for text in TEXTS}
    test_set = tmp_path / "test.tsv"  # that the first one answers as wanted, and the second one does not
    test_set.write_text("".join(f"{text}\t{answer}\n" for text, answer in answers.items()))
    load = ("admin", "load", "en-de", bundles[1], "--evaluate", test_set, "--address", address)
    message = run(*load, fails=True)
    assert "is worse than the default one" in message
    assert "against 100.00 on 4 examples, and it may lose at most 1" in message
    assert "of the default before it 100.00" in run(*load, "--max-loss", "100")
    (version,) = {each.bundle_sha256 for each in serving_versions(address)}
    assert version == digest_of(bundles[1])


def serving_versions(address):
    with administrator(address) as admin:
        versions = admin.ListVersions(pb.ListVersionsRequest()).versions
    return [version for version in versions if version.state == pb.VERSION_STATE_SERVING]


async def test_traffic_is_split_and_a_worse_canary_goes_back(admin_server, bundles):
    """Calls, streams and batches each get one version, tenants always the same; a canary of other texts goes back."""
    server, address = admin_server
    with administrator(address) as admin:
        first = serve_alone(admin, bundles[0])
        admin.LoadVersion(pb.LoadVersionRequest(model="en-de", path=str(bundles[1]), version="two", keep_default=True))
    async with (
        grpc.aio.insecure_channel(server.address) as channel,
        grpc.aio.insecure_channel(address) as admin_channel,
    ):
        admin = admin_pb2_grpc.AdminServiceStub(admin_channel)
        translate, stream = method(channel, "Translate"), method(channel, "StreamTranslate")
        own = {version: await answers_of(channel, f"en-de@{version}") for version in (first.version, "two")}
        weights = [pb.VersionShare(version=version, percent=50) for version in own]
        split = await admin.SetTraffic(pb.SetTrafficRequest(model="en-de", weights=weights))
        assert {version.version: version.weight for version in split.versions} == dict.fromkeys(own, 50)

        async def ask(number, tenant=""):
            text = TEXTS[number % len(TEXTS)]
            metadata = [("x-request-id", f"request-{number}"), *([("x-glossa-tenant", tenant)] if tenant else [])]
            call = (stream if number % 2 else translate)(
                text=text, options=OPTIONS, timeout=WITHIN_S, metadata=metadata
            )
            pieces = [piece.text async for piece in call] if number % 2 else [(await call).text]
            trailers = dict(await call.trailing_metadata())
            assert ("".join(pieces), trailers["x-glossa-bundle-sha256"]) == own[trailers["x-glossa-version"]][text]
            return trailers["x-glossa-version"]

        assert {await ask(number) for number in range(24)} == set(own)
        assert [await ask(number) for number in range(24)] == [await ask(number) for number in range(24)]
        assert len({await ask(number, "acme") for number in range(24)}) == 1
        bad = pb.SetTrafficRequest(model="en-de", weights=[*weights, pb.VersionShare(version="gone", percent=1)])
        with pytest.raises(grpc.aio.AioRpcError, match="that serves"):
            await admin.SetTraffic(bad)
        assert {await ask(number) for number in range(24)} == set(own), "the running split stays"
        await admin.SetTraffic(pb.SetTrafficRequest(model="en-de"))
        assert {await ask(number) for number in range(24)} == {first.version}

        examples = [
            pb.EvaluationExample(text=text, reference=answer) for text, (answer, _) in own[first.version].items()
        ]
        order = pb.StartCanaryRequest(model="en-de", version="two", share=50, unload_loser=True)
        order.evaluation.examples.extend(examples)
        order.bounds.p99, order.bounds.memory = 1000, 1000
        order.duration.seconds, order.patience.nanos = WITHIN_S, 300_000_000
        assert (await admin.StartCanary(order)).canary.state == pb.CANARY_STATE_RUNNING
        for number in range(100_000):
            await asyncio.gather(*[ask(8 * number + one) for one in range(8)])
            (canary,) = (await admin.ListVersions(pb.ListVersionsRequest(model="en-de"))).canaries
            if canary.state != pb.CANARY_STATE_RUNNING:
                break
        assert (canary.state, canary.bound) == (pb.CANARY_STATE_SENT_BACK, "chrf"), canary
        assert "points worse" in canary.reason
        assert (canary.calls >= 60, canary.failed) == (True, 0)
        await until_alone(admin)
        assert {await ask(number) for number in range(24)} == {first.version}
    assert server.metric("glossa_canaries_total", outcome="chrf") == 1
    assert any(event["event"] == "canary_sent_back" and event["bound"] == "chrf" for event in server.events)
