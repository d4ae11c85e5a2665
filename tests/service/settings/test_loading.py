import os
import re
from pathlib import Path

import pytest

from service.errors import StartupError
from service.settings.config import ServerSettings
from service.settings.loading import load_settings

DOCS = Path(__file__).parents[3] / "docs" / "engine_processes.md"
MODELS = {"models": ["en-de=/models/en-de"]}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith("GLOSSA_"):
            monkeypatch.delenv(name)


@pytest.fixture
def yaml_file(tmp_path, monkeypatch):
    def write(text):
        path = tmp_path / "glossa.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.setenv("GLOSSA_CONFIG", str(path))
        return path

    return write


def test_flag_beats_environment_beats_file_beats_default(yaml_file, monkeypatch):
    yaml_file("models: {en-de: /a}\nport: 1\nhttp_port: 2\nmax_queue: 3\n")
    monkeypatch.setenv("GLOSSA_PORT", "10")
    monkeypatch.setenv("GLOSSA_HTTP_PORT", "20")
    settings = load_settings({"port": 100})
    assert (settings.port, settings.http_port, settings.max_queue, settings.max_rows) == (100, 20, 3, 64)


def test_the_config_flag_beats_its_variable(yaml_file, tmp_path):
    yaml_file("port: 1\n")
    other = tmp_path / "other.yaml"
    other.write_text("port: 2\n")
    assert load_settings({**MODELS, "config": other}).port == 2


@pytest.mark.parametrize("value", [["a=/x", "b=/y=z"], "a=/x,b=/y=z", {"a": "/x", "b": "/y=z"}])
def test_models_from_flags_environment_and_yaml(value):
    models = load_settings({"models": value}).models
    assert {name: str(path) for name, path in models.items()} == {"a": "/x", "b": "/y=z"}


def test_models_from_the_environment(monkeypatch):
    monkeypatch.setenv("GLOSSA_MODELS", "a=/x,b=/y")
    assert list(load_settings({}).models) == ["a", "b"]


def test_unknown_variable_is_rejected_with_a_suggestion(monkeypatch):
    monkeypatch.setenv("GLOSSA_MAX_QUEU", "3")
    with pytest.raises(StartupError, match=r"GLOSSA_MAX_QUEU: unknown setting; did you mean GLOSSA_MAX_QUEUE\?"):
        load_settings(MODELS)


def test_unknown_yaml_key_is_rejected_with_a_suggestion(yaml_file):
    yaml_file("http_prot: 9000\n")
    with pytest.raises(StartupError, match=r"http_prot: unknown setting; did you mean http_port\?"):
        load_settings(MODELS)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "models: not set; name at least one model"),
        ({"models": []}, "--models: must name at least one model"),
        (
            {"models": ["runs/en-de.bundle"]},
            "--models: must be NAME=BUNDLE, such as en-de=runs/en-de.bundle, got 'runs",
        ),
        ({"models": ["runs/demo/bundle"]}, "such as demo=runs/demo/bundle, got 'runs/demo/bundle'"),
        ({"models": ["my model.bundle"]}, "such as my-model=my model.bundle, got"),
        ({"models": ["=/x"]}, "such as x=/x, got '=/x'"),
        ({"models": ["en="]}, "such as en=en, got 'en='"),
        ({"models": ["a=/x", "a=/y"]}, "--models: must have each name once, got a twice; rename one"),
        ({"models": ["a b=/x"]}, "--models: a name must be .*got 'a b'"),
        ({**MODELS, "port": 99999}, "--port: must be at most 65535, got 99999"),
        ({**MODELS, "port": "many"}, "--port: must be a whole number, got 'many'"),
        ({**MODELS, "max_rows": "0"}, "--max-rows: must be at least 1, got '0'"),
        ({**MODELS, "drain_delay_s": "soon"}, "--drain-delay-s: must be a number, got 'soon'"),
        ({**MODELS, "reflection": "perhaps"}, "--reflection: must be true or false, got 'perhaps'"),
        ({**MODELS, "precision": "int2"}, "--precision: .*'int4', 'fp16' or 'w4a16', got 'int2'"),
        ({**MODELS, "cuda_devices": "0,x"}, "--cuda-devices: must be different numbers of devices.*got '0,x'"),
        ({**MODELS, "cuda_devices": "1,1"}, "--cuda-devices: must be different numbers of devices.*got '1,1'"),
        ({**MODELS, "cuda_devices": ""}, "--cuda-devices: must be different numbers of devices"),
        ({**MODELS, "device": "tpu"}, "--device: .*'auto', 'cpu' or 'cuda', got 'tpu'"),
        ({**MODELS, "drain_delay_s": float("nan")}, "--drain-delay-s: .*got nan"),
        (
            {**MODELS, "engines": 6, "engines_per_process": 4},
            "settings: --engines-per-process must divide engines, 6, got 4",
        ),
        (
            {**MODELS, "pin_processes": True, "engines_per_process": 2, "single_engine_threads": 3},
            "settings: --single-engine-threads must be at most --engines-per-process, 2, with --pin-processes, got 3",
        ),
        (
            {**MODELS, "process_memory_bytes": (1 << 28) - 1},
            "settings: --process-memory-bytes must be 0 or at least 268435456, got 268435455",
        ),
        ({**MODELS, "process_memory_bytes": -1}, "--process-memory-bytes: must be at least 0, got -1"),
        ({**MODELS, "process_start_timeout_s": 0}, "--process-start-timeout-s: must be above 0"),
        ({**MODELS, "config": "/nowhere.yaml"}, "config: no such file: /nowhere.yaml; give the path"),
    ],
)
def test_a_bad_value_is_reported_with_setting_value_and_limit(flags, message):
    with pytest.raises(StartupError, match=message):
        load_settings(flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"engines": 6, "engines_per_process": 3},
        {"engines": 6, "engines_per_process": 0},
        {"engines": 0, "engines_per_process": 4},  # as many engines as processors, which is not known here
        {"pin_processes": True, "engines_per_process": 2, "single_engine_threads": 2},
        {"pin_processes": True, "engines_per_process": 0, "single_engine_threads": 8},
        {"pin_processes": False, "engines_per_process": 2, "single_engine_threads": 8},
        {"process_memory_bytes": None},
        {"process_memory_bytes": 0},
        {"process_memory_bytes": 1 << 28},
    ],
)
def test_engine_processes_that_are_possible_are_accepted(flags):
    settings = load_settings({**MODELS, **flags})
    assert {name: getattr(settings, name) for name in flags} == flags


