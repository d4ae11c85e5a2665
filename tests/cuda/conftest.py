"""Tests on the fake CUDA: all are marked, those beside a core as slow, and skipped where it cannot be built."""

import pytest

from tests.cuda import fake

CORE: dict[str, frozenset[str]] = {  # module → the parameters of its quick tests; no parameters: all of them
    "test_fake": frozenset(),
    "test_opening": frozenset(),
    "test_leftovers": frozenset(["alibi"]),
    "test_answers": frozenset(["translation, head size 64", "generation, llama with groups, head size 64"]),
    "test_loop": frozenset(["generation", "generation-greedy", "generation-beams"]),
    "test_placement": frozenset(["demo", "LSTM", "experts", "translation"]),
    "test_run_ahead": frozenset(["100-translation"]),
    "test_served": frozenset(["decoder-shape1"]),
}
"""One model of a kind in each module. The others trace each preset and each variant of attention in float16, which
takes minutes of processor time."""


def pytest_itemcollected(item):
    item.add_marker("cuda")
    chosen = CORE.get(item.path.stem)
    parameters = item.name.partition("[")[2].removesuffix("]")
    if chosen is None or (chosen and parameters and parameters not in chosen):
        item.add_marker("slow")


@pytest.fixture(scope="session")
def fake_cuda():
    """The folder of the fake's libraries, built once for their sources."""
    if reason := fake.missing():
        pytest.skip(reason)
    return fake.build()


@pytest.fixture
def run_fake(fake_cuda):
    """Runs `python ARGUMENTS` on the fake: `fake.run_python` with the libraries."""

    def run(*arguments, **settings):
        return fake.run_python(fake_cuda, *arguments, **settings)

    return run
