import math

import pytest

from service.decoding.prompt_form import ContextPlace, PromptForm
from service.encoder_request import EncoderRequest
from service.errors import (
    InternalFailure,
)
from service.measurements import Generated, NextTokens, Speculated
from service.options import DecodingOptions
from service.request import FinishReason, Request, TextDelta
from tests.engines import (
    Recorded,
    answer_events,
    continued,
    drafting,
    engine_limits,
    never_ends,
    repeating,
    request,
    spell,
)
from tests.fakes import (
    EOS,
    ScriptedRunner,
    Sink,
    ask,
    doubtful,
    scripted_answer,
)


async def test_a_beam_streams_committed_tokens_and_ends_with_all_answers(start):
    options = DecodingOptions(beam_size=4, num_hypotheses=3)
    (sink,) = await ask(start(ScriptedRunner(rule=doubtful)), request(options=options, max_tokens=20))
    *deltas, final = sink.events
    best = final.hypotheses[0]
    assert sink.tokens == list(best.tokens)
    assert sink.text == best.text == "".join(chr(ord("a") + token - 4) for token in best.tokens if token >= 4)
    assert len(final.hypotheses) == 3
    assert [answer.score for answer in final.hypotheses] == sorted((a.score for a in final.hypotheses), reverse=True)
    assert final.generated_tokens == sum(len(answer.tokens) for answer in final.hypotheses)
    assert all(isinstance(delta, TextDelta) for delta in deltas)


async def test_every_answer_has_its_alignment_weights(start):
    options = DecodingOptions(beam_size=4, num_hypotheses=2, alignment="hard")
    beside = request("beside", source=(7, 8, 9, 10, 2), max_tokens=20)
    _, sink = await ask(start(ScriptedRunner(rule=doubtful)), beside, request(options=options))
    for answer in sink.finals[0].hypotheses:
        assert answer.attention is not None
        assert answer.attention.shape == (1, 2, len(answer.tokens), 3)
        assert answer.attention[0, 0].argmax(1).tolist() == [place % 3 for place in range(len(answer.tokens))]


def test_the_coverage_of_an_answer_is_that_of_the_text_after_its_context(manual):
    """The scripted attention of the three answer tokens is at source positions 2, 3 and 0."""
    options = DecodingOptions(beam_size=2, coverage_penalty=1.0)
    asked = Request(request_id="r", source=(5, 9, 6, 2), prompt=(1, 5, 9), max_tokens=3, options=options)
    scores = []
    for context in (ContextPlace(0, 9), None):
        runner = ScriptedRunner(rule=lambda source, fed, size: {3: 4, 4: 5}.get(len(fed), EOS))
        engine, loop = manual(runner, form=PromptForm(context=context))
        (final,) = answer_events(engine, loop, asked).finals
        scores.append(final.hypotheses[0].score)
    assert scores[0] - scores[1] == pytest.approx(-math.log(1e-10))


async def test_an_encoder_request_ends_with_its_encoder_output(start):
    (embedded, answered) = await ask(
        start(), request("embed", encoder_request=EncoderRequest(pooling="mean")), request("text")
    )
    assert embedded.finals[0].encoder_output.vector.tolist() == [5.0, 6.0, 2.0]
    assert embedded.finals[0].reason is FinishReason.ENCODED
    assert answered.tokens == scripted_answer(request())


async def test_requested_attention_comes_with_the_answer(start):
    runner = ScriptedRunner()
    beside, seen = await ask(start(runner), request("beside"), request("seen", attention_kinds=("decoder", "cross")))
    answer = scripted_answer(request())
    assert (beside.finals[0].attention, beside.tokens) == (None, answer)
    final = seen.finals[0]
    assert final.hypotheses[0].tokens == tuple(answer)
    assert final.attention.decoder_tokens == (1, *answer[:-1])
    assert {kind: array.shape for kind, array in final.attention.weights.items()} == {
        "decoder": (2, 2, len(answer), len(answer)),
        "cross": (2, 2, len(answer), 3),
    }


async def test_attention_of_a_forced_target_takes_one_turn(start):
    runner = ScriptedRunner()
    (seen,) = await ask(
        start(runner), request("seen", attention_kinds=("cross",), forced_target=(1, 7, 8, 9), max_tokens=1)
    )
    (final,) = seen.finals
    assert (final.reason, final.hypotheses, final.generated_tokens) == (FinishReason.ATTENTION, (), 0)
    assert (final.prompt_tokens, final.attention.decoder_tokens) == (3 + 4, (1, 7, 8, 9))
    assert final.attention.weights["cross"].shape == (2, 2, 4, 3)
    assert runner.runs == 1


