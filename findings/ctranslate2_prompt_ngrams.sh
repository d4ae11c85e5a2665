#!/usr/bin/env bash
# no_repeat_ngram_size of CTranslate2 4.8.5 does not see the prompt of a decoder-only model, though the result holds it.
#
# Whom: who has a decoder-only model go on with a text and forbids repetitions. Cost: an answer may repeat the prompt's
# n-grams, and other engines answer the same request differently: transformers 5.23.0 and onnxruntime-genai 0.18.0 count
# the prompt. (repetition_penalty leaves it out, too, which its documentation says: "previously generated tokens".)
# Source: the documentation of generate_batch: "Prevent repetitions of ngrams with this size".
# Expected: no returned sequence has a bigram twice. Seen: "abab" for the prompt "aba", the prompt in the result and
# not, greedy and beam; a bigram within the answer is prevented.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check ctranslate2==4.8.5 numpy==2.4.6
"$folder/bin/python" - "$folder" <<'PYTHON'
import sys

import ctranslate2
import numpy as np
from ctranslate2 import specs

print(f"ctranslate2 {ctranslate2.__version__}, numpy {np.__version__}")
SYMBOLS, SIZE, EPSILON = "?^.abcde", 8, 1e-6  # unknown, begin, end, and five words
NEXT = {"a": {"b": 0.6, "c": 0.4}, "b": {".": 1}, "c": {".": 1}, "d": {"e": 0.6, ".": 0.4}, "e": {"d": 1}}
table = np.full((SIZE, SIZE), 1e-7, np.float32)
for last, row in NEXT.items():
    for symbol, probability in row.items():
        table[SYMBOLS.index(last), SYMBOLS.index(symbol)] = probability

# Token vectors are the rows of a unit matrix, the layer adds nothing, and the projection is the table.
spec = specs.TransformerDecoderModelSpec.from_config(1, 2, rms_norm=True)
decoder, (layer,) = spec.decoder, spec.decoder.layer
decoder.scale_embeddings = False
decoder.embeddings.weight = np.eye(SIZE, dtype=np.float32)
decoder.position_encodings.encodings = np.zeros((32, SIZE), np.float32)
decoder.layer_norm.gamma = np.full(SIZE, np.sqrt(1 / SIZE + EPSILON), np.float32)
decoder.projection.weight = np.ascontiguousarray(np.log(table).T)
for norm in (layer.self_attention.layer_norm, layer.ffn.layer_norm):
    norm.gamma = np.ones(SIZE, np.float32)
for linear, rows in zip(layer.self_attention.linear, (3, 1), strict=True):
    linear.weight = np.zeros((rows * SIZE, SIZE), np.float32)
for linear in (layer.ffn.linear_0, layer.ffn.linear_1):
    linear.weight = np.zeros((SIZE, SIZE), np.float32)
spec.register_vocabulary(list(SYMBOLS))
spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = SYMBOLS[:3]
spec.config.layer_norm_epsilon = EPSILON
spec.validate()
spec.save(sys.argv[1])


def answer(prompt, **options):
    """The most likely continuation, in which no bigram may come twice."""
    (result,) = generator.generate_batch([list(prompt)], max_length=8, no_repeat_ngram_size=2, **options)
    sequence = "".join(result.sequences[0])
    return sequence.removeprefix(prompt) if options["include_prompt_in_result"] else sequence


generator, answers = ctranslate2.Generator(sys.argv[1]), {"aba": set(), "d": set()}
for included in (True, False):
    for beam_size in (1, 2):
        options = {"include_prompt_in_result": included, "beam_size": beam_size}
        for prompt, expected in (("aba", "c"), ("d", "ed")):
            seen = answer(prompt, **options)
            answers[prompt].add(seen)
            print(f"{options}, prompt {prompt!r}: expected {expected!r}, seen {seen!r}")
sys.exit(answers["aba"] != {"b"} or any("eded" in "d" + seen[1:] for seen in answers["d"]))
PYTHON
