"""Translation templates are checked field by field, and survive their file."""

import json

import pytest

from model.prompts.templates import Templates, TemplatesError
from model.prompts.translation_template import TranslationTemplate, TranslationTemplateError

PROMPT = "{{ source }}: {{ text }} {{ target }}:"
VALUES = {"name": "a", "prompt": PROMPT, "languages": {"en": "English", "de": "German"}}
EXAMPLE = {"source_language": "en", "target_language": "de", "source": "a", "translation": "b"}


def made(**changed):
    return TranslationTemplate.from_values({**VALUES, **changed})


def test_a_template_survives_its_file(tmp_path):
    template = made(
        prompt=PROMPT + "{{ examples }}{{ context }}",
        is_chat=True,
        before_answer=" ",
        stop=["\n"],
        context_sentences=2,
        examples=[EXAMPLE],
    )
    templates = Templates(translation=template)
    for name, content in templates.files().items():
        (tmp_path / name).write_bytes(content)
    assert Templates.read(tmp_path) == templates
    assert Templates.read(tmp_path, names=()) == Templates()
    (tmp_path / "translation_template.json").write_bytes(b"{")
    with pytest.raises(TemplatesError, match=r"translation_template.json: must be JSON"):
        Templates.read(tmp_path)


def test_a_person_writes_toml(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text(
        'name = "a"\nprompt = """\n{{ text }}{{ target }}"""\nneeds_source = false\n[languages]\nen = "E"\nde = "D"\n'
    )
    assert TranslationTemplate.from_toml(file).prompt == "{{ text }}{{ target }}"
    file.write_text("name = ")
    with pytest.raises(TranslationTemplateError, match=r"a.toml: Invalid value"):
        TranslationTemplate.from_toml(file)
    with pytest.raises(TranslationTemplateError, match=r"b.toml: .*No such file"):
        TranslationTemplate.from_toml(tmp_path / "b.toml")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"temperature": 1}, "the template has no field 'temperature'; it has name, prompt, languages"),
        ({"variables": []}, "the template has no field 'variables'"),
        ({"name": 5}, "name must be a text, got 5"),
        ({"name": ""}, "name must be 1..64 printable characters, got ''"),
        ({"is_chat": 1}, "is_chat must be true or false, got 1"),
        ({"context_sentences": True}, "context_sentences must be a whole number, got True"),
        ({"languages": []}, r"languages must be an object, got \[\]"),
        ({"languages": {"en": "English"}}, "languages must be 2..1000, got 1"),
        ({"languages": {"en": "English", "de": ""}}, "languages.de must be a name of 1..64 characters, got ''"),
        ({"languages": {"en": "English", "de": "a\nb"}}, "languages.de must be a name"),
        ({"languages": {"en": "English", "d e": "German"}}, "a code must be letters, digits, - and _, .* got 'd e'"),
        ({"languages": {"en": "English", "de": 5}}, "languages.de must be a name of 1..64 characters, got 5"),
        ({"prompt": "{{ text }}{{ source }}"}, "prompt must read text, and target or target_code"),
        ({"prompt": "{{ target }}{{ source }}"}, "prompt must read text, and target or target_code"),
        ({"prompt": PROMPT + "{{ txet }}"}, "prompt reads 'txet'; it may read text, source, target"),
        ({"prompt": "{{"}, "prompt: line 1"),
        ({"prompt": "{{ text }}{{ target }}"}, "needs_source must be false: the prompt reads neither"),
        ({"before_answer": " " * 17}, "before_answer must be at most 16 characters"),
        ({"stop": ["a"] * 5}, "stop must be at most 4 strings, got 5"),
        ({"stop": [""]}, "stop must be strings of 1..16 characters, got ''"),
        ({"stop": "a"}, "stop must be a list, got 'a'"),
        ({"context_sentences": 65}, "context_sentences must be 0..64, got 65"),
        ({"context_sentences": 1}, "context_sentences must be above 0 if the prompt reads context, and else 0"),
        ({"prompt": PROMPT + "{{ context }}"}, "context_sentences must be above 0 if the prompt reads"),
        ({"examples": [EXAMPLE]}, "examples must be left out: the prompt does not read them"),
        ({"examples": ["a"]}, r"examples\[0\] must be an object of fields, got 'a'"),
        ({"examples": [{**EXAMPLE, "more": 1}]}, r"examples\[0\] has no field 'more'"),
        ({"examples": [{"source": "a"}]}, r"examples\[0\] must have the field source_language"),
        (
            {"prompt": PROMPT + "{{ examples }}", "examples": [{**EXAMPLE, "source_language": "fr"}]},
            r"examples\[0\].source_language must be a code of languages, got 'fr'",
        ),
        (
            {"prompt": PROMPT + "{{ examples }}", "examples": [{**EXAMPLE, "source": "a" * 4097}]},
            r"examples\[0\] must have texts of at most 4096 characters",
        ),
        ({"prompt": PROMPT + "{{ examples }}", "examples": [EXAMPLE] * 101}, "examples must be at most 100"),
    ],
)
def test_what_is_wrong_is_named(changed, problem):
    with pytest.raises(TranslationTemplateError, match=problem):
        made(**changed)


@pytest.mark.parametrize("data", [b"[]", b"5", b"null", b'{"name": "a"}', b"\xff"])
def test_a_file_of_something_else_is_refused(data):
    with pytest.raises(TranslationTemplateError, match="must"):
        TranslationTemplate.from_json(data)


def test_a_name_may_be_missing():
    with pytest.raises(TranslationTemplateError, match="the template must have the field prompt"):
        TranslationTemplate.from_json(json.dumps({"name": "a"}).encode())
