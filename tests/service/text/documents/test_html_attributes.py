import pytest

from service.text.documents.html_attributes import TEXTS, translated_attributes


@pytest.mark.parametrize(
    ("element", "values", "expected"),
    [
        ("p", {}, set()),
        ("th", {}, {"abbr"}),
        ("td", {}, set()),
        ("option", {}, {"label"}),
        ("track", {}, {"label"}),
        ("meta", {"name": "Description"}, {"content"}),
        ("meta", {"property": "og:title"}, {"content"}),
        ("meta", {"name": "viewport"}, set()),
        ("input", {"type": "button"}, {"value"}),
        ("input", {"type": "submit"}, {"value"}),
        ("input", {"type": "submit", "name": "action"}, set()),
        ("input", {"type": "text"}, set()),
        ("a", {"download": "a file"}, set()),
    ],
)
def test_attributes_that_readers_see_are_translated(element, values, expected):
    assert translated_attributes(element, values) == TEXTS | expected
