#!/usr/bin/env bash
# An added word with letters such as ö, in a byte-level vocabulary, decodes to other text in tokenizers 0.23.3.
#
# Whom: who adds words to a tokenizer of the GPT-2 kind (domain terms, names). Cost: encoding finds the word, decoding
# damages it. The ByteLevel decoder takes each letter for a byte of the GPT-2 table: a letter of the table becomes one
# byte, which alone is no UTF-8. Words with a letter outside the table stay whole.
# Source: huggingface/tokenizers#1392 (2023), closed with another normalizer (#1555);
# the documentation of add_tokens names no condition.
# Expected: decoding gives back the text. Seen: replacement characters for "Größe" and "café", the text for "東京".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/bin/python" - <<'PYTHON'
import sys

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

print(f"tokenizers {tokenizers.__version__}")
WORDS = ("size", "Größe", "café", "Łódź", "東京")


def byte_level():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


whole = {}
for word in WORDS:
    text = f"The {word} of it"
    plain, added = byte_level(), byte_level()
    added.add_tokens([word])
    assert plain.decode(plain.encode(text).ids) == text
    assert word in added.encode(text).tokens
    seen = added.decode(added.encode(text).ids)
    whole[word] = seen == text
    print(f"added {word}: expected {text!r}, seen {seen!r}")
sys.exit(whole["Größe"] or whole["café"] or not whole["size"])
PYTHON
