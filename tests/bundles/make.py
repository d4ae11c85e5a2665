"""Make the kept bundle of the current format: `python -m tests.bundles.make DIRECTORY`.

One directory for each format: `bundle/`, and `answers.json` with what the release that made it answered. A kept bundle
is never made again; a new format gets a directory of its own. The model and its seed stay the same, so that formats
can be compared with each other.
"""

import json
import sys
from pathlib import Path

from export.options import ExportOptions, QuantizationOptions
from export.passes.quantization_scheme import Precision
from export.texts import Development
from export.to_onnx import export_model
from glossa.client import Client
from model.config import LanguagePair
from model.training.evaluate import translate
from tests.e2e.process import serving
from tests.tiny import TEXTS, imperfect, recombined, tiny_config, tiny_model, tiny_tokenizer

SHAPE = {
    "d_model": 16,
    "num_heads": 2,
    "d_ff": 16,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "max_source_len": 16,
    "max_target_len": 16,
}
SEED = 7
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
MAX_TOKENS = 12
SAMPLES = 300  # sentences to calibrate with; some have no answer


def kept_model():
    """The model of every kept bundle."""
    return tiny_model(tiny_config("encoder_decoder", **SHAPE), seed=SEED)


def development(model, tokenizer):
    """Sentences with references by which confidence is calibrated: the model's answers, of which some lack a word."""
    texts = recombined(SAMPLES, SEED)
    answers = translate(model, tokenizer, texts, max_tokens=MAX_TOKENS)
    return Development(texts, imperfect(answers), "recombined words")


def make_bundle(path):
    """All graphs that a translation bundle can have, in fp32 and int8 with an int8 KV cache, and calibrations."""
    model, tokenizer = kept_model(), tiny_tokenizer()
    options = ExportOptions(
        precisions=PRECISIONS,
        quantization=QuantizationOptions(scheme="w8a8-dynamic-kv8", development=Development(TEXTS), max_loss=1.0),
        texts=TEXTS,
        attention=True,
        parallel=[(text, text) for text in TEXTS],
        confidence=development(model, tokenizer),
        source_unit="sentence",
        languages=LanguagePair("en", "de"),
    )
    export_model(model, tokenizer, path, options)


def answers(client, model, *, is_calibrated=True):
    """Greedy, beam and shortlist answers of one served model: token ids, scores of the beam's hypotheses, and if the
    bundle is calibrated the confidence of the greedy answer and of its words."""
    found = []
    for text in TEXTS:
        call = {"model": model, "max_tokens": MAX_TOKENS, "include_tokens": True}
        beam = client.translate(text, beam_size=4, num_hypotheses=2, **call)
        found.append(
            {
                "text": text,
                "greedy": list(client.translate(text, **call).tokens),
                "shortlist": list(client.translate(text, use_shortlist=True, **call).tokens),
                "beam": [{"tokens": list(one.tokens), "score": one.score} for one in beam.hypotheses],
            }
        )
        if is_calibrated:
            sure = client.translate(text, confidence=True, **call).confidence
            found[-1]["confidence"] = [sure.sentence, *(word.confidence for word in sure.words)]
    return found


def make(directory):
    """A kept bundle and its answers below `directory`, which must not exist."""
    directory.mkdir()
    make_bundle(directory / "bundle")
    told = {}
    for precision in PRECISIONS:
        served = serving(models={"kept": str(directory / "bundle")}, precision=precision)
        with served as server, Client(server.address) as client:
            told[precision] = answers(client, "kept")
    (directory / "answers.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
