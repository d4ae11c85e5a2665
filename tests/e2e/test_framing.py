"""Models whose texts stand among other tokens than one start and one end token: languages, longer beginnings of
answers, prompts without a beginning. All through the whole service, against PyTorch."""

from typing import Any

import numpy as np
import pytest
import torch

from glossa.client import Client, ClientError
from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, LanguagePair, SpecialTokenTemplate
from model.reference.beam import beam_search
from model.reference.greedy import cross_attention, greedy, score
from model.training.evaluate import translate
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.slow  # `tests.service.edge` builds and reads the same tokens

TOKENIZER = tiny_tokenizer()
WORDS = TOKENIZER.vocab_size
LANGUAGES = (("de_DE", WORDS), ("en_XX", WORDS + 1), ("sw_KE", WORDS + 2))  # ids that the tokenizer does not know
FRAMING = SpecialTokenTemplate(
    source_prefix=(SOURCE_LANGUAGE,), source_suffix=(2,), target_prefix=(2, TARGET_LANGUAGE), languages=LANGUAGES
)
TRANSLATOR = tiny_model(
    tiny_config(vocab_size=WORDS + 5, special_token_template=FRAMING), seed=2
)  # whose answers differ most
GENERATOR = tiny_model(tiny_config("decoder", num_decoder_layers=1, special_token_template=SpecialTokenTemplate()))
INTO: dict[str, Any] = {"source_language": "en_XX", "target_language": "de_DE"}
MOST = 20


@pytest.fixture(scope="module")
def client(exported):
    models = {"many": str(exported(TRANSLATOR)), "bare": str(exported(GENERATOR))}
    with serving(models=models) as server, Client(server.address) as client:
        yield client


def source_of(text, language=WORDS + 1):
    return [language, *TOKENIZER.encode(text), 2]


@pytest.mark.parametrize("target", [WORDS, WORDS + 2])
def test_answers_begin_after_the_requested_language(client, target):
    code = next(code for code, token in LANGUAGES if token == target)
    options = {"source_language": "en_XX", "target_language": code, "max_tokens": MOST}
    for text in TEXTS:
        answer = client.translate(text, include_tokens=True, token_logprobs=True, **options)
        expected = greedy(TRANSLATOR, [2, target], source=source_of(text), max_tokens=MOST)
        assert answer.tokens == tuple(expected)
        assert (answer.prompt_tokens, answer.generated_tokens) == (len(source_of(text)) + 2, len(expected))
        logprobs = [token.logprob for token in answer.hypotheses[0].token_logprobs]
        assert logprobs == pytest.approx(score(TRANSLATOR, [2, target], expected, source=source_of(text)), abs=1e-4)
    together = [answer.text for answer in client.translate_batch(TEXTS * 3, **options)]
    assert together == translate(
        TRANSLATOR, TOKENIZER, TEXTS * 3, max_tokens=MOST, languages=LanguagePair("en_XX", code)
    )


def test_languages_matter(client):
    answers = {
        client.translate(TEXTS[0], source_language=source, target_language=target, include_tokens=True).tokens
        for source, _ in LANGUAGES
        for target, _ in LANGUAGES
    }
    assert len(answers) > 3


def test_beams_stops_and_limits_count_the_answer_alone(client):
    for text in TEXTS[:2]:
        answer = client.translate(
            text, beam_size=3, num_hypotheses=3, length_penalty=0.6, max_tokens=MOST, include_tokens=True, **INTO
        )
        expected = beam_search(
            TRANSLATOR,
            [2, WORDS],
            source=source_of(text),
            max_tokens=MOST,
            beam_size=3,
            num_hypotheses=3,
            length_penalty=0.6,
            counted=1,  # the language
        )
        assert [hypothesis.tokens for hypothesis in answer.hypotheses] == [best.tokens for best in expected]
        for hypothesis, best in zip(answer.hypotheses, expected, strict=True):
            assert hypothesis.score == pytest.approx(best.score, abs=1e-4)
    room = TRANSLATOR.config.max_target_len - 1  # two positions are given, and the last token takes none
    assert client.get_model("many").limits.max_tokens == room
    assert client.translate(TEXTS[0], ignore_eos=True, **INTO).generated_tokens == room
    with pytest.raises(ClientError, match=rf"options\.max_tokens: must be 1\.\.{room}"):
        client.translate(TEXTS[0], max_tokens=room + 1, **INTO)
    assert (
        client.translate(TEXTS[0], max_length_ratio=0.1, **INTO).generated_tokens == 2
    )  # of 11 tokens with their frame
    prefixed = client.translate(TEXTS[0], prefix="a black", max_tokens=5, include_tokens=True, **INTO)
    assert prefixed.tokens[:2] == tuple(TOKENIZER.encode("a black"))


