"""The client, installed without the server in its own environment, next to files of the user."""

import asyncio

import pytest

from glossa.version import VERSION
from tests.edge import running
from tests.packages import build_wheel, make_environment, run_alone

SCRIPT = """
import asyncio, sys
from glossa.client import AsyncClient, Client
from glossa.v1 import glossa_pb2

with Client(sys.argv[1]) as client:
    print(client.translate("the small red house").text)
    print("".join(piece.text for piece in client.stream_translate("the small red house")))

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        print((await client.translate("the small red house")).text)

asyncio.run(main())
print(sorted({name.split(".")[0] for name in sys.modules} & {"model", "service", "export", "cli", "numpy", "torch"}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    directory = tmp_path_factory.mktemp("client")
    wheel = build_wheel("clients/python", directory)
    assert wheel.name == f"glossa_client-{VERSION}-py3-none-any.whl"
    return make_environment(directory / "environment", wheel)


async def test_files_of_a_user_do_not_break_the_client(python, tmp_path):
    for name in ("model", "service", "export", "cli"):
        (tmp_path / f"{name}.py").write_text(f'raise SystemExit("{name}.py of the user was imported")')
    (tmp_path / "script.py").write_text(SCRIPT)
    async with running() as edge:
        done = await asyncio.to_thread(run_alone, python, "script.py", edge.address, directory=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["zwei rote Häuser"] * 3 + ["[]"]


def test_the_client_brings_no_module_of_the_server(python, tmp_path):
    for name in ("model", "service", "export", "cli"):
        program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
        assert run_alone(python, "-c", program, directory=tmp_path).returncode == 0, name


def test_the_client_is_typed(python, tmp_path):
    program = (
        "import glossa.client, pathlib; "
        "print(sorted(p.name for d in (glossa.client, __import__('glossa.v1', fromlist='v1')) "
        "for p in pathlib.Path(d.__file__).parent.iterdir() if p.suffix in ('.typed', '.pyi')))"
    )
    done = run_alone(python, "-c", program, directory=tmp_path)
    assert done.stdout.strip() == "['admin_pb2.pyi', 'glossa_pb2.pyi', 'py.typed', 'py.typed']"
