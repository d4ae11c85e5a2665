"""`--translate-as`: templates that fit a model come into its checkpoint, others are refused before it is written."""

import pytest

from model.architecture_config import model_config
from model.checkpoints.checkpoint import load_checkpoint
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import import_checkpoint
from model.pretrained.translators import check_translator, translator
from model.prompts.chat_template import ChatTemplate
from tests.chats import SPECIAL, chat_tokenizer
from tests.decoders import make_decoder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path, tokenizer = tmp_path_factory.mktemp("source"), chat_tokenizer("chatml")
    make_decoder("llama", vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.mark.parametrize("name", ["few-shot", "eurollm", "tower-plus", "hunyuan-mt"])
def test_a_template_comes_into_the_checkpoint(name, source, tmp_path):
    template = translator(name)
    imported = import_checkpoint(source, tmp_path / "ours", convert_tokenizer(source), translation=template)
    templates = load_checkpoint(tmp_path / "ours").templates
    assert templates.translation == imported.translation == template
    assert templates.chat is not None


def test_a_template_of_another_family_is_refused(source, tmp_path):
    with pytest.raises(
        PretrainedError, match="translategemma: its prompt has <start_of_turn>, which is no token of this"
    ):
        import_checkpoint(
            source, tmp_path / "ours", convert_tokenizer(source), translation=translator("translategemma")
        )
    assert not (tmp_path / "ours").exists()


def test_a_template_that_the_model_has_no_room_for_is_refused(source, tmp_path):
    with pytest.raises(PretrainedError, match=r"few-shot: its prompt has \d+ tokens, and the model reads 8"):
        import_checkpoint(
            source, tmp_path / "ours", convert_tokenizer(source), translation=translator("few-shot"), max_length=8
        )


@pytest.mark.parametrize(
    ("config", "chat", "problem"),
    [
        ("encoder_decoder", None, "a model of the architecture encoder_decoder translates without a template"),
        ("encoder", None, "a model of the architecture encoder writes no texts"),
        ("decoder", None, "the prompt is the message of a chat, and the model has no chat template"),
        ("decoder", "{{ raise_exception('No chats.') }}", "tower-plus: No chats."),
    ],
)
def test_a_model_that_is_not_asked_so_is_refused(config, chat, problem, source):
    ours = model_config({"architecture": config, "vocab_size": 500})
    template = None if chat is None else ChatTemplate(chat, SPECIAL["chatml"][2])
    with pytest.raises(PretrainedError, match=problem):
        check_translator(translator("tower-plus"), ours, template, convert_tokenizer(source))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tower", "must be one of eurollm, few-shot, .*, or a file NAME.toml, got 'tower'"),
        ("../few-shot", "must be one of"),
        ("missing.toml", "translate-as: missing.toml: .*No such file"),
    ],
)
def test_an_unknown_name_is_refused(name, problem):
    with pytest.raises(PretrainedError, match=problem):
        translator(name)
