import gettext

import pytest

from service.text.documents.plural_forms import _TABLE, MAX_HEADER, plural_forms, plural_forms_of

LANGUAGES = [language for languages in _TABLE.values() for language in languages.split()]


@pytest.mark.parametrize(
    ("language", "size", "one", "is_of_one_alone"),
    [("de", 2, 0, True), ("fr_FR", 2, 0, False), ("pt-PT", 2, 0, True), ("pt_BR", 2, 0, False),
     ("ru", 3, 0, False), ("pol_Latn", 3, 0, True), ("ja", 1, 0, False),
     ("ar", 6, 1, True), ("sl", 4, 0, False), ("cy", 6, 1, True), ("gla_Latn", 4, 0, False),
     ("br", 5, 0, False), ("mt", 5, 0, True), ("ceb", 2, 0, False), ("zul_Latn", 2, 0, False)],
)  # fmt: skip
def test_forms_of_languages(language, size, one, is_of_one_alone):
    found = plural_forms_of(language)
    assert found
    assert found[1:] == (size, one, is_of_one_alone)
    assert plural_forms(found.header) == found


def test_every_language_is_listed_once_and_its_forms_are_used():
    assert len(LANGUAGES) == len({*LANGUAGES})
    for header in _TABLE:
        found = plural_forms(header)
        assert found
        form = gettext.c2py(header.partition("plural=")[2].rstrip(";"))
        assert {form(number) for number in (*range(1001), 10**6)} == {*range(found.size)}, header


@pytest.mark.parametrize(
    "header",
    ["", "nplurals=INTEGER; plural=EXPRESSION;", "nplurals=2;", "nplurals=0; plural=0;", "nplurals=2; plural=n;",
     "nplurals=2; plural=n%0;", "nplurals=2; plural=(n", "nplurals=2; plural=import os;",
     "nplurals=2; plural=n < !2;", "nplurals=1; plural=1;",
     "nplurals=2; plural=(n != 1);" + " " * MAX_HEADER],
)  # fmt: skip
def test_headers_that_are_not_valid_name_no_forms(header):
    assert plural_forms(header) is None


def test_an_unknown_language_has_no_forms():
    assert plural_forms_of("") is plural_forms_of("tlh") is None
