"""The bytes of messages: what goes in comes out, bit by bit, and what is no message is a WireError."""

import dataclasses
import math
import pickle
import random
import re
import struct
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pytest

from service import errors
from service.encoder_request import EncoderOutput, EncoderRequest
from service.machine.execution_choice import ExecutionChoice, GraphNodes
from service.measurements import (
    Admitted,
    FirstToken,
    Generated,
    LookedUp,
    Measurement,
    NextTokens,
    Preempted,
    Prefilled,
    RequestEnded,
    Speculated,
    Stepped,
    TurnFailed,
)
from service.memory.engine_limits import EngineLimits
from service.option_checks import CHOICES
from service.options import DEFAULTS, DecodingOptions
from service.progress import Progress, Timings
from service.request import (
    AttentionResult,
    Event,
    Finished,
    FinishReason,
    HypothesisResult,
    Priority,
    Request,
    TextDelta,
)
from service.settings.engine_settings import EngineSettings
from service.wire import messages
from service.wire.messages import WireError, encode, error_of, failure_of

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_BEEF))[0]  # with a payload, to compare bits
ERRORS = [
    errors.InvalidRequest("options.top_p", "must be above 0, got 0"),
    errors.ModelNotFound("en-fr", ["en-de", "dé-en"]),
    errors.Unsupported("no attention in this bundle"),
    errors.Unsatisfiable("no token is left"),
    errors.Overloaded("full", retry_after_s=1.5, limit=256),
    errors.ShuttingDown(),
    errors.TenantLimit("acme", retry_after_s=0.5, limit=64),
    errors.TokensSpent("acme", retry_after_s=0.5, limit=64),
    errors.MessagesMissing("calls wait for messages", retry_after_s=0.5),
    errors.MemoryLimit("full", retry_after_s=0.5, limit=1 << 24),
    errors.Backlogged("calls wait", retry_after_s=0.5),
    errors.Unauthenticated("the call has no token"),
    errors.PermissionDenied("not yours"),
    errors.VersionRefused("no bundle"),
    errors.VersionConflict("busy"),
    errors.NoRoomForVersion("full", predicted=3, limit=2),
    errors.DeadlineTooSoon("too late", retry_after_s=0.5),
    errors.EngineUnavailable("restarted", retry_after_s=0.1),
    errors.DeadlineExceeded("late"),
    errors.Cancelled("gone"),
    errors.InternalFailure("r-1"),
]


def array(*shape):
    numbers = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    if numbers.size:
        numbers.flat[0] = np.uint32(0x7FC0BEEF).view(np.float32)
    return numbers


def other_than(default, name, kind):
    """A value of an option that is not its default."""
    if name in CHOICES:
        return next(choice for choice in CHOICES[name] if choice != default)
    if kind is bool:
        return not default
    if str in (kind, *get_args(kind)):
        return "zwölf 😀\0" if kind is str else ("", "ß", "a" * 300)
    if kind in (int, int | None):
        return 2**64 - 1 if default is None else default + 2**31
    if kind in (float, float | None):
        return 0.1
    return {3: -0.0, 2**31 - 1: 1e-300} if name == "logit_bias" else (0, 2**31 - 1)


