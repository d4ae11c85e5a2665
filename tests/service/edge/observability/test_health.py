import grpc
import pytest
from grpc_health.v1 import health_pb2

from service.edge.observability.health import Health
from tests.edge import health, running

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
TRANSLATION = "glossa.v1.TranslationService"


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


@pytest.fixture
async def stub(edge):
    async with grpc.aio.insecure_channel(edge.address) as channel:
        yield health(channel)


def check_of(service):
    return health_pb2.HealthCheckRequest(service=service)


@pytest.mark.parametrize("service", ["", TRANSLATION, "glossa.v1.GenerationService", "glossa.v1.ModelService"])
async def test_every_service_is_serving_once_started(stub, service):
    assert (await stub.Check(check_of(service), timeout=5)).status == SERVING


async def test_a_service_without_a_model_does_not_serve():
    async with running(models={"en": "/none"}) as edge, grpc.aio.insecure_channel(edge.address) as channel:
        stub = health(channel)
        assert (await stub.Check(check_of(TRANSLATION), timeout=5)).status == NOT_SERVING
        assert (await stub.Check(check_of(""), timeout=5)).status == SERVING


async def test_unknown_service_is_not_found_but_may_be_watched(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(check_of("unknown"), timeout=5)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(check_of("unknown"), timeout=5)
    assert (await watch.read()).status == UNKNOWN
    watch.cancel()


async def test_watchers_that_leave_do_not_affect_the_others(edge, stub):
    watches = [stub.Watch(check_of(TRANSLATION), timeout=10) for _ in range(50)]
    for watch in watches:
        assert (await watch.read()).status == SERVING
    for watch in watches[::2]:
        watch.cancel()
    edge.server.health.set(TRANSLATION, False)
    for watch in watches[1::2]:
        assert (await watch.read()).status == NOT_SERVING
    edge.server.health.set(TRANSLATION, True)
    for watch in watches[1::2]:
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_a_model_without_engines_shows_in_health_and_readyz(edge, stub):
    watch, others = stub.Watch(check_of(""), timeout=10), check_of("glossa.v1.GenerationService")
    assert (await watch.read()).status == SERVING
    edge.pool.is_ready = False
    assert (await watch.read()).status == NOT_SERVING
    assert edge.server.not_ready() == ["model en-de: no engine runs"]
    assert edge.server.problems() == []  # it starts again by itself
    assert (await stub.Check(check_of(TRANSLATION))).status == NOT_SERVING
    assert (await stub.Check(others)).status == SERVING
    edge.pool.is_ready = True
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_a_model_that_only_a_restart_could_help_shows_in_health_and_healthz(edge, stub):
    watch = stub.Watch(check_of(""), timeout=10)
    assert (await watch.read()).status == SERVING
    edge.pool.problem = "an engine failed"
    assert (await watch.read()).status == NOT_SERVING
    assert edge.server.problems() == ["model en-de: an engine failed"]
    watch.cancel()


async def test_closing_is_permanent():
    states = Health(["a"])
    states.set("a", True)
    assert states.status("a") == SERVING
    states.close()
    states.set("a", True)
    assert (states.status("a"), states.status("")) == (NOT_SERVING, NOT_SERVING)
