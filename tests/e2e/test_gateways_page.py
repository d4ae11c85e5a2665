"""docs/gateways.md: its table of paths is that of the .proto, and its commands give what stands below them."""

import asyncio
import json
import re
import shlex

import pytest
from google.api import annotations_pb2

from bench.load.envoy import FOLDER
from glossa.v1 import glossa_pb2
from tests.e2e.test_envoy_replicas import replicas

PAGE = (FOLDER.parents[1] / "docs/gateways.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```sh\n(curl .*?)\n```\n\n```json\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_names_the_path_of_every_method():
    documented = set(re.findall(r"^\| `(\w+)` \| `(GET|POST) (\S+)` \|$", PAGE, re.MULTILINE))
    expected = set()
    for service in glossa_pb2.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            rule = method.GetOptions().Extensions[annotations_pb2.http]
            for one in (rule, *rule.additional_bindings):
                if verb := one.WhichOneof("pattern"):  # calls with items have none
                    expected.add((method.name, verb.upper(), getattr(one, verb)))
    assert documented == expected


def resembles(answer, shown):
    """Whether an answer has the fields that are shown, and shown texts that end in dots as their beginnings."""
    if isinstance(shown, dict):
        return all(name in answer and resembles(answer[name], value) for name, value in shown.items())
    if isinstance(shown, list):
        return len(answer) >= len(shown) and all(map(resembles, answer, shown))
    if isinstance(shown, str) and shown.endswith("..."):
        return answer.startswith(shown.removesuffix("..."))
    return answer == shown


def test_an_answer_that_is_not_the_shown_one_is_noticed():
    assert resembles({"a": [{"b": "cd"}, 1], "e": 2}, {"a": [{"b": "c..."}]})
    assert not resembles({"a": [{"b": "x"}]}, {"a": [{"b": "c..."}]})
    assert not resembles({"a": []}, {"a": [{"b": "c..."}]})
    assert not resembles({}, {"a": []})


def whole(answer):
    """A stream as one message, as how many it has depends on time; other answers as they are."""
    if not isinstance(answer, list):
        return answer
    return {**answer[-1], "text": "".join(piece.get("text", "") for piece in answer)}


@pytest.mark.slow
async def test_the_commands_of_the_page_give_the_answers_that_it_shows():
    assert len(EXAMPLES) == 3
    async with replicas() as (front, _):
        for command, shown in EXAMPLES:
            words = shlex.split(command.replace("\\\n", " ").replace("localhost:8080", front.address))
            process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
            answer, _ = await process.communicate()
            assert process.returncode == 0
            assert resembles(whole(json.loads(answer)), whole(json.loads(shown))), (command, answer)
