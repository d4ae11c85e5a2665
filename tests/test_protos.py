"""The public API keeps its promise: `buf breaking` compares the .proto with that of the last release."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glossa.v1 import admin_pb2, glossa_pb2

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "protos/glossa/v1/glossa.proto"
FIELD = "  int32 max_tokens = 1;\n"


def breaking(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """Runs `buf breaking` on a module whose .proto has this text, against the committed baseline."""
    copy = folder / PROTO.relative_to(ROOT)
    copy.parent.mkdir(parents=True)
    copy.write_text(text)
    shutil.copytree(ROOT / "protos/google", folder / "protos/google")
    shutil.copy(ROOT / "buf.yaml", folder)
    command = [str(Path(sys.executable).parent / "buf"), "breaking", "--against", str(ROOT / "protos/baseline.txtpb")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_api_is_compatible_with_the_last_release(tmp_path):
    result = breaking(tmp_path, PROTO.read_text())
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        ("", 'Previously present field "1" with name "max_tokens" on message "DecodingOptions" was deleted'),
        ("  int32 most_tokens = 1;\n", 'changed name from "max_tokens" to "most_tokens"'),
        ("  string max_tokens = 1;\n", 'changed type from "int32" to "string"'),
    ],
)
def test_an_incompatible_change_is_rejected(tmp_path, replacement, message):
    text = PROTO.read_text()
    assert FIELD in text
    result = breaking(tmp_path, text.replace(FIELD, replacement, 1))
    assert result.returncode != 0
    assert message in result.stdout


@pytest.mark.parametrize("module", [glossa_pb2, admin_pb2])
def test_the_packages_of_stubs_stay(module):
    options = module.DESCRIPTOR.GetOptions()
    assert (options.go_package, options.java_package, options.java_multiple_files, options.csharp_namespace) == (
        ("glossa/v1;glossav1", "glossa.v1", True, "Glossa.V1")
    )


def test_a_new_field_is_compatible(tmp_path):
    text = PROTO.read_text().replace(FIELD, FIELD + "  // New.\n  int32 a_new_option = 1000;\n", 1)
    assert breaking(tmp_path, text).returncode == 0
