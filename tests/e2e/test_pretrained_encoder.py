"""Imported encoders through the whole path, with their own tokenizers: served answers are those of transformers."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from export.to_onnx import export_bundle
from glossa.client import Client
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.import_checkpoint import import_checkpoint
from tests.e2e.process import serving

pytestmark = pytest.mark.slow  # `tests.model.pretrained` compares the models, `test_encoding.py` serves each head
transformers = pytest.importorskip("transformers")

WORDS = (
    "the",
    "small",
    "red",
    "house",
    "stands",
    "behind",
    "old",
    "tree",
    "cat",
    "sleep",
    "##s",
    "##ing",
    "under",
    ",",
    ".",
)
TOKEN_LABELS = {0: "O", 1: "B-person", 2: "I-person", 3: "B-place", 4: "I-place"}
LABELS = {0: "calm", 1: "loud", 2: "odd"}
BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
}
SIZES: dict[str, dict[str, Any]] = {
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 66},
    "XLMRoberta": {**BERT, "max_position_embeddings": 200},  # its pieces are short
    "ModernBert": {**BERT, "local_attention": 6},
    "Gemma3Text": {
        **BERT,
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 30,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "use_bidirectional_attention": True,
    },
}
SERVED = {
    "roberta-masked": ("Roberta", "ForMaskedLM"),
    "bert-label": ("Bert", "ForSequenceClassification"),
    "bert-tokens": ("Bert", "ForTokenClassification"),
}
SLOW = {  # of which each differs in less than an export from those above
    "bert-masked": ("Bert", "ForMaskedLM"),
    "distilbert-label": ("DistilBert", "ForSequenceClassification"),
    "roberta-tokens": ("Roberta", "ForTokenClassification"),
    "xlm-roberta-masked": ("XLMRoberta", "ForMaskedLM"),
    "modernbert-masked": ("ModernBert", "ForMaskedLM"),
    "embedding-gemma": ("Gemma3Text", "Model"),
}


def word_pieces(path):
    """A tokenizer as BERT has it."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    (path / "vocab.txt").write_text("\n".join(dict.fromkeys([*special, *WORDS, *letters])))
    return transformers.BertTokenizerFast(vocab=str(path / "vocab.txt"))


def bytes_pieces(_):
    """A tokenizer as RoBERTa has it, whose mask takes the blank before it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return masking(backend, trainer)


def unigram_pieces(_):
    """A tokenizer as XLM-R has it."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    return masking(backend, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>"))


def masking(backend, trainer):
    """Trained, with a frame and a mask that takes the blank before it."""
    backend.train_from_iterator(["the small red house stands behind the old tree"] * 4, trainer)
    frame = [(text, backend.token_to_id(text)) for text in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=frame)
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "cls": "<s>", "sep": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, mask_token=mask, **{f"{name}_token": text for name, text in names.items()}
    )


TOKENIZERS = {"Roberta": bytes_pieces, "XLMRoberta": unigram_pieces}
FRAMED = ("ModernBert", "Gemma3Text")  # whose configurations have ids of their own for the tokens around a text


def framed(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])


