import io
import json
import zipfile

import pytest
from tokenizers import Tokenizer as Library

from model.prompts.chat_template import ChatTemplate
from model.prompts.chat_tokens import ChatTokens
from model.tokenizer import Tokenizer
from service.adaptors.tokenizer_archive import tokenizer_archive
from service.errors import Unsupported
from tests.edge import TEXTS, FakePool, served


def files(model):
    with zipfile.ZipFile(io.BytesIO(tokenizer_archive(model))) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_the_library_reads_prompts_as_the_service_does(kind):
    model = served("en", FakePool(), "generation")
    model.tokenizer = Tokenizer.train(TEXTS, kind=kind, vocab_size=300)
    library = Library.from_str(json.dumps(files(model)["tokenizer.json"]))
    for text in TEXTS:
        assert library.encode(text).ids == [1, *model.tokenizer.encode(text)]
        assert library.encode(text, add_special_tokens=False).ids == model.tokenizer.encode(text)
        assert library.decode(library.encode(text).ids) == text


def test_the_settings_name_the_special_tokens():
    settings = files(served("en", FakePool(), "generation"))["tokenizer_config.json"]
    assert {name: settings[f"{name}_token"] for name in ("bos", "eos", "pad", "unk")} == {
        name: f"<{name}>" for name in ("bos", "eos", "pad", "unk")
    }
    assert settings["model_max_length"] == 16


def test_a_gateway_gets_the_chat_template():
    model = served("en", FakePool(), "generation")
    assert "chat_template" not in files(model)["tokenizer_config.json"]
    model.chat = ChatTokens(model.tokenizer, ChatTemplate("{{ bos_token }}ä", {"bos_token": "<bos>"}))
    settings = files(model)["tokenizer_config.json"]
    assert (settings["chat_template"], settings["bos_token"]) == ("{{ bos_token }}ä", "<bos>")


def test_the_same_tokenizer_gives_the_same_archive():
    model = served("en", FakePool(), "generation")
    assert tokenizer_archive(model) == tokenizer_archive(model)


def test_a_tokenizer_that_only_the_service_can_read_is_refused():
    model = served("en", FakePool(), "generation")
    values = json.loads(model.tokenizer.to_json())
    values["model"]["target"] = {"model": dict(values["model"])}
    model.tokenizer = Tokenizer.from_json(json.dumps(values))
    with pytest.raises(Unsupported, match="--tokenizer-path"):
        tokenizer_archive(model)
