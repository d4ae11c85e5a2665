import dataclasses

import pytest

from export.bundle.manifest import SpecialTokenTemplate
from model.tokenizer import Tokenizer
from service.edge.requests.prompt_encoder import INLINE_BYTES, LanguagePair, PromptEncoder, Room
from service.edge.requests.request_builder import RequestBuilder
from service.errors import InvalidRequest
from tests.edge import CALL, GENERATION, LIMITS, TRANSLATION, decoding_request, manifest, scoring_request
from tests.languages import model as between
from tests.model.tokenizers.families import made

FRAMED = dataclasses.replace(
    TRANSLATION,
    manifest=manifest(
        template=SpecialTokenTemplate(
            source_prefix=("source_language",),
            source_suffix=(2,),
            target_prefix=(2, "target_language"),
            languages={"deu_Latn": 4, "eng_Latn": 5},
        )
    ),
)
BARE = dataclasses.replace(GENERATION, manifest=manifest("generation", template=SpecialTokenTemplate()))


def test_a_translation_has_an_end_token_in_its_source_and_starts_from_bos():
    request = decoding_request(TRANSLATION, "a black cat")
    tokens = TRANSLATION.tokenizer.encode("a black cat")
    assert (request.source, request.prompt) == ((*tokens, 2), (1,))
    assert (request.request_id, request.deadline_s, request.stop) == ("r", 9.0, ())


def test_a_generation_prompt_follows_bos():
    request = decoding_request(GENERATION, "a black")
    tokens = GENERATION.tokenizer.encode("a black")
    assert (request.source, request.prompt) == ((), (1, *tokens))


def test_special_tokens_include_the_languages_of_the_request():
    tokens = FRAMED.tokenizer.encode("a black cat")
    languages = LanguagePair("eng_Latn", "deu_Latn")
    request = decoding_request(FRAMED, "a black cat", languages=languages)
    assert (request.source, request.prompt) == ((5, *tokens, 2), (2, 4))
    assert request.max_tokens == FRAMED.max_tokens == 15  # of 16 positions one more is given
    builder = RequestBuilder(FRAMED, LIMITS, *CALL)
    embedded = builder.embedding("a black cat", languages=LanguagePair("deu_Latn")).request
    assert (embedded.source, len(embedded.prompt)) == ((4, *tokens, 2), 1)
    assert decoding_request(FRAMED, "cat " * 6, languages=languages).source
    with pytest.raises(InvalidRequest, match="text: must be at most 8 tokens, got 9"):
        decoding_request(FRAMED, "cat " * 7, languages=languages)


@pytest.mark.parametrize(
    ("languages", "problem"),
    [
        (LanguagePair("eng_Latn"), "target_language: must be given: one of deu_Latn, eng_Latn"),
        (LanguagePair(target="eng_Latn"), "source_language: must be given: one of deu_Latn, eng_Latn"),
        (LanguagePair("eng_Latn", "du_Latn"), "target_language: unknown code 'du_Latn'; did you mean 'deu_Latn'"),
        (LanguagePair("eng_Latn", "de-Cyrl"), "target_language: unknown code 'de-Cyrl'; must be one of deu_Latn, eng"),
        (LanguagePair("???", "deu_Latn"), r"source_language: unknown code '\?\?\?'; must be one of deu_Latn, eng_Latn"),
    ],
)
def test_languages_must_be_those_of_the_model(languages, problem):
    with pytest.raises(InvalidRequest, match=problem):
        decoding_request(FRAMED, "cat", languages=languages)


def test_languages_that_the_model_does_not_read_are_rejected():
    problem = "source_language: must be left out: model 'en-de' does not say what it translates"
    with pytest.raises(InvalidRequest, match=problem):
        decoding_request(TRANSLATION, "cat", languages=LanguagePair("eng_Latn"))
    template = dataclasses.replace(FRAMED.manifest.template, source_prefix=("target_language",), target_prefix=(2,))
    marked = dataclasses.replace(FRAMED, manifest=manifest(template=template))
    assert decoding_request(marked, "cat", languages=LanguagePair(target="deu_Latn")).source[0] == 4
    assert decoding_request(marked, "cat", languages=LanguagePair("en", "de")).source[0] == 4
    problem = "source_language: must be deu_Latn, eng_Latn, which model 'en-de' translates, or left out, got 'fr'"
    with pytest.raises(InvalidRequest, match=problem):
        decoding_request(marked, "cat", languages=LanguagePair("fr", "deu_Latn"))


