"""Models are fetched by name, from a hub on 127.0.0.1: whole, pinned to a commit, resumed, or refused with a fix."""

import json
import re

import pytest
import safetensors.torch
import torch
from huggingface_hub import hf_hub_download

from model.pretrained.files import PretrainedError
from model.pretrained.hub import NAMED, Hub, HubError
from tests.fake_hub import COMMIT, OLDER, FakeHub, running

WEIGHTS = safetensors.torch.save({"a": torch.arange(100_000, dtype=torch.float32)})
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "README.md": b"# A model",
    "tf_model.h5": b"other weights",
}
HALF = len(WEIGHTS) // 2


@pytest.fixture
def hub():
    with running(FakeHub({COMMIT: dict(FILES), OLDER: {**FILES, "config.json": b"{}"}})) as hub:
        yield hub


@pytest.fixture
def client(hub, tmp_path):
    return Hub(endpoint=hub.endpoint, cache=tmp_path / "cache", token="a-token")


def names(directory):
    return {file.name for file in directory.iterdir()}


def refusal(call, *given):
    """The message of a HubError: one line, with a fix after a semicolon."""
    with pytest.raises(HubError) as caught:
        call(*given)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message
    return message


def test_the_files_that_an_import_reads_are_fetched_of_one_commit(hub, client):
    snapshot = client.fetch("owner/model")
    assert (snapshot.name, snapshot.commit, snapshot.directory.name) == ("owner/model", COMMIT, COMMIT)
    assert names(snapshot.directory) == {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}
    assert (snapshot.directory / "model.safetensors").read_bytes() == WEIGHTS
    paths = [path for _, path, _ in hub.requests]
    assert paths[0] == "/api/models/owner/model/revision/main"
    assert all(f"/resolve/{COMMIT}/" in path for path in paths[1:]), "main may move while files are fetched"


def test_what_is_there_is_not_fetched_again(hub, client):
    client.fetch("owner/model")
    hub.requests.clear()
    client.fetch("owner/model")
    assert [path for method, path, _ in hub.requests if method == "GET"] == ["/api/models/owner/model/revision/main"]


def test_a_revision_is_resolved_to_its_commit(hub, client):
    assert client.fetch("owner/model", OLDER).commit == OLDER
    hub.files["v1.0"] = hub.files[COMMIT]
    message = refusal(client.fetch, "owner/model", "v2")
    assert "has no revision 'v2'; give a branch, a tag or a commit" in message


@pytest.mark.parametrize("revision", ["../../main", "/main", "", "a b", "main/", ".", "a/.b"])
def test_what_is_no_revision_of_git_touches_no_file(client, revision):
    for call in (client.fetch, client.cached):
        assert "is none of git" in refusal(call, "owner/model", revision)
    assert not client.cache.exists()


def test_shards_are_those_of_the_index(hub, client):
    files = hub.files[COMMIT]
    del files["model.safetensors"]
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../model-00002-of-00002.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files |= {f"model-0000{number}-of-00002.safetensors": WEIGHTS for number in (1, 2, 3)}
    directory = client.fetch("owner/model").directory
    assert {name for name in names(directory) if name.endswith(".safetensors")} == {
        f"model-0000{number}-of-00002.safetensors" for number in (1, 2)
    }
    assert client.cached("owner/model").directory == directory
    (directory / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors of commit" in refusal(client.cached, "owner/model")
    index["weight_map"]["c"] = "pytorch_model.bin"
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.files[OLDER] = files
    assert "names pytorch_model.bin, which is no safetensors" in refusal(client.fetch, "owner/model", OLDER)


def test_a_cut_connection_is_continued(hub, client, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1024)  # what is kept of a cut answer
    hub.cut = HALF
    directory = client.fetch("owner/model").directory
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    _, continued = hub.fetched("model.safetensors")
    start = int(continued.removeprefix("bytes=").removesuffix("-"))
    assert HALF - 1024 < start <= HALF


def test_a_later_run_continues_what_an_earlier_one_left(hub, client, tmp_path):
    blobs = client.cache / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.etag('model.safetensors', WEIGHTS)}.glossa-part").write_bytes(WEIGHTS[:HALF])
    hub.down = 503
    message = refusal(client.fetch, "owner/model")
    assert "answered with status 503; try again later; what has been fetched is kept" in message
    assert "is not in the cache" in refusal(client.cached, "owner/model")
    hub.down = None
    hub.requests.clear()
    directory = client.fetch("owner/model").directory
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.fetched("model.safetensors") == [f"bytes={HALF}-"]
    assert not list(blobs.glob("*part"))