def each(*names):
    """Runs a test with these models."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]
    )


@pytest.fixture(scope="module")
def peers(request, tmp_path_factory):
    """Of each model that a chosen test reads theirs, its tokenizer, and our bundle of it."""
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    chosen = {name: kind for name, kind in {**SERVED, **SLOW}.items() if name in SERVED or name in asked}
    made = {}
    for name, (family, head) in chosen.items():
        path = tmp_path_factory.mktemp(name)
        theirs = path / "theirs"
        theirs.mkdir()
        tokenizer = TOKENIZERS.get(family, word_pieces)(theirs)
        tokenizer.save_pretrained(theirs)
        sizes = SIZES.get(family, BERT)
        ids = {"pad_token_id": tokenizer.pad_token_id}
        if family in FRAMED:
            ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
        labels = {"id2label": LABELS} if "Sequence" in head else {}
        labels |= {"id2label": TOKEN_LABELS} if "Token" in head else {}
        config = getattr(transformers, f"{family}Config")(vocab_size=len(tokenizer), **sizes, **ids, **labels)
        torch.manual_seed(3)
        model = getattr(transformers, family + head)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(theirs)
        import_checkpoint(theirs, path / "ours", convert_tokenizer(theirs))
        export_bundle(path / "ours", path / "bundle")
        made[name] = (model, tokenizer, path / "bundle")
    return made


@pytest.fixture(scope="module")
def client(peers):
    models = {name: str(bundle) for name, (_, _, bundle) in peers.items()}
    with serving(models=models) as server, Client(server.address) as client:
        yield client


def texts_for(count, mask=""):
    rng = random.Random(count)
    plain = [word for word in WORDS if not word.startswith("##")] + ["sleeping", "trees", "zebra", "The"]
    for _ in range(count):
        words = rng.choices(plain, k=rng.randint(1, 24))
        for place in rng.sample(range(len(words)), min(len(words), rng.randint(1, 3))) if mask else ():
            words[place] = mask
        yield " ".join(words)


@each("bert-masked", "roberta-masked", "xlm-roberta-masked", "modernbert-masked")
def test_masks_are_filled_as_transformers_fills_them(client, peers, name):
    model, tokenizer, _ = peers[name]
    for text in texts_for(25, tokenizer.mask_token):
        ids = framed(tokenizer, text)
        with torch.no_grad():
            expected_NV = model(ids).logits[0][ids[0] == tokenizer.mask_token_id].softmax(-1)
        masks = client.fill_mask(text, model=name, top_k=5)
        assert len(masks) == len(expected_NV) > 0
        for fillings, expected_V in zip(masks, expected_NV, strict=True):
            best = expected_V.topk(5)
            assert [filling.token for filling in fillings] == best.indices.tolist()
            assert [filling.probability for filling in fillings] == pytest.approx(best.values.tolist(), abs=1e-4)


@each("bert-label", "distilbert-label")
def test_labels_are_those_of_transformers(client, peers, name):
    model, tokenizer, _ = peers[name]
    for text in texts_for(25):
        with torch.no_grad():
            expected = model(framed(tokenizer, text)).logits[0].softmax(-1).tolist()
        result = {label.label: label.probability for label in client.classify(text, model=name).labels}
        assert result == pytest.approx(dict(zip(LABELS.values(), expected, strict=True)), abs=1e-4)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")  # RoBERTa's: words end at blanks
@each("bert-tokens", "roberta-tokens")
def test_spans_are_those_of_the_pipeline_of_transformers(client, peers, name):
    model, tokenizer, _ = peers[name]
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first", device="cpu"
    )
    lengths, known = set(), [word for word in WORDS if tokenizer.tokenize(f" {word}")[0] not in ("Ġ", "##")]
    for text in texts_for(25):
        if name == "roberta-tokens":  # theirs takes a blank that is a token of its own for a word
            text = " ".join(random.Random(text).choices(known, k=12))
        expected = pipeline(text)
        found = client.tag(text, model=name, include_tokens=True)
        with torch.no_grad():
            best = model(framed(tokenizer, text)).logits[0].softmax(-1).max(-1)
        assert [one.label for one in found.tokens] == [TOKEN_LABELS[index] for index in best.indices.tolist()]
        assert [one.probability for one in found.tokens] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert [(one.label, one.span) for one in found.spans] == [
            (one["entity_group"], (one["start"] + (text[one["start"]] == " "), one["end"])) for one in expected
        ]
        assert [one.probability for one in found.spans] == pytest.approx([one["score"] for one in expected], abs=1e-4)
        lengths |= {len(one.text.split()) for one in found.spans}
    assert len(lengths) > 1, "some span has several words"


@each(*SERVED, *SLOW)
def test_vectors_are_those_of_transformers(client, peers, name):
    model, tokenizer, _ = peers[name]
    for text in texts_for(10):
        with torch.no_grad():
            states = model.base_model(framed(tokenizer, text)).last_hidden_state[0].numpy()
        mean = states.mean(0)
        assert client.embed(text, model=name) == pytest.approx(mean, abs=1e-4)
        assert client.embed(text, model=name, pooling="cls") == pytest.approx(states[0], abs=1e-4)
        unit = client.embed(text, model=name, normalize=True)
        assert unit == pytest.approx(mean / np.linalg.norm(mean), abs=1e-4)
        found = client.embed_tokens(text, model=name)
        assert [one.token for one in found] == framed(tokenizer, text)[0].tolist()
        assert np.array([one.values for one in found]) == pytest.approx(states, abs=1e-4)


def test_the_pooler_is_that_of_transformers(client, peers):
    model, tokenizer, _ = peers["bert-label"]
    for text in texts_for(5):
        with torch.no_grad():
            expected = model.bert(framed(tokenizer, text)).pooler_output[0].numpy()
        assert client.embed(text, model="bert-label", pooling="pooler") == pytest.approx(expected, abs=1e-4)


def test_models_report_how_their_masks_are_written(client):
    result = {model.name: model for model in client.list_models()}
    assert result["roberta-masked"].mask_token == "<mask>"
    assert list(result["bert-label"].labels) == list(LABELS.values())
    assert result["roberta-masked"].limits.max_prompt_tokens == 64