OPTIONS = DecodingOptions(
    **{name: other_than(getattr(DEFAULTS, name), name, kind) for name, kind in get_type_hints(DecodingOptions).items()}
)
REQUEST = Request(
    request_id="r-1",
    source=(5, 6, 2),
    prompt=(1,),
    max_tokens=9,
    stop=("\n", "ende"),
    deadline_s=1234.000000001,
    options=OPTIONS,
    prefix=(7, 8),
    preferred_prefix=(9,),
    continued_text="vor",
    shortlist=(2, 7, 8, 9),
    seed=2**64 - 1,
    encoder_request=EncoderRequest(
        pooling="cls",
        pooled_from=2,
        has_dense=True,
        normalized=True,
        mask_positions=(0, 3),
        top_k=2,
        labels=True,
        token_weights=True,
        state_positions=(0, 2),
        token_labels=True,
    ),
    is_streamed=False,
    attention_kinds=("encoder", "cross"),
    forced_target=(1, 7),
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    tenant="acme",
    weight=2.5,
    priority=Priority.LOW,
    trims_text=True,
    words_per_token=3,
)
FINISHED = Finished(
    FinishReason.STOP_STRING,
    text="Grüße",
    tokens=(7, 2),
    prompt_tokens=4,
    generated_tokens=3,
    timings=Timings(0.1, 0.2, 0.3, math.inf),
    hypotheses=(
        HypothesisResult("a", (7, 2), FinishReason.END_OF_SEQUENCE, -0.5, -1.0, (-0.25, -0.0), (((7, -0.25),), ())),
        HypothesisResult("b", (8,), FinishReason.LENGTH, NAN, NAN, (), attention=array(2, 3, 1, 4)),
    ),
    encoder_output=EncoderOutput(
        vector=array(5),
        mask_predictions=(((3, -0.1), (4, -9.0)),),
        label_logits=array(2),
        token_weights=array(0),
        states=array(2, 5),
        token_label_logits=array(2, 3),
    ),
    attention=AttentionResult((1, 7), {"cross": array(1, 2, 2, 3), "encoder": array(1, 2, 3, 3)}),
)
STATE = messages.State(3, 4, 0.5, 1e9, True, False)
MEASUREMENTS: list[Measurement] = [
    *(Admitted(0.5, 7), Preempted(2), Prefilled(NAN, 48, 9), LookedUp(70, 2, 64), Stepped(0.1, 32, 1)),
    *(Speculated(8, 5), FirstToken(0.25), NextTokens(0.1, 3), Generated(3), RequestEnded("length", 0)),
    TurnFailed(),
]
assert {type(one) for one in MEASUREMENTS} == set(get_args(Measurement)), "an example of each"
TO_ENGINE: list[messages.ToEngine] = [
    messages.Start(
        program="0.3.0",
        model="en-de",
        path="/bundles/en-de",
        settings=EngineSettings(
            device="cpu",
            precision="int8",
            engines=2,
            model_engines=8,
            single_engine_threads=3,
            limits=EngineLimits(kv_cache_bytes=1 << 40, stream_messages_per_s=2.5),
            processors=(0, 3),
            memory_bytes=1 << 33,
        ),
        first_engine=6,
        bundle_sha256="ab" * 32,
        checks_batches=False,
    ),
    messages.Work([(1, REQUEST), (2**63, Request(request_id="r-2", prompt=(1,), max_tokens=1))], [7, 8]),
    messages.Work([], []),
    messages.Close(),
]
FROM_ENGINE: list[messages.FromEngine] = [
    messages.Opened(
        bundle_sha256="cd" * 32,
        choice=ExecutionChoice(
            *("CUDAExecutionProvider", "auto", True, "why", "fp16"),
            captures=True,
            nodes=(GraphNodes("decode", "CUDAExecutionProvider", 3),),
        ),
        engines=2,
        is_batch_invariant=True,
    ),
    messages.Refused("no such file: x"),
    messages.Turn(
        1,
        STATE,
        [(1, TextDelta("Grü", (7,))), (1, TextDelta("", ()))],
        [(1, FINISHED), (2, Finished(FinishReason.ENCODED))],
        [(3 + place, failure_of(error)) for place, error in enumerate(ERRORS)],
        MEASUREMENTS,
    ),
    messages.Rejected(5, failure_of(ERRORS[0])),
    messages.Beat(
        states=[STATE, STATE], measurements=MEASUREMENTS, memory={"weights": 1 << 40}, cpu_s=0.1, resident_bytes=1 << 40
    ),
    messages.Log(30, "service.engine", "text", "Traceback …"),
]
MESSAGES = [*TO_ENGINE, *FROM_ENGINE]


def arrived(message: Any) -> Any:
    """What the other side gets."""
    decode = messages.decode_to_engine if message in TO_ENGINE else messages.decode_from_engine
    return decode(encode(message))


