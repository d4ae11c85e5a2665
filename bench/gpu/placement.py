"""Where ONNX Runtime puts the nodes of a graph on CUDA, read from the verbose log of opening it as the service does."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime as ort

from export.bundle.manifest import SESSION_THREADS
from service.machine.execution_choice import CPU, CUDA
from service.runtime import sessions


class Placement(NamedTuple):
    """A graph's session; None: it cannot be opened, and error says why. obstacle: why it cannot be captured.

    cuda: the number of nodes there; cpu, memcpy: operators on the CPU, and of copies between host and device.
    """

    session: Any
    cuda: int
    cpu: list[str]
    memcpy: list[str]
    obstacle: str
    error: str


def place(file: Path) -> Placement:
    """Opens a graph, to be captured where that is possible."""
    session, log, obstacle = opened(file, captures=True)
    error = ""
    if session is None:
        session, log, error = opened(file, captures=False)
    nodes = nodes_by_provider(log)
    memcpy = sorted(re.findall(r" Add (Memcpy\w+)", log))
    on_cuda = len(nodes.get(CUDA, [])) - len(memcpy)  # Memcpy nodes are among them
    return Placement(session, on_cuda, sorted(nodes.get(CPU, [])), memcpy, obstacle, error)


def opened(file: Path, *, captures: bool) -> tuple[Any, str, str]:
    """The session as the service opens it, or None, with its verbose log and why it cannot be opened."""

    class Verbose(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, graph: bytes, options: Any, **more: Any) -> None:
            options.log_severity_level = 0
            super().__init__(graph, options, **more)

    quiet, stderr = ort.InferenceSession, os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        ort.InferenceSession = Verbose
        try:
            providers = sessions.providers_of(CUDA, captures=captures)
            config = sessions.session_config(providers)
            session = sessions._open_session(file.read_bytes(), file.parent, providers, SESSION_THREADS, config)
            error = ""
        except Exception as refused:  # ONNX Runtime has no common error class
            session, error = None, str(refused)
        finally:
            ort.InferenceSession = quiet
            os.dup2(stderr, 2)
            os.close(stderr)
        log.seek(0)
        return session, log.read().decode(errors="replace"), error


def nodes_by_provider(log: str) -> dict[str, list[str]]:
    """Operators of the nodes that a verbose log lists under each provider."""
    found: dict[str, list[str]] = {}
    provider = ""
    for line in log.splitlines():
        if all_nodes := re.search(r"All nodes placed on \[(\w+)\]\. Number of nodes: (\d+)", line):
            found[all_nodes[1]] = ["?"] * int(all_nodes[2])
        elif some := re.search(r"Node\(s\) placed on \[(\w+)\]", line):
            provider = some[1]
        elif provider and (node := re.search(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \(", line)):
            found.setdefault(provider, []).append(node[1])
    return found
