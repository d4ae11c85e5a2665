import time

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from service.text.languages import LANGUAGES, language_of
from service.text.segmentation import WINDOW, Splitter, sentences, splitter_for

ENGLISH = Splitter("en")


def split(text, language="en"):
    return [text[span.start : span.end].strip() for span in sentences(text, Splitter(language))]


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["“Where to?” asked Mr. Holmes.", "It cost $3.50, i.e. nothing.", "He paused... and went on.", "Wait!"]),
        ("en", ["J. R. R. Tolkien wrote it.", "See Fig. 3.", 'He said, "I know."', "She left at 10 a.m. on Jan. 5."]),
        ("de", ["Am 3. Oktober kam Dr. Müller z. B. nach Berlin.", "„Wohin?“, fragte er.", "Der 2. Weltkrieg endete."]),
        (
            "fr",
            ["« Où ? » demanda M. Dupont.", "Il vint le 5 janv. 1990.", "Mme Durand répondit... puis se tut.", "Oui !"],
        ),
    ],
)
def test_abbreviations_quotes_and_numbers_do_not_end_sentences(language, expected):
    assert split(" ".join(expected), language) == expected


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["It runs on VB.NET and Node.js.", "Allow approx. 20 minutes.", "1. Open the lid.", "2. Press it."]),
        ("en", ["“Stop!” he cried.", "(Really?) she asked.", "The release is v2.Final.", "See vol. 3."]),
        ("de", ["Die Fa. Meier liefert bspw. Schrauben.", "Frl. Schulz, geb. Braun, kam.", "„Halt!“ rief er."]),
        ("nl", ["Mevr. de Vries sprak o.a. met hem.", "Dat kost twee mln. euro."]),
        ("es", ["¿Vienes? preguntó ella.", "Son aprox. 30 personas.", "Escribe a D. Luis."]),
        ("fr", ["MM. Petit et Roy sont là.", "Le réf. 12 manque.", "« Non ! » cria-t-elle."]),
        ("pl", ["Mieszka przy ul. Długiej.", "Są m.in. Ania i Jan."]),
        ("ja", ["母は「早く。」と言った。", "「はい！」という声がした。", "「行こう。」", "「うん。」"]),
        ("zh", ["我不知道。", "“快走！”她喊道。", "他说：“好。”"]),
    ],
)
def test_what_looks_like_an_end_is_none(language, expected):
    assert split(("" if language in ("ja", "zh") else " ").join(expected), language) == expected


def test_a_writer_without_capitals_writes_sentences():
    assert split("hello there. how are you? fine!") == ["hello there.", "how are you?", "fine!"]


def test_a_hard_space_counts_as_a_space():
    assert split("C'est M.\xa0Dupont. Il part.", "fr") == ["C'est M.\xa0Dupont.", "Il part."]


@pytest.mark.parametrize(
    ("code", "language"),
    [("de", "de"), ("de-AT", "de"), ("de_DE", "de"), ("deu_Latn", "de"), ("EN", "en"), ("zho_Hans", "zh"), ("th", "")],
)
def test_codes_name_the_language_of_their_rules(code, language):
    assert language_of(code) == splitter_for(code).language == language
    assert not splitter_for(code).is_assumed


def test_without_a_code_the_language_is_assumed():
    assert splitter_for("") == Splitter("en", is_assumed=True)


def test_without_rules_a_paragraph_stays_whole():
    assert split("One. Two.", "") == ["One. Two."]
    assert list(sentences("", Splitter(""))) == []


@given(st.text(st.characters(exclude_characters="\n\r"), max_size=300), st.sampled_from(["", *sorted(LANGUAGES)]))
def test_sentences_tile_the_text(text, language):
    place = 0
    for span in sentences(text, Splitter(language)):
        assert span.start == place < span.end
        place = span.end
    assert place == len(text)


def test_sentences_at_the_edge_of_a_window_are_those_of_a_short_text():
    text = "The red house is old. Mr. Smith saw it! " * (3 * WINDOW // 40)
    assert set(split(text)) == {"The red house is old.", "Mr. Smith saw it!"}


def test_a_sentence_longer_than_a_window_is_cut_at_a_space():
    cut = split("word " * WINDOW)
    assert len(cut) > 1
    assert {word for part in cut for word in part.split()} == {"word"}


@pytest.mark.parametrize("part", ["a", ".", ". ", "a. B ", "“a.” ", '".', "(a. b) ", "Dr. ", "😀. ", "。"])
def test_long_text_takes_linear_time(part):
    text = part * (1_000_000 // len(part))
    began_s = time.process_time()
    assert sum(span.end - span.start for span in sentences(text, ENGLISH)) == len(text)
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize("part", ["word ", "One. Two! ", "“Where?” He asked. ", "a", "M.\xa0Dupont. "])
def test_the_library_reads_windows_with_one_kind_of_space(part, monkeypatch):
    """The time of sentencex 1.0.32 may grow with the square of a text's length, and some spaces make it panic."""
    read, text = list[str](), "One\u2003two\u3000three.\t" + part * (20 * WINDOW // len(part))

    def segment(language, window):
        read.append(window)
        return whole(language, window)

    whole = sentencex.segment
    monkeypatch.setattr(sentencex, "segment", segment)
    assert "".join(text[start:end] for start, end in sentences(text, ENGLISH)) == text
    assert len(read) >= 20
    assert max(map(len, read)) == WINDOW
    assert {character for window in read for character in window if character.isspace()} <= {" "}
