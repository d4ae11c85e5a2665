"""The corpus of the demo as a file."""

from tests.cli.command import run


def test_pairs_are_written_and_depend_on_the_seed_alone(tmp_path):
    one, other = tmp_path / "one.tsv", tmp_path / "other.tsv"
    assert run("corpus", one, "--count", 20, "--split", "test") == f"{one}: 20 pairs\n"
    run("corpus", other, "--count", 20, "--split", "test")
    assert one.read_bytes() == other.read_bytes()
    assert [len(line.split("\t")) for line in one.read_text().splitlines()] == [2] * 20
    run("corpus", other, "--count", 20, "--split", "test", "--seed", 2)
    assert one.read_bytes() != other.read_bytes()
