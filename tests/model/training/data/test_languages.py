"""Training data with languages: special tokens and losses are those of `transformers`, and what does not fit is refused
before anything is written."""

import re
from dataclasses import replace

import pytest
import torch

from model.checkpoints.checkpoint import load_checkpoint
from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, ConfigError, LanguagePair, SpecialTokenTemplate
from model.fine_tuning import FineTuning
from model.training.data.examples import IGNORED, Examples, PairBatches
from model.training.data.languages import (
    check_languages,
    check_trainable,
    language_pairs,
    own_languages,
    read_languages,
    title_of,
    with_languages,
)
from model.training.evaluate import bleu, translate
from model.training.objective.loss import batch_loss
from model.training.report import final_scores
from model.training.start import Start, read_base
from model.training.train import Interrupted, TrainError, train
from tests.model.training.test_start import TUNED
from tests.model.training.test_train import after, one_thread, weights  # noqa: F401

pytest.importorskip("transformers")
from tests.pretrained_languages import KINDS, imported, read

PAIRS = [("ka lo mi", "ster ver"), ("tu ra", "ne tion gen heit"), ("schön élan ção", "łód čes ñan øre"), ("lo", "ka")]


@pytest.fixture(scope="module", params=KINDS)
def known(request, tmp_path_factory):
    """The kind of a model, its checkpoint, and the directory of `transformers`."""
    return request.param, *imported(request.param, tmp_path_factory.mktemp(request.param))


def batch_of(loaded, examples):
    config = TUNED.replace(batch_tokens=4096)
    batches = PairBatches(examples, loaded.tokenizer, loaded.config, config)
    return batches, batches.load(range(len(examples.pairs)))


def rows(tensor, lengths):
    return [row[:length].tolist() for row, length in zip(tensor, lengths, strict=True)]


@torch.no_grad()
def test_tokens_and_loss_are_those_of_transformers(known):
    kind, checkpoint, directory = known
    loaded = load_checkpoint(checkpoint)
    for source, target in KINDS[kind][2]:
        theirs, tokenizer = read(kind, directory, source, target)
        mark = f">>{target}<< " if kind == "marian" else ""
        sources = [tokenizer(mark + text).input_ids for text, _ in PAIRS]
        labels = [tokenizer(text_target=text).input_ids for _, text in PAIRS]
        examples = Examples(PAIRS, "pairs", languages=[LanguagePair(source, target)] * len(PAIRS))
        batches, batch = batch_of(loaded, examples)
        assert rows(batch.source_BS, batch.lengths_B) == sources
        wanted = [[token for token in row.tolist() if token != IGNORED] for row in batch.target_BT]
        assert wanted == labels
        assert batch.tokens == batches.tokens == sum(map(len, labels))
        mask = (torch.arange(batch.source_BS.shape[1]) < batch.lengths_B[:, None]).long()
        expected = theirs(input_ids=batch.source_BS, attention_mask=mask, labels=batch.target_BT)
        loss = batch_loss(loaded.model, batch).plain / batch.tokens
        torch.testing.assert_close(loss, expected.loss, rtol=2e-6, atol=0)


@torch.no_grad()
def test_a_legacy_nllb_is_trained_as_it_generates(tmp_path):
    checkpoint, directory = imported("nllb", tmp_path, legacy_behaviour=True)
    theirs, tokenizer = read("nllb", directory, "deu_Latn", "eng_Latn")
    sources = [tokenizer(text).input_ids for text, _ in PAIRS]
    german, english = tokenizer.convert_tokens_to_ids(["deu_Latn", "eng_Latn"])
    assert all(row[-2:] == [2, german] for row in sources), "the old order"
    examples = Examples(PAIRS, "pairs", languages=[LanguagePair("deu_Latn", "eng_Latn")] * len(PAIRS))
    loaded = load_checkpoint(checkpoint)
    _, batch = batch_of(loaded, examples)
    assert rows(batch.source_BS, batch.lengths_B) == sources
    mask = (torch.arange(batch.source_BS.shape[1]) < batch.lengths_B[:, None]).long()
    begun = theirs.generate(batch.source_BS, attention_mask=mask, forced_bos_token_id=english, max_new_tokens=2)
    assert batch.input_BT[:, :2].tolist() == begun[:, :2].tolist() == [[2, english]] * len(PAIRS)
    expected = theirs(input_ids=batch.source_BS, attention_mask=mask, labels=batch.target_BT)
    loss = batch_loss(loaded.model, batch).plain / batch.tokens
    torch.testing.assert_close(loss, expected.loss, rtol=2e-6, atol=0)


