"""`glossa doctor` as a command."""

from tests.cli.command import run


def test_doctor_finds_a_bad_bundle(trained_bundle, tmp_path):
    assert str(trained_bundle) in run("doctor", trained_bundle)
    assert "fix:" in run("doctor", tmp_path, fails=True)


def test_doctor_names_a_settings_file_that_cannot_be_used(trained_bundle, tmp_path, monkeypatch):
    settings = tmp_path / "glossa.yaml"
    monkeypatch.setenv("GLOSSA_CONFIG", str(settings))
    for data, problem in (
        (b"- port: 1\n", "must be a mapping"),
        (b"commit: \xfc\n", "must be UTF-8"),
        (b"1: 2\n", "text"),
    ):
        settings.write_bytes(data)
        assert f"config: {problem}" in run("doctor", trained_bundle, fails=True).replace("must have text", "text")
