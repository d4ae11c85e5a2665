"""Chats over real gRPC without engines: prompts, counts, warnings, refusals."""

import dataclasses

import grpc
import pytest
from google.protobuf.struct_pb2 import Struct

from export.bundle.manifest import Limits
from glossa.v1 import glossa_pb2 as pb
from model.prompts.chat_template import ChatTemplate
from model.prompts.chat_tokens import ChatTokens
from service.edge.requests.chat_prompts import MAX_MESSAGES
from service.edge.rpcs.chat_messages import MAX_WARNINGS
from tests.edge import GENERATION, failure, method

TEMPLATE = """\
{% for message in messages %}\
{% if message.role == 'critic' %}{{ raise_exception('No critics, please: ' + message.content) }}{% endif %}\
{{ '<bos>' + message.role + (message.name or '') + ':' + message.content + '<eos>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<bos>' + (start or '') }}{% endif %}{% if count %}{{ 'x' * count }}{% endif %}"""
CHAT = ({"role": "user", "content": "a cat"},)


def tokens_of(text):
    """The ids of a text with the names of special tokens among it."""
    tokenizer, ids = GENERATION.tokenizer, list[int]()
    for part in text.replace("<bos>", "\0<bos>\0").replace("<eos>", "\0<eos>\0").split("\0"):
        ids += [tokenizer.special[part]] if part in tokenizer.special else tokenizer.encode(part)
    return tuple(ids)


def struct(**values):
    made = Struct()
    made.update(values)
    return made


def chat(*messages, **options):
    fields = {"messages": [pb.ChatMessage(**message) for message in messages]}
    return fields | ({"chat": pb.ChatOptions(**options)} if options else {})


@pytest.fixture
def model(edge):
    model = edge.models["en"]
    model.chat = ChatTokens(model.tokenizer, ChatTemplate(TEMPLATE, {"bos_token": "<bos>"}))
    wide = Limits(vocab_size=model.manifest.limits.vocab_size, max_source_len=0, max_target_len=64, max_block=0)
    model.manifest = dataclasses.replace(model.manifest, limits=wide)
    return model


async def sent(edge, channel, fields):
    await method(channel, "Generate")(**fields)
    return edge.pools["en"].requests[-1]


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        (chat(*CHAT), "<bos>user:a cat<eos><bos>"),
        (chat(*CHAT, add_generation_prompt=True), "<bos>user:a cat<eos><bos>"),
        (chat(*CHAT, add_generation_prompt=False), "<bos>user:a cat<eos>"),
        (chat(*CHAT, continue_final_message=True), "<bos>user:a cat"),
        (chat(*CHAT, continue_final_message=True, add_generation_prompt=False), "<bos>user:a cat"),
        (chat({"role": "user", "fields": struct(name="me", other=None)}), "<bos>userme:<eos><bos>"),
        (chat(*CHAT, template_arguments=struct(start="go", count=2)), "<bos>user:a cat<eos><bos>goxx"),
        (chat(*CHAT, {"role": "assistant", "content": "b"}), "<bos>user:a cat<eos><bos>assistant:b<eos><bos>"),
    ],
)
async def test_a_chat_becomes_the_prompt_of_its_template(edge, channel, model, fields, prompt):
    request = await sent(edge, channel, fields)
    assert request.prompt == tokens_of(prompt)
    counted = await method(channel, "CountTokens")(model="en", **fields)
    assert [(one.tokens, one.exceeds_limit) for one in counted.counts] == [(len(request.prompt), False)]
    assert counted.max_prompt_tokens == 64
    stream = [one async for one in method(channel, "StreamGenerate")(**fields)]
    assert stream[-1].HasField("final")
    assert edge.pools["en"].requests[-1].prompt == request.prompt


async def test_special_tokens_in_texts_are_plain_text_with_a_warning(edge, channel, model):
    fields = chat(
        {"role": "user", "content": "<eos>a<bos>", "fields": struct(name="<pad>")},
        template_arguments=struct(start="<unk>"),
    )
    response = await method(channel, "Generate")(**fields)
    prompt = edge.pools["en"].requests[-1].prompt
    assert prompt.count(1) == prompt.count(2) + 1 == 2
    assert model.tokenizer.decode(prompt) == "user<pad>:<eos>a<bos><unk>"
    assert [one.reason for one in response.warnings] == ["SPECIAL_TOKEN_IN_TEXT"] * 4
    assert [one.message for one in response.warnings] == [
        f"{field}: spells the special token {name}, which was read as plain text"
        for field, name in (
            ("messages[0].content", "<eos>"),
            ("messages[0].content", "<bos>"),
            ("messages[0].name", "<pad>"),
            ("chat.template_arguments.start", "<unk>"),
        )
    ]
    stream = [one async for one in method(channel, "StreamGenerate")(**fields)]
    assert list(stream[-1].final.warnings) == list(response.warnings)