@pytest.mark.parametrize("code", ["de", "de-AT", "de_DE", "deu", "DE-Latn"])
def test_any_code_that_names_a_language_of_the_model_is_taken(code):
    known = decoding_request(FRAMED, "a cat", languages=LanguagePair("eng_Latn", "deu_Latn"))
    request = decoding_request(FRAMED, "a cat", languages=LanguagePair("en", code))
    assert (request.source, request.prompt) == (known.source, known.prompt)


def test_a_model_of_two_languages_takes_their_names_and_reads_none():
    model = between("en-de", "en", "de")
    bare = decoding_request(model, "a cat")
    assert decoding_request(model, "a cat", languages=LanguagePair("en-GB", "deu_Latn")).source == bare.source
    with pytest.raises(InvalidRequest, match="target_language: must be de, which model 'en-de' translates, or left"):
        decoding_request(model, "a cat", languages=LanguagePair("en", "fr"))


def test_a_prompt_without_a_start_token_is_its_text_and_never_empty():
    tokens = BARE.tokenizer.encode("a black")
    assert decoding_request(BARE, "a black").prompt == tuple(tokens)
    with pytest.raises(InvalidRequest, match=r"text: must have at least one token, because .* no start token"):
        scoring_request(BARE, "", "a black")
    assert scoring_request(GENERATION, "", "a black").prompt == (1,)


def test_prompt_and_answer_share_the_positions_but_the_last_token_takes_none():
    longest = GENERATION.manifest.limits.max_target_len
    prompt = "x" * (longest - 1)  # one token a byte, and the start token
    request = decoding_request(GENERATION, prompt)
    assert (len(request.prompt), request.max_tokens) == (longest, 1)
    with pytest.raises(InvalidRequest, match=f"at most {longest} tokens, got {longest + 1}"):
        decoding_request(GENERATION, prompt + "x")
    with pytest.raises(InvalidRequest, match=r"1\.\.1 after a prompt of 16 tokens"):
        decoding_request(GENERATION, prompt, max_tokens=2)


def test_long_text_gives_the_same_request_from_a_thread():
    text = "cat" + " " * INLINE_BYTES
    assert decoding_request(TRANSLATION, text).source == decoding_request(TRANSLATION, "cat").source


ALONE, IN_A_BATCH = [7], [8]
ANY = Room(1, 0, lambda count: f"got {count}")


class WatchedTokenizer:
    """Says how it was called instead of segmenting."""

    def least_tokens(self, text):
        return 0

    def encode(self, text):
        return ALONE

    def encode_batch(self, texts):
        return [IN_A_BATCH for _ in texts]


@pytest.mark.parametrize("letter", ["x", "ü", "家", "🏠"])
def test_text_above_the_inline_size_is_tokenized_without_the_gil(letter):
    encoder = PromptEncoder(dataclasses.replace(GENERATION, tokenizer=WatchedTokenizer()))
    fits = INLINE_BYTES // len(letter.encode())
    assert encoder.encode(letter * fits, "text", ANY) == ALONE
    assert encoder.encode(letter * (fits + 1), "text", ANY) == IN_A_BATCH


class CountingTokenizer:
    """Counts what is asked of a tokenizer. Every word is a token, and unknown."""

    def __init__(self, bound):
        self.bound, self.calls = bound, []

    def least_tokens(self, text):
        return len(text.split()) if self.bound else 0

    def encode(self, text):
        self.calls.append("encode")
        return [3] * len(text.split())

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def unknown_words(self, text):
        self.calls.append("unknown_words")
        return text.split()