@pytest.mark.parametrize("part", [bytes(HALF), bytes(len(WEIGHTS)), bytes(len(WEIGHTS) + 1)])
def test_damaged_content_is_removed(hub, client, part):
    blobs = client.cache / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hub.etag('model.safetensors', WEIGHTS)}.glossa-part").write_bytes(part)
    if len(part) <= len(WEIGHTS):
        assert "model.safetensors was damaged on its way" in refusal(client.fetch, "owner/model")
    assert (client.fetch("owner/model").directory / "model.safetensors").read_bytes() == WEIGHTS


def test_wrong_content_never_becomes_a_file(hub, client):
    hub.damages = True
    assert "was damaged on its way" in refusal(client.fetch, "owner/model")
    assert not [file for file in client.cache.rglob("*") if file.name.endswith((".safetensors", "part"))]


def test_a_storage_that_the_hub_refers_to_gets_no_token(hub, client):
    with running(FakeHub(hub.files)) as storage:
        hub.storage = storage.endpoint
        directory = client.fetch("owner/model").directory
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    assert (hub.tokens, storage.tokens) == ({"Bearer a-token"}, {None})
    assert [method for method, _, _ in storage.requests] == ["GET"]


def test_a_name_that_does_not_exist(client):
    message = refusal(client.fetch, "owner/nothing")
    assert "owner/nothing: no such directory, and http://127.0.0.1" in message
    assert "has no model of that name, or only a private one; check the name, or log in" in message
    assert "no name of a model" in refusal(client.fetch, "owner/a--b")


def test_a_gated_model(hub, client, tmp_path):
    hub.token = "another-token"
    message = refusal(client.fetch, "owner/model")
    assert f"is gated; accept its terms on {hub.endpoint}/owner/model with the token's account" in message
    hub.token = "a-token"
    assert client.fetch("owner/model").commit == COMMIT


def test_a_gated_model_without_a_token(hub, tmp_path):
    hub.token = "a-token"
    anonymous = Hub(endpoint=hub.endpoint, cache=tmp_path / "cache", token=False)
    assert re.search(
        "is gated; accept its terms .*, then log in with `hf auth login`, or set HF_TOKEN$",
        refusal(anonymous.fetch, "owner/model"),
    )


def test_a_hub_that_cannot_be_reached(tmp_path):
    with running(FakeHub({})) as stopped:
        pass
    message = refusal(Hub(endpoint=stopped.endpoint, cache=tmp_path).fetch, "owner/model")
    assert f"{stopped.endpoint} cannot be read: " in message
    assert "add --offline for files that were fetched before" in message


def test_pickled_weights_are_refused_with_the_command_that_converts_them(hub, client):
    del hub.files[COMMIT]["model.safetensors"]
    message = refusal(client.fetch, "owner/model")
    assert "has pickled weights only (pytorch_model.bin), which are not fetched by name" in message
    assert f"hf download owner/model --revision {COMMIT} --local-dir model --include config.json" in message
    assert message.endswith("--include pytorch_model.bin && glossa import --allow-pickle model CHECKPOINT")
    assert not client.cache.exists(), "nothing is fetched of a model that is refused"
    del hub.files[COMMIT]["pytorch_model.bin"]
    assert "has no model.safetensors; give a revision" in refusal(client.fetch, "owner/model")
    hub.files[COMMIT]["model-Q8_0.gguf"] = b""
    fix = f"hf download owner/model model-Q8_0.gguf --revision {COMMIT} --local-dir . && glossa import model-Q8_0.gguf"
    message = refusal(client.fetch, "owner/model")
    assert f"has no model.safetensors; fetch one of its GGUF files and import that: {fix} CHECKPOINT" in message
    del hub.files[COMMIT]["model-Q8_0.gguf"]
    del hub.files[COMMIT]["config.json"]
    assert "has no config.json; give a model that transformers can load" in refusal(client.fetch, "owner/model")


