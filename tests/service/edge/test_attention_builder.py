import dataclasses

import pytest

from export.manifest import AttentionMaps
from service.attention_request import AttentionChoice
from service.edge.attention_builder import AttentionRequestBuilder
from service.errors import InvalidRequest, Unsupported
from tests.edge import CALL, GENERATION, LIMITS, TRANSLATION, manifest

SEEN = tuple(AttentionMaps(kind=kind, layers=2, heads=4) for kind in ("encoder", "decoder", "cross"))
SEEING = dataclasses.replace(TRANSLATION, manifest=manifest(attention_maps=SEEN))
SEEING_GENERATION = dataclasses.replace(GENERATION, manifest=manifest("generation", attention_maps=SEEN[1:2]))


async def look(model, text, target=None, *, text_only=False, max_tokens=0, **choice):
    """A request for attention, and its selection."""
    builder = AttentionRequestBuilder(model, LIMITS)
    return await builder.attention(
        CALL, text, target, AttentionChoice(**choice), text_only=text_only, max_tokens=max_tokens
    )


async def test_without_a_target_the_model_generates_one():
    request, choice = await look(SEEING, "a black cat")
    words = TRANSLATION.tokenizer.encode("a black cat")
    assert (request.source, request.prompt, request.forced_target, request.max_tokens) == ((*words, 2), (1,), (), 16)
    assert request.attention_kinds == choice.kinds == ("encoder", "decoder", "cross")
    assert (await look(SEEING, "a black cat", max_tokens=3))[0].max_tokens == 3
    request, _ = await look(SEEING_GENERATION, "a cat")
    assert (request.forced_target, request.max_tokens) == ((), 16 - len(request.prompt) + 1)


async def test_a_given_target_is_forced_and_nothing_is_generated():
    words = tuple(TRANSLATION.tokenizer.encode("the red"))
    for target in ("the red", (*words, 2)):
        request, _ = await look(SEEING, "a black cat", target)
        assert (request.forced_target, request.prompt, request.max_tokens) == ((1, *words), (1,), 1)
    request, _ = await look(SEEING_GENERATION, "a", text_only=True)
    assert request.forced_target == (1, *GENERATION.tokenizer.encode("a"))
    request, choice = await look(SEEING, "a black cat", text_only=True)
    assert (choice.kinds, request.forced_target) == (("encoder",), (1,))
    request, _ = await look(SEEING, "a black cat", kinds=("encoder",))
    assert request.forced_target == (1,)


async def test_the_attention_graph_is_opened_only_for_accepted_requests():
    opened: list[str] = []
    model = dataclasses.replace(SEEING, open_attention=lambda: opened.append("attend"))
    with pytest.raises(InvalidRequest):
        await look(model, "a black cat", layers=(3,))
    assert opened == []
    await look(model, "a black cat")
    assert opened == ["attend"]


async def test_a_generated_target_is_as_long_as_the_response_has_room_for():
    many = dataclasses.replace(SEEN[1], layers=1000)
    model = dataclasses.replace(SEEING_GENERATION, manifest=manifest("generation", attention_maps=(many,)))
    prompt = 1 + len(GENERATION.tokenizer.encode("a"))
    request, _ = await look(model, "a")
    longest = prompt + request.max_tokens - 1  # of 1000 * 4 matrices
    assert 4 * 4000 * longest**2 < 3 << 20 < 4 * 4000 * (longest + 2) ** 2
    assert (await look(model, "a", mean_heads=True))[0].max_tokens == 16 - prompt + 1
    with pytest.raises(InvalidRequest, match=r"at most 3145728 bytes .* ask for fewer kinds, layers or heads, for"):
        await look(model, "a", max_tokens=16 - prompt + 1)
    model = dataclasses.replace(
        model, manifest=manifest("generation", attention_maps=(dataclasses.replace(many, layers=2**20),))
    )
    with pytest.raises(InvalidRequest, match="to be computed, however little of it is"):
        await look(model, "a", "a", layers=(1,), heads=(1,))


async def test_attention_needs_a_bundle_with_attention():
    with pytest.raises(Unsupported, match="'en-de' has no attention outputs; export it with --attention"):
        await look(TRANSLATION, "a black cat")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_only": True, "target": "a"}, "text_only: must be false with a target"),
        ({"max_tokens": 2, "target": "a"}, "max_tokens: must be 0 unless the model generates the target, got 2"),
        ({"max_tokens": 17}, r"max_tokens: must be 0\.\.16 here, got 17"),
        ({"max_tokens": -1}, r"max_tokens: must be 0\.\.16 here, got -1"),
        ({"target": (5, 2, 6)}, r"target_tokens\[1\]: must not be the end token"),
        ({"target": (99,)}, r"target_tokens\[0\]: must be a token"),
        ({"target": " "}, "target: must not be empty or blank"),
        ({"target": "cat " * 16}, r"target: must be 1\.\.16 tokens, got 17"),
    ],
)
async def test_contradicting_attention_fields_are_rejected(fields, message):
    with pytest.raises(InvalidRequest, match=message):
        await look(SEEING, "a black cat", **fields)
