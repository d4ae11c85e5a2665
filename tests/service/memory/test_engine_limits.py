from dataclasses import fields

import pytest

from service.errors import StartupError
from service.memory.engine_limits import EngineLimits, setting_fields
from service.settings.loading import load_settings


@pytest.mark.parametrize("name", [limit.name for limit in fields(EngineLimits)])
def test_limits_below_the_least_value_are_refused(name):
    with pytest.raises(ValueError, match=rf"{name}: must be at least [01], got -1"):
        EngineLimits(**{name: -1})


@pytest.mark.parametrize("name", ["max_rows", "kv_cache_bytes", "max_prefill_tokens", "chunk_tokens"])
def test_some_limits_must_not_be_zero(name):
    with pytest.raises(ValueError, match=f"{name}: must be at least 1, got 0"):
        EngineLimits(**{name: 0})


def test_chunks_are_padded_blocks():
    with pytest.raises(ValueError, match="chunk_tokens: must be a multiple of 16, got 40"):
        EngineLimits(chunk_tokens=40)


def test_engines_share_memory_and_messages_and_have_rows_each():
    limits = EngineLimits(max_rows=5, kv_cache_bytes=2, prefix_cache_bytes=2, parking_bytes=7, stream_messages_per_s=10)
    share = limits.share(3)
    assert (share.max_rows, share.kv_cache_bytes, share.prefix_cache_bytes, share.parking_bytes) == (5, 1, 0, 2)
    assert share.stream_messages_per_s == 10 / 3
    assert limits.share(1) == limits


def test_settings_have_the_values_and_the_bounds_of_limits():
    models = {"models": {"m": "m.bundle"}}
    assert EngineLimits.of(load_settings({**models, "parking_bytes": 9})) == EngineLimits(parking_bytes=9)
    for limit in setting_fields():
        with pytest.raises(StartupError, match=f"{limit.metadata['ge']}, got -1"):
            load_settings({**models, limit.name: -1})