@pytest.mark.parametrize(("bound", "calls", "count"), [(True, [], "at least 401"), (False, ["encode"], "401")])
def test_a_text_that_cannot_fit_costs_no_more_than_finding_that_out(bound, calls, count):
    tokenizer = CountingTokenizer(bound)
    limit = TRANSLATION.manifest.limits.max_source_len
    with pytest.raises(InvalidRequest, match=f"text: must be at most {limit} tokens, got {count}; shorten or split it"):
        PromptEncoder(dataclasses.replace(TRANSLATION, tokenizer=tokenizer)).source("dog " * 400, {})
    assert tokenizer.calls == calls


def test_the_check_of_a_length_refuses_only_what_cannot_fit():
    limit = TRANSLATION.manifest.limits.max_source_len
    encoder = PromptEncoder(dataclasses.replace(TRANSLATION, tokenizer=CountingTokenizer(True)))
    encoder.check_length("dog " * limit)
    with pytest.raises(InvalidRequest, match=f"must be at most {limit} tokens, got at least {limit + 1}; shorten"):
        encoder.check_length("dog " * (limit + 1))
    tokenizer = CountingTokenizer(False)
    PromptEncoder(dataclasses.replace(TRANSLATION, tokenizer=tokenizer)).check_length("dog " * 4000)
    assert tokenizer.calls == []


def test_a_long_target_and_a_long_prefix_are_refused_with_their_limits():
    with pytest.raises(InvalidRequest, match=r"^target: must be 1\.\.16 tokens, got at least 401$"):
        scoring_request(TRANSLATION, "a black cat", "cat " * 400)
    with pytest.raises(
        InvalidRequest, match=r"^options\.prefix: must be at most 16 tokens, the limit by max_tokens, got"
    ):
        decoding_request(TRANSLATION, "a black cat", prefix="cat " * 400)


def test_a_long_code_of_a_language_is_looked_up_by_its_beginning():
    with pytest.raises(InvalidRequest, match=r"unknown code 'deu_Lxxx"):
        decoding_request(FRAMED, "cat", languages=LanguagePair("eng_Latn", "deu_L" + "x" * 1_000_000))


def test_unknown_words_are_named_once_each_and_shortened():
    with pytest.raises(InvalidRequest, match=r"words: dog, unicorn; use other words") as caught:
        decoding_request(TRANSLATION, "a dog dog a unicorn")
    assert caught.value.field == "text"
    with pytest.raises(InvalidRequest, match=r"words: x{23}…; use"):
        decoding_request(TRANSLATION, "x" * 100)


def test_a_mark_that_is_known_only_after_words_is_not_reported_as_unknown():
    tokenizer = Tokenizer.train(("zwei, rote Häuser!",), kind="words", vocab_size=64)
    limits = dataclasses.replace(TRANSLATION.manifest.limits, vocab_size=tokenizer.vocab_size)
    model = dataclasses.replace(
        TRANSLATION, tokenizer=tokenizer, manifest=dataclasses.replace(TRANSLATION.manifest, limits=limits)
    )
    for prefix, marks in ((",", ","), ("zwei , rote", ","), ("! ,", "! ,")):
        with pytest.raises(InvalidRequest, match=rf"prefix: the model knows {marks} only directly after a word"):
            decoding_request(model, "zwei rote", prefix=prefix)
    with pytest.raises(InvalidRequest, match="does not know these words: ,, green"):
        decoding_request(model, "zwei rote", prefix=", green")


def test_a_forced_prefix_has_only_what_tokens_of_the_model_have(tmp_path):
    tokenizer = Tokenizer(made("t5", tmp_path))
    tokens = dataclasses.replace(TRANSLATION.manifest.tokens, unk=tokenizer.special["<unk>"])
    spec = dataclasses.replace(TRANSLATION.manifest, tokens=tokens)
    model = dataclasses.replace(TRANSLATION, tokenizer=tokenizer, manifest=spec)
    assert tokens.unk in decoding_request(model, "ka 🦖lo").source, "in a source it is the unknown token"
    assert decoding_request(model, "ka", prefix="ka lo").prefix
    for options in ({}, {"prefix_bias": 0.5}):
        with pytest.raises(
            InvalidRequest, match=r"options\.prefix: must not have '🦖', which no token of the model is"
        ):
            decoding_request(model, "ka", prefix="ka 🦖lo", **options)
