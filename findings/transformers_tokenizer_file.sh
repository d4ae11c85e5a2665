#!/usr/bin/env bash
# The GPT2Tokenizer and Qwen2Tokenizer of transformers 5.24.0 drop normalizer and pre-tokenizer of a tokenizer.json.
#
# Whom: who loads a checkpoint whose tokenizer_config.json names one of these classes, and whose tokenizer.json has
# other steps than the class (digits one by one, lower case). Cost: other ids than those of training, without a word.
# Source: the file describes the whole tokenizer, and tokenizers.Tokenizer.from_file follows it. Known for single models
# (huggingface/transformers#45812 and #45920, closed); #44254, which would have mended the kind, was closed, too.
# Expected: both ways of loading one file give the same ids. Seen: GPT2Tokenizer drops Digits and Lowercase, and
# Qwen2Tokenizer drops Lowercase and splits digits whatever the file says, without a warning; PreTrainedTokenizerFast
# gives the ids of the file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 tokenizers==0.23.3
TRANSFORMERS_VERBOSITY=warning "$folder/bin/python" - "$folder" <<'PYTHON'
import json
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

print(f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}")
TEXT = "Year 2023"
MERGES = [("2", "0"), ("2", "3"), ("20", "23"), ("Y", "e"), ("y", "e")]


def save(folder, name, normalizer, steps):
    """A byte-level vocabulary of the 256 bytes and a few merges, with the steps of a checkpoint before them."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, MERGES))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))


STEPS = {
    "no other step": (None, []),
    "Digits": (None, [pre_tokenizers.Digits(individual_digits=True)]),
    "Lowercase": (normalizers.Lowercase(), []),
}
CLASSES = ("PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer")
equal = {}
for number, (step, (normalizer, steps)) in enumerate(STEPS.items()):
    for name in CLASSES:
        folder = Path(sys.argv[1], f"{name}-{number}")
        save(folder, name, normalizer, steps)
        expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).tokens
        loaded = transformers.AutoTokenizer.from_pretrained(folder)
        seen = loaded.convert_ids_to_tokens(loaded(TEXT, add_special_tokens=False)["input_ids"])
        equal[step, name] = seen == expected
        print(f"{step}, {name}: expected {expected}, seen {seen} ({type(loaded).__name__})")
differing = {("no other step", "Qwen2Tokenizer"), ("Digits", "GPT2Tokenizer")}
differing |= {("Lowercase", "GPT2Tokenizer"), ("Lowercase", "Qwen2Tokenizer")}
sys.exit({case for case, same in equal.items() if not same} != differing)
PYTHON
