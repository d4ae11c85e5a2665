"""Templates render what transformers renders, or are refused, within bounds."""

from datetime import datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from model.prompts import chat_template
from model.prompts.chat_template import MAX_TEMPLATE_BYTES, ChatRefused, ChatTemplate, ChatTemplateError, ChatTooLong
from tests.chats import CHATS, SPECIAL

CHAT = CHATS[1]
TOOLS = [{"name": "f", "parameters": {"größe": 1, "b": [1.5, None, "<&>"]}}]
FEATURES = (
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ tools | tojson(separators=(',', ':')) }}",
    "{% for message in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.previtem }}{% if loop.index == 2 %}{% break %}{% endif %}{% continue %}x{% endfor %}",
    "{% for message in messages if message.role == 'user' %}{{ message.content | trim | length }}"
    "{% else %}-{% endfor %}",
    "{% set ns = namespace(a=1, self=2) %}{% for i in range(5) %}{% set ns.a = ns.a * 2 + i %}{% endfor %}"
    "{{ ns.a }}{{ ns.self }}",
    "{% macro say(who, what='hi') %}{{ who ~ ':' ~ what ~ 1 ~ none }}{% endmacro %}"
    "{{ say('a') }}{{ say('b', what=2) }}",
    "  {% generation %}{% for i in [1] %}{{ i }}{% endfor %}{% endgeneration %}  \n  {#- note -#}  x\n",
    "{{ bos_token }}{{ unknown }}{{ tools is defined }}{{ documents is none }}{{ add_generation_prompt }}",
    "{{ messages[-1:] | map(attribute='role') | join(', ') }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ 'a,b'.split(',') }}{{ 'x'.rjust(5) }}{{ '%s-%d' % ('a', 5) }}{{ '{:>4}'.format(7) }}{{ dict(a=1) }}",
    "{{ [1, 2] + [3] }}{{ 'a' * 3 }}{{ 7 // 2 }}{{ 2 ** 5 }}{{ messages[0].items() | list }}{{ strftime_now('%Y') }}",
    "{%- for m in messages recursive %}{{ m.role }}{% endfor -%}\n{% set text %}a{{ 1 }}{% endset %}{{ text | upper }}",
)


@pytest.mark.parametrize("source", [*(template for template, _, _ in SPECIAL.values()), *FEATURES])
@pytest.mark.parametrize("begins", [True, False])
def test_texts_are_those_of_transformers(source, begins):
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(source, variables)
    for messages in CHATS:
        for tools in (None, TOOLS):
            ((expected,), _) = render_jinja_template(
                [messages], tools, chat_template=source, add_generation_prompt=begins, **variables
            )
            assert template.render(messages, {"tools": tools}, add_generation_prompt=begins) == expected


@pytest.mark.parametrize("source", [template for template, _, _ in SPECIAL.values()])
@pytest.mark.parametrize("end", ["I am", "I am  \n", "", "a\n\nb ", "x x x"])
def test_a_last_message_is_continued_as_by_transformers(source, end):
    messages = [CHAT[0], {"role": "assistant", "content": end}]
    template = ChatTemplate(source, {"eos_token": "</s>"})
    ((expected,), _) = render_jinja_template(
        [messages], chat_template=source, continue_final_message=True, eos_token="</s>"
    )
    assert template.render_continued(messages) == expected


def test_a_last_message_that_the_template_leaves_out_cannot_be_continued():
    with pytest.raises(ChatTemplateError, match="leaves out the content of the last message"):
        ChatTemplate("{{ messages[0].content }}", {}).render_continued(CHAT)


def test_a_template_is_stored_with_its_special_tokens():
    template = ChatTemplate("ä{{ bos_token }}", {"bos_token": "<s>"})
    again = ChatTemplate.from_json(template.to_json())
    assert (again.source, again.special_tokens) == (template.source, {"bos_token": "<s>"})
    assert again.render(CHAT) == "ä<s>"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b'"x"', b"\xff", b"[" * 100_000),
        b'{"chat_template": 1, "special_tokens": {}}',
        *(b'{"chat_template": "", "special_tokens": %b}' % value for value in (b"[]", b'{"a": 1}', b"null")),
    ],
)
def test_what_is_no_template_is_refused(data):
    with pytest.raises(ChatTemplateError):
        ChatTemplate.from_json(data)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("a\n{% for %}", "line 2: "),
        ("{% unknown %}", "line 1: Encountered unknown tag 'unknown'"),
        ("{{ a | no_filter }}", "line 1: No filter named 'no_filter'"),
        ("{% break %}", "cannot be compiled|line"),
        ("x" * (MAX_TEMPLATE_BYTES + 1), f"must be at most {MAX_TEMPLATE_BYTES} bytes, got {MAX_TEMPLATE_BYTES + 1}"),
        ("(" * 9 + "{{" + "(" * 5000, "cannot be compiled|line"),
    ],
)
def test_what_is_no_jinja_is_refused_with_its_line(source, problem):
    with pytest.raises(ChatTemplateError, match=problem):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ a.b }}", "'a' is undefined"),
        ("{{ messages[0].x.y }}", "has no attribute 'x'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{% include 'a' %}", "no loader"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined|no attribute"),
        ("{{ namespace(_a=1) }}", "begin with a letter"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ raise_exception() }}", "TypeError"),
        ("{{ messages[9].content }}", "no element 9"),
    ],
)
def test_what_does_not_render_is_told(source, problem):
    with pytest.raises(ChatTemplateError, match=problem) as caught:
        ChatTemplate(source, {}).render(CHAT)
    assert type(caught.value) is ChatTemplateError


def test_a_template_refuses_in_its_own_words():
    with pytest.raises(ChatRefused, match=r"^Roles must alternate"):
        ChatTemplate(SPECIAL["gemma"][0], {}).render([CHAT[0], CHAT[0]])


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    ],
)
def test_time_is_bounded(source, monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    with pytest.raises(ChatTooLong, match=r"takes more than 0.05 s of processor time"):
        ChatTemplate(source, {}).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% for i in range(99999) %}{{ messages[0].content * 9 }}{% endfor %}",
        "{{ 'ab' * 9999999999 }}",
        "{{ 9999999999 * [1] }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a'.rjust(9999999999) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ 9 ** 9999999 }}",
        "{{ [1] | batch(999999999, 1) | list }}",
        "{{ range(9999999999) }}",
    ],
)
def test_the_length_of_texts_is_bounded(source):
    with pytest.raises(ChatTooLong):
        ChatTemplate(source, {}).render(CHAT)


def test_a_bound_is_that_of_one_rendering(monkeypatch):
    template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {})
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 100)
    for _ in range(50):
        assert template.render([{"role": "user", "content": "x" * 90}]) == "x" * 90
    with pytest.raises(ChatTooLong, match="gives more than 100 characters"):
        template.render([{"role": "user", "content": "x" * 51}] * 2)


def test_today_is_that_of_the_server():
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(CHAT) in (
        f"{datetime.now():%Y}",
        f"{datetime.now().year - 1}",
    )
