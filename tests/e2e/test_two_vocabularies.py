"""A MarianMT with separate vocabularies, imported, exported and served: answers are those of `generate`, and whatever a
request or an answer has of tokens is of the right side."""

import json
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import torch

from export.bundle.directory import load_bundle
from export.options import ExportOptions, QuantizationOptions
from export.texts import Development
from export.to_onnx import export_bundle
from export.verification.verifier import verify_bundle
from glossa.client import Client
from model.checkpoints.checkpoint import load_checkpoint
from model.config import ConfigError
from model.presets import CONTINUED
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.import_checkpoint import import_checkpoint
from model.tokenizer import TokenizerError
from model.training.data.examples import Examples
from model.training.data.languages import check_trainable
from model.training.evaluate import translate
from model.training.start import Start, read_base
from model.training.train import train
from tests.e2e.process import serving
from tests.tiny import imperfect

pytest.importorskip("transformers")
from tests.two_vocabularies import END, SOURCE_END, SOURCE_SIZE, START, TARGET_SIZE, save

MOST = 12


def texts(count, seed=1):
    rng = Random(seed)
    return [" ".join(f"w{rng.randrange(90)}" for _ in range(rng.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two-vocabularies")


@pytest.fixture(scope="module")
def theirs(folder):
    return save(folder / "theirs")


@pytest.fixture(scope="module")
def checkpoint(folder, theirs):
    import_checkpoint(folder / "theirs", folder / "checkpoint", convert_tokenizer(folder / "theirs"))
    return load_checkpoint(folder / "checkpoint")


@pytest.fixture(scope="module")
def bundle(folder, checkpoint):
    words = texts(60, seed=2)
    asked = texts(200, seed=5)
    answers = translate(checkpoint.model, checkpoint.tokenizer, asked)
    development = Development(asked[:8], answers[:8])
    options = ExportOptions(
        precisions=("fp32", "int8"),
        quantization=QuantizationOptions(scheme="w8a8-dynamic-kv8", development=development, max_loss=100.0),
        texts=words[:4],
        parallel=[(text, text) for text in words],
        confidence=Development(asked, imperfect(answers)),
    )
    export_bundle(folder / "checkpoint", folder / "bundle", options)
    return folder / "bundle"


@pytest.fixture(scope="module")
def client(bundle):
    with serving(models={"two": str(bundle)}, precision="fp32") as server, Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def int8(bundle):
    with serving(models={"two": str(bundle)}, precision="int8") as server, Client(server.address) as client:
        yield client


def generated(theirs, source, **options):
    """The answer of transformers, the start token left out, up to its end."""
    with torch.no_grad():
        found = theirs.generate(torch.tensor([source]), max_new_tokens=MOST, do_sample=False, **options)[0, 1:].tolist()
    return found[: found.index(END) + 1] if END in found else found


def source_of(checkpoint, text):
    return [*checkpoint.tokenizer.encode(text), SOURCE_END]


def answer_of(client, text, **options):
    return list(client.translate(text, max_tokens=MOST, include_tokens=True, **options).tokens)


def test_sources_and_targets_have_their_own_tables(checkpoint, bundle):
    config, limits, tokenizer = checkpoint.config, load_bundle(bundle).limits, checkpoint.tokenizer
    assert (config.source_vocab_size, config.vocab_size) == (SOURCE_SIZE, TARGET_SIZE)
    assert (limits.source_vocab_size, limits.vocab_size) == (SOURCE_SIZE, TARGET_SIZE)
    assert (config.template.source_suffix, config.template.target_prefix) == ((SOURCE_END,), (START,))
    assert checkpoint.model.encoder.embedding.tokens.weight.shape[0] == SOURCE_SIZE
    assert checkpoint.model.decoder.unembedding.weight.shape[0] == TARGET_SIZE
    assert tokenizer.encode("w0 w7") != tokenizer.target.encode("w0 w7")
    assert verify_bundle(bundle)["passed"]


def test_what_an_export_measures_is_text_of_the_target_s_vocabulary(bundle):
    manifest = load_bundle(bundle)
    assert manifest.variant("int8").comparison[0].bleu == pytest.approx(100), "references are the model's own answers"
    assert manifest.calibrations["fp32"].adequacy is not None


def test_fine_tuning_learns_with_both_vocabularies(folder, checkpoint):
    pairs = [(text, text) for text in texts(20, seed=4)]
    recipe = CONTINUED.replace(steps=2, batch_tokens=64, validation_size=4, bf16=False)
    start = Start(base=read_base(folder / "checkpoint"))
    train(checkpoint.config, recipe, data=Examples(pairs, "words"), out=folder / "tuned", start=start)
    tuned = load_checkpoint(folder / "tuned")
    assert tuned.config == checkpoint.config.replace(dropout=tuned.config.dropout)
    assert tuned.tokenizer.target.vocab_size == TARGET_SIZE
    with pytest.raises(TokenizerError, match="training from scratch is not covered with two vocabularies"):
        Start(tokenizer=checkpoint.tokenizer)
    with pytest.raises(ConfigError, match="source_vocab_size: must be 0 without a base"):
        check_trainable(checkpoint.config, has_base=False)


def test_greedy_answers_are_those_of_generate(client, checkpoint, theirs):
    asked = texts(20)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda text: answer_of(client, text), asked))
    assert answers == [generated(theirs, source_of(checkpoint, text)) for text in asked]
    assert len(set(map(tuple, answers))) > 12, "answers vary"


def test_beams_are_those_of_generate(client, checkpoint, theirs):
    for text in texts(4, seed=3):
        expected = generated(theirs, source_of(checkpoint, text), num_beams=4, early_stopping=True)
        assert answer_of(client, text, beam_size=4) == expected


def test_int8_answers_begin_as_those_of_generate(int8, checkpoint, theirs):
    asked = texts(20)
    answers = [answer_of(int8, text) for text in asked]
    expected = [generated(theirs, source_of(checkpoint, text)) for text in asked]
    same = [own[0] == right[0] for own, right in zip(answers, expected, strict=True)]
    assert sum(same) >= 16
    assert answers[:3] == [answer_of(int8, text) for text in asked[:3]]


def test_answers_are_texts_of_the_target_s_vocabulary(client, checkpoint):
    target = checkpoint.tokenizer.target
    for text in texts(5):
        answer = client.translate(text, max_tokens=MOST, include_tokens=True, token_logprobs=True, top_logprobs=2)
        assert answer.text == target.decode(answer.tokens)
        assert "".join(token.text for token in answer.hypotheses[0].token_logprobs) == answer.text
        alternatives = [other for token in answer.hypotheses[0].token_logprobs for other in token.top_logprobs]
        assert [other.text for other in alternatives] == [target.decode([other.token]) for other in alternatives]


def test_a_given_target_is_scored_with_its_own_tokens(client, checkpoint, theirs):
    text, target = "w5 w17 w80", "w100 w4 w63"
    own = [*checkpoint.tokenizer.target.encode(target), END]
    with torch.no_grad():
        logits = theirs(
            torch.tensor([source_of(checkpoint, text)]), decoder_input_ids=torch.tensor([[START, *own[:-1]]])
        ).logits[0]
    expected = logits.log_softmax(-1)[range(len(own)), own].tolist()
    for scored in (client.score(text, target), client.score(text, target_tokens=own)):
        assert [token.token for token in scored.tokens] == own
        assert [token.logprob for token in scored.tokens] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_options_of_texts_and_tokens_are_of_targets(client, checkpoint):
    text, target = "w5 w17 w80", checkpoint.tokenizer.target
    prefix = target.encode("w100 w4")
    assert answer_of(client, text, prefix="w100 w4")[:2] == prefix
    assert answer_of(client, text, prefix_tokens=prefix)[:2] == prefix
    assert TARGET_SIZE - 1 > SOURCE_SIZE
    assert answer_of(client, text, prefix_tokens=[TARGET_SIZE - 2])[0] == TARGET_SIZE - 2
    assert target.encode("w101")[0] in answer_of(client, text, phrases=["w101"], beam_size=4)
    plain = answer_of(client, text)
    banned = target.decode([plain[0]])
    assert plain[0] not in answer_of(client, text, bad_words=[banned])
    assert answer_of(client, text, logit_bias={plain[1]: -100.0})[:1] == plain[:1]
    glossed = client.translate(text, glossary={"w17": "w111"}, beam_size=4, max_tokens=MOST, include_tokens=True)
    assert "w111" in glossed.text.split()


def test_tokens_are_listed_with_the_vocabulary_of_their_side(client, checkpoint):
    for is_target, tokenizer, end in (
        (False, checkpoint.tokenizer, SOURCE_END),
        (True, checkpoint.tokenizer.target, END),
    ):
        field = {"target": "w8 w90"} if is_target else {"text": "w8 w90"}
        listed = client.tokenize(**field, add_special_tokens=True)
        tokens = [token.token for token in listed.tokens if not token.is_special]
        assert tokens == tokenizer.encode("w8 w90")
        assert [token.text for token in listed.tokens if not token.is_special] == [" w8", " w90"]
        assert listed.tokens[-1].token == end
    described = client.get_model("two")
    assert (described.source_vocab_size, described.vocab_size) == (SOURCE_SIZE, TARGET_SIZE)


def test_a_shortlist_gives_target_tokens_for_source_tokens(client, checkpoint, bundle):
    text, listed = "w5 w17 w80", json.loads((bundle / "shortlist.json").read_text())
    source = checkpoint.tokenizer.encode(text)
    own = {token for word in source for token in listed["by_source"][str(word)]}
    assert {*checkpoint.tokenizer.target.encode(text)} <= own, "learned from pairs of the same words"
    found = answer_of(client, text, use_shortlist=True)
    assert {*found} <= own | {*listed["always"], *listed["by_source"].get(str(SOURCE_END), ()), END}
    assert len(found) > 1