def bits(value: Any) -> Any:
    """A value as nested tuples of types and bits: equal for values that no program can tell apart."""
    if dataclasses.is_dataclass(value):
        return type(value), [bits(getattr(value, field.name)) for field in dataclasses.fields(value)]
    match value:
        case np.ndarray():
            return value.dtype, value.shape, value.tobytes()
        case float():
            return float, struct.pack("<d", value)
        case msgspec.Struct():
            return type(value), [bits(getattr(value, name)) for name in value.__struct_fields__]
        case list() | tuple():
            return type(value), [bits(item) for item in value]
        case dict():
            return dict, {key: bits(item) for key, item in value.items()}
    return type(value), value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_bit_by_bit(message):
    assert bits(arrived(message)) == bits(message)


def test_every_type_of_message_is_compared():
    assert {type(message) for message in TO_ENGINE} == set(get_args(messages.ToEngine))
    assert {type(message) for message in FROM_ENGINE} == set(get_args(messages.FromEngine))


def test_a_request_is_compared_with_every_field_and_option_set():
    default = Request(request_id="", prompt=(0,), max_tokens=1)
    for one, other in ((REQUEST, default), (REQUEST.options, DEFAULTS), (REQUEST.encoder_request, EncoderRequest())):
        for field in dataclasses.fields(one):  # type: ignore[arg-type]
            assert getattr(one, field.name) != getattr(other, field.name), field.name


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4, 5)])
def test_arrays_keep_their_shape(shape):
    finished = Finished(FinishReason.ENCODED, encoder_output=EncoderOutput(vector=array(*shape)))
    ((_, copy),) = arrived(messages.Turn(0, STATE, [], [(1, finished)], [], [])).ends
    assert bits(copy) == bits(finished)


def test_an_array_that_is_not_contiguous_keeps_its_numbers():
    finished = Finished(FinishReason.ENCODED, encoder_output=EncoderOutput(vector=array(4, 6).T[::2]))
    ((_, copy),) = arrived(messages.Turn(0, STATE, [], [(1, finished)], [], [])).ends
    assert bits(copy) == bits(finished)


def test_every_class_of_errors_is_compared():
    assert {type(error) for error in ERRORS} == set(errors.ERRORS.values())


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_would_by_pickle(error):
    message = arrived(messages.Rejected(1, failure_of(error)))
    copy, pickled = error_of(message.failure), pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (type(error), error.args, str(error))
    assert bits(vars(copy)) == bits(vars(pickled)) == bits(vars(error))


def test_an_error_arrives_with_how_far_its_request_had_come():
    error = errors.DeadlineExceeded("late")
    error.progress = Progress("prefill", 3, 0, Timings(0.1, 0.2, 0.3, math.inf))
    ((_, failure),) = arrived(messages.Turn(0, STATE, [], [], [(1, failure_of(error))], [])).failures
    assert error_of(failure).progress == error.progress
    assert pickle.loads(pickle.dumps(error)).progress == error.progress


def test_a_stage_that_does_not_exist_is_no_message():
    data = encode(messages.Rejected(1, messages.Failure("CANCELLED", "", {}, Progress("decode", 3, 0, Timings()))))
    assert messages.decode_from_engine(data)
    with pytest.raises(WireError, match="not a message"):
        messages.decode_from_engine(data.replace(b"decode", b"decade"))


def test_an_attribute_that_is_no_field_stays_behind():
    error = errors.InternalFailure("r-1")
    error.add_note("private")
    assert failure_of(error).fields == {"request_id": "r-1"}


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("NO_SUCH_REASON", {}),
        ("INTERNAL", {}),
        ("INTERNAL", {"request_id": "r-1", "reason": "QUEUE_FULL"}),
        ("INTERNAL", {"request_id": "r-1", "__notes__": "a"}),
        ("INTERNAL", {"request_id": 1}),
        ("CANCELLED", {"args": "a"}),
        ("QUEUE_FULL", {"retry_after_s": "soon", "limit": 3}),
        ("QUEUE_FULL", {"retry_after_s": 1.0, "limit": 3.5}),
        ("MODEL_NOT_FOUND", {"name": "a", "known": "b"}),
    ],
)
def test_a_failure_of_an_unknown_class_or_with_other_fields_is_no_error(reason, fields):
    with pytest.raises(WireError):
        error_of(messages.Failure(reason, "text", fields))