def examples_of(kind, *, count=60, numbers=(0,)):
    """Copies of words in the first pairs of languages of a model, one after the other."""
    words = [f"{first} {second}" for first in ("ka", "lo", "mi", "ne", "tu") for second in ("ra", "ster", "ver", "gen")]
    pairs = [(f"{text} {words[number % 7]}", text) for number, text in enumerate(words * (count // len(words)))]
    chosen = [LanguagePair(*KINDS[kind][2][number]) for number in numbers]
    return Examples(pairs, "words", languages=[chosen[place % len(chosen)] for place in range(len(pairs))])


def tune(checkpoint, out, data, *, tuning=None, config=TUNED, **arguments):
    base = read_base(checkpoint)
    start = Start(base=base, tuning=tuning or FineTuning())
    return train(base.config, config, data=data, out=out, start=start, **arguments)


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory):
    """A checkpoint of an M2M-100 model."""
    return imported("m2m100", tmp_path_factory.mktemp("m2m100"))[0]


@pytest.mark.slow
def test_a_run_with_languages_resumes_bit_for_bit_and_names_them(m2m100, tmp_path):
    data = examples_of("m2m100", numbers=(0, 1))
    tuning = FineTuning(lora_rank=2, patience=9, stop_metric="bleu")
    whole = tune(m2m100, tmp_path / "whole", data, tuning=tuning)
    with pytest.raises(Interrupted):
        tune(m2m100, tmp_path / "parts", data, tuning=tuning, should_stop=after(5))
    other = replace(data, languages=[data.languages[0]] * len(data.pairs))
    with pytest.raises(TrainError, match="was started with other data"):
        tune(m2m100, tmp_path / "parts", other, tuning=tuning, resume=True)
    parts = tune(m2m100, tmp_path / "parts", data, tuning=tuning, resume=True)
    assert weights(parts) == weights(whole)
    tuned = load_checkpoint(whole)
    assert tuned.config.template == load_checkpoint(m2m100).config.template
    assert sum(one.pop("examples") for one in tuned.lineage["languages"]) == tuned.lineage["data_examples"]
    named = {"source_language": "de", "target_language": "en"}, {"source_language": "en", "target_language": "sw"}
    assert sorted(tuned.lineage["languages"], key=str) == list(named)
    assert {"bleu de to en", "bleu en to sw"} <= set(tuned.metrics)
    card = (whole / "model_card.md").read_text()
    assert re.search(
        r"## Languages\n\n\| \| \|\n\|---\|---\|\n(\| en to sw .*\n)?\| de to en \| \d+ examples \|\n", card
    )


def test_validation_decodes_between_the_languages_of_each_pair(m2m100):
    loaded, data = load_checkpoint(m2m100), examples_of("m2m100", count=20, numbers=(0, 1))
    columns = data.pairs, data.languages
    scores, samples = final_scores(loaded.model, loaded.tokenizer, data)
    own = dict[str, str]()
    for number in (0, 1):
        texts = [source for source, _ in data.pairs[number::2]]
        own |= zip(
            texts, translate(loaded.model, loaded.tokenizer, texts, languages=data.languages[number]), strict=True
        )
    shown = dict(re.findall(r": (.*)\n  model:     (.*)\n", "\n".join(samples)))
    titles = {source: ": ".join((title_of(pair), source)) for (source, _), pair in zip(*columns, strict=True)}
    assert {sample.splitlines()[0] for sample in samples} == {titles[source] for source in shown}
    assert shown == {text: own[text] for text in shown}
    assert len({*shown.values()}) > 1
    wanted = bleu([own[source] for source, _ in data.pairs[::2]], [target for _, target in data.pairs[::2]])
    assert scores["bleu de to en"] == round(wanted.score, 2)
    default = translate(loaded.model, loaded.tokenizer, list(shown))
    assert default != list(shown.values()), "the languages matter"


TEMPLATE = SpecialTokenTemplate(
    source_prefix=(SOURCE_LANGUAGE,), target_prefix=(2, TARGET_LANGUAGE), languages=(("de_DE", 7), ("en_XX", 8))
)
INTO = SpecialTokenTemplate(
    source_prefix=(TARGET_LANGUAGE,), target_prefix=(3,), languages=tuple((f"l{n:02}", n) for n in range(40))
)


@pytest.mark.parametrize(
    ("template", "pair", "message"),
    [
        (TEMPLATE, ("", "de_DE"), r"source_language: must be given, .*name that of the data, --source-language CODE; "),
        (TEMPLATE, ("de_DE", ""), r"target_language: must be given, .*; codes: de_DE, en_XX$"),
        (
            TEMPLATE,
            ("de", "en_XX"),
            r"source_language: unknown code 'de'; did you mean 'de_DE'\? Known codes: de_DE, en",
        ),
        (TEMPLATE, ("de_DE", "!"), r"target_language: unknown code '!'; known codes: de_DE, en_XX$"),
        (INTO, ("", "xyz"), r"target_language: unknown code 'xyz'; known codes: l00, .*, l29 and 10 more$"),
        (
            INTO,
            ("l01", "l02"),
            r"source_language: must be left out: the model has no token for the source_language; got",
        ),
        (
            SpecialTokenTemplate(),
            ("de", ""),
            r"source_language: must be left out: the model has no languages; got 'de'",
        ),
    ],
)
def test_languages_that_do_not_fit_are_refused(template, pair, message):
    with pytest.raises(ConfigError, match=message):
        check_languages(template, LanguagePair(*pair))


def test_a_run_without_its_languages_leaves_nothing(m2m100, tmp_path):
    data = examples_of("m2m100")
    with pytest.raises(ConfigError, match="source_language: must be given"):
        tune(m2m100, tmp_path / "run", replace(data, languages=()))
    with pytest.raises(ConfigError, match=r"target_language: unknown code 'x'.*"):
        tune(m2m100, tmp_path / "run", data, validation=replace(data, languages=[LanguagePair("de", "x")] * 60))
    with pytest.raises(ConfigError, match="special_token_template: must have no languages without a base"):
        check_trainable(read_base(m2m100).config, data, has_base=False)
    assert not (tmp_path / "run").exists()


def test_languages_are_given_for_all_files_or_for_each():
    assert language_pairs([], [], files=2) == []
    assert language_pairs(["de"], ["en"], files=2) == [("de", "en"), ("de", "en")]
    assert language_pairs(["de", "fr"], ["en"], files=2) == [("de", "en"), ("fr", "en")]
    assert language_pairs([], ["en"], files=1) == [("", "en")]
    with pytest.raises(ConfigError, match=r"source_language: must be given once .*: 1 or 3 times, got 2"):
        language_pairs(["de", "fr"], ["en"], files=3)
    first, second = Examples([("a", "A"), ("b", "B")], "one", [2]), Examples([("c", "C")], "two", [1])
    both = with_languages([first, second], [LanguagePair("de", "en"), LanguagePair("fr", "en")])
    assert (both.pairs, both.name, both.sizes) == ([("a", "A"), ("b", "B"), ("c", "C")], "one, two", [2, 1])
    assert both.languages == [("de", "en"), ("de", "en"), ("fr", "en")]


def test_languages_that_no_token_names_are_the_models_own():
    pairs = [LanguagePair("fr", "l01"), LanguagePair("fr", "l02")]
    assert own_languages(INTO, pairs) == ("fr", "")
    assert [read_languages(INTO, pair) for pair in pairs] == [("", "l01"), ("", "l02")]
    assert own_languages(SpecialTokenTemplate(), [LanguagePair("en", "de")]) == ("en", "de")
    assert own_languages(TEMPLATE, [LanguagePair("de_DE", "en_XX")]) == ("", "")
    with pytest.raises(ConfigError, match=r"target_language: must be one for all data: .* got de, fr$"):
        own_languages(SpecialTokenTemplate(), [LanguagePair("en", "de"), LanguagePair("en", "fr")])
