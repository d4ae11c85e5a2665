"""The tokens of translation prompts are those of the tokenizers library, and clients' texts are plain text."""

import pytest

from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.translators import translator, translators
from model.prompts.chat_template import ChatTemplate
from model.prompts.chat_tokens import ChatTokens
from model.prompts.translation_prompts import TranslationPrompts
from model.prompts.translation_template import TranslationTemplate, TranslationTemplateError
from tests.chats import SPECIAL, chat_tokenizer, theirs

RAW = TranslationTemplate.from_values(
    {
        "name": "raw",
        "prompt": "<|im_start|>{% for one in examples %}{{ one.source }}={{ one.translation }};{% endfor %}"
        "{% for term in terms %}{{ term.source }}>{{ term.target }},{% endfor %}"
        "{% for pair in context %}{{ pair.source }}/{{ pair.translation }} {% endfor %}"
        "{{ source }} ({{ source_code }}) {{ text }}<|im_end|>{{ target }} ({{ target_code }}):",
        "languages": {"en": "English", "de": "German", "zh-Hant": "Chinese (Traditional)"},
        "needs_source": False,
        "context_sentences": 2,
        "examples": [
            {"source_language": "de", "target_language": "en", "source": "du", "translation": "you"},
            {"source_language": "en", "target_language": "de", "source": "you", "translation": "du"},
        ],
    }
)
CHAT = TranslationTemplate.from_values(
    {"name": "chat", "prompt": "Say in {{ target }}: {{ text }}", "languages": {"en": "E", "de": "D"},
     "needs_source": False, "is_chat": True}
)  # fmt: skip


@pytest.fixture(scope="module", params=["chatml", "gemma"])
def tokenizers(request, tmp_path_factory):
    """A tokenizer of transformers, ours, and what encodes its chats."""
    library = chat_tokenizer(request.param)
    library.save_pretrained(path := tmp_path_factory.mktemp("tokenizer"))
    template, _, variables = SPECIAL[request.param]
    ours = convert_tokenizer(path)
    return library, ours, ChatTokens(ours, ChatTemplate(template, variables))


@pytest.mark.parametrize("text", ["How are you?", "  How\n are you \n", "1 < 2 {{ text }} ü😀"])
def test_a_message_is_that_of_a_chat(tokenizers, text):
    library, ours, chat = tokenizers
    prompts = TranslationPrompts(CHAT, ours, chat)
    assert prompts.encode(text, "", "de") == theirs(library, [{"role": "user", "content": f"Say in D: {text}"}])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("you", "de", "en"), "<|im_start|>du=you;German (de) you<|im_end|>English (en):"),
        (("you", "", "en"), "<|im_start|> () you<|im_end|>English (en):"),
        (("you", "en", "zh-Hant"), "<|im_start|>English (en) you<|im_end|>Chinese (Traditional) (zh-Hant):"),
    ],
)
def test_a_prompt_is_encoded_as_the_library_encodes_it(tokenizers, arguments, expected):
    library, ours, _ = tokenizers
    assert (
        TranslationPrompts(RAW, ours, None).encode(*arguments) == library(expected, add_special_tokens=False).input_ids
    )


def test_terms_and_context_stand_in_the_prompt(tokenizers):
    library, ours, _ = tokenizers
    found = TranslationPrompts(RAW, ours, None).encode(
        "you", "", "en", terms=[("du", "you"), ("am", "at")], context=[("a", "b")]
    )
    expected = "<|im_start|>du>you,am>at,a/b  () you<|im_end|>English (en):"
    assert found == library(expected, add_special_tokens=False).input_ids


@pytest.mark.parametrize("name", ["<|im_start|>", "<|im_end|>"])
def test_no_text_of_a_client_is_a_special_token(name, tmp_path):
    library = chat_tokenizer("chatml")
    library.save_pretrained(tmp_path)
    ours, special = convert_tokenizer(tmp_path), library.convert_tokens_to_ids(name)
    for prompts in (
        TranslationPrompts(RAW, ours, None),
        TranslationPrompts(CHAT, ours, ChatTokens(ours, ChatTemplate(SPECIAL["chatml"][0], {}))),
    ):
        plain = prompts.encode("you", "", "en").count(special)
        spelled = prompts.encode(f"{name}you", "", "en", terms=[(name, "a")], context=[("b", name)])
        assert spelled.count(special) == plain
        assert ours.decode(spelled).count(name) >= 1


def test_no_prompt_is_longer_than_the_longest(tokenizers):
    prompts, codes = TranslationPrompts(RAW, tokenizers[1], None), RAW.languages
    sizes = [len(prompts.encode("a", one, other)) for one in codes for other in codes if one != other]
    assert prompts.tokens_around == max(sizes)


def test_a_message_needs_a_chat_template(tokenizers):
    with pytest.raises(TranslationTemplateError, match="template chat: the prompt is the message of a chat"):
        TranslationPrompts(CHAT, tokenizers[1], None)


EXPECTED = {  # as their model cards show them
    "eurollm": "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nTranslate the following German source text to "
    "English:\nGerman: Ja.\nNein. \nEnglish: <|im_end|>\n<|im_start|>assistant\n",
    "few-shot": "German: Ja.\nNein.\nEnglish:",
    "gemmax2": "Translate this from German to English:\nGerman: Ja.\nNein.\nEnglish:",
    "hunyuan-mt": "Translate the following segment into English, without additional explanation.\n\nJa.\nNein.",
    "tower-plus": "Translate the following German source text to English:\nGerman: Ja.\nNein.\nEnglish: ",
    "translategemma": "<start_of_turn>user\nYou are a professional German (de) to English (en) translator. Your goal "
    "is to accurately convey the meaning and nuances of the original German text while adhering to English grammar, "
    "vocabulary, and cultural sensitivities.\nProduce only the English translation, without any additional "
    "explanations or commentary. Please translate the following German text into English:\n\n\nJa.\nNein."
    "<end_of_turn>\n<start_of_turn>model\n",
}


def test_every_family_has_its_prompt():
    assert translators() == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_prompt_of_a_family(name):
    template = translator(name)
    pair = {"source_code": "de", "target_code": "en", "source": "German", "target": "English"}
    given = {**pair, "text": "Ja.\nNein.", "terms": [], "context": [], "examples": []}
    assert ChatTemplate(template.prompt, {}).render((), given) == EXPECTED[name]
    assert {"en", "de"} < template.languages.keys()


def test_the_prompts_of_hunyuan_with_terms_and_context():
    template = ChatTemplate(translator("hunyuan-mt").prompt, {})
    pair = {"source_code": "en", "target_code": "zh", "source": "English", "target": "Chinese", "text": "Yes."}

    def prompt(**given):
        return template.render((), {**pair, "terms": [], "context": [], **given})

    rule = "将以下文本翻译为{}\uff0c注意只需要输出翻译后的结果\uff0c不要额外解释\uff1a\n"
    assert prompt() == rule.format("中文") + "\nYes."
    terms = [{"source": "yes", "target": "是"}]
    assert prompt(terms=terms) == "参考下面的翻译\uff1a\nyes 翻译成 是\n\n" + rule.format("中文") + "Yes."
    found = prompt(context=[{"source": "A.", "translation": "B."}, {"source": "C.", "translation": ""}])
    assert found == (
        "A.\nC.\n参考上面的信息\uff0c把下面的文本翻译成中文\uff0c注意不需要翻译上文\uff0c也不要额外解释\uff1a\nYes."
    )
