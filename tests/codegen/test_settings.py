import re

import pytest
import yaml

from codegen import settings
from service.settings.config import ServerSettings
from service.settings.loading import load_settings


def test_every_setting_has_its_meaning_values_and_default():
    text = settings.sample()
    found = re.findall(r"((?:^#.*\n)+)^(?:# )?(\w+):(.*)$", text, re.MULTILINE)
    assert [name for _, name, _ in found] == [name for name in ServerSettings.model_fields if name != "config"]
    for comment, name, _ in found:
        words = " ".join(comment.replace("#", " ").split())
        assert " ".join((ServerSettings.model_fields[name].description or "").split()) in words, name
    defaults = {name: value for _, name, value in found}
    assert defaults["max_queue"] == " 256"
    assert "# tls_key:\n" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("port", "integer 0..65,535"),
        ("tenant_share", "number >0 <1"),
        ("max_deadline_s", "number >0 ≤86,400"),
        ("tls_key", "path"),
        ("device", "`auto`, `cpu`, `cuda`"),
        ("adaptors", "some of `open-inference`, `vllm`, `riva`, `google-translation`"),
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
