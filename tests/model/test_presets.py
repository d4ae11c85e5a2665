import re
from pathlib import Path

import pytest
import torch

from model.architectures import build
from model.config import ConfigError
from model.fine_tuning import FineTuning
from model.presets import CONTINUED, PRESETS, continuing, load_preset

MILLIONS = {
    "demo": 1.1,
    "scenes": 1.1,
    "tatoeba-small": 7.6,
    "shakespeare": 3.4,
    "shakespeare-characters": 0.83,
    "captions-small": 2.5,
    "restaurant-texts": 1.5,
    "pronouns": 0.14,
    "masked-scenes": 0.75,
    "scene-animals": 0.02,
    "scene-entities": 0.14,
    "sentence-kinds": 0.17,
    "tiny-copy": 0.02,
    "articles-recurrent": 0.15,
    "articles-encoder-decoder": 0.15,
    "articles-decoder": 0.12,
    "articles-compressed": 0.13,
    "articles-experts": 0.37,
    "demo-recurrent": 0.6,
    "tiny-copy-recurrent": 0.05,
}
ARTICLES = [name for name in MILLIONS if name.startswith("articles")]
VOCABULARY = {
    "demo": 1100,
    "scenes": 1100,
    "tatoeba-small": 8000,
    "shakespeare": 1024,
    "shakespeare-characters": 260,
    "captions-small": 5000,
    "restaurant-texts": 2500,
    "pronouns": 300,
    "masked-scenes": 1100,
    "scene-animals": 320,
    "scene-entities": 320,
    "sentence-kinds": 1100,
    "tiny-copy": 30,
    **dict.fromkeys(ARTICLES, 215),
    "demo-recurrent": 1100,
    "tiny-copy-recurrent": 30,
}


PAGES = Path(__file__).parents[2]


def test_no_preset_is_missing():
    assert sorted(PRESETS) == sorted(MILLIONS) == sorted(VOCABULARY)