async def test_attention_that_fails_ends_its_request_alone(start):
    runner = ScriptedRunner()
    failing = request("failing", attention_kinds=("unheard of",), forced_target=(1, 7), max_tokens=1)
    failed, answered = await ask(start(runner), failing, request("text"))
    assert isinstance(failed.finals[0], InternalFailure)
    assert answered.tokens == scripted_answer(request())


async def test_a_stop_string_ends_one_hypothesis_and_not_its_beam(start):
    options = DecodingOptions(beam_size=4, num_hypotheses=4)
    (sink,) = await ask(start(ScriptedRunner(rule=doubtful)), request(options=options, stop=("c", "d"), max_tokens=20))
    answers = sink.finals[0].hypotheses
    assert any(answer.reason is FinishReason.STOP_STRING for answer in answers)
    assert not any("c" in answer.text or "d" in answer.text for answer in answers)


async def test_deltas_and_the_final_event_are_the_whole_text(start):
    (sink,) = await ask(start(ScriptedRunner(rule=spell(*"hello"))), request())
    assert [event.text for event in sink.events] == ["h", "e", "l", "l", "o", ""]
    *deltas, final = sink.events
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    assert final.reason is FinishReason.END_OF_SEQUENCE
    assert final.tokens == (EOS,)
    assert (final.prompt_tokens, final.generated_tokens) == (4, 6)


async def test_an_answer_without_streaming_is_the_same_in_one_event(start):
    engine = start(ScriptedRunner(rule=spell(*"abcdef")))
    asked = [
        request(stop=("cx",), is_streamed=streamed, max_tokens=most) for streamed in (True, False) for most in (3, 9)
    ]
    sinks = await ask(engine, *asked)
    assert [len(sink.events) for sink in sinks[2:]] == [1, 1]
    for one, other in zip(sinks[:2], sinks[2:], strict=True):
        assert (one.text, one.tokens) == (other.text, other.tokens)
        assert one.finals[0].hypotheses[0].token_logprobs == other.finals[0].hypotheses[0].token_logprobs


async def test_an_answer_ends_before_a_stop_string(start):
    (sink,) = await ask(start(ScriptedRunner(rule=spell(*"abcdef"))), request(stop=("cd",)))
    assert sink.text == "ab"
    assert sink.tokens == [4, 5, 6, 7]
    assert sink.finals[0].reason is FinishReason.STOP_STRING


async def test_an_answer_that_reaches_its_length_ends_with_the_text_held_back(start):
    (sink,) = await ask(start(ScriptedRunner(rule=spell(*"abcdef"))), request(stop=("cx",), max_tokens=3))
    assert sink.text == "abc"
    assert sink.finals[0].reason is FinishReason.LENGTH


def test_timings_tell_queue_prefill_and_tokens_apart(manual):
    runner = ScriptedRunner(rule=never_ends)
    engine, loop = manual(runner, engine_limits(max_rows=1))
    clock = engine.clock
    runner.before_run = lambda: clock.advance(1.0)
    first, second = Sink(), Sink()
    engine.submit(request(max_tokens=2), loop, first)
    engine.submit(request(max_tokens=2), loop, second)
    for _ in range(4):
        engine.turn()
    loop.run()
    times = second.finals[0].timings
    assert (times.queue_s, times.prefill_s, times.first_token_s, times.total_s) == (2.0, 0.001, 3.0, 4.0)
    assert times.arrived_s == engine.clock() - 4.0
    assert (times.encoded_s, times.prefilled_s) == (pytest.approx(2.0004), pytest.approx(2.001))


@pytest.mark.parametrize(
    ("turns", "stage", "times"),
    [
        (0, "queue", {"queue_s": 0.5, "total_s": 0.5}),
        (1, "decode", {"queue_s": 0.0, "encoded_s": 0.0004, "prefilled_s": 0.001, "first_token_s": 1, "total_s": 1.5}),
        (3, "decode", {"queue_s": 0.0, "encoded_s": 0.0004, "prefilled_s": 0.001, "first_token_s": 1, "total_s": 3.5}),
    ],
)
def test_a_request_that_ends_without_an_answer_reports_how_far_it_came(manual, turns, stage, times):
    runner = ScriptedRunner(rule=never_ends)
    engine, loop = manual(runner)
    runner.before_run = lambda: engine.clock.advance(1.0)
    sink = Sink()
    cancel = engine.submit(request(max_tokens=9), loop, sink)
    for _ in range(turns):
        engine.turn()
    engine.clock.advance(0.5)
    cancel()
    engine.turn()
    loop.run()
    progress = sink.finals[0].progress
    assert (progress.stage, progress.prompt_tokens, progress.generated_tokens) == (stage, 4, turns)
    assert {name: getattr(progress.timings, name) for name in times} == pytest.approx(times)


