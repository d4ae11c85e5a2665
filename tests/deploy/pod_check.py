"""Runs the pod of glossa.yaml with `podman play kube`: `python -m tests.deploy.pod_check IMAGE [BUNDLE]`.

What a machine without a cluster can show: the server starts with the pod's arguments, security, volumes and limits,
becomes ready by its own probe, and on SIGTERM under load ends every stream that it began, within the pod's time to end.
Changed are the image, ports, which are the host's own, and the claim, which is a folder. podman has no gRPC probes and
no preStop: what the kubelet would do is done here. Without a BUNDLE a tiny one is exported. Needs podman and catatonit.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.kubernetes.__main__ import FILE
from glossa.client import Client
from tests.deploy.image_check import INSIDE, STREAMS, TEXT, Container, Load, run

# crun refuses machines that mount cgroup controllers one by one; podman's own limits are more than some machines allow.
_PODMAN = """\
[engine]
{runtime}
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
"""


def pod_of(image: str, models: Path, port: int, http_port: int) -> dict[str, Any]:
    """The pod of glossa.yaml, as podman can run it. models: a folder with the bundle `demo`."""
    (deployment,) = [
        each for each in yaml.safe_load_all(FILE.read_text()) if each is not None and each["kind"] == "Deployment"
    ]
    spec: dict[str, Any] = copy.deepcopy(deployment["spec"]["template"]["spec"])
    (server,) = spec["containers"]
    ports = {"--port=50051": f"--port={port}", "--http-port=9464": f"--http-port={http_port}"}
    assert ports.keys() <= set(server["args"]), server["args"]
    server |= {"image": image, "imagePullPolicy": "Never", "args": [ports.get(each, each) for each in server["args"]]}
    del server["ports"]  # podman maps them, which the host's network does not allow
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        del server[probe]  # podman would run curl, which the image does not have
    for volume in spec["volumes"]:
        if volume.pop("persistentVolumeClaim", None):
            volume["hostPath"] = {"path": str(models), "type": "Directory"}
    spec |= {"hostNetwork": True, "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"glossa-pod-{os.getpid()}"}, "spec": spec}


class Pod(Container):
    """The pod of glossa.yaml with its one container."""

    def __init__(self, image: str, models: Path, folder: Path) -> None:
        super().__init__("podman")
        self.manifest = pod_of(image, models, self.port, self.http_port)
        self.pod = self.manifest["metadata"]["name"]
        self.name = f"{self.pod}-glossa"
        self._file = folder / "pod.yaml"
        self._file.write_text(yaml.safe_dump(self.manifest))

    def play(self) -> None:
        self._run("play", "kube", str(self._file))

    def remove(self) -> None:
        self._run("pod", "rm", "--force", "--time", "1", self.pod)


def check(image: str, _tool: str, bundle: Path) -> None:
    """Raises AssertionError for what is not as the pod promises."""
    with tempfile.TemporaryDirectory() as directory:
        folder, models = Path(directory), Path(directory) / "models"
        folder.chmod(0o755)
        shutil.copytree(bundle, models / "demo")
        runtime = 'runtime = "runc"' if shutil.which("runc") else ""
        (folder / "containers.conf").write_text(_PODMAN.format(runtime=runtime))
        os.environ["CONTAINERS_CONF"] = str(folder / "containers.conf")
        pod = Pod(image, models, folder)
        try:
            pod.play()
            _check(pod)
        except BaseException:
            print("\n".join(pod.log().splitlines()[-30:]), file=sys.stderr)
            raise
        finally:
            pod.remove()


def _check(pod: Pod) -> None:
    spec = pod.manifest["spec"]
    print(f"ready after {pod.wait_until_ready():.1f} s")
    pod.execute("python3", "-c", INSIDE)
    assert pod.inspect(".EffectiveCaps") == "[]", pod.inspect(".EffectiveCaps")
    assert pod.inspect(".HostConfig.Memory") == str(2 << 30), pod.inspect(".HostConfig.Memory")
    print("inside: user 65532, root not writable, no capabilities, the memory limit of the pod")
    address = f"127.0.0.1:{pod.port}"
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, answer
    with Client(address) as client:
        tokens = client.translate(TEXT).generated_tokens
    print(f"the readiness probe's question: SERVING; translated {tokens} tokens")

    load = Load(address)
    while load.finished < 3 * STREAMS:
        assert not load.has_ended, f"all streams ended early: broken {load.broken}, refused {dict(load.refused)}"
        time.sleep(0.01)
    began_s, limit_s = time.monotonic(), spec["terminationGracePeriodSeconds"]
    time.sleep(spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"])
    before, streams = load.finished, load.running
    pod.terminate()
    load.join()
    status, took_s = pod.wait(), time.monotonic() - began_s
    assert not load.broken, f"streams without an end: {load.broken}"
    assert load.finished > before, "no stream ended after SIGTERM: there was no load"
    assert status == 0, f"exit status {status}"
    assert took_s < limit_s, f"ended after {took_s:.1f} s, the pod has {limit_s} s"
    print(
        f"preStop and SIGTERM with {streams} streams in flight: ended after {took_s:.1f} s of {limit_s} s, "
        f"{load.finished - before} streams ended whole after SIGTERM, none broke, exit 0"
    )


if __name__ == "__main__":
    run(check)
