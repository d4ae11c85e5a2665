import asyncio
import collections
import contextlib
import random

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from bench.hostile.hostile_messages import (
    DECLARED,
    HEALTH,
    REFLECTION,
    WATCH,
    bases,
    matrix,
    messages,
    scalars,
    send_all,
)
from glossa.v1 import glossa_pb2 as pb
from tests.edge import running

TEXT = "the small red house"
WITHOUT_ENGINE = tuple(f"/glossa.v1.{name}Service/" for name in ("Scoring", "Encoding", "Attention"))  # the fake's


def test_every_scalar_field_of_every_request_gets_hostile_values():
    for base, kind in bases(TEXT):
        fields = {(*outside, scalar.number) for outside, scalar in scalars(kind)}
        assert len(list(matrix(base, kind))) >= 7 * len(fields)
    numbers = {field.number for field in pb.DecodingOptions.DESCRIPTOR.fields if field.message_type is None}
    translate = pb.TranslateRequest.DESCRIPTOR
    outside = (translate.fields_by_name["options"].number,)
    assert {scalar.number for around, scalar in scalars(translate) if around == outside} == numbers


def test_hostile_values_reach_the_field_they_are_for():
    (base, kind), *_ = [(base, kind) for base, kind in bases(TEXT) if kind is pb.TranslateRequest.DESCRIPTOR]
    found = []
    for message in matrix(base, kind):
        with contextlib.suppress(DecodeError):  # text that is not UTF-8
            found.append(pb.TranslateRequest.FromString(message.data))
    assert {each.options.max_tokens for each in found} >= {0, 1, 2, 999}
    assert any(each.options.temperature != each.options.temperature for each in found), "NaN"
    assert any(len(each.text) > 100_000 for each in found)
    assert any(
        getattr(each.options, field.name) == 999
        for each in found
        for field in pb.DecodingOptions.DESCRIPTOR.fields
        if field.type == FieldDescriptor.TYPE_ENUM and not field.is_repeated
    )


def test_messages_are_the_same_for_the_same_seed():
    assert messages(TEXT, 0, 1) == messages(TEXT, 0, 1) != messages(TEXT, 0, 2)


async def test_every_status_of_a_server_is_declared():
    asked = random.Random(0).sample(messages(TEXT, 8000, 0), 2500)
    asked = [message for message in asked if not message.path.startswith(WITHOUT_ENGINE)]
    paths = {message.path for message in asked}
    assert {HEALTH, WATCH, *REFLECTION} <= paths
    async with running() as edge:
        statuses = await asyncio.to_thread(send_all, edge.address, asked)
    counts = collections.Counter(statuses)
    assert counts.keys() <= DECLARED
    assert min(counts["OK"], counts["INVALID_ARGUMENT"]) > 50
