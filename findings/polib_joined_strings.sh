#!/usr/bin/env bash
# polib 1.2.0 does not read two strings on one line of a catalog of gettext, which GNU gettext takes as one.
#
# Whom: tools that read the catalogs of others, such as the glossary of git-gui. Cost: one such line, and the whole file
# is refused as broken, though msgfmt compiles it.
# Source: GNU gettext's manual, The Format of PO Files: strings may be split in several, as in C.
# Expected: an entry "ab". Seen: OSError, "unescaped double quote found".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check polib==1.2.0
cat >"$folder/catalog.po" <<'PO'
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\n"

msgid "a" "b"
msgstr "c"
PO
if command -v msgfmt >/dev/null; then
  msgfmt --check --output-file=/dev/null "$folder/catalog.po" && echo "$(msgfmt --version | head -1): no error"
fi
"$folder/bin/python" - "$folder/catalog.po" <<'PYTHON'
import importlib.metadata
import sys

import polib

print(f"polib {importlib.metadata.version('polib')}")
try:
    found = [entry.msgid for entry in polib.pofile(sys.argv[1])]
except OSError as error:
    found = str(error).replace(sys.argv[1], "catalog.po")
print(f"expected ['ab'], seen {found}")
sys.exit("unescaped double quote" not in str(found))
PYTHON
