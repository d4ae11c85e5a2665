import collections
import itertools
import random

import pytest

from service.text.edits import Edit, edited, moved
from service.text.glossary import Borders, Glossary, GlossaryError, Term, form_in, read_terms


def sources(glossary, text):
    return [text[one.start : one.end] for one in glossary.occurrences(text)]


def test_terms_are_found_at_word_borders_longest_first():
    glossary = Glossary([Term("house", ("Haus",)), Term("house cat", ("Hauskatze",)), Term("cat", ("Katze",))])
    assert sources(glossary, "The house cat, a cat; houses, House, green-house (house)") == [
        "house cat",
        "cat",
        "house",
        "house",
    ]


def test_the_last_word_of_a_term_is_whole():
    glossary = Glossary([Term("old tree", ("alter Baum",))])
    assert sources(glossary, "old trees, an old tree.") == ["old tree"]
    assert glossary.occurrences("old trees, an old tree.")[0].start == 14


def test_case_is_ignored_on_request():
    glossary = Glossary([Term("house", ("Haus",), ignore_case=True), Term("US", ("USA",))])
    assert sources(glossary, "House us US HOUSE") == ["House", "US", "HOUSE"]


def test_a_term_in_exactly_this_case_comes_before_one_that_ignores_it():
    terms = [Term("us", ("uns",), ignore_case=True), Term("US", ("USA",))]
    for order in (terms, terms[::-1]):
        found = Glossary(order).occurrences("US us Us")
        assert [one.term.targets[0] for one in found] == ["USA", "uns", "uns"]


def occurrences_by_comparison(terms, text):
    """The slow version: at each word the longest term that the text has there, up to the end of a word."""
    borders, free, found = Borders(text), 0, []
    for start in sorted(borders.starts):
        fitting = [
            (after, term.source == text[start:after], term)
            for term in terms
            if (after := start + len(term.source)) in borders.ends
            and (text[start:after] == term.source or (term.ignore_case and text[start:after].lower() == term.source))
        ]
        if start >= free and fitting:
            free, _, term = max(fitting, key=lambda one: one[:2])
            found.append((term, start, free))
    return found


def test_terms_are_those_of_a_comparison_with_every_term():
    rng, count = random.Random(1), 0
    for _ in range(3000):
        made = {"".join(rng.choices("abBö .,-漢字(", k=rng.randint(1, 5))).strip() for _ in range(5)} - {""}
        terms = [Term(source, ("x",), source == source.lower() and rng.random() < 0.5) for source in sorted(made)]
        text = "".join(rng.choices("abBö .,-漢字(", k=30))
        found = [(one.term, one.start, one.end) for one in Glossary(terms).occurrences(text)]
        assert found == occurrences_by_comparison(terms, text), (terms, text)
        hidden = Glossary(terms[:1]).over(Glossary(terms)).occurrences(text)
        assert [(one.term, one.start, one.end) for one in hidden] == found
        count += len(found)
    assert count > 2000


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("école", "J'aime l'école."),
        ("école", "l\u2019école"),
        ("isola", "un'isola verde"),
        ("cat", "the cat's tail"),
        ("tea", "tea/coffee"),
        ("LED", "LED-Lampe"),
        ("Lampe", "LED-Lampe"),
        ("apple", "apple,pear"),
        ("option", "option(s)"),
        ("부산", "부산에서 왔다"),
        ("고양이", "고양이가 잔다"),
        ("고양이", "고양이"),
    ],
)
def test_words_that_are_written_together_have_borders(term, text):
    assert sources(Glossary([Term(term, ("x",))]), text) == [term]
    assert form_in(Term("x", (term,)), text) is not None


@pytest.mark.parametrize(
    ("term", "text"), [("don", "don't"), ("we", "we're"), ("1", "1,5"), ("cat", "category"), ("부", "부산에서")]
)
def test_a_part_of_a_word_is_no_term(term, text):
    assert sources(Glossary([Term(term, ("x",))]), text) == []


def test_a_capital_i_with_a_dot_is_one_character_in_lower_case():
    text = "\u0130\u0130 House, \u0130STANBUL"
    glossary = Glossary([Term("house", ("x",), ignore_case=True), Term("istanbul", ("x",), ignore_case=True)])
    assert sources(glossary, text) == ["House", "\u0130STANBUL"]


class CountedTrie(collections.UserDict[tuple[int, str], int]):
    lookups = 0

    def get(self, key, default=None):
        self.lookups += 1
        return super().get(key, default)


@pytest.mark.parametrize(
    "terms",
    [
        [f"a {number:03d}" for number in range(1000)],
        ["".join(word) for word in itertools.product("aA", repeat=9)],
        [" ".join(["a"] * 20 + [f"b{number}"]) for number in range(500)],
    ],
)
def test_the_time_for_a_text_does_not_depend_on_the_number_of_terms(terms):
    glossary = Glossary([Term(term, ("x",), ignore_case=True) for term in terms])
    vars(glossary)["_next"] = trie = CountedTrie(glossary._next)
    assert glossary.occurrences("a " * 2000) == []
    assert trie.lookups <= 2000 * 22


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
        (Term("x", ("\u0130stanbul",), ignore_case=True), "\u0130zmir, istanbul, \u0130stanbul", (7, 15)),
        (Term("x", ("haus",), ignore_case=True), "\u0130\u0130 \u0130 Haus \u0130", (5, 9)),
        (Term("x", ("ßa",)), "SSa b", (0, 3)),
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


def test_the_error_of_a_long_term_does_not_repeat_it():
    with pytest.raises(GlossaryError, match=r"^must be at most 256 bytes, got 20001$"):
        Glossary([Term("x" * 20_000 + " ", ("b",))])


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
        (["a" * 999], "got 'a{79}$"),
        (
            ["a\tb", "a\tb\tignore_case"],
            "'a' has 'b' without ignore_case and 'b' with ignore_case; give each source once",
        ),
        (["a\tb", "a\tc|b"], "'a' has 'b' and 'c|b'; give each source once"),
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
