import pytest

from service.text.languages import is_right_to_left, language_of, language_tag, primary_language


@pytest.mark.parametrize(
    ("code", "language", "primary", "tag"),
    [
        ("de", "de", "de", "de"),
        ("de_AT", "de", "de", "de-AT"),
        ("deu_Latn", "de", "de", "de"),
        ("zho_Hans", "zh", "zh", "zh-Hans"),
        ("pbt_Arab", "", "ps", "ps-Arab"),
        ("xx", "", "xx", "xx"),
        ("", "", "", ""),
    ],
)
def test_codes_name_languages(code, language, primary, tag):
    assert (language_of(code), primary_language(code), language_tag(code)) == (language, primary, tag)


def test_some_languages_are_written_from_right_to_left():
    assert [code for code in ("ar", "heb", "pes_Arab", "urd", "en", "zho_Hans") if is_right_to_left(code)] == [
        "ar",
        "heb",
        "pes_Arab",
        "urd",
    ]
