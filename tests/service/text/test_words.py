import pytest

from service.text.words import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, (my) friend!", ["Hello", ",", "(", "my", ")", "friend", "!"]),
        ("don't rock-n-roll e.g.", ["don't", "rock-n-roll", "e.g", "."]),
        ("caf\u0065\u0301, ok", ["caf\u0065\u0301", ",", "ok"]),
        ("\u4f60\u597d\uff0c\u4e16\u754c", ["\u4f60", "\u597d", "\uff0c", "\u4e16", "\u754c"]),
        ("a\u4f60b", ["a", "\u4f60", "b"]),
        ("👩\u200d👩\u200d👧 €5", ["👩\u200d👩\u200d👧", "€5"]),
        ("  \n", []),
    ],
)
def test_words(text, expected):
    assert [text[start:end] for start, end in words(text)] == expected
