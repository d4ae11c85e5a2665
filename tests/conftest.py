"""Exported bundles that many tests read, built once per run, and the order of the tests."""

import collections
import gc
import inspect
import os
import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import none

from tests.build_cache import BuildCache, trace_once
from tests.tiny import ENCODERS, TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer

pytest_plugins = ["tests.workers"]

# Some tests fork this process, in which gRPC may run. Its handlers of forks abort one child in twenty (gRPC 1.85:
# SIGABRT, "epoll_wait error: Bad file descriptor") if a thread is inside gRPC; without them no child does. Nothing of
# the product forks.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Every run tries the same examples, and one that takes long under load is no failure.
settings.register_profile("glossa", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("glossa")
# Hypothesis would read all loaded modules for constants to try: seconds in each process, and other examples after each
# change of a module.
vars(providers)["is_local_module_file"] = lambda path: False


# The libraries and thousands of tests are millions of objects that live to the end. Searching them for garbage took
# about 30 % of collecting tests, a tenth of tracing graphs, and 0.7 s in each test that calls `gc.collect`.
gc.set_threshold(50_000, 20, 50)


@settings(max_examples=1)
@given(none())
def draw_one(_):
    """With its first example Hypothesis asks what refers to its generator of random numbers. With Python 3.14 it finds
    nothing in a frozen heap, and warns."""


def pytest_collection_finish():
    draw_one()
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in random order: modules, and in them")


def pytest_collection_modifyitems(config, items):
    """Spreads tests that mostly wait for servers among those that compute, for processes that run both at a time, the
    modules of most tests first. Or shuffles modules and the tests of each, which stay together, so that a module's
    fixtures are built once."""
    if config.getoption("--shuffle") is None:
        _spread(items)
        return
    draw, modules = random.Random(config.getoption("--shuffle")), dict[str, list[pytest.Item]]()
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    items.clear()
    for tests in draw.sample(list(modules.values()), len(modules)):
        items += draw.sample(tests, len(tests))


def _spread(items):
    sizes = collections.Counter(item.path for item in items)
    rooms = {path: {"e2e", "cli", "cuda", "deploy"}.isdisjoint(path.parts) for path in sizes}
    counts, places = collections.Counter(rooms.values()), dict[Path, float]()
    for computes in (True, False):
        found = sorted((path for path in sizes if rooms[path] == computes), key=lambda path: (-sizes[path], path))
        places |= {path: number / counts[computes] for number, path in enumerate(found)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def build_cache(directory_of_the_run):
    """A BuildCache that the processes of this run share."""
    root = directory_of_the_run / "built"
    root.mkdir(exist_ok=True)
    return BuildCache(root)


@pytest.fixture(scope="session")
def exported(build_cache):
    """Exports a model and returns the path of its bundle, which must not be changed: `BuildCache.exported`."""
    return build_cache.exported


@pytest.fixture(scope="session", autouse=True)
def _traces_once(build_cache):
    trace_once(build_cache)


@pytest.fixture
def fresh_traces(monkeypatch):
    """Every graph is traced anew: for tests of tracing itself."""
    monkeypatch.setattr(torch.onnx, "export", inspect.unwrap(torch.onnx.export))


@pytest.fixture(scope="session")
def tiny_translation_bundle(exported):
    """Path of a bundle with `encode` and `decode`: d_model 32, 2+2 layers, 64 positions."""
    return exported(tiny_model(tiny_config("encoder_decoder")))


@pytest.fixture(scope="session")
def tiny_attention_bundle(exported):
    """Path of a bundle of the model of `tiny_translation_bundle`, with `align` beside `encode` and `decode`, and with a
    shortlist that allows a source the words of the sentences its own words are from."""
    pairs = [(text, text) for text in TEXTS]
    return exported(tiny_model(tiny_config("encoder_decoder")), attention=True, parallel=pairs)


@pytest.fixture(scope="session")
def tiny_generation_bundle(exported):
    """Path of a bundle with `decode` alone: d_model 32, 2 layers, 64 positions."""
    return exported(tiny_model(tiny_config("decoder")))


@pytest.fixture(scope="session")
def tiny_encoder_bundles(exported):
    """Paths of bundles with `encode` alone, by the name of their model in ENCODERS."""
    tokenizer = tiny_tokenizer(with_mask=True)
    return {kind: exported(tiny_encoder(kind), tokenizer) for kind in ENCODERS}


@pytest.fixture(scope="session")
def tiny_recurrent_bundle(exported):
    """Path of a bundle of a recurrent model with attention and input feeding, with `align` beside `encode` and
    `decode`: LSTM, d_model 32, encoder_dim 48, 2+2 layers, 64 positions."""
    return exported(tiny_model(tiny_config("recurrent")), attention=True)
