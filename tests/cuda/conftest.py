"""Tests on the fake CUDA: all are marked, and skipped where it cannot be built."""

import pytest

from tests.cuda import fake


def pytest_itemcollected(item):
    item.add_marker("cuda")


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
