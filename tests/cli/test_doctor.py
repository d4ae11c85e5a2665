"""`glossa doctor` as a command."""

from tests.cli.command import run


def test_doctor_finds_a_bad_bundle(trained_bundle, tmp_path):
    assert str(trained_bundle) in run("doctor", trained_bundle)
    assert "fix:" in run("doctor", tmp_path, fails=True)