def test_scores_are_those_of_the_answer(client):
    text, target = TEXTS[0], "a black cat"
    tokens = [*TOKENIZER.encode(target), 2]
    result = client.score(text, target, model="many", **INTO)
    assert [token.token for token in result.tokens] == tokens
    expected = score(TRANSLATOR, [2, WORDS], tokens, source=source_of(text))
    assert [token.logprob for token in result.tokens] == pytest.approx(expected, abs=1e-4)


def test_alignment_is_that_of_the_answer(exported):
    text, target = TEXTS[0], "a black cat"
    tokens = [*TOKENIZER.encode(target), 2]
    models = {"many": str(exported(TRANSLATOR, attention=True))}
    with serving(models=models) as server, Client(server.address) as client:
        result = client.score(text, target, model="many", alignment="both", **INTO)
        layer = client.get_model("many").alignment_layers  # the bundle's own choice may be any of them
    weights_LHTS = cross_attention(TRANSLATOR, [2, WORDS, *tokens[:-1]], source=source_of(text))
    assert result.alignment is not None
    reported = np.array(result.alignment.rows)
    assert reported.shape == (len(tokens), len(source_of(text)))
    candidates = [weights_LHTS[at].mean(0)[1:].numpy() for at in range(layer)]
    assert min(np.abs(reported - one).max() for one in candidates) < 1e-5
    spans = result.alignment.source_spans
    assert (spans[0], spans[-1]) == ((0, 0), (len(text), len(text)))
    assert [text[start:end].strip() for start, end in spans[1:-1]] == text.split()


def test_an_embedding_is_of_the_framed_source_and_needs_its_language_alone(client):
    with torch.inference_mode():
        source = torch.tensor([source_of(TEXTS[1])])
        states, _ = TRANSLATOR.encode(source, torch.tensor([source.shape[1]]))
    values = client.embed(TEXTS[1], model="many", source_language="en_XX")
    assert values == pytest.approx(states[0].mean(0).tolist(), abs=1e-4)
    assert client.embed(TEXTS[1], source_language="sw_KE") != values


@pytest.mark.parametrize(
    ("languages", "field", "problem"),
    [
        ({"source_language": "en_XX"}, "target_language", "must be given: one of de_DE, en_XX, sw_KE"),
        ({"target_language": "en_XX"}, "source_language", "must be given: one of de_DE, en_XX, sw_KE"),
        ({"source_language": "en", "target_language": "de_DE"}, "source_language", "did you mean 'en_XX'"),
        ({"source_language": "!", "target_language": "de_DE"}, "source_language", "'!'; must be one of de_DE, en_XX"),
    ],
)
def test_languages_must_be_known(client, languages, field, problem):
    for call in (client.translate, lambda text, **more: client.score(text, "a", **more)):
        with pytest.raises(ClientError, match=problem) as caught:
            call(TEXTS[0], model="many", **languages)
        assert list(caught.value.field_violations) == [field]


def test_a_model_reports_its_languages(client):
    assert list(client.get_model("many").languages) == ["de_DE", "en_XX", "sw_KE"]
    assert list(client.get_model("bare").languages) == []
    with pytest.raises(ClientError, match="source_language: must be left out"):
        client.score(TEXTS[0], "a", model="bare", source_language="de_DE")
    with pytest.raises(TypeError):
        client.generate("a", top="de_DE")


def test_prompts_without_a_start_token_begin_with_their_text(client):
    for text in TEXTS:
        prompt = TOKENIZER.encode(text)
        answer = client.generate(text, max_tokens=MOST, include_tokens=True)
        assert answer.tokens == tuple(greedy(GENERATOR, prompt, max_tokens=MOST))
        assert answer.prompt_tokens == len(prompt)
    result = client.score("a", "black", model="bare")
    assert [token.logprob for token in result.tokens] == pytest.approx(
        score(GENERATOR, TOKENIZER.encode("a"), [*TOKENIZER.encode("black"), 2]), abs=1e-4
    )
    with pytest.raises(
        ClientError, match="text: must have at least one token, because model 'bare' has no start token"
    ):
        client.score("", "a black", model="bare")