@pytest.mark.parametrize(
    "page", [PAGES / "README.md", *sorted((PAGES / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_pages_train_presets_that_exist(page):
    named = re.findall(r"glossa train ([a-z][\w-]*) --", page.read_text(encoding="utf-8"))
    assert set(named) <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_the_number_of_parameters_it_states(name):
    preset = load_preset(name)
    with torch.device("meta"):
        labels = (
            {"labels": [str(number) for number in range(8)]}
            if preset.model.is_classifier or preset.model.is_tagger
            else {}
        )
        model = build(preset.model.replace(vocab_size=VOCABULARY[name], **labels))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters / 1e6 == pytest.approx(MILLIONS[name], rel=0.4)
    assert preset.description
    longest = preset.model.max_target_len if preset.model.has_decoder else preset.model.max_source_len
    assert preset.train.batch_tokens >= longest
    assert VOCABULARY[name] <= preset.train.vocab_size


def test_an_unknown_preset_gets_a_suggestion():
    with pytest.raises(
        ConfigError,
        match=r"preset: unknown preset 'tatoeba_small'; did you mean 'tatoeba-small'\? Presets: demo, ",
    ):
        load_preset("tatoeba_small")


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_changes_a_preset(tmp_path):
    preset = load_preset(
        written(tmp_path / "run.yaml", "preset: demo\nmodel: {d_model: 64}\ntrain:\n  steps: 10\n  seed: 3\n")
    )
    assert preset.model == PRESETS["demo"].model.replace(d_model=64)
    assert (preset.train.steps, preset.train.minutes, preset.train.seed) == (10, 0, 3)
    assert preset.embedded == "pairs"


def test_a_file_can_describe_everything(tmp_path):
    text = "description: mine\nmodel: {architecture: decoder}\ntrain: {minutes: 1.5}\nembedded: scenes\n"
    preset = load_preset(written(tmp_path / "run.yml", text))
    assert preset.description == "mine"
    assert not preset.model.has_encoder
    assert preset.train.minutes == 1.5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("modle: {}", "modle: unknown key; did you mean 'model'"),
        ("preset: demo\nmodel: {d_modle: 3}", "d_modle: unknown key; did you mean 'd_model'"),
        ("preset: demo\ntrain: {learning_rat: 3}", "did you mean 'learning_rate'"),
        ("preset: demmo", "did you mean 'demo'"),
        ("preset: demo\nembedded: pair", "embedded: must be one of"),
        ("preset: demo\nmodel: {d_model: many}", "d_model: must be a whole number, got 'many'"),
        ("preset: demo\ntrain: {bf16: fast}", "bf16: must be true, false or auto, got 'fast'"),
        ("preset: demo\nmodel: 3", "model: must be a mapping, got 3"),
        ("preset: [demo]", "unknown preset"),
        ("train: {}", "steps: set exactly one of steps and minutes"),
        ("- a\n- b", "must be a mapping with model and train, got list"),
        ("a: [", "is not YAML"),
        ("on: 1", "True: unknown key; "),
        ("preset: demo\ntrain: {1: 2}", "train: a name must be a text, got 1; put it in quotes"),
        ("", "must be a mapping"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(text, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem):
        load_preset(written(tmp_path / "run.yaml", text))


def test_a_file_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes("preset: demo\ndescription: für".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run\.yaml: must be UTF-8, byte 27 is not; convert it"):
        load_preset(str(path))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_preset(str(tmp_path / "nowhere.yaml"))


BASE = PRESETS["masked-scenes"].model.replace(vocab_size=1000, mask_id=4)


def test_a_base_is_continued_as_it_is():
    preset = continuing(BASE)
    assert (preset.model, preset.train) == (BASE, CONTINUED)
    assert preset.fine_tuning == FineTuning()


def test_a_file_changes_what_a_base_leaves_free(tmp_path):
    text = """
        model: {dropout: 0.3, d_model: %d}
        train: {minutes: 2, learning_rate: 1.0e-5}
        fine_tuning: {freeze: ["encoder.embedding.*"], patience: 2}
    """
    preset = continuing(BASE, written(tmp_path / "run.yaml", text % BASE.d_model), head="classify")
    assert preset.model == BASE.replace(dropout=0.3, head="classify")
    assert (preset.train.steps, preset.train.minutes, preset.train.learning_rate) == (0, 2, 1e-5)
    assert preset.fine_tuning == FineTuning(freeze=("encoder.embedding.*",), patience=2)
    headed = continuing(BASE, written(tmp_path / "head.yaml", "model: {head: tokens, labels: [B-a, I-a, O]}"))
    assert headed.model.labels == ("B-a", "I-a", "O")
    other = continuing(BASE, written(tmp_path / "other.yaml", "model: {head: tokens}"), head="classify")
    assert other.model.head == "classify"
    labelled = BASE.replace(head="classify", labels=("a", "b"))
    assert continuing(labelled).model.labels == ("a", "b")
    assert continuing(labelled, head="classify").model.labels == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model: {d_model: 512}", r"d_model: must be the base's \d+, got 512; leave it out, or train from scratch"),
        ("model: {norm_position: pre, norm: rms}", "norm: must be the base's 'layer', got 'rms'"),
        ("model: {pooler: tanh}", "pooler: must be the base's 'none', got 'tanh'; .*give a head to train a new one"),
        ("model: {d_modle: 3}", "d_modle: unknown key; did you mean 'd_model'"),
        ("model: {dropout: 2.0}", r"dropout: must be 0.0..0.99, got 2.0"),
        ("train: {vocab_size: 500}", "vocab_size: is that of the base; leave it out of train"),
        ("preset: demo", "preset: unknown key"),
        ("fine_tuning: {freze: [a]}", "freze: unknown key; did you mean 'freeze'"),
        ("fine_tuning: 3", "fine_tuning: must be a mapping, got 3"),
    ],
)
def test_what_a_base_does_not_leave_free_is_refused(text, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem):
        continuing(BASE, written(tmp_path / "run.yaml", text))


def test_a_preset_has_a_model_of_its_own_and_continues_none():
    with pytest.raises(ConfigError, match=r"preset: with --from, give a YAML file or nothing.*'demo'"):
        continuing(BASE, "demo")
    with pytest.raises(ConfigError, match="head: goes with an encoder alone; the base is of architecture decoder"):
        continuing(PRESETS["scenes"].model, head="classify")


def test_fine_tuning_settings_apply_from_scratch_too(tmp_path):
    preset = load_preset(written(tmp_path / "run.yaml", "preset: demo\nfine_tuning: {patience: 4}"))
    assert preset.fine_tuning.patience == 4
    assert PRESETS["demo"].fine_tuning == FineTuning()


@pytest.mark.parametrize("text", ["1e-3", "1.e-3", "+1E-3", "1.0e-3", "0.001", ".1e-2"])
def test_a_number_may_have_an_exponent_alone(tmp_path, text):
    """YAML 1.1 reads 1e-3 as a text."""
    preset = load_preset(written(tmp_path / "run.yaml", f"preset: demo\ntrain: {{learning_rate: {text}}}\n"))
    assert preset.train.learning_rate == 0.001


def test_a_text_is_no_number(tmp_path):
    with pytest.raises(ConfigError, match="learning_rate: must be a number, got '1e-3'"):
        load_preset(written(tmp_path / "run.yaml", "preset: demo\ntrain: {learning_rate: '1e-3'}\n"))