def test_bad_variable_is_named_as_a_variable(monkeypatch):
    monkeypatch.setenv("GLOSSA_PORT", "many")
    with pytest.raises(StartupError, match=r"GLOSSA_PORT: .*got 'many'"):
        load_settings(MODELS)


def test_broken_yaml_is_named(yaml_file):
    yaml_file("port: [1\n")
    with pytest.raises(StartupError, match="config: not readable as YAML"):
        load_settings(MODELS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- port: 1\n", "must be a mapping of settings, is a list: {}; write one setting a line, such as max_queue: "),
        ("port 1\n", "must be a mapping of settings, is text: {}; write one setting a line"),
        ("0\n", "must be a mapping of settings, is a single value: {}; write"),
        ("1: 2\n", "must have text as keys, has 1: {}; write the name of a setting"),
        ("on: 2\n", "must have text as keys, has True: {}; write the name of a setting"),
        ("commit: ü\n".encode("latin-1"), "must be UTF-8, is not at byte 8: {}; convert it"),
        ("commit: 2026-13-45\n", "not readable as YAML: {}: month must be in 1..12"),
    ],
)
def test_a_file_that_has_no_settings_is_named_with_its_problem(yaml_file, text, message):
    path = yaml_file(text)
    with pytest.raises(StartupError, match=re.escape(f"config: {message.format(path)}")):
        load_settings(MODELS)


def test_a_file_that_cannot_be_read_is_named(yaml_file, monkeypatch):
    path = yaml_file("port: 1\n")

    def refuse(_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StartupError, match=f"config: cannot be read: {path}: Permission denied; check its permissions"):
        load_settings(MODELS)


def test_a_file_may_be_empty_or_begin_with_a_byte_order_mark(yaml_file):
    yaml_file("# nothing yet\n")
    assert load_settings(MODELS).max_queue == 256
    yaml_file("\ufeffmax_queue: 3\n")
    assert load_settings(MODELS).max_queue == 3


def test_every_setting_is_described():
    assert [name for name, field in ServerSettings.model_fields.items() if not field.description] == []


def test_docs_list_every_setting_of_engine_processes_and_no_other():
    listed = re.findall(r"^\| (`--.*?) \| ", DOCS.read_text(), re.MULTILINE)
    flags = {flag.replace("-", "_") for row in listed for flag in re.findall(r"`--([a-z-]+)`", row)}
    assert flags <= set(ServerSettings.model_fields)
    assert flags >= {name for name in ServerSettings.model_fields if "process" in name or name == "engines"}


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_settings(MODELS).port = 1


@pytest.mark.parametrize("value", ["acme=2,team/b=0.5,a=b=1", {"acme": 2, "team/b": 0.5, "a=b": 1}])
def test_weights_of_tenants_from_flags_and_yaml(value):
    weights = load_settings({**MODELS, "tenant_weights": value}).tenant_weights
    assert weights == {"acme": 2.0, "team/b": 0.5, "a=b": 1.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("acme", "must be NAME=NUMBER"),
        ("a b=1", "must be NAME=NUMBER"),
        ("acme=1,acme=2", "must have each name once"),
        ("acme=0", r"must be at least 0\.01"),
        ("acme=nan", "must be"),
        ("acme=101", "must be at most 100"),
        ("acme=x", "must be a number"),
    ],
)
def test_invalid_weights_are_rejected(value, message):
    with pytest.raises(StartupError, match=f"--tenant-weights: {message}"):
        load_settings({**MODELS, "tenant_weights": value})


@pytest.mark.parametrize("value", ["a=/x/a.tsv, b=/b.tsv", {"a": "/x/a.tsv", "b": "/b.tsv"}])
def test_glossaries_from_flags_and_yaml(value):
    found = load_settings({**MODELS, "glossaries": value}).glossaries
    assert found == {"a": Path("/x/a.tsv"), "b": Path("/b.tsv")}


@pytest.mark.parametrize("value", ["a", "a=", "a=x,a=y", {"a/b": "x"}])
def test_invalid_glossaries_are_rejected(value):
    with pytest.raises(StartupError, match=r"--glossaries: (must be NAME=FILE|a name must be)"):
        load_settings({**MODELS, "glossaries": value})


def test_a_cache_smaller_than_one_answer_is_refused_with_the_rule():
    with pytest.raises(
        StartupError, match="answer-cache-bytes: must be 0, or at least 4194304: one answer may take so"
    ):
        load_settings({**MODELS, "answer_cache_bytes": 4194303})
    assert load_settings({**MODELS, "answer_cache_bytes": 4194304}).answer_cache_bytes == 4194304


@pytest.mark.parametrize("value", ["acme=0", "acme=-5", "acme=1.5", "acme=none"])
def test_a_quota_of_tokens_must_be_a_positive_number(value):
    with pytest.raises(StartupError, match="tenant-tokens-per-minute"):
        load_settings({**MODELS, "tenant_tokens_per_minute": value})
