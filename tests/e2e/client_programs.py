"""The programs of docs/clients.md, from examples/clients: copied to a folder, built, and run.

Only address, text and prompt are others than on the page.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from glossa.version import VERSION

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/clients.md"
EXAMPLES = ROOT / "examples/clients"
ADDRESS, TEXT, PROMPT = "127.0.0.1:50051", "The small dog sees two children.", "a small"  # those of the page
GATEWAY = "127.0.0.1:8080"
OURS, BARE, NODE, CPP = "Python with glossa.client", "Python from the .proto alone", "Node", "C++"
PROGRAMS = (OURS, BARE, NODE, CPP)
FILES = {OURS: "client.py", BARE: "bare.py", NODE: "client.js", CPP: "client.cpp"}  # in EXAMPLES
NODE_PACKAGES = ROOT / "build/clients_node/node_modules"
CPP_TOOLS = ("g++", "pkg-config", "protoc", "grpc_cpp_plugin")
ADAPTOR_CLIENTS = ROOT / "build/adaptor_clients/bin"
BUF = Path(sys.executable).with_name("buf")


def blocks(section):
    """Language and text of each block under a heading of the page."""
    found = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found, f"{PAGE.name} has no section {section}"
    return re.findall(r"^```(\w+)\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)


def block(section, language):
    """The text of the one block of a language."""
    (text,) = [text for found, text in blocks(section) if found == language]
    return text


def commands(section):
    """The commands of a section, by the word of the comment above each."""
    parts = re.split(r"^# (\w+).*\n", block(section, "sh"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def missing(program):
    """What a program needs and this machine lacks, and how to get it; "" if nothing."""
    if program == NODE and not (shutil.which("node") and (NODE_PACKAGES / "@grpc").is_dir()):
        return f"{NODE_PACKAGES} or node is missing; install Node 18 or newer with npm, then run: make client-tools"
    if program == CPP:
        absent = [tool for tool in CPP_TOOLS if not shutil.which(tool)]
        if absent or subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"], check=False).returncode:
            return f"a C++ compiler with gRPC is missing; on Debian run: {block(CPP, 'console').splitlines()[0]}"
    return ""


def build(folder):
    """Writes the programs into a folder and builds each of those that nothing is missing for. Returns the folder."""
    (folder / "protos").symlink_to(ROOT / "protos")
    (folder / "service_config.json").write_text(block("Retries", "json"))
    if NODE_PACKAGES.is_dir():
        (folder / "node_modules").symlink_to(NODE_PACKAGES)
    _environment_without_ours(folder / "environment")
    for program in PROGRAMS:
        shutil.copy(EXAMPLES / FILES[program], folder / FILES[program])
        steps = block(program, "sh").splitlines()[:-1]
        if steps and not missing(program):
            _shell("\n".join(steps), program, folder, timeout_s=900)
    return folder


def adaptor_clients():
    """The folder with the Python that has clients of other protocols, and with their programs."""
    assert (ADAPTOR_CLIENTS / "python").exists(), f"{ADAPTOR_CLIENTS} is missing; run: make adaptor-clients"
    return ADAPTOR_CLIENTS


def npm_project(folder):
    """Packs the npm client as for npm and installs it in a folder, beside what it needs. Returns the folder."""
    source, installed = folder / "repository/clients/node", folder / "node_modules"
    shutil.copytree(
        ROOT / "clients/node", source, ignore=shutil.ignore_patterns("node_modules", "generated", "protos", "types")
    )
    shutil.copytree(ROOT / "protos", folder / "repository/protos")
    shutil.copy(ROOT / "LICENSE", folder / "repository")
    (source / "node_modules").symlink_to(NODE_PACKAGES)
    output_of("npm", "pack", "--offline", "--silent", cwd=source)
    installed.mkdir()
    for package in NODE_PACKAGES.iterdir():
        (installed / package.name).symlink_to(package)
    with tarfile.open(source / f"glossa-client-{VERSION}.tgz") as archive:
        archive.extractall(installed, filter="data")
    (installed / "package").rename(installed / "glossa-client")
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def output_of(*command, cwd=None):
    """What a program prints, which must not fail."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run(program, folder, address, text, *prompts, **environment):
    """Runs a program as the page does and returns what it printed, by the word at the beginning of each line."""
    assert not missing(program), missing(program)
    command = block(program, "sh").splitlines()[-1]
    assert ADDRESS in command, command
    assert f'"{TEXT}"' in command, command
    command = command.replace(ADDRESS, address).replace(f'"{TEXT}"', " ".join(f'"{part}"' for part in (text, *prompts)))
    done = _shell(command, program, folder, **environment)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def buf(name, folder, address, text, *, prompt="", check=True, **environment):
    """Runs a command of the page's section on `buf curl`: the finished process."""
    assert BUF.exists(), f"{BUF} is missing; run: make setup"
    command = commands("buf curl")[name].replace(ADDRESS, address)
    return _shell(_about(command, text, prompt), OURS, folder, check=check, **environment)


def curl(name, folder, address, text, *, prompt=""):
    """Runs a command of the page's section on REST: what it printed. address: of a gateway."""
    assert shutil.which("curl"), "curl is missing; on Debian run: apt-get install curl"
    command = commands("REST")[name].replace(GATEWAY, address)
    return _shell(_about(command, text, prompt), OURS, folder).stdout


def _about(command, text, prompt):
    return command.replace(TEXT, text).replace(f'"{PROMPT}"', f'"{prompt}"')


def messages(printed):
    """The JSON objects that `buf curl` printed one after the other."""
    decoder, found = json.JSONDecoder(), []
    while printed := printed.lstrip():
        message, end = decoder.raw_decode(printed)
        found.append(message)
        printed = printed[end:]
    return found


def _environment_without_ours(directory):
    """A Python environment with the packages of the present one, but without the project's own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _shell(command, program, folder, *, check=True, timeout_s=120, **environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GLOSSA_"))}
    python = Path(sys.executable).parent if program == OURS else folder / "environment/bin"
    own["PATH"] = f"{python}{os.pathsep}{own['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=own | {name: str(value) for name, value in environment.items()},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert not check or done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done
