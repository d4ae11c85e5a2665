import re

import pytest
import yaml

from codegen import settings
from service.settings.config import ServerSettings, load_settings


def test_every_setting_has_a_row_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", "".join(settings.rows()), re.MULTILINE))
    assert list(rows) == list(ServerSettings.model_fields)
    assert "| 256 |" in rows["max_queue"]
    assert "| required |" in rows["models"]
    assert "| none |" in rows["tls_key"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("port", "integer 0..65,535"),
        ("tenant_share", "number >0 <1"),
        ("max_deadline_s", "number >0 ≤86,400"),
        ("tls_key", "path"),
        ("device", "`auto`, `cpu`, `cuda`"),
        ("adaptors", "some of `open-inference`, `vllm`"),
        ("glossaries", "mapping"),
        ("reflection", "true, false"),
    ],
)
def test_accepted_values_are_told_in_words(name, words):
    assert settings.accepts(ServerSettings.model_json_schema()["properties"][name]) == words


def test_the_sample_file_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("GLOSSA_CONFIG", raising=False)
    path = tmp_path / "settings.yaml"
    path.write_text(settings.sample())
    assert yaml.safe_load(settings.sample()).keys() <= ServerSettings.model_fields.keys()
    read = load_settings({"config": path}).model_dump(exclude={"config"})
    assert read == load_settings({"models": {"demo": settings.BUNDLE}}).model_dump(exclude={"config"})


def test_the_page_is_up_to_date():
    settings.main(["--check"])
