import json

import pytest

from model.config import SpecialTokenTemplate
from model.pretrained.files import PretrainedError
from model.pretrained.import_model import import_model
from tests.decoders import rewritten


@pytest.mark.parametrize(
    ("files", "prefix"),
    [
        ({}, (1,)),
        ({"tokenizer_config.json": {"add_bos_token": False}}, ()),
        ({"tokenizer_config.json": {"add_bos_token": True}, "tokenizer.json": {"post_processor": None}}, (1,)),
        ({"tokenizer_config.json": {}, "tokenizer.json": {"post_processor": None}}, ()),
        ({"tokenizer.json": {"post_processor": {"type": "ByteLevel"}}}, ()),
        (
            {
                "tokenizer.json": {
                    "post_processor": {
                        "type": "Sequence",
                        "processors": [
                            {"type": "ByteLevel"},
                            {
                                "type": "TemplateProcessing",
                                "single": [{"SpecialToken": {"id": "<b>"}}, {"Sequence": {"id": "A"}}],
                                "special_tokens": {"<b>": {"id": "<b>", "ids": [9]}},
                            },
                        ],
                    }
                }
            },
            (9,),
        ),
    ],
)
def test_the_prompt_prefix_is_that_of_the_tokenizer(llama, tmp_path, files, prefix):
    path = rewritten(llama, tmp_path)
    for name, values in files.items():
        (path / name).write_text(json.dumps(values))
    assert import_model(path).config.template == SpecialTokenTemplate(target_prefix=prefix)


def test_a_tokenizer_that_appends_tokens_is_refused(llama, tmp_path):
    template = [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]
    processor = {"type": "TemplateProcessing", "single": template, "special_tokens": {"</s>": {"ids": [2]}}}
    path = rewritten(llama, tmp_path)
    (path / "tokenizer.json").write_text(json.dumps({"post_processor": processor}))
    with pytest.raises(PretrainedError, match=r"tokenizer\.json: post_processor: single .* would end it"):
        import_model(path)
