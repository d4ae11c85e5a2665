"""The chat template of a directory is the one that transformers finds, and its end of a turn ends answers."""

import json

import pytest
import transformers

from model.checkpoints.checkpoint import CheckpointError, load_checkpoint
from model.pretrained.chat import Chat, chat_of, end_of_turn
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import PretrainedError
from model.pretrained.import_checkpoint import check_configuration, import_checkpoint
from tests.chats import CHATS, GEMMA, chat_tokenizer
from tests.decoders import make_decoder


@pytest.fixture
def path(tmp_path):
    return tmp_path


def taken_from(path):
    """The template that is taken, and the names of others."""
    chat = chat_of(path)
    assert chat.template is not None
    return chat.template, chat.others


def write(path, **values):
    (path / "tokenizer_config.json").write_text(json.dumps(values))


def test_a_file_goes_before_the_configuration(path):
    write(path, chat_template="old", bos_token="<s>", eos_token={"content": "</s>"}, additional_special_tokens=["<a>"])
    assert taken_from(path)[0].source == "old"
    (path / "chat_template.jinja").write_text("new{{ bos_token }}\n", encoding="utf-8")
    template, others = taken_from(path)
    assert (template.source, others) == ("new{{ bos_token }}\n", ())
    assert template.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert template.render([]) == "new<s>"


@pytest.mark.parametrize("as_list", [True, False])
def test_of_several_templates_the_default_is_taken(path, as_list):
    named = {"tool_use": "b", "default": "a", "rag": "c"}
    write(path, chat_template=[{"name": name, "template": one} for name, one in named.items()] if as_list else named)
    template, others = taken_from(path)
    assert (template.source, others) == ("a", ("tool_use", "rag"))


def test_further_files_are_named(path):
    write(path, chat_template="old")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("b")
    assert chat_of(path) == Chat(None, ("tool_use",))  # as transformers: files go before the configuration
    (path / "chat_template.jinja").write_text("a")
    template, others = taken_from(path)
    assert (template.source, others) == ("a", ("tool_use",))


@pytest.mark.parametrize("value", [None, [], {}, [{"name": "rag", "template": "c"}]])
def test_a_directory_may_have_none(path, value):
    write(path, chat_template=value)
    assert chat_of(path).template is None


@pytest.mark.parametrize(
    "value", [5, True, [1], ["a"], [{"name": "default"}], [{"name": 1, "template": "a"}], {"a": 1}]
)
def test_what_is_no_template_is_refused(path, value):
    write(path, chat_template=value)
    with pytest.raises(PretrainedError, match=r"tokenizer_config.json: chat_template: must be a text, or a list"):
        chat_of(path)


def test_what_is_no_jinja_is_refused_before_weights_are_read(path):
    make_decoder("llama").config.save_pretrained(path)
    (path / "chat_template.jinja").write_text("a\n{% for %}")
    with pytest.raises(PretrainedError, match=r"chat_template.jinja: line 2: .*; correct it, or remove it to import"):
        check_configuration(path)
    (path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(PretrainedError, match=r"chat_template.jinja: cannot be read: 'utf-8' codec"):
        check_configuration(path)
    (path / "chat_template.jinja").unlink()
    write(path, chat_template="{{")
    with pytest.raises(PretrainedError, match=r"tokenizer_config.json: chat_template: line 1"):
        check_configuration(path)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("chatml", "<|im_end|>"),
        ("llama", "<|eot|>"),
        ("gemma", "<end_of_turn>"),
        ("mistral", "</s>"),
        ("phi", "<|end|>"),
        ("thinking", "<|im_end|>"),
    ],
)
def test_the_end_of_a_turn_follows_an_answer(path, name, end):
    theirs = chat_tokenizer(name)
    theirs.save_pretrained(path)
    tokenizer, (template, _) = convert_tokenizer(path), taken_from(path)
    assert template.source == theirs.chat_template
    assert template.special_tokens == theirs.special_tokens_map
    assert end_of_turn(template, tokenizer) == theirs.convert_tokens_to_ids(end)


@pytest.mark.parametrize("source", ["", "{{ messages[1].content }} and", "{{ raise_exception('no') }}", "{{ a.b }}"])
def test_a_template_may_have_no_end_of_a_turn(path, source):
    chat_tokenizer("chatml").save_pretrained(path)
    (path / "chat_template.jinja").write_text(source)
    assert end_of_turn(taken_from(path)[0], convert_tokenizer(path)) is None


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    path = tmp_path_factory.mktemp("theirs")
    tokenizer = chat_tokenizer("gemma")
    make_decoder("llama", vocab_size=len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_checkpoint_has_the_template(theirs, path):
    taken = import_checkpoint(theirs, path / "ours", convert_tokenizer(theirs))
    end = transformers.AutoTokenizer.from_pretrained(theirs).convert_tokens_to_ids("<end_of_turn>")
    checkpoint = load_checkpoint(path / "ours")
    assert taken.chat.template is not None
    assert checkpoint.templates.chat is not None
    assert taken.chat.template.source == checkpoint.templates.chat.source == GEMMA
    assert checkpoint.templates.chat.render(CHATS[0]) == (
        "<bos><start_of_turn>user\nHow are you?<end_of_turn>\n<start_of_turn>model\n"
    )
    assert checkpoint.config.eos_ids == (2, end)
    assert "chat_template.jinja" in checkpoint.lineage["files_sha256"]
    (path / "ours" / "chat_template.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"chat_template.json: must be \d+ bytes, got 2"):
        load_checkpoint(path / "ours")


def test_a_given_end_is_the_only_one(theirs, path):
    taken = import_checkpoint(theirs, path / "ours", convert_tokenizer(theirs), eos_id=5)
    assert taken.config.eos_ids == (5,)


def test_an_original_without_a_template_has_no_file(theirs, path):
    for file in theirs.iterdir():
        if file.name != "chat_template.jinja":
            (path / file.name).write_bytes(file.read_bytes())
    taken = import_checkpoint(path, path / "ours", convert_tokenizer(path))
    assert (taken.chat, taken.config.eos_ids) == (Chat(), (2,))
    assert not (path / "ours" / "chat_template.json").exists()
    assert load_checkpoint(path / "ours").templates.chat is None
