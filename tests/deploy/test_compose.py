"""deploy/compose.yaml: what it names exists, and what it starts has limits, health checks and no rights to spare."""

import json
import re
from pathlib import Path

import pytest
import yaml
from compose_spec import PyCompose

from deploy.monitoring.grafana import PROVISIONED
from service.settings.config import ServerSettings
from tests.deploy.image_contents import EXCLUDES

DEPLOY = EXCLUDES.parent.parent / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
DOCKERFILE = (DEPLOY.parent / "Dockerfile").read_text()


def mounts(service):
    """Source and target of every volume of a service."""
    for volume in SERVICES[service].get("volumes", ()):
        found = re.fullmatch(r"(\$\{[^}]*\}|[^:]+):([^:]+)(?::ro)?", volume)
        assert found, volume
        yield found[1], found[2]


def mapped(service, path):
    """The path in the repository that a path inside a service's container has."""
    for source, target in mounts(service):
        if Path(path).is_relative_to(target) and source.startswith("./"):
            return DEPLOY / source / Path(path).relative_to(target)
    return None


def prometheus_flags(storage, config=None):
    """The flags of compose.yaml, with the paths of the repository in place of the container's."""
    found = []
    for flag in SERVICES["prometheus"]["command"]:
        name, _, value = flag.partition("=")
        if name == "--config.file" and config:
            value = str(config)
        elif name == "--storage.tsdb.path":
            value = str(storage)
        elif value.startswith("/"):
            value = str(mapped("prometheus", value))
        found.append(f"{name}={value}")
    return found


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_the_files_follow_the_compose_specification(name):
    text = re.sub(r"\$\{\w+(?::-([^}]*)|[^}]*)\}", lambda found: found[1] or "value", (DEPLOY / name).read_text())
    PyCompose.from_yaml(text).validate()
    with pytest.raises(ValueError, match="bild"):
        PyCompose.from_yaml(text.replace("build:", "bild:"))


@pytest.mark.parametrize("service", SERVICES)
def test_every_mounted_file_exists_and_every_volume_is_declared(service):
    for source, _ in mounts(service):
        if source.startswith("./"):
            assert (DEPLOY / source).exists(), source
        elif not source.startswith("$"):
            assert source in COMPOSE["volumes"], source


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_bounded_watched_and_without_rights(service):
    settings = SERVICES[service]
    assert settings["restart"] == "unless-stopped"
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus"} <= settings.keys()
    assert settings["healthcheck"]["test"][0] == "CMD"


def test_images_of_others_are_pinned_by_version():
    for service in ("prometheus", "grafana"):
        assert re.search(r":v?\d+\.\d+\.\d+\}$", SERVICES[service]["image"]), service


def test_ports_are_those_that_the_image_exposes_and_all_but_grpc_on_loopback():
    defaults = ServerSettings.model_fields
    expected = {defaults["port"].default, defaults["http_port"].default}
    exposed = set(map(int, re.findall(r"^EXPOSE (\d+) (\d+)$", DOCKERFILE, re.MULTILINE)[0]))
    published = {int(port.rpartition(":")[2]) for port in SERVICES["glossa"]["ports"]}
    assert exposed == published == expected
    everywhere = [port for one in SERVICES.values() for port in one["ports"] if not port.startswith("127.0.0.1:")]
    assert everywhere == [f"{defaults['port'].default}:{defaults['port'].default}"]


def test_the_stages_exist_and_the_flags_are_settings():
    cuda = yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text())["services"]["glossa"]
    for one in (SERVICES["glossa"], cuda):
        assert f" AS {one['build']['target']}\n" in DOCKERFILE
        flags = {word[2:].replace("-", "_") for word in one["command"] if word.startswith("--")}
        assert flags <= ServerSettings.model_fields.keys()


def test_the_server_may_drain_before_it_is_killed():
    defaults = ServerSettings.model_fields
    drain_s = defaults["drain_delay_s"].default + defaults["drain_timeout_s"].default
    assert int(SERVICES["glossa"]["stop_grace_period"].removesuffix("s")) > drain_s


def test_prometheus_scrapes_the_server_and_finds_its_rules():
    config = yaml.safe_load(mapped("prometheus", "/etc/prometheus/prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"glossa:{ServerSettings.model_fields['http_port'].default}"]}]
    folder = Path("/etc/prometheus")
    for pattern in config["rule_files"]:
        found = mapped("prometheus", folder / Path(pattern).parent)
        assert list(found.glob(Path(pattern).name)), pattern


def test_grafana_is_provisioned_with_the_source_of_the_dashboard():
    provisioning = mapped("grafana", "/etc/grafana/provisioning")
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["isDefault"]
    assert {name: source[name] for name in PROVISIONED} == PROVISIONED
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    dashboard = json.loads(mapped("grafana", "/etc/grafana/dashboards/glossa.json").read_text())
    (variable,) = (one for one in dashboard["templating"]["list"] if one["type"] == "datasource")
    assert variable["query"] == source["type"]
    assert variable["current"] == {"text": source["name"], "value": source["uid"]}
    used = set(re.findall(r'"uid": "([^"]+)"', json.dumps(dashboard["panels"])))
    assert used == {f"${{{variable['name']}}}"}
    (provider,) = yaml.safe_load((provisioning / "dashboards/glossa.yaml").read_text())["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).parent == Path(provider["options"]["path"])
    assert mapped("grafana", home).is_file()