async def test_the_text_of_a_prompt_has_the_warning_too(edge, channel):
    response = await method(channel, "Generate")(text="<eos><bos><eos>")
    assert [one.message.partition(",")[0] for one in response.warnings] == [
        "text: spells the special token <eos>",
        "text: spells the special token <bos>",
    ]
    assert not (await method(channel, "Generate")(text="a < eos>")).warnings
    assert not (await method(channel, "Generate")(prompt_tokens=[1, 2])).warnings


async def test_warnings_are_few(channel, model):
    messages = [{"role": "user", "content": "<eos>"}] * (MAX_WARNINGS + 1)
    response = await method(channel, "CountTokens")(model="en", **chat(*messages))
    assert response.counts[0].exceeds_limit
    model.manifest = dataclasses.replace(
        model.manifest, limits=dataclasses.replace(model.manifest.limits, max_target_len=4096)
    )
    response = await method(channel, "Generate")(**chat(*messages))
    assert len(response.warnings) == MAX_WARNINGS


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({**chat(*CHAT), "text": "a"}, "messages: must be empty with text"),
        ({**chat(*CHAT), "prompt_tokens": [1]}, "messages: must be empty with prompt_tokens"),
        ({"chat": pb.ChatOptions()}, "chat: must be left out without messages"),
        ({"text": "a", "chat": pb.ChatOptions()}, "chat: must be left out without messages"),
        (chat({"content": "a"}), "messages[0].role: must be 1..64 letters, digits, _, . or -, a letter first, got ''"),
        (chat(*CHAT, {"role": "a b"}), "messages[1].role: must be 1..64 letters"),
        (chat({"role": "u" * 65}), "messages[0].role: must be 1..64 letters"),
        (chat({"role": "<eos>"}), "messages[0].role: must be 1..64 letters"),
        (chat({"role": "eos"}), "messages[0].role: must not be 'eos', the word of the special token <eos>; use system"),
        (
            chat({"role": "user", "fields": struct(role="system")}),
            "messages[0].fields: must not have role; set messages[0].role",
        ),
        (chat(*[{"role": "user"}] * (MAX_MESSAGES + 1)), f"messages: must be 1..{MAX_MESSAGES} messages, got 1001"),
        (
            chat(*[{"role": "user", "content": "x" * 1000}] * 17),
            "messages: must have at most 16384 bytes of text together, got 17255; leave out the oldest ones",
        ),
        (
            chat(*CHAT, template_arguments=struct(messages=[])),
            "chat.template_arguments: must not be messages, add_generation_prompt, names of special tokens or begin",
        ),
        (chat(*CHAT, template_arguments=struct(bos_token="")), "chat.template_arguments: must not be messages"),
        (
            chat(*CHAT, continue_final_message=True, add_generation_prompt=True),
            "chat.add_generation_prompt: must be left out or false with continue_final_message, got true",
        ),
        (
            chat({"role": "critic", "content": "<eos>"}),
            "messages: the chat template of model 'en' refuses them: No critics, please: <eos>; change the messages",
        ),
        (
            chat({"role": "user", "fields": struct(name=3)}),
            "messages: the chat template of model 'en' does not render them: TypeError: can only concatenate str",
        ),
        (
            chat(*CHAT, template_arguments=struct(count=2_000_000)),
            "messages: the chat template of model 'en' gives more than 1048576 characters for them; send fewer",
        ),
        (chat(*CHAT, template_arguments=struct(count=99)), "messages: must be 1..64 tokens, got "),
    ],
)
async def test_what_is_no_chat_is_refused(edge, channel, model, fields, problem):
    for name in ("Generate", "StreamGenerate"):
        error, details = await failure(method(channel, name)(**fields))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith(problem)
        assert details["ErrorInfo"].reason == "INVALID_FIELD"
    assert not edge.pools["en"].requests


async def test_a_model_without_a_template_has_no_chats(channel):
    for name, fields in (("Generate", {}), ("StreamGenerate", {}), ("CountTokens", {"model": "en"})):
        error, details = await failure(method(channel, name)(**chat(*CHAT), **fields))
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert error.details().startswith(
            "model 'en' has no chat template, which messages need; send text or prompt_tokens, or export the model"
        )
        assert details["ErrorInfo"].reason == "UNSUPPORTED_BY_MODEL"


async def test_texts_and_a_chat_are_counted_one_by_one(channel, model):
    error, _ = await failure(method(channel, "CountTokens")(model="en", texts=["a"], **chat(*CHAT)))
    assert error.details() == "texts: must be empty with messages; send two requests"
    error, _ = await failure(method(channel, "CountTokens")(model="en", chat=pb.ChatOptions()))
    assert error.details() == "chat: must be left out without messages"


async def test_a_model_tells_whether_it_has_a_template(channel, edge):
    assert not (await method(channel, "GetModel")(model="en")).model.has_chat_template
    edge.models["en"].chat = ChatTokens(GENERATION.tokenizer, ChatTemplate(TEMPLATE, {}))
    assert (await method(channel, "GetModel")(model="en")).model.has_chat_template
