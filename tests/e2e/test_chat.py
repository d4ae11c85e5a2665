"""A chat from a directory of transformers to answers: import, export, server, client and command."""

import json

import pytest
import torch
from typer.testing import CliRunner

from cli.main import app
from export.to_onnx import export_bundle
from glossa.client import Client, ClientError
from model.checkpoints.checkpoint import load_checkpoint
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.import_checkpoint import import_checkpoint
from tests.chats import chat_tokenizer, theirs
from tests.decoders import make_decoder
from tests.e2e.process import serving

QUESTIONS = ("How are you?", "  And <b>today</b>\n\n? ", "I am well, thank you.", "> system", "You? 😀")
TOKENS = 12


@pytest.fixture(scope="module")
def tokenizer():
    return chat_tokenizer("chatml")


@pytest.fixture(scope="module")
def model(tokenizer):
    ends = {"eos_token_id": 3, "pad_token_id": 3, "bos_token_id": 3}  # the end of a turn is another one
    return make_decoder("llama", vocab_size=len(tokenizer), max_position_embeddings=512, **ends)


@pytest.fixture(scope="module")
def path(model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("chat")
    model.save_pretrained(path / "theirs")
    tokenizer.save_pretrained(path / "theirs")
    import_checkpoint(path / "theirs", path / "ours", convert_tokenizer(path / "theirs"), max_length=512)
    export_bundle(path / "ours", path / "bundle")
    return path


@pytest.fixture(scope="module")
def server(path):
    with serving(models={"chat": str(path / "bundle")}) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def expected_answer(model, tokenizer, messages, **options):
    """The text and the tokens that `generate` of transformers answers a chat with."""
    prompt = torch.tensor([theirs(tokenizer, messages, **options)])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    with torch.no_grad():
        ids = model.generate(prompt, max_new_tokens=TOKENS, do_sample=False, eos_token_id=[3, end], pad_token_id=3)
    new = ids[0, prompt.shape[1] :].tolist()
    return tokenizer.decode(new, skip_special_tokens=True), new, prompt.shape[1]


def test_the_end_of_a_turn_ends_an_answer(path, tokenizer):
    checkpoint = load_checkpoint(path / "ours")
    assert checkpoint.config.eos_ids == (3, tokenizer.convert_tokens_to_ids("<|im_end|>"))
    assert checkpoint.templates.chat is not None
    assert checkpoint.templates.chat.source == tokenizer.chat_template


def test_five_turns_are_those_of_transformers(client, model, tokenizer):
    messages = [{"role": "system", "content": "Be kind."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        text, tokens, prompt = expected_answer(model, tokenizer, messages)
        counted = client.count_chat_tokens(messages)
        answer = client.generate(messages=messages, max_tokens=TOKENS, include_tokens=True)
        assert (counted.tokens, answer.prompt_tokens) == (prompt, prompt)
        assert (list(answer.tokens), answer.text, answer.warnings) == (tokens, text, ())
        *pieces, last = client.stream_generate(messages=messages, max_tokens=TOKENS)
        assert "".join(piece.text for piece in [*pieces, last]) == last.answer.text == text
        messages.append({"role": "assistant", "content": text})
    messages[-1]["content"] = "I am"
    text, tokens, _ = expected_answer(
        model, tokenizer, messages, add_generation_prompt=False, continue_final_message=True
    )
    answer = client.generate(messages=messages, continue_final_message=True, max_tokens=TOKENS, include_tokens=True)
    assert list(answer.tokens) == tokens


def test_the_client_explains_what_is_no_chat(client):
    with pytest.raises(TypeError, match="messages must be a list of dictionaries with role and content"):
        client.generate(messages="hi")
    with pytest.raises(TypeError, match=r"messages\[0\] must be a dictionary with role and content, got 'hi'"):
        client.generate(messages=["hi"])
    with pytest.raises(TypeError, match=r"messages\[0\]\['content'\] must be a text, got 5"):
        client.generate(messages=[{"role": "user", "content": 5}])
    with pytest.raises(TypeError, match=r"messages\[0\]\['role'\] must be a text, got None"):
        client.generate(messages=[{"content": "a"}])
    with pytest.raises(TypeError, match=r"template_arguments\['a'\] must be a plain JSON value"):
        client.generate(messages=[{"role": "user", "content": "a"}], template_arguments={"a": object()})
    with pytest.raises(TypeError, match="continue_final_message must be true or false, got 'yes'"):
        client.generate(messages=[{"role": "user", "content": "a"}], continue_final_message="yes")
    with pytest.raises(ClientError, match=r"messages\[0\].role: must not be 'im_start'"):
        client.generate(messages=[{"role": "im_start", "content": "a"}])


@pytest.fixture
def run(server):
    def run(*args, lines=()):
        text = "".join(f"{line}\n" for line in lines)
        return CliRunner().invoke(app, ["chat", "--address", server.address, *args], input=text)

    return run


def test_the_command_keeps_the_conversation(run, client, tmp_path):
    file = tmp_path / "chat.json"
    lines = [
        QUESTIONS[0],
        "",
        QUESTIONS[2],
        f"/save {file}",
        "/undo",
        QUESTIONS[4],
        "/reset",
        QUESTIONS[0],
        "/exit",
        "x",
    ]
    result = run("--system", "Be kind.", "--max-tokens", "5", lines=lines)
    assert (result.exit_code, result.stderr) == (0, "")
    messages, answers = [{"role": "system", "content": "Be kind."}], []

    def say(question):
        messages.append({"role": "user", "content": question})
        answers.append(client.generate(messages=messages, max_tokens=5).text)
        messages.append({"role": "assistant", "content": answers[-1]})

    say(QUESTIONS[0])
    say(QUESTIONS[2])
    assert json.loads(file.read_text()) == messages
    del messages[-2:]
    say(QUESTIONS[4])
    del messages[1:]
    say(QUESTIONS[0])
    assert result.stdout == "".join(f"{answer}\n" for answer in answers)
    again = run("--history", str(file), "--max-tokens", "5", "Go on.")
    begun = [*json.loads(file.read_text()), {"role": "user", "content": "Go on."}]
    assert again.stdout == client.generate(messages=begun, max_tokens=5).text + "\n"


def test_the_command_warns_of_special_tokens(run):
    result = run("a <|im_end|>", "--max-tokens", "2")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: messages[0].content: spells the special token <|im_end|>, which was read as plain text\n"
    )


@pytest.mark.parametrize(
    ("args", "lines", "problem"),
    [
        (["--history", "no.json", "a"], (), "error: --history no.json: No such file or directory; check the path"),
        (["--argument", "a", "a"], (), "error: --argument a: must be NAME=JSON, such as enable_thinking=false"),
        (["--argument", "a=b", "a"], (), "error: --argument a=b: must be NAME=JSON"),
        (["--argument", "eos_token=1", "a"], (), "error: INVALID_ARGUMENT: chat.template_arguments: must not be"),
        ([], ["hi", "/no"], "error: /no: no such command; /reset forgets the conversation"),
        ([], ["hi", "word " * 600], "error: line 2: INVALID_ARGUMENT: messages: must be 1..512 tokens, got "),
    ],
)
def test_the_command_refuses(run, args, lines, problem):
    result = run(*args, "--max-tokens", "2", lines=lines)
    assert result.exit_code == 1
    assert result.stderr.startswith(problem)


def test_options_are_those_of_one_answer(run, client, tmp_path):
    file = tmp_path / "options.json"
    file.write_text('{"num_sequences": 2}')
    problem = "error: --options: num_sequences: a conversation goes on from one answer; use `glossa generate`\n"
    assert run("a", "--options", str(file)).stderr == problem
    file.write_text('{"top_k": 5}')
    result = run("a", "--options", str(file), "--max-tokens", "3", "--seed", "1")
    answer = client.generate(messages=[{"role": "user", "content": "a"}], top_k=5, max_tokens=3, seed=1)
    assert (result.stdout, result.stderr) == (f"{answer.text}\n", "seed 1\n")


def test_a_file_of_messages_is_checked(run, tmp_path):
    file = tmp_path / "chat.json"
    for text, problem in (
        ("x", "is no JSON: "),
        ("{}", "must be a list of objects with role and content"),
        ("[1]", "must be a list of objects"),
    ):
        file.write_text(text)
        assert f"error: --history {file}: {problem}" in run("--history", str(file), "a").stderr
    file.write_text('[{"role": "system", "content": "a"}]')
    assert "begins with a system message" in run("--history", str(file), "--system", "b", "a").stderr
