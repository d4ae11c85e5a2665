import pytest

from service.decoding.prompt_form import PLAIN, ContextPlace, PromptForm
from service.request import Request


@pytest.mark.parametrize(
    ("source", "positions"),
    [((7, 5, 6, 2), []), ((7, 5, 9, 6, 2), [1, 2]), ((7, 5, 9, 6, 6, 9, 5, 2), [1, 2, 3, 4, 5]), ((7, 9, 2), [1])],
)
def test_sentences_before_the_text_end_with_the_last_separator(source, positions):
    assert list(range(len(source)))[ContextPlace(1, 9).positions(source)] == positions


def test_the_own_prompt_of_an_answer_has_no_translations_of_sentences_before_it():
    asked = Request(request_id="r", source=(5, 9, 6, 2), prompt=(1, 4, 5, 9), max_tokens=9)
    assert PLAIN.own_prompt(asked) == PromptForm(1).own_prompt(asked) == (1, 4, 5, 9)
    assert PromptForm(1, ContextPlace(0, 9)).own_prompt(asked) == (1, 4)