def with_array(value):
    """A turn with this instead of an array."""
    hypothesis = {
        **{"text": "", "tokens": [], "reason": "length", "score": 0.0, "cumulative_logprob": 0.0},
        **{"token_logprobs": [], "attention": value},
    }
    ends = [(1, {"reason": "length", "hypotheses": [hypothesis]})]
    return msgspec.msgpack.encode([6, 0, [1, 2, 0.5, 0.0, True, False], [], ends, [], []])


def floats(code, size):
    return msgspec.msgpack.Ext(code, bytes(size))


def test_the_frame_of_hostile_arrays_is_a_message():
    turn: Any = messages.decode_from_engine(with_array([[2, 1], floats(1, 8)]))
    assert bits(turn.ends[0][1].hypotheses[0].attention) == bits(np.zeros((2, 1), np.float32))


@pytest.mark.parametrize(
    "value",
    [
        *([[size], floats(1, 8)] for size in (-1, -2, 1, 3, 2**31, 2**63 - 1, 2**63, 2**64 - 1, True, 2.0, "2", None)),
        *([shape, floats(1, 8)] for shape in ([-1, 2], [-1, -2], [], [1, 1], [2**32, 2**32, 2**32], [1] * 65 + [2])),
        *([[2], floats(code, 8)] for code in (0, 2, -1, 127)),
        *([[2], floats(1, size)] for size in (0, 7, 9, 12)),
        *(7, "ab", [], {}, [[2]], [[2], "ab"], [[2], floats(1, 8), 1], [2, floats(1, 8)], floats(1, 8)),
        [[2], [[2], floats(1, 8)]],
    ],
    ids=lambda value: re.sub(r" object at \w+", "", repr(value)),  # the same in every process
)
def test_what_is_no_array_is_no_message(value):
    with pytest.raises(WireError, match="not a message"):
        messages.decode_from_engine(with_array(value))


def test_an_array_within_an_array_within_an_array_is_no_message():
    data = with_array("here")
    with pytest.raises(WireError, match=r"recursion|Stack overflow"):
        messages.decode_from_engine(data.replace(b"\xa4here", b"\x91" * 100_000))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x00", b"\xc0", b"\xc1", b"\x90", b"\x91\x63", b"\x91\x01", b"\x91" * 100_000, b"{}", b"\xff" * 99),
        *(encode(message) + b"\0" for message in MESSAGES),
        *(encode(message)[:-1] for message in MESSAGES),
        *map(msgspec.msgpack.encode, ({}, {"type": 5}, [5, 5], [5], [99, "x"], [None], ["5", "x"], [5.0, "x"])),
        *map(
            msgspec.msgpack.encode, ([7, "1", ["INTERNAL", "", {}]], [7, 1, ["INTERNAL", "", {"a": None}]], [7, 1, 2])
        ),
        *(msgspec.msgpack.encode([9, 30, text, "", ""]) for text in (3, None, b"a", ["a"], floats(1, 4), floats(5, 4))),
        b"\x95\x09\x1e\xa2\xff\xfe\xa0\xa0",  # a text that is not UTF-8
        *(  # no measurements
            msgspec.msgpack.encode([8, [], [one], {}, 0.0, 0])
            for one in (["__init__", [1]], [11, 1], [9], [9, "1"], [9, 1, 1], [10, 1, 0])
        ),
        msgspec.msgpack.encode([2, [[1, {"request_id": "r", "prompt": [], "max_tokens": 1}]], []]),
        msgspec.msgpack.encode([2, [[1, {"request_id": "r", "prompt": [1], "max_tokens": 0}]], []]),
    ],
    ids=lambda data: data[:16].hex(),
)
def test_what_is_no_message_is_a_wire_error(data):
    for decode in (messages.decode_to_engine, messages.decode_from_engine):
        with pytest.raises(WireError, match="not a message"):
            decode(data)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_of_the_other_direction_is_none(message):
    wrong = messages.decode_from_engine if message in TO_ENGINE else messages.decode_to_engine
    with pytest.raises(WireError):
        wrong(encode(message))


