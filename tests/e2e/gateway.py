"""smg, unmodified, in front of servers: a process of its own, and what its HTTP API answers."""

import contextlib
import http.client
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from bench.load.peer_server import ending_with_parent
from cli.local_server import free_port

READY_WITHIN_S = 60.0
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


class Gateway:
    """The HTTP API at a port of this machine."""

    def __init__(self, port):
        self._port = port

    def get(self, path):
        """What a page says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            return json.load(answer)

    def post(self, path, **body):
        """The status and the answer to a request."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    @contextlib.contextmanager
    def stream(self, path, **body):
        """The events of a streamed answer. Leaving closes the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            data = json.dumps({**body, "stream": True})
            connection.request("POST", path, data, {"content-type": "application/json"})
            yield _events(connection.getresponse())
        finally:
            connection.close()


def _events(answer):
    for line in answer:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


@contextlib.contextmanager
def in_front_of(program, *addresses):
    """Runs smg at `program` before servers. Yields it once it has found all of them ready, and their tokenizer."""
    port, metrics_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as scratch, open(Path(scratch) / "log", "w+") as log:
        template = Path(scratch) / "chat.jinja"
        template.write_text(CHAT_TEMPLATE)
        command = [program, "launch", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-port", str(metrics_port)]
        command += ["--policy", "round_robin", "--chat-template", template]
        command += ["--worker-urls", *[f"grpc://{address}" for address in addresses]]
        process = subprocess.Popen(ending_with_parent(command), stdout=log, stderr=log, cwd=scratch)
        try:
            gateway, until_s = Gateway(port), time.monotonic() + READY_WITHIN_S
            while not _is_ready(gateway, len(addresses)):
                if process.poll() is not None or time.monotonic() > until_s:
                    log.seek(0)
                    raise AssertionError(f"smg is not ready:\n{log.read()[-4000:]}")
                time.sleep(0.1)
            yield gateway
        finally:
            process.kill()
            process.wait()


def _is_ready(gateway, workers):
    try:
        found = gateway.get("/workers")["workers"]
        tokenizers = gateway.get("/v1/tokenizers")
    except (OSError, http.client.HTTPException, ValueError):
        return False
    return len([one for one in found if one["is_healthy"]]) == workers and bool(tokenizers.get("tokenizers"))
