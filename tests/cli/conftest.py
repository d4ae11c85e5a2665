"""A trained and exported toy model, and a server without engines, for the verbs that need one."""

import pytest

from tests.cli.command import PAIRS, run
from tests.edge import running


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "checkpoint"
    run("train", "tiny-copy", "--steps", 3, "--out", out)
    return out


@pytest.fixture(scope="session")
def trained_bundle(trained):
    out = trained.parent / "bundle"
    assert "passed" in run("export", trained, out)
    return out


@pytest.fixture
def test_set(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return path


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge
