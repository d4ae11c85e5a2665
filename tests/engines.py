"""Requests, rules and engines turned by hand, for the tests of the engine's parts."""

from typing import Any

from service.memory.engine_limits import EngineLimits
from service.request import Request
from tests.fakes import (
    EOS,
    ScriptedRunner,
    Sink,
)


def engine_limits(**changes):
    """Limits without a prefix cache, and a message for every token, unless `changes` say otherwise."""
    return EngineLimits(**{"prefix_cache_bytes": 0, "stream_messages_per_s": 0, **changes})


def request(name="r", source=(5, 6, 2), max_tokens=8, **more):
    return Request(request_id=name, source=source, prompt=(1,), max_tokens=max_tokens, **more)


def never_ends(source, fed, vocab_size):
    return 4 + (len(fed) + sum(source)) % (vocab_size - 4)


def spell(*letters):
    """A rule that answers with these letters, whatever the request, and then ends."""
    tokens = [ord(letter) - ord("a") + 4 for letter in letters]
    return lambda source, fed, vocab_size: tokens[len(fed) - 1] if len(fed) <= len(tokens) else EOS


class Recorded(list[Any]):
    """Measurements of an engine, whose `measure` is `append`."""

    def of(self, kind):
        return [[getattr(one, name) for name in kind.__struct_fields__] for one in self if type(one) is kind]


def repeating(*letters, ends_at=10**6):
    """A rule that repeats these letters."""
    tokens = [ord(letter) - ord("a") + 4 for letter in letters]
    return lambda source, fed, vocab_size: EOS if len(fed) == ends_at else tokens[(len(fed) - 1) % len(tokens)]


def continued(text, **more):
    return Request(request_id="r", prompt=(1, *[ord(letter) - ord("a") + 4 for letter in text]), **more)


def answer_events(engine, loop, asked):
    sink = Sink()
    engine.submit(asked, loop, sink)
    while not sink.finals:
        engine.turn()
        loop.run()
    return sink


def drafting(manual, rule, **more):
    runner = ScriptedRunner(has_source=False, max_block=0, rule=rule)
    return manual(runner, engine_limits(max_rows=4, draft_tokens=4), **more)
