"""A trained and exported toy model, and a server without engines, for the verbs that need one."""

import json
from pathlib import Path

import pytest

from tests.bundles import make
from tests.bundles.make import development, kept_model
from tests.cli.command import PAIRS, run
from tests.edge import running
from tests.tiny import tiny_tokenizer
from tests.tiny_training import quick_trainings


@pytest.fixture(scope="session", autouse=True)
def _quick_trainings():
    quick_trainings()


@pytest.fixture(scope="session")
def trained(build_cache):
    """A checkpoint, built once per run as its bundle: neither may be changed."""

    def checkpoint(directory):
        preset = directory / "preset.yaml"
        preset.write_text("preset: tiny-copy\nmodel: {num_encoder_layers: 1, num_decoder_layers: 1}\n")
        run("train", preset, "--steps", 3, "--out", directory / "checkpoint")
        return directory / "checkpoint"

    return build_cache.once(checkpoint)


@pytest.fixture(scope="session")
def export_report(build_cache, trained):
    """The bundle of `trained` and what its export reported."""

    def trained_bundle(directory):
        return directory / "bundle", json.loads(run("export", trained, directory / "bundle", "--json"))

    return build_cache.once(trained_bundle)


@pytest.fixture(scope="session")
def trained_bundle(export_report):
    return export_report[0]


@pytest.fixture
def test_set(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return path


@pytest.fixture
async def edge():
    async with running() as edge:
        yield edge


@pytest.fixture(scope="session")
def calibrated_bundle(tmp_path_factory):
    """The kept bundle with calibrated confidence, and a test set of the text by which it was calibrated."""
    text = development(kept_model(), tiny_tokenizer())
    file = tmp_path_factory.mktemp("calibrated") / "test.tsv"
    pairs = zip(text.texts[:80], text.references, strict=False)
    file.write_text("".join(f"{source}\t{reference}\n" for source, reference in pairs if reference))
    return Path(make.__file__).parent / "format-11" / "bundle", file
