"""Models of transformers with their own tokenizers, imported, fine-tuned, exported and served, all by the command: the
loss falls, and the server answers as PyTorch does."""

import io
import itertools
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import sentencepiece
import tokenizers
import torch
import transformers

from glossa.client import Client
from model.checkpoints.checkpoint import load_checkpoint
from model.config import LanguagePair
from model.reference.greedy import greedy
from model.training.evaluate import translate
from tests.cli.command import run
from tests.e2e.process import ROOT, serving
from tests.e2e.test_pretrained_encoder import BERT, word_pieces
from tests.pretrained_seq2seq import Shape, make

pytestmark = pytest.mark.slow

COLOURS, THINGS = ("red", "old", "small", "green", "wet"), ("house", "tree", "cat", "garden", "table", "bird", "dog")
PHRASES = [" ".join(words) for words in itertools.product(COLOURS, COLOURS, THINGS)]
GERMAN = {
    **{"red": "rot", "old": "alt", "small": "klein", "green": "grün", "wet": "nass", "house": "Haus", "tree": "Baum"},
    **{"cat": "Katze", "garden": "Garten", "table": "Tisch", "bird": "Vogel", "dog": "Hund"},
}
TRANSLATIONS = [" ".join(GERMAN[word] for word in text.split()) for text in PHRASES]
RECIPE = """
model: {dropout: 0.1}
train: {steps: 120, learning_rate: 3.0e-3, warmup_steps: 10, batch_tokens: 400, validation_size: 15, bf16: false,
        validate_every_steps: 40, save_every_steps: 40, log_every_steps: 20, average_checkpoints: 1}
"""