def mutated(draw, datas):
    """A message with some bytes changed, lost, repeated, or of another message."""
    data = bytearray(draw.choice(datas))
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(data) + 1)
        end = min(len(data), start + draw.choice((1, 1, 1, 2, 8, 100)))
        match draw.randrange(5):
            case 0:
                data[start:end] = draw.randbytes(end - start)
            case 1:
                del data[start:end]
            case 2:
                data[start:start] = data[start:end]
            case 3:
                data[start:end] = bytes([draw.choice(b"\x00\x01\x7f\x80\x90\xc0\xc7\xc9\xcf\xd3\xdb\xdd\xdf\xff")])
            case 4:
                other = draw.choice(datas)
                data[start:end] = other[draw.randrange(len(other)) :][: end - start]
    return bytes(data)


def test_a_message_with_changed_bytes_is_another_one_or_a_wire_error():
    draw = random.Random(7)
    datas = [encode(message) for message in MESSAGES] * 2 + [with_array([[2, 2], floats(1, 16)])]
    accepted = refused = 0
    for _ in range(10_000):
        data = mutated(draw, datas)
        for decode in (messages.decode_to_engine, messages.decode_from_engine):
            try:
                message = decode(data)
                for _, failure in getattr(message, "failures", []):
                    error_of(failure)
                accepted += 1
            except WireError:
                refused += 1
    assert min(accepted, refused) > 500, (accepted, refused)


def test_events_are_split_by_kind_in_order():
    failure = errors.Cancelled("gone")
    events: list[tuple[int, Event]] = [
        (1, TextDelta("a", (4,))),
        (2, failure),
        (1, TextDelta("b", (5,))),
        (1, FINISHED),
    ]
    deltas, ends, failures = messages.split_events(events)
    assert deltas == [events[0], events[2]]
    assert ends == [events[3]]
    assert failures == [(2, failure_of(failure))]


def sent_turns(events, limit, monkeypatch, measurements=()):
    """What arrives of a turn with these events when a message may have `limit` bytes."""
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", limit)
    names = {ticket: f"name {ticket}" for ticket, event in events if not isinstance(event, TextDelta)}
    found = list(messages.turn_messages(messages.Turn(3, STATE, [], [], [], list(measurements)), events, names))
    assert all(len(data) <= limit for data in found)
    return [messages.decode_from_engine(data) for data in found]


def weighty(size):
    """An end with attention of `size` bytes."""
    attention_LHTS = np.ones((1, 1, 1, size // 4), np.float32)
    result = HypothesisResult("", (), FinishReason.LENGTH, 0.0, 0.0, (), attention=attention_LHTS)
    return Finished(FinishReason.LENGTH, hypotheses=(result,))


@pytest.mark.parametrize("limit", [1 << 20, 9000, 5000])
def test_a_turn_is_split_where_one_message_would_be_too_large(monkeypatch, limit):
    events = [(1, TextDelta("a", (4,))), *((ticket, weighty(4000)) for ticket in range(1, 6)), (7, ERRORS[-2])]
    turns = sent_turns(events, limit, monkeypatch, [Generated(3)])
    assert len(turns) == 1 if limit > 30_000 else len(turns) > 2
    assert [(turn.engine, turn.state) for turn in turns] == [(3, STATE)] * len(turns)
    assert [turn.measurements for turn in turns] == [[Generated(3)], *[[]] * (len(turns) - 1)]
    assert turns[0].deltas == [events[0]]
    assert [ticket for turn in turns for ticket, _ in turn.ends] == [1, 2, 3, 4, 5]
    assert [ticket for turn in turns for ticket, _ in turn.failures] == [7]


def test_an_answer_that_no_message_can_hold_fails_alone(monkeypatch, caplog):
    turns = sent_turns([(1, weighty(400)), (2, weighty(4000)), (3, weighty(400))], 2000, monkeypatch)
    assert [ticket for turn in turns for ticket, _ in turn.ends] == [1, 3]
    ((ticket, failure),) = [one for turn in turns for one in turn.failures]
    assert ticket == 2
    assert str(error_of(failure)) == str(errors.InternalFailure("name 2"))
    assert "request name 2: its answer has" in caplog.text
