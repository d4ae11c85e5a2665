#!/usr/bin/env bash
# sentencepiece 0.2.3 has a module that protobuf below 7.36.1 refuses, and its metadata does not say so.
#
# Whom: who reads or edits SentencePiece models by sentencepiece.sentencepiece_model_pb2 beside packages that need
# protobuf 6. Cost: pip installs both and finds no conflict; the import fails when it is first needed.
# Source: the metadata of sentencepiece 0.2.3 names protobuf in an extra alone, of any version; a similar case is
# google/sentencepiece#889 (2023).
# Expected: what `pip check` approves of can be imported. Seen: VersionError, gencode 7.36.1, runtime 6.33.6.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check sentencepiece==0.2.3 protobuf==6.33.6
"$folder/bin/python" - <<'PYTHON'
import subprocess
import sys
from importlib.metadata import requires, version

print(f"sentencepiece {version('sentencepiece')}, protobuf {version('protobuf')}")
print(f"requirements of sentencepiece: {[each for each in requires('sentencepiece') or () if 'protobuf' in each]}")
check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
print(f"pip check: {check.stdout.strip()}")
try:
    from sentencepiece import sentencepiece_model_pb2  # noqa: F401
except Exception as error:
    print(f"expected an import, seen {type(error).__name__}: {str(error)[:130]}")
    sys.exit(check.returncode)
print("expected an import, seen one")
sys.exit(1)
PYTHON