def pieces(texts, **options):
    """A SentencePiece model of these texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 4),
        model_writer=model,
        minloglevel=2,
        num_threads=1,
        vocab_size=60,
        hard_vocab_limit=False,
        **options,
    )
    return model.getvalue()


def listed(model):
    known = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [known.id_to_piece(token) for token in range(len(known))]


def marian(path):
    source, target = pieces(PHRASES), pieces(TRANSLATIONS)
    (path / "source.spm").write_bytes(source)
    (path / "target.spm").write_bytes(target)
    names = dict.fromkeys(["</s>", "<unk>", *listed(source), *listed(target), "<pad>"])
    names.pop("<s>")
    (path / "vocab.json").write_text(json.dumps({name: token for token, name in enumerate(names)}))
    make("marian", Shape(vocab_size=len(names), layers=(2, 2))).save_pretrained(path)


def t5(path):
    model = pieces([*PHRASES, *TRANSLATIONS], pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (path / "spiece.model").write_bytes(model)
    (path / "tokenizer_config.json").write_text('{"extra_ids": 0}')
    make("t5", Shape(vocab_size=len(listed(model)), layers=(2, 2))).save_pretrained(path)


def gpt2(path):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(PHRASES, trainer)
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(path / "tokenizer.json"))
    end = backend.get_vocab()["<|endoftext|>"]
    config = transformers.GPT2Config(
        vocab_size=end + 1, n_positions=48, n_embd=48, n_layer=2, n_head=3, bos_token_id=end, eos_token_id=end
    )
    torch.manual_seed(1)
    transformers.GPT2LMHeadModel(config).save_pretrained(path)


def bert(path):
    tokenizer = word_pieces(path)
    tokenizer.save_pretrained(path)
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **BERT)
    transformers.BertForMaskedLM(config).save_pretrained(path)


def m2m_100(path):
    model = pieces([*PHRASES, *TRANSLATIONS])
    (path / "sentencepiece.bpe.model").write_bytes(model)
    names = ["<s>", "<pad>", "</s>", "<unk>", *listed(model)[3:]]
    (path / "vocab.json").write_text(json.dumps({name: token for token, name in enumerate(names)}))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "M2M100Tokenizer"}')
    make("m2m_100", Shape(vocab_size=len(names) + 100, layers=(2, 2))).save_pretrained(path)


def kinds():
    """Texts that are about an animal or not."""
    return [(text, "animal" if text.split()[2] in ("cat", "bird", "dog") else "thing") for text in PHRASES]


LORA = "--lora-rank 8 --lora-targets *.blocks.* --lora-train *embedding* --lora-train *norm* --learning-rate 0.01"
INTO_GERMAN, INTO_ENGLISH = ({"source_language": "en", "target_language": target} for target in ("de", "en"))
COPIES = [(text, text) for text in PHRASES]  # from English into English
LANGUAGES = "--source-language en --target-language de --target-language en --steps 600"
MODELS = {
    "marian": (marian, list(zip(PHRASES, TRANSLATIONS, strict=True)), ()),
    "t5": (t5, list(zip(PHRASES, TRANSLATIONS, strict=True)), ("--layer-decay", "0.9", "--patience", "3")),
    "m2m_100": (m2m_100, list(zip(PHRASES, TRANSLATIONS, strict=True)), LANGUAGES.split()),
    "gpt2": (gpt2, [(text,) for text in PHRASES], LORA.split()),
    "bert": (bert, kinds(), ("--head", "classify")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With the imported model, the tuned one and its bundle in each model's own folder."""
    root = tmp_path_factory.mktemp("tuned")
    for name, (write, rows, options) in MODELS.items():
        path = root / name
        (path / "theirs").mkdir(parents=True)
        write(path / "theirs")
        run("import", path / "theirs", path / "ours")
        (path / "recipe.yaml").write_text(RECIPE)
        (path / "data.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
        files = ["--data", path / "data.tsv", "--out", path / "tuned"]
        if options == LANGUAGES.split():
            (path / "second.tsv").write_text("".join("\t".join(row) + "\n" for row in COPIES))
            files += ["--data", path / "second.tsv"]
        run("train", path / "recipe.yaml", "--from", path / "ours", *files, *options)
        run("export", path / "tuned", path / "bundle", "--precision", "fp32")
    return root


@pytest.fixture(scope="module")
def client(folder):
    models = {name: str(folder / name / "bundle") for name in MODELS}
    with serving(models=models) as server, Client(server.address) as client:
        yield client


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_falls_and_the_lineage_reaches_back(folder, name):
    path = folder / name
    header, *lines = (path / "tuned" / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    losses = [float(row["validation_loss"]) for row in rows if row["validation_loss"]]
    first = next(float(row["train_loss"]) for row in rows if row["train_loss"])
    assert losses[-1] < 0.7 * first
    lineage = load_checkpoint(path / "tuned").lineage
    assert lineage["base_lineage"]["imported_from"] == "theirs"
    assert lineage["base_lineage"]["model_type"] == name


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_translations_are_those_of_pytorch(client, folder, name):
    tuned = load_checkpoint(folder / name / "tuned")
    expected = translate(tuned.model, tuned.tokenizer, PHRASES[::5])
    assert len(set(expected)) > 10
    assert [answer.text for answer in client.translate_batch(PHRASES[::5], model=name)] == expected


def test_both_pairs_of_languages_are_learned_and_served(client, folder):
    path, expected = folder / "m2m_100", {"de": dict(zip(PHRASES, TRANSLATIONS, strict=True)), "en": dict(COPIES)}
    tuned = load_checkpoint(path / "tuned")
    for languages in (INTO_GERMAN, INTO_ENGLISH):
        texts, pair = PHRASES[::5], LanguagePair(*languages.values())
        answers = [answer.text for answer in client.translate_batch(texts, model="m2m_100", **languages)]
        assert answers == translate(tuned.model, tuned.tokenizer, texts, languages=pair)
        things = [expected[pair.target][text].split()[-1] for text in texts]
        right = sum(answer.endswith(thing) for answer, thing in zip(answers, things, strict=True))
        assert right > 0.8 * len(texts)
    assert {"bleu en to de", "bleu en to en"} <= set(tuned.metrics)
    assert sum(one["examples"] for one in tuned.lineage["languages"]) == tuned.lineage["data_examples"] > 300
    evaluated = run("eval", path / "tuned", "--data", path / "data.tsv", *LANGUAGES.split()[:4], "--json")
    assert json.loads(evaluated.splitlines()[-1])["sentences"] == len(PHRASES)
    refused = run("eval", path / "tuned", "--data", path / "data.tsv", fails=True)
    assert "error: --source-language: must be given" in refused


def test_texts_are_continued_as_pytorch_continues_them(client, folder):
    tuned = load_checkpoint(folder / "gpt2" / "tuned")
    answers = set()
    for text in ("red wet", "old", "green small", "wet wet"):
        ids = tuned.tokenizer.encode(text)
        expected = greedy(tuned.model, ids, max_tokens=20)
        assert client.generate(text, model="gpt2", max_tokens=20, include_tokens=True).tokens == tuple(expected)
        assert expected[-1] == tuned.config.eos_id, "it has learnt to end, although its padding is that token"
        answers.add(tuned.tokenizer.decode(expected).split()[-1])
    assert answers <= set(THINGS)


def test_labels_are_those_of_pytorch(client, folder):
    tuned = load_checkpoint(folder / "bert" / "tuned")
    right = 0
    for text, label in kinds()[::10]:
        ids = torch.tensor([tuned.config.template.wrap_source(tuned.tokenizer.encode(text))])
        lengths = torch.tensor([ids.shape[1]])
        with torch.no_grad():
            logits = tuned.model.classify(tuned.model(ids, lengths), lengths).logits_BL[0]
        expected = dict(zip(tuned.config.labels, logits.softmax(-1).tolist(), strict=True))
        found = {one.label: one.probability for one in client.classify(text, model="bert").labels}
        assert found == pytest.approx(expected, abs=1e-4)
        right += max(expected, key=expected.__getitem__) == label
    assert right > 14


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from model.fine_tuning import FineTuning
from model.training.start import Start, read_base
from model.training.train import train
from tests.model.training.test_start import REVERSED, TUNED

torch.set_num_threads(1)
base, out, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
left = [steps]

def deadly():
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return False

loaded = read_base(base)
start = Start(base=loaded, tuning=FineTuning(lora_rank=2, lora_merge=False, patience=2))
train(loaded.config, TUNED, data=REVERSED, out=out, start=start, resume=True, should_stop=deadly)
"""


def test_a_lora_run_that_is_killed_resumes_to_the_same_bits(tmp_path):
    from model.training.train import train
    from tests.model.training.test_train import DATA
    from tests.tiny_training import MODEL, TRAIN

    base = train(MODEL, TRAIN, data=DATA, out=tmp_path / "base")
    before = (base / "model.safetensors").read_bytes()

    def process(out, steps):
        words = [sys.executable, "-c", KILLED, str(base), str(out), str(steps)]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert process(tmp_path / "whole", 0).returncode == 0
    for steps in (3, 6):
        assert process(tmp_path / "killed", steps).returncode == -signal.SIGKILL
    assert process(tmp_path / "killed", 0).returncode == 0
    whole, killed = (
        safetensors.numpy.load_file(tmp_path / name / "adapter.safetensors") for name in ("whole", "killed")
    )
    assert whole.keys() == killed.keys()
    assert all(np.array_equal(whole[name], killed[name]) for name in whole)
    assert any(np.abs(value).max() > 0 for name, value in whole.items() if name.endswith("lora_b"))
    assert (base / "model.safetensors").read_bytes() == before
