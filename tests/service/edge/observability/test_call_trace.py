import math

import pytest

from service.edge.observability.call_trace import MAX_STATE, PARENT, CallTrace, Sampler, state_of
from service.edge.observability.metrics import Method
from service.encoder_request import EncoderRequest
from service.errors import Cancelled, DeadlineExceeded, EngineUnavailable, InternalFailure
from service.progress import Progress, Timings
from service.request import Finished, FinishReason, Request

RPC = Method("unary", "glossa.v1.TranslationService", "Translate")
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
REQUEST = Request(request_id="r", source=(4, 2), prompt=(1,), max_tokens=9)
LOST = EngineUnavailable("lost", retry_after_s=0.1)
TIMES = {"queue_s": 1.0, "encoded_s": 1.5, "prefilled_s": 2.0, "first_token_s": 2.25, "total_s": 4.0}


def finished(reason=FinishReason.LENGTH, **times):
    timings = Timings(**{**TIMES, "arrived_s": 100.5, **times})
    return Finished(reason, prompt_tokens=3, generated_tokens=5, timings=timings)


def unfinished(stage, **times):
    """The end of a request that its engine ended in this stage."""
    error = DeadlineExceeded("late")
    error.progress = Progress(stage, 3, 5 if stage == "decode" else 0, finished(**times).timings)
    return error


def traced(*ends, request=REQUEST, parent=None, code=0, error=None, model="en-de"):
    """The spans of a call from 100 s to 105 s, on its own clock from 0."""
    ended: list[CallTrace] = []
    call = CallTrace(RPC, "r", parent, "", 100.0, ended.append)
    for end in ends:
        call.expect("en-de", request, 100.25)(end)
    call.end(105.0, code, error, model)
    assert ended == [call]
    return call, call.spans()


def seconds(call, span):
    return [(ns - call.began_ns) / 1e9 for ns in (span.start_ns, span.end_ns)]


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # bits that are not known yet
        (f"01-{TRACE}-{SPAN}-01-more", True),  # a later version
    ],
)
def test_a_client_decides_for_its_own_trace(header, is_sampled):
    parent = PARENT.fullmatch(header)
    assert parent is not None
    assert (parent[1], parent[2]) == (TRACE, SPAN)
    assert {Sampler(ratio).samples(parent) for ratio in (0.0, 1.0)} == {is_sampled}


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01more",
    ],
)
def test_what_is_no_parent_is_ignored(header):
    assert PARENT.fullmatch(header) is None


def test_a_ratio_samples_that_share_of_calls_without_a_parent():
    counts = [sum(Sampler(ratio).samples(None) for _ in range(4000)) for ratio in (0.0, 0.25, 1.0)]
    assert counts[0] == 0
    assert 850 < counts[1] < 1150
    assert counts[2] == 4000


def test_the_stages_follow_each_other_within_the_call():
    call, (server, *stages) = traced(finished())
    assert seconds(call, server) == [0.0, 5.0]
    assert {stage.name: seconds(call, stage) for stage in stages} == {
        "queue": [0.5, 1.5],
        "encode": [1.5, 2.0],
        "prefill": [2.0, 2.5],
        "decode": [2.5, 4.5],
    }
    assert {stage.parent_id for stage in stages} == {server.span_id}
    assert len({span.span_id for span in (server, *stages)}) == 5
    assert stages[3].attributes == {"gen_ai.usage.output_tokens": 5, "glossa.ttft_s": 2.25}


