"""Predictions by hand, and which limits they follow."""

from dataclasses import replace

import pytest

from service.memory.cache_layout import CacheLayout
from service.memory.engine_limits import EngineLimits
from service.memory.memory_prediction import (
    ARENA_FACTOR,
    BINDINGS_BYTES,
    CODE_BYTES,
    DEVICE_PROGRAM_BYTES,
    EDGE_BYTES,
    FLOOD_BYTES,
    HEADERS_BYTES,
    HUGE_PAGES_BYTES,
    LOG_BYTES,
    MESSAGE_COPIES,
    OPENING_FACTOR,
    PROCESS_BYTES,
    STAGING_BYTES,
    TOKENIZER_FACTOR,
    EdgeLimits,
    ModelPlan,
    ModelShape,
    activation_bytes,
    engine_parts,
    kv_cache_bytes,
    output_bytes,
    predict,
    process_parts,
)

SHAPE = ModelShape(
    layout=CacheLayout(target_bytes=100, source_bytes=50),
    vocab_size=1000,
    width=32,
    inner=64,
    heads=4,
    max_source_len=64,
    max_target_len=32,
    chunk_tokens=0,
    shortlist_len=0,
    opened=10_000_000,
    opened_later=0,
    tokenizer=1000,
)
DECODER = replace(SHAPE, layout=CacheLayout(target_bytes=100), max_source_len=0, chunk_tokens=128)
ENGINE = EngineLimits(max_rows=8, kv_cache_bytes=1 << 20, prefix_cache_bytes=3000, parking_bytes=5000)
EDGE = EdgeLimits(calls=10, message_bytes=1000, metadata_bytes=200, request_bytes=7_000_000)


def test_caches_by_hand():
    # 100 x 32 and 50 x 64 bytes a row; one of the two exists twice while it grows.
    assert kv_cache_bytes(SHAPE, ENGINE) == 8 * (3200 + 3200 + 3200)
    assert kv_cache_bytes(SHAPE, replace(ENGINE, kv_cache_bytes=20_000)) == 2 * 20_000, "old and new caches"
    assert kv_cache_bytes(DECODER, ENGINE) == 8 * 2 * 100 * 192, "the last chunk of a prompt is padded"
    assert kv_cache_bytes(replace(SHAPE, max_target_len=0), ENGINE) == 8 * (3200 + 3200)


def test_outputs_by_hand():
    assert output_bytes(SHAPE, ENGINE) == (8 + 15) * (3 * 4 * 1000 + 12 * 128 + 4 * 32)
    assert output_bytes(SHAPE, replace(ENGINE, draft_tokens=4)) == (8 + 8 * 5) * (3 * 4 * 1000 + 12 * 128 + 4 * 32)


def test_activations_by_hand():
    token = 4 * (6 * 32 + 3 * 64)
    encoder = 256 * (token + 2 * 4 * 4 * 64)
    step = 8 * (token + 2 * 4 * 4 * 64)
    assert activation_bytes(SHAPE, 8) == encoder + step + 2 * 4 * 8 * 1000
    assert activation_bytes(replace(SHAPE, max_target_len=0), 8) == encoder
    prefill = 8 * 128 * (token + 4 * 4 * 32)
    assert activation_bytes(DECODER, 8) == prefill + 2 * 4 * 8 * 1000


def test_parts_of_an_engine_follow_the_kind_of_model():
    parts = engine_parts(SHAPE, ENGINE)
    assert parts == {
        "kv_cache": 8 * 9600,
        "prefix_cache": 0,
        "parked": 5000,
        "outputs": output_bytes(SHAPE, ENGINE),
        "activations": ARENA_FACTOR * activation_bytes(SHAPE, 8) + 2 * 256 * 50,
        "bindings": BINDINGS_BYTES + HUGE_PAGES_BYTES,
    }
    assert engine_parts(DECODER, ENGINE)["prefix_cache"] == 3000
    encoder = engine_parts(replace(SHAPE, layout=CacheLayout(0), max_target_len=0), ENGINE)
    assert (encoder["kv_cache"], encoder["parked"], encoder["outputs"]) == (0, 0, 0)


def test_a_server_is_the_sum_of_its_processes():
    plan = ModelPlan(shape=SHAPE, engine=ENGINE, processes=3, engines_per_process=2)
    prediction = predict([plan], EDGE)
    assert prediction.edge == {
        "program": EDGE_BYTES,
        "tokenizer": TOKENIZER_FACTOR * 1000,
        "messages": 10 * (HEADERS_BYTES + 200 + int(MESSAGE_COPIES * 1000)),
        "floods": FLOOD_BYTES,
        "log": LOG_BYTES,
        "answers": 0,
    }
    process = process_parts(plan)
    assert process["parked"] == 2 * 5000, "of both engines"
    each = sum(process.values())
    assert prediction.total == CODE_BYTES + 7_000_000 + sum(prediction.edge.values()) + 3 * each
    assert prediction.process_peak(0) == CODE_BYTES + 7_000_000 + each
    opening = PROCESS_BYTES + TOKENIZER_FACTOR * 1000 + int(OPENING_FACTOR * 10_000_000)
    assert prediction.start == CODE_BYTES + EDGE_BYTES + TOKENIZER_FACTOR * 1000 + 3 * opening
    assert prediction.start < prediction.total


def test_of_a_model_on_a_device_main_memory_has_neither_weights_nor_caches():
    plan = ModelPlan(shape=SHAPE, engine=ENGINE, processes=1, engines_per_process=1, on_device=True)
    parts = process_parts(plan)
    assert parts == {
        "program": PROCESS_BYTES + DEVICE_PROGRAM_BYTES,
        "tokenizer": TOKENIZER_FACTOR * 1000,
        "opening": int(OPENING_FACTOR * 10_000_000),
        "outputs": 2 * (8 * (12 * 128 + 4 * 1000) + 256 * 4 * 32) + STAGING_BYTES,
        "bindings": BINDINGS_BYTES + HUGE_PAGES_BYTES,
    }
    larger = replace(ENGINE, kv_cache_bytes=1 << 40, prefix_cache_bytes=1 << 40, parking_bytes=1 << 40)
    assert process_parts(replace(plan, engine=larger)) == parts
    on_cpu = predict([replace(plan, on_device=False)], EDGE)
    assert predict([plan], EDGE).start == on_cpu.start + DEVICE_PROGRAM_BYTES


def test_what_opens_before_the_first_request_may_have_the_place_of_requests():
    def parts(**changes):
        shape = replace(SHAPE, **changes)
        return process_parts(ModelPlan(shape=shape, engine=ENGINE, processes=1, engines_per_process=1))

    small, large = parts(), parts(opened=1 << 30)
    assert small["opening"] == 0
    whole = PROCESS_BYTES + TOKENIZER_FACTOR * 1000 + OPENING_FACTOR * (1 << 30)
    assert sum(large.values()) == pytest.approx(whole)
    later = parts(opened_later=1 << 30)
    assert sum(later.values()) - sum(small.values()) == pytest.approx(OPENING_FACTOR * (1 << 30), rel=1e-6)


def test_one_request_with_more_attention_than_the_limit_has_it_for_itself():
    plan = ModelPlan(shape=replace(SHAPE, attention=5_000_000), engine=ENGINE, processes=1, engines_per_process=1)
    assert predict([plan], EDGE).requests == 4 * 5_000_000
    assert predict([], EDGE).requests == 7_000_000
