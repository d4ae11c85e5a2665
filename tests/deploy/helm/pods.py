"""What every pod of a server must be: restricted, with flags that exist, and with the time to drain."""

from typing import Any

from service.settings.config import ServerSettings
from service.settings.loading import load_settings

UID = 65532


def settings_of(arguments):
    """The settings that the server makes of a container's arguments, except that it opens no file."""
    flags: dict[str, Any] = {"models": [each for each in arguments if not each.startswith("--")]}
    for flag in arguments:
        if flag.startswith("--"):
            name, equals, value = flag[2:].replace("no-", "", "=" not in flag).partition("=")
            name = name.replace("-", "_")
            assert name in ServerSettings.model_fields, f"no setting {flag}"
            flags[name] = value if equals else not flag.startswith("--no-")
    return load_settings(flags)


def problems(pod):
    """What is wrong with the spec of a pod."""
    security = pod.get("securityContext", {})
    if pod.get("automountServiceAccountToken") is not False:
        yield "a token of the service account is mounted"
    if pod.get("enableServiceLinks") is not False:
        yield "variables of Services called glossa would be taken for settings"
    if security.get("fsGroup") != UID:
        yield "files of secrets are not for the server's group"
    for container in (*pod.get("initContainers", []), *pod["containers"]):
        for problem in problems_of_container(container, security):
            yield f"{container['name']}: {problem}"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for volume in volumes.values():
        if "secret" in volume and volume["secret"].get("defaultMode", 0o644) & 0o037:
            yield f"volume {volume['name']}: others may read it, or its group write it"
    (server,) = pod["containers"]
    settings = settings_of(server["args"])
    drain_s = sleep_before_stop_s(server) + settings.drain_delay_s + settings.drain_timeout_s
    if pod["terminationGracePeriodSeconds"] <= drain_s:
        yield f"{pod['terminationGracePeriodSeconds']} s to end, the drain takes {drain_s:g} s"
    mounts = {mount["mountPath"] for mount in server["volumeMounts"]}
    if not {mount["name"] for mount in server["volumeMounts"]} <= volumes.keys():
        yield "a mount has no volume"
    files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca, settings.tokens)
    for path in (*settings.models.values(), *filter(None, files)):
        if not any(str(path).startswith(mount) for mount in mounts):
            yield f"{path} is in no volume"
    yield from problems_of_probes(server, settings)


def sleep_before_stop_s(container):
    """How long preStop sleeps, by the kubelet or, before Kubernetes 1.30, by a program."""
    hook = container.get("lifecycle", {}).get("preStop", {})
    return float(hook["exec"]["command"][1] if "exec" in hook else hook.get("sleep", {}).get("seconds", 0))


def problems_of_container(container, pod_security):
    """What the profile `restricted` of pod security refuses, and a root that can be written."""
    security = {**pod_security, **container.get("securityContext", {})}
    expected = {
        "runAsNonRoot": True,
        "runAsUser": UID,
        "runAsGroup": UID,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for name, value in expected.items():
        if security.get(name) != value:
            yield f"{name} is {security.get(name)!r}"
    if "memory" not in container.get("resources", {}).get("limits", {}):
        yield "no memory limit"


def problems_of_probes(container, settings):
    """Probes that ask a port or a protocol that the server has not."""
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(name, {})
        if "grpc" in probe:
            if settings.tls_certificate is not None:
                yield f"{name}: the kubelet speaks no TLS"
            if probe["grpc"]["port"] != settings.port:
                yield f"{name}: asks port {probe['grpc']['port']}, gRPC is on {settings.port}"
        elif "httpGet" in probe:
            port = probe["httpGet"]["port"]
            if ports.get(port, port) != settings.http_port or probe["httpGet"]["path"] not in ("/healthz", "/readyz"):
                yield f"{name}: {probe['httpGet']} is not on the ops port"
        elif name != "startupProbe":
            yield f"no {name}"
    if container.get("livenessProbe", {}).get("httpGet", {}).get("path") != "/healthz":
        yield "livenessProbe: a server that drains or is overloaded would be restarted"
    for host in (settings.host, settings.http_host):
        if host != "0.0.0.0":
            yield f"listens on {host} alone"