@pytest.mark.parametrize("arrived_s", [0.0, 104.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("total_s", [4.0, math.nan, -1.0])
def test_times_that_cannot_be_stay_within_the_call(arrived_s, total_s):
    call, (_, *stages) = traced(finished(arrived_s=arrived_s, total_s=total_s))
    times = [time for stage in stages for time in seconds(call, stage)]
    assert times == sorted(times)
    assert 0.0 <= times[0] <= times[-1] <= 5.0


def test_an_encoder_alone_and_a_decoder_alone_have_their_own_stages():
    encoder = Request(request_id="r", source=(4, 2), prompt=(), max_tokens=0, encoder_request=EncoderRequest())
    _, (server, *stages) = traced(finished(FinishReason.ENCODED), request=encoder)
    assert [stage.name for stage in stages] == ["queue", "encode"]
    assert server.attributes["gen_ai.operation.name"] == "embeddings"
    assert not {"gen_ai.request.max_tokens", "gen_ai.response.finish_reasons"} & server.attributes.keys()
    _, (_, *stages) = traced(finished(), request=Request(request_id="r", prompt=(1,), max_tokens=9))
    assert [stage.name for stage in stages] == ["queue", "prefill", "decode"]


def test_the_requests_of_a_call_are_counted_together():
    ends = (finished(), finished(FinishReason.STOP_STRING), unfinished("decode"), LOST)
    _, spans = traced(*ends, model="")
    attributes = spans[0].attributes
    assert len(spans) == 1 + 3 * 4 + 1
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (9, 15)
    assert attributes["gen_ai.response.finish_reasons"] == ["length", "stop"]
    assert attributes["gen_ai.request.model"] == "en-de"


@pytest.mark.parametrize(("code", "is_error"), [(0, False), (1, False), (3, False), (8, False), (4, True), (13, True)])
def test_only_failures_of_the_server_are_errors(code, is_error):
    _, (server,) = traced(code=code)
    assert (server.is_error, server.attributes["rpc.grpc.status_code"]) == (is_error, code)


def test_an_error_is_named_by_its_reason_alone():
    for error in (Cancelled("the client's words"), InternalFailure("r")):
        _, (server,) = traced(code=13, error=error)
        assert server.attributes["error.type"] == error.reason
        assert "the client's words" not in str(server)
    assert "error.type" not in traced()[1][0].attributes


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("queue", {"queue": [0.5, 1.5]}),
        ("encode", {"queue": [0.5, 1.5], "encode": [1.5, 2.0]}),
        ("prefill", {"queue": [0.5, 1.5], "encode": [1.5, 2.0], "prefill": [2.0, 2.5]}),
        ("decode", {"queue": [0.5, 1.5], "encode": [1.5, 2.0], "prefill": [2.0, 2.5], "decode": [2.5, 4.5]}),
    ],
)
def test_a_request_without_an_answer_has_the_stages_that_it_reached(stage, expected):
    call, (server, *stages) = traced(unfinished(stage), code=4, error=unfinished(stage))
    assert {span.name: seconds(call, span) for span in stages} == expected
    assert ("glossa.ttft_s" in stages[-1].attributes) == (stage == "decode")
    assert server.attributes["gen_ai.usage.output_tokens"] == (5 if stage == "decode" else 0)
    assert "gen_ai.response.finish_reasons" not in server.attributes


def test_a_request_whose_engine_was_lost_has_one_span():
    call, (_, *stages) = traced(LOST, code=14, error=LOST)
    assert [(span.name, seconds(call, span)[0]) for span in stages] == [("engine", 0.25)]


def test_a_call_that_ends_before_its_requests_is_traced_with_them():
    ended: list[CallTrace] = []
    call = CallTrace(RPC, "r", None, "", 100.0, ended.append)
    sinks = [call.expect("en-de", REQUEST, 100.25) for _ in range(2)]
    sinks[0](unfinished("queue"))
    call.end(102.0, 4, DeadlineExceeded("late"), "en-de")
    assert ended == []
    sinks[1](unfinished("decode"))
    assert ended == [call]
    times = {span.name: seconds(call, span) for span in call.spans()[2:]}
    assert times["prefill"] == [2.0, 2.0], "the call ended before that"


def test_a_call_ends_once():
    call, _ = traced()
    with pytest.raises(AssertionError, match="once"):
        call.end(106.0, 0, None)


def test_the_state_of_a_trace_is_passed_on_if_it_is_short():
    assert state_of((("tracestate", "a=1"), ("other", "x"), ("tracestate", "b=2"))) == "a=1,b=2"
    assert state_of((("tracestate", "a=" + "1" * MAX_STATE),)) == ""


def test_a_call_with_many_items_has_their_numbers_and_no_spans_of_them():
    ended: list[CallTrace] = []
    call = CallTrace(RPC, "r", None, "", 100.0, ended.append)
    call.items = {"glossa.items": 9, "glossa.items_failed": 2, "gen_ai.usage.output_tokens": 40}
    call.end(105.0, 0, None, "en-de")
    (server,) = call.spans()
    assert [server.attributes[name] for name in call.items] == [9, 2, 40]
    assert server.attributes["gen_ai.request.model"] == "en-de"
