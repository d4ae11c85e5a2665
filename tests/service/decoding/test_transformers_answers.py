"""Answers are those of `generate` of transformers for the same request, on the same distributions."""

from typing import Any

import numpy as np
import pytest
import torch

from bench.answers import table_models
from bench.answers.table_models import EOS, PAD, VOCAB, ids
from service.decoding.prompt_form import PromptForm
from service.decoding.request_processors import processors_of
from service.decoding.search import search_for
from service.decoding.stop_strings import StopMatcher
from service.decoding.vocabulary import Vocabulary
from service.engine.scheduler import Scheduler
from service.options import DecodingOptions
from service.request import Request
from service.sequence import Sequence
from tests.engines import engine_limits
from tests.fakes import ScriptedRunner, drain

pytest.importorskip("transformers")

TOKENIZER = table_models.tokenizer()
VOCABULARY = Vocabulary.of(TOKENIZER, eos_ids=(EOS,))
MAX_TOKENS = 8
LOGSUMEXP = 3.0  # of `ScriptedOutputs`


def logprobs_of(seed, fed):
    """A distribution that depends on every token; repetitions and ends are likely."""
    rng = np.random.default_rng([seed, *fed])
    logits_V = rng.normal(0.0, 2.0, VOCAB)
    logits_V[list(fed)] += 1.5
    logits_V[EOS] = 0.3 * len(fed)
    logits_V[PAD] = -30  # which fills up their shorter answers
    return (logits_V - np.log(np.exp(logits_V).sum())).astype(np.float32)


def ours(seed, starts, prompt, options):
    """(tokens, score) of each answer."""
    stop, most = options.get("stop", ()), options.get("max_tokens", MAX_TOKENS)
    others = {name: value for name, value in options.items() if name not in ("stop", "max_tokens")}
    asked = Request(
        request_id="r",
        source=(5, EOS) if starts else (),
        prompt=tuple(ids(starts or prompt)),
        max_tokens=most,
        stop=stop,
        options=DecodingOptions(**others),
    )
    form, stops = PromptForm(max(0, len(starts) - 1)), StopMatcher(VOCABULARY, stop) if stop else None
    processors = processors_of(asked, VOCABULARY, TOKENIZER, form)
    sequence = Sequence(asked, search_for(asked, eos_ids=(EOS,), stops=stops, processors=processors, form=form))
    runner = ScriptedRunner(
        has_source=bool(starts), vocab_size=VOCAB, rule=lambda source, fed, size: logprobs_of(seed, fed)
    )
    scheduler = Scheduler(engine_limits(max_rows=16), runner.limits, runner.layout)
    scheduler.submit(sequence)
    drain(scheduler, runner)
    return [(answer.tokens, answer.normalised) for answer in sequence.answers]


NAMES = {"beam_size": "num_beams", "num_hypotheses": "num_return_sequences"}
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}


def theirs(seed, starts, prompt, options):
    """The same of `generate`, with the score of a beam's answers."""
    asked: dict[str, Any] = {NAMES.get(name, name): value for name, value in options.items()}
    language = max(0, len(starts) - 1)  # which they count among the new tokens
    asked["max_new_tokens"] = asked.pop("max_tokens", MAX_TOKENS) + language
    if least := asked.pop("min_tokens", 0):
        asked["min_new_tokens"] = least + language
    if is_beam := "num_beams" in asked:
        asked["early_stopping"] = EARLY_STOPPING[asked.get("early_stopping", "true")]
    if biases := asked.pop("logit_bias", None):
        asked["sequence_bias"] = {(token,): bias for token, bias in biases.items()}
    if words := asked.pop("bad_words", None):
        asked["bad_words_ids"] = [TOKENIZER.encode(word) for word in words]
    if stop := asked.pop("stop", None):
        asked |= {"stop_strings": list(stop), "tokenizer": table_models.transformers_tokenizer()}

    def next_logits(tokens_BT):
        rows = [logprobs_of(seed, fed) + LOGSUMEXP for fed in tokens_BT.tolist()]
        return torch.from_numpy(np.stack(rows))

    given = torch.tensor([ids("a." if starts else prompt)])
    result = table_models.transformers_model(next_logits, starts).generate(
        given, attention_mask=torch.ones_like(given), return_dict_in_generate=True, output_scores=True, **asked
    )
    rows = [row[len(starts or prompt) :] for row in result.sequences.tolist()]
    rows = [row[: row.index(EOS) + 1] if EOS in row else [token for token in row if token != PAD] for row in rows]
    return list(zip(rows, result["sequences_scores"].tolist() if is_beam else [None], strict=True))


BEAM: dict[str, Any] = {"beam_size": 3, "num_hypotheses": 3}
REQUESTS: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 2, "min_tokens": 6},
    {"no_repeat_ngram_size": 3},
    {"repetition_penalty": 1.7, "logit_bias": {5: 4.0, 7: -3.0, EOS: -1.0}},
    {"bad_words": ("b", "d")},
    {"stop": ("b",), "min_tokens": 3},
    BEAM,
    {**BEAM, "early_stopping": "false"},
    {**BEAM, "early_stopping": "never", "length_penalty": 2.0},
    {**BEAM, "length_penalty": 0.5},
    {**BEAM, "length_penalty": 0.0, "early_stopping": "never"},
    {**BEAM, "length_penalty": -1.0},
    {**BEAM, "max_tokens": 3},
    {**BEAM, "repetition_penalty": 1.7},
    {**BEAM, "repetition_penalty": 0.6, "logit_bias": {5: 4.0, EOS: -1.0}, "early_stopping": "false"},
    {**BEAM, "no_repeat_ngram_size": 2, "min_tokens": 5},
    {**BEAM, "no_repeat_ngram_size": 2, "bad_words": ("a", "e"), "repetition_penalty": 1.3},
)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 12), marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize("starts", ["", "^", ".", "^l"])  # decoder-only; start token; it also ends; a language after it
@pytest.mark.parametrize("options", REQUESTS, ids=str)
def test_the_answers_are_those_of_transformers(starts, options, seeds):
    for seed in seeds:
        prompt = "".join(np.random.default_rng(seed).choice([*"abcd"], 5))
        found, expected = ours(seed, starts, prompt, options), theirs(seed, starts, prompt, options)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        for (_, score), (_, their_score) in zip(found, expected, strict=True):
            assert their_score is None or score == pytest.approx(their_score, rel=1e-4, abs=1e-5)


def test_an_end_token_may_end_an_n_gram_again():
    """Theirs counts the start token: where that is the end token, no answer could end."""
    request: dict[str, Any] = {"no_repeat_ngram_size": 1}
    last = {(ours(seed, ".", "", request)[0][0][-1], theirs(seed, ".", "", request)[0][0][-1]) for seed in range(6)}
    assert EOS in {our_last for our_last, _ in last}
    assert EOS not in {their_last for _, their_last in last}
