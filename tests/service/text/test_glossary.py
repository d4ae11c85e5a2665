import pytest

from service.text.edits import Edit, edited, moved
from service.text.glossary import Glossary, GlossaryError, Term, form_in, read_terms


def sources(glossary, text):
    return [text[one.start : one.end] for one in glossary.occurrences(text)]


def test_terms_are_found_at_word_borders_longest_first():
    glossary = Glossary([Term("house", ("Haus",)), Term("house cat", ("Hauskatze",)), Term("cat", ("Katze",))])
    assert sources(glossary, "The house cat, a cat; houses, House, green-house (house)") == [
        "house cat",
        "cat",
        "house",
    ]


def test_the_last_word_of_a_term_is_whole():
    glossary = Glossary([Term("old tree", ("alter Baum",))])
    assert sources(glossary, "old trees, an old tree.") == ["old tree"]
    assert glossary.occurrences("old trees, an old tree.")[0].start == 14


def test_case_is_ignored_on_request():
    glossary = Glossary([Term("house", ("Haus",), ignore_case=True), Term("US", ("USA",))])
    assert sources(glossary, "House us US HOUSE") == ["House", "US", "HOUSE"]


def test_terms_of_a_request_come_before_those_of_the_server():
    named = Glossary([Term("house", ("Haus",)), Term("tree", ("Baum",))])
    both = Glossary([Term("house", ("Gebäude",))]).over(named)
    assert [one.term.targets for one in both.occurrences("a tree, a house")] == [("Baum",), ("Gebäude",)]
    assert [one.term.targets for one in named.occurrences("a house")] == [("Haus",)]


@pytest.mark.parametrize(
    ("term", "translation", "span"),
    [
        (Term("x", ("Haus", "Häuser")), "alte Häuser.", (5, 11)),
        (Term("x", ("Haus",)), "Haustür", None),
        (Term("x", ("haus",)), "Haus und Hof", (0, 4)),
        (Term("x", ("haus",)), "das Haus", None),
        (Term("x", ("haus",), ignore_case=True), "das HAUS", (4, 8)),
        (Term("x", ("rotes Haus",)), "ein rotes Haus!", (4, 14)),
        (Term("x", ("Haus",)), "", None),
    ],
)
def test_a_term_is_met_by_one_of_its_forms(term, translation, span):
    assert form_in(term, translation) == span


@pytest.mark.parametrize(
    ("terms", "place", "field"),
    [
        ([Term("a", ("b",)), Term("a", ("c",))], 1, "source"),
        ([Term(" a", ("b",))], 0, "source"),
        ([Term("a", ())], 0, "targets"),
        ([Term("a", ("b", ""))], 0, "targets[1]"),
        ([Term("a" * 257, ("b",))], 0, "source"),
        ([Term(str(number), ("b",)) for number in range(1001)], 1000, ""),
    ],
)
def test_terms_that_cannot_be_used_are_refused(terms, place, field):
    with pytest.raises(GlossaryError) as caught:
        Glossary(terms)
    assert (caught.value.place, caught.value.field) == (place, field)


def test_a_term_may_be_given_twice_if_it_is_the_same():
    assert len(Glossary([Term("a", ("b",))] * 2).occurrences("a")) == 1


def test_terms_are_read_from_lines():
    lines = ["# comment\n", "\n", "house\tHaus|Häuser\n", "US\tUSA\tignore_case\r\n"]
    assert read_terms(lines) == [Term("house", ("Haus", "Häuser")), Term("US", ("USA",), ignore_case=True)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a\tb", "c"], "line 2: must be SOURCE"),
        (["a\tb\tc"], "line 1: must be SOURCE"),
        (["#", "a\tb", "", "a\tc"], "line 4: source contradicts"),
        (["a\tb|"], "line 1: targets\\[1\\] must be a word"),
    ],
)
def test_the_line_of_an_error_is_named(lines, expected):
    with pytest.raises(ValueError, match=expected):
        read_terms(lines)


def test_edits_move_spans():
    text, edits = "ein altes Haus am See", [Edit(4, 14, "Schloss"), Edit(15, 17, "im")]
    assert edited(text, edits) == "ein Schloss im See"
    spans = moved([(0, 3), (4, 9), (10, 14), (15, 17), (18, 21)], edits)
    assert [edited(text, edits)[slice(*span)] for span in spans] == ["ein", "Schloss", "Schloss", "im", "See"]
