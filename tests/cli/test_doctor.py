"""`glossa doctor` as a command."""

from tests.cli.command import run


def test_doctor_finds_a_bad_bundle(exported, tmp_path):
    assert str(exported) in run("doctor", exported)
    assert "fix:" in run("doctor", tmp_path, fails=True)