def test_offline_a_model_is_that_of_the_cache(hub, client):
    message = refusal(client.cached, "owner/model")
    assert re.search(
        r"no such directory, and of the model .*revision main is not in the cache .*import it once", message
    )
    fetched = client.fetch("owner/model")
    hub.requests.clear()
    assert client.cached("owner/model") == client.cached("owner/model", COMMIT) == fetched
    assert "revision v1 is not in the cache" in refusal(client.cached, "owner/model", "v1")
    assert hub.requests == []
    (client.cache / "models--owner--model" / "refs" / "pr").mkdir()
    assert "revision pr is not in the cache" in refusal(client.cached, "owner/model", "pr")


def test_offline_a_cache_that_another_program_has_filled_is_no_whole_model(hub, client):
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        hf_hub_download(
            "owner/model", file, revision="main", endpoint=hub.endpoint, cache_dir=client.cache, token=client.token
        )
    for revision, flag in (("main", ""), (COMMIT, f"--revision {COMMIT} ")):
        message = refusal(client.cached, "owner/model", revision)
        assert f"files may be missing of commit {COMMIT} in the cache" in message
        assert f": glossa import owner/model {flag}CHECKPOINT; or if all are there, give the directory /" in message
    client.fetch("owner/model", COMMIT)
    directory = client.cached("owner/model").directory
    assert (directory / "generation_config.json").is_file()
    (directory / "generation_config.json").unlink()
    assert f"generation_config.json of commit {COMMIT} is not in the cache" in refusal(client.cached, "owner/model")


def test_what_is_checked_before_weights_can_end_the_fetching(hub, client):
    checked = []

    def check(directory):
        checked.append(names(directory))
        raise PretrainedError("not covered")

    with pytest.raises(PretrainedError, match="not covered"):
        client.fetch("owner/model", check=check)
    assert checked == [{"config.json", "generation_config.json", "tokenizer.json"}]
    assert hub.fetched("model.safetensors") == []


def test_a_file_that_is_too_large_for_plain_http_is_refused_until_another_program_has_it(hub, client, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", HALF)
    message = refusal(client.fetch, "owner/model")
    assert f"model.safetensors has {len(WEIGHTS):,} bytes, and the Hub serves at most 50 GB over plain HTTP" in message
    assert message.endswith(f"hf download owner/model model.safetensors --revision {COMMIT}")
    assert hub.fetched("model.safetensors") == []
    blob = client.cache / "models--owner--model" / "blobs" / hub.etag("model.safetensors", WEIGHTS)
    blob.write_bytes(WEIGHTS)
    assert (client.fetch("owner/model").directory / "model.safetensors").read_bytes() == WEIGHTS


def test_every_file_that_a_tokenizer_may_need_is_named():
    assert {
        "source.spm",
        "target.spm",
        "vocab.json",
        "target_vocab.json",
        "spiece.model",
        "tokenizer_config.json",
    } < set(NAMED)
    assert not [name for name in NAMED if name.endswith((".bin", ".safetensors", ".py"))]


MODULES = json.dumps(
    [
        {"path": place, "type": f"sentence_transformers.models.{kind}"}
        for place, kind in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"))
    ]
).encode()


def test_files_of_the_modules_are_fetched_and_weights_after_the_check(hub, client):
    layer = {"2_Dense/config.json": b"{}", "2_Dense/model.safetensors": WEIGHTS}
    hub.files[COMMIT] |= {
        "modules.json": MODULES,
        "1_Pooling/config.json": b"{}",
        **layer,
        "3_Dense/config.json": b"{}",
    }
    checked = []
    directory = client.fetch(
        "owner/model", check=lambda path: checked.append({file.name for file in path.glob("2_Dense/*")})
    ).directory
    assert checked == [{"config.json"}]
    assert names(directory / "1_Pooling") == {"config.json"}
    assert names(directory / "2_Dense") == {"config.json", "model.safetensors"}
    assert not (directory / "3_Dense").exists()
    assert client.cached("owner/model").directory == directory
    (directory / "2_Dense/model.safetensors").unlink()
    assert "2_Dense/model.safetensors of commit" in refusal(client.cached, "owner/model")
    del hub.files[COMMIT]["2_Dense/model.safetensors"]
    assert "has no 2_Dense/model.safetensors; give" in refusal(client.fetch, "owner/model")
