"""Models of the Hugging Face Hub by name → a directory with their files, as `import_checkpoint` takes it.

A revision is resolved to its commit first, and every file is fetched of that commit. Only files that an import reads
are fetched (`NAMED`), and weights as safetensors alone: loading one executes no code. They go into the library's cache,
where other programs find them too. A weight file that was cut off is continued by the next run; the library itself
would begin anew. Its content is compared with the digest that the Hub names. A list of all files of a commit is kept
beside them: other programs fetch some of the files alone, and a model without `generation_config.json` would be
another model.

    PretrainedError
      HubError       a model that is not there, not accessible, has no safetensors, or cannot be fetched
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, but not in its __all__

from model.checkpoints.atomic_write import digest_of_file, write_file
from model.pretrained import sentence_vectors
from model.pretrained.chat import TEMPLATE_FILE
from model.pretrained.convert_tokenizer import FILES
from model.pretrained.files import (
    CONFIG,
    GENERATION_CONFIG,
    PICKLED_WEIGHTS,
    PICKLED_WEIGHTS_INDEX,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    WEIGHTS_INDEX,
    PretrainedError,
)
from model.pretrained.tokenizer_files import TARGET_VOCABULARY

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # OWNER/NAME
MAIN = constants.DEFAULT_REVISION
REVISION = re.compile(r"[\w.-][\w./-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
TOKENIZER_FILES = (
    *(TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, TARGET_VOCABULARY, "added_tokens.json"),
    *sorted({file for files in FILES for file in files}),
)
NAMED = (CONFIG, GENERATION_CONFIG, *TOKENIZER_FILES, TEMPLATE_FILE, *sentence_vectors.FILES)
"""Files that an import reads beside weights."""
LISTS = "glossa"
"""The folder, beside `refs`, with the names of all files of a commit in the Hub: COMMIT.json."""
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_PIECE = 1 << 20  # bytes that are hashed together


class HubError(PretrainedError):
    """A model of the Hub cannot be imported by its name."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The files of a model at one commit. directory: in the cache of the library."""

    name: str
    commit: str
    directory: Path


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A Hugging Face Hub, and the cache of what was fetched from it. token: None takes HF_TOKEN, else the one that
    `hf auth login` has saved; False sends none."""

    endpoint: str = constants.ENDPOINT
    cache: Path = Path(constants.HF_HUB_CACHE)
    token: str | bool | None = None

    def snapshot(
        self, name: str, revision: str, *, is_offline: bool, check: Callable[[Path], object] | None = None
    ) -> Snapshot:
        """`fetch`, or `cached` if there may be no connection: is_offline, or HF_HUB_OFFLINE. Raises HubError."""
        if is_offline or constants.is_offline_mode():
            return self.cached(name, revision)
        return self.fetch(name, revision, check=check)

    def fetch(self, name: str, revision: str = MAIN, *, check: Callable[[Path], object] | None = None) -> Snapshot:
        """The files of a model, those fetched that are not there. revision: a branch, a tag or a commit. check: of the
        directory before any weights are fetched; what it raises ends the fetching.

        Raises HubError; what has been fetched by then stays in the cache.
        """
        _check_revision(name, revision)
        with self._errors(name, revision):
            info = HfApi(endpoint=self.endpoint, token=self.token).model_info(name, revision=revision)
            there, commit = {file.rfilename for file in info.siblings or ()}, info.sha or ""
            if not COMMIT.fullmatch(commit):
                raise HubError(f"{self.endpoint}: named no commit for revision {revision} of {name}; check HF_ENDPOINT")
            _check_files(name, commit, there)
            for file in NAMED:
                if file in there:
                    directory = self._placed(name, commit, file)
            configurations, layers = sentence_vectors.module_files(directory)
            for file in there.intersection(configurations):
                self._placed(name, commit, file)
            if check is not None:
                check(directory)
            for file in layers:
                if file not in there:
                    raise HubError(f"{name}: has no {file}; give a revision or a model that has")
            weights = [WEIGHTS]
            if WEIGHTS_INDEX in there:
                directory = self._placed(name, commit, WEIGHTS_INDEX)
                weights = _shards(name, directory, there)
            for file in (*layers, *weights):
                self._fill(name, commit, file)
                directory = self._placed(name, commit, file)
            # After all files: an offline import finds a whole model, or none.
            self._write(name, f"{LISTS}/{commit}.json", json.dumps(sorted(there)))
            if not COMMIT.fullmatch(revision):
                self._write(name, f"refs/{revision}", commit)
            return Snapshot(name=name, commit=commit, directory=directory)

    def cached(self, name: str, revision: str = MAIN) -> Snapshot:
        """The files of a model that were fetched before, without any connection. Raises HubError."""
        _check_revision(name, revision)
        folder, commit = self._folder(name), revision
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            commit = (folder / "refs" / revision).read_text(encoding="utf-8").strip()
        words = ["glossa", "import", name, *(() if revision == MAIN else ("--revision", revision)), "CHECKPOINT"]
        fix = f"import it once with a connection, without --offline and HF_HUB_OFFLINE: {shlex.join(words)}"
        directory = folder / "snapshots" / commit
        if not COMMIT.fullmatch(commit) or not (directory / CONFIG).is_file():
            where = f"revision {revision} is not in the cache {self.cache}"
            raise HubError(f"{name}: no such directory, and of the model of that name, {where}; {fix}")
        there = {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()}
        try:
            listed = set(json.loads((folder / LISTS / f"{commit}.json").read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            problem = (
                f"files may be missing of commit {commit} in the cache {self.cache}: no import has listed them there"
            )
            raise HubError(f"{name}: {problem}; {fix}; or if all are there, give the directory {directory}") from error
        needed = {*listed.intersection(NAMED), WEIGHTS_INDEX if WEIGHTS_INDEX in listed else WEIGHTS}
        if WEIGHTS_INDEX in needed & there:
            needed |= set(_named_shards(name, directory))
        configurations, layers = sentence_vectors.module_files(directory)
        needed |= {*listed.intersection(configurations), *layers}
        if lost := needed - there:
            raise HubError(f"{name}: {min(lost)} of commit {commit} is not in the cache {self.cache}; {fix}")
        return Snapshot(name=name, commit=commit, directory=directory)

    def _write(self, name: str, file: str, text: str) -> None:
        """Writes a file of a model's folder in the cache, whole or not at all."""
        path = self._folder(name) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode())

    def _folder(self, name: str) -> Path:
        """Where the library keeps a model: blobs by digest, links to them by commit, commits by revision."""
        return self.cache / repo_folder_name(repo_id=name, repo_type="model")

    def _placed(self, name: str, commit: str, file: str) -> Path:
        """The directory of a commit, with one more file in it, fetched if its content is not there."""
        path = hf_hub_download(
            name, file, revision=commit, endpoint=self.endpoint, cache_dir=self.cache, token=self.token
        )
        return Path(path.removesuffix(file))

    def _fill(self, name: str, commit: str, file: str) -> None:
        """Fetches the content of a file, and goes on where an earlier run was cut off."""
        url = hf_hub_url(name, file, revision=commit, endpoint=self.endpoint)
        metadata = get_hf_file_metadata(url, token=self.token, endpoint=self.endpoint)
        digest = metadata.etag
        if digest is None or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", digest):
            raise HubError(f"{url}: has no digest (ETag {digest!r}); check HF_ENDPOINT")
        blob = self._folder(name) / "blobs" / digest
        if blob.exists():
            return
        if (metadata.size or 0) > constants.MAX_HTTP_DOWNLOAD_SIZE:
            problem = f"{file} has {metadata.size:,} bytes, and the Hub serves at most 50 GB over plain HTTP"
            fetching = shlex.join(["hf", "download", name, file, "--revision", commit])
            raise HubError(
                f"{name}: {problem}; fetch it with hf_xet, then import again: pip install hf_xet && {fetching}"
            )
        blob.parent.mkdir(parents=True, exist_ok=True)
        headers = build_hf_headers(token=self.token)
        if urlsplit(metadata.location).netloc != urlsplit(url).netloc:
            headers.pop("authorization", None)  # of the Hub, not of the storage that it refers to
        part = blob.with_name(f"{digest}.glossa-part")
        with _locked(part, name) as partial:
            if blob.exists():  # another process has fetched it meanwhile
                return
            size = partial.seek(0, 2)
            if metadata.size is not None and size > metadata.size:
                size = partial.truncate(0)
            http_get(
                metadata.location,
                partial,
                resume_size=size,
                headers=headers,
                expected_size=metadata.size,
                displayed_filename=file,
            )
            partial.flush()
            if (found := _digest(part, digest)) != digest:
                part.unlink()
                problem = f"digest {found} differs from {digest} of the Hub; it was removed"
                raise HubError(f"{name}: {file} was damaged on its way: its {problem}, import again")
            part.rename(blob)

    @contextlib.contextmanager
    def _errors(self, name: str, revision: str) -> Iterator[None]:
        """Raises HubError for errors of the library."""
        kept = "what has been fetched is kept, and the same command goes on from there"
        try:
            yield
        except GatedRepoError as error:
            terms = f"accept its terms on {self.endpoint}/{name}"
            fix = f"{terms}, then {LOGIN}" if error.response.status_code == 401 else f"{terms} with the token's account"
            raise HubError(f"{name}: is gated; {fix}") from error
        except RepositoryNotFoundError as error:
            there = f"{self.endpoint} has no model of that name, or only a private one"
            raise HubError(f"{name}: no such directory, and {there}; check the name, or {LOGIN}") from error
        except RevisionNotFoundError as error:
            fix = f"give a branch, a tag or a commit that {self.endpoint}/{name}/commits/main lists"
            raise HubError(f"{name}: has no revision {revision!r}; {fix}") from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            fix = f"check the token: {LOGIN}" if status in (401, 403) else f"try again later; {kept}"
            raise HubError(f"{name}: {self.endpoint} answered with status {status}; {fix}") from error
        except HFValidationError as error:
            raise HubError(
                f"{name}: no such directory, and no name of a model: {error} Check the name; it is OWNER/NAME"
            ) from error
        except (httpx2.HTTPError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of a file, such as a full disk
            cause = f"{error.__cause__ or error}".partition("\n")[0] or type(error).__name__
            fix = "check the connection and HF_ENDPOINT, or add --offline for files that were fetched before"
            raise HubError(f"{name}: {self.endpoint} cannot be read: {cause}; {fix}; {kept}") from error


def _check_revision(name: str, revision: str) -> None:
    """Raises HubError for what git takes for no revision: it becomes a path of the cache."""
    if not REVISION.fullmatch(revision) or re.search(r"\.\.|(^|/)\.|/$", revision):
        raise HubError(f"{name}: revision {revision!r} is none of git; give a branch, a tag or a commit")


def _check_files(name: str, commit: str, there: Collection[str]) -> None:
    """Raises HubError for a model without a configuration or without safetensors."""
    if CONFIG not in there:
        fix = _fetching_gguf(name, commit, there) or "give a model that transformers can load"
        raise HubError(f"{name}: has no {CONFIG}; {fix}")
    if WEIGHTS in there or WEIGHTS_INDEX in there:
        return
    pickles = [file for file in (PICKLED_WEIGHTS, PICKLED_WEIGHTS_INDEX) if file in there]
    if not pickles:
        fix = _fetching_gguf(name, commit, there) or "give a revision or a model that has"
        raise HubError(f"{name}: has no {WEIGHTS}; {fix}")
    shards = ["pytorch_model-*.bin"] if PICKLED_WEIGHTS_INDEX in pickles else []
    modules = ["[0-9]_*/*"] if sentence_vectors.MODULES in there else []
    included = [*(file for file in NAMED if file in there), *modules, *pickles, *shards]
    local = name.rpartition("/")[2]
    fetching = shlex.join(
        ["hf", "download", name, "--revision", commit, "--local-dir", local]
        + [word for file in included for word in ("--include", file)]
    )
    raise HubError(
        f"{name}: has pickled weights only ({pickles[0]}), which are not fetched by name; give a --revision that has "
        f"{WEIGHTS}, or if you trust their origin, convert them: "
        f"{fetching} && glossa import --allow-pickle {shlex.quote(local)} CHECKPOINT"
    )


def _fetching_gguf(name: str, commit: str, there: Collection[str]) -> str:
    """How one of the GGUF files of a model is imported; "" if it has none."""
    files = sorted(file for file in there if file.endswith(".gguf"))
    if not files:
        return ""
    fetching = shlex.join(["hf", "download", name, files[0], "--revision", commit, "--local-dir", "."])
    return (
        f"fetch one of its GGUF files and import that: {fetching} && glossa import {shlex.quote(files[0])} CHECKPOINT"
    )


def _named_shards(name: str, directory: Path) -> list[str]:
    """The weight files that an index names."""
    try:
        files = json.loads((directory / WEIGHTS_INDEX).read_bytes())["weight_map"].values()
        return sorted({Path(file).name for file in files})  # never a path to elsewhere
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubError(f"{name}: {WEIGHTS_INDEX} cannot be read: {error!r}; give another revision") from error


def _shards(name: str, directory: Path, there: Collection[str]) -> list[str]:
    shards = _named_shards(name, directory)
    for file in shards:
        if file not in there or not file.endswith(".safetensors"):
            raise HubError(f"{name}: {WEIGHTS_INDEX} names {file}, which is no safetensors file of it; fix the model")
    return shards


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[BinaryIO]:
    """A file to append to, for this process alone. Raises HubError if another one has it."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HubError(f"{name}: another process is fetching it ({path}); wait for its end") from None
        yield file


def _digest(path: Path, like: str) -> str:
    """The digest of a file as the Hub names it: SHA-256 of large files, that of a git blob of small ones."""
    if len(like) == hashlib.sha256().digest_size * 2:
        return digest_of_file(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