def test_a_request_that_ends_between_its_chunks_ends_in_its_prefill(manual):
    runner = ScriptedRunner(has_source=False, max_block=0, rule=never_ends)
    config = engine_limits(max_rows=2, chunk_tokens=16, max_prefill_tokens=16, max_idle_prefill_tokens=16)
    engine, loop = manual(runner, config)
    runner.before_run = lambda: engine.clock.advance(1.0)
    sink = Sink()
    cancel = engine.submit(continued("a" * 40, max_tokens=2), loop, sink)
    engine.turn()
    cancel()
    engine.turn()
    loop.run()
    progress = sink.finals[0].progress
    assert (progress.stage, progress.generated_tokens) == ("prefill", 0)
    assert (progress.timings.queue_s, progress.timings.prefilled_s, progress.timings.total_s) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(("has_source", "stage"), [(True, "encode"), (False, "prefill")])
def test_a_request_whose_first_turn_fails_ends_in_its_first_stage(manual, has_source, stage):
    runner = ScriptedRunner(has_source=has_source)
    runner.fail_on = {1}
    engine, loop = manual(runner)
    sink = Sink()
    engine.submit(request(source=(5, 6, 2) if has_source else ()), loop, sink)
    engine.turn()
    loop.run()
    assert sink.finals[0].progress.stage == stage


def test_a_prompt_of_several_turns_is_prefilled_with_the_last_one(manual):
    runner = ScriptedRunner(has_source=False, max_block=0, rule=never_ends)
    config = engine_limits(max_rows=2, chunk_tokens=16, max_prefill_tokens=16, max_idle_prefill_tokens=16)
    engine, loop = manual(runner, config)
    runner.before_run = lambda: engine.clock.advance(1.0)
    (final,) = answer_events(engine, loop, continued(40 * "a", max_tokens=1)).finals
    times = final.timings
    assert times.encoded_s == pytest.approx(0.0004)
    assert times.prefilled_s == pytest.approx(2.001), "the third turn began after two others"
    assert (times.prefill_s, times.total_s) == (pytest.approx(0.003), 3.0)


def test_a_stop_string_inside_a_turn_of_several_steps_ends_the_answer_there(manual):
    engine, loop = manual(ScriptedRunner(rule=spell(*"abcdefgh")))
    (final,) = answer_events(engine, loop, request(max_tokens=20, stop=("cd",), is_streamed=False)).events
    assert (final.text, final.reason, final.generated_tokens) == ("ab", FinishReason.STOP_STRING, 4)
    (final,) = answer_events(engine, loop, request(max_tokens=20, stop=("b",), is_streamed=False)).events
    assert (final.text, final.reason, final.generated_tokens) == ("a", FinishReason.STOP_STRING, 2)


def test_tokens_of_a_draft_are_streamed_one_by_one_in_order(manual):
    measured = Recorded()
    engine, loop = drafting(manual, repeating(*"abcd"), measure=measured.append)
    sink = answer_events(engine, loop, continued("abcdab", max_tokens=14))
    *deltas, final = sink.events
    assert [delta.text for delta in deltas] == list("cdabcdabcdabc")
    assert [len(delta.tokens) for delta in deltas] == [1] * 13
    assert (final.text, final.reason, final.generated_tokens) == ("d", FinishReason.LENGTH, 14)
    ((drafted, right), *_) = measured.of(Speculated)
    assert drafted == right == 4
    assert sum(tokens for (tokens,) in measured.of(Generated)) == 14
    assert sum(count for _, count in measured.of(NextTokens)) == 13, "each but the first one"
    assert engine.runner.runs < 8


def test_an_answer_without_streaming_is_one_event_with_drafts_too(manual):
    engine, loop = drafting(manual, repeating(*"abcd", ends_at=12))
    (final,) = answer_events(engine, loop, continued("abcdab", max_tokens=30, is_streamed=False)).events
    assert (final.text, final.reason) == ("cdabc", FinishReason.END_OF_SEQUENCE)
    assert final.hypotheses[0].tokens[-1] == EOS


def test_a_stop_string_inside_a_draft_ends_the_answer_there(manual):
    engine, loop = drafting(manual, repeating(*"abcd"))
    sink = answer_events(engine, loop, continued("abcdab", max_tokens=30, stop=("abc",)))
    (final,) = sink.finals
    assert (sink.text, final.reason) == ("cd", FinishReason.STOP_STRING)
    assert len(sink.tokens) == final.generated_tokens == 5
