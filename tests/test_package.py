"""The wheel of the server: every package and data file, and a `glossa` that serves from a fresh environment."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from cli.local_server import free_port
from glossa.client import Client
from glossa.version import VERSION
from tests.packages import ROOT, build_wheel, make_environment, own_environment, run_alone
from tests.tiny import TEXTS

HOMES = {ROOT: ("cli", "export", "model", "service"), ROOT / "clients/python": ("glossa",)}
DATA = {".css", ".html", ".js", ".json", ".py", ".pyi", ".svg", ".toml", ".typed", ".yaml"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(".", tmp_path_factory.mktemp("server"))


def test_the_wheel_has_every_module_and_data_file(wheel):
    expected = {
        path.relative_to(home).as_posix()
        for home, packages in HOMES.items()
        for package in packages
        for path in (home / package).rglob("*")
        if path.suffix in DATA and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert found == expected
    assert f"Version: {VERSION}" in text.splitlines()
    required = [line for line in text.splitlines() if line.startswith("Requires-Dist: ")]
    assert any(line.startswith("Requires-Dist: onnxruntime==") and "extra" not in line for line in required)
    training = ("Requires-Dist: torch", "Requires-Dist: onnx=")
    assert all("extra == " in line for line in required if line.startswith(training))


@pytest.mark.slow
def test_an_installed_glossa_serves(wheel, tiny_translation_bundle, tmp_path):
    environment = tmp_path / "environment"
    make_environment(environment, wheel)
    glossa = environment / "bin/glossa"
    for name in ("model", "service", "export", "cli"):
        (tmp_path / f"{name}.py").write_text(f'raise SystemExit("{name}.py of the user was imported")')
    shown = run_alone(glossa, "--version", directory=tmp_path)
    assert shown.stdout == f"glossa {VERSION}\n"
    port, ops_port = free_port(), free_port()
    flags = ["--port", port, "--http-port", ops_port, "--drain-delay-s", 0]
    command = [glossa, "serve", f"model={tiny_translation_bundle}", *map(str, flags)]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, cwd=tmp_path, env=own_environment(), stderr=log) as server,
    ):
        try:
            ready = ("healthcheck", "--wait", 60, "--http-port", ops_port)
            done = run_alone(glossa, *ready, directory=tmp_path)
            assert done.returncode == 0, (done, Path(tmp_path / "log").read_text())
            with Client(f"127.0.0.1:{port}") as client:
                assert client.translate(TEXTS[0]).finish_reason
        finally:
            server.terminate()
    assert server.returncode == 0
