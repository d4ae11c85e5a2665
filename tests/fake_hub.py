"""A Hugging Face Hub on 127.0.0.1, as far as fetching a model by its name uses one."""

import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT, OLDER = "a" * 40, "b" * 40
INFO = re.compile(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^?]+)(\?.*)?")
FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)")
LARGE = (".safetensors", ".bin", ".spm")  # their ETag is that of Git LFS


@dataclass
class FakeHub:
    """files: of the only model, by revision and name. token: that the model is gated to. cut: bytes after which the
    next answer to a GET of a file is cut off. down: the status of GETs of large files, if they fail. storage: the
    endpoint that has the large files, if it is another. requests: method, path and Range of each. tokens: sent."""

    files: dict[str, dict[str, bytes]]
    name: str = "owner/model"
    token: str | None = None
    cut: int | None = None
    down: int | None = None
    damages: bool = False
    endpoint: str = ""
    storage: str = ""
    tokens: set[str | None] = field(default_factory=set)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def etag(self, name, content):
        if name.endswith(LARGE):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def fetched(self, suffix):
        """The Ranges of the GETs of files with this ending."""
        return [range_ for method, path, range_ in self.requests if method == "GET" and path.endswith(suffix)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: FakeHub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(is_head=True)

    def do_GET(self):
        self._answer(is_head=False)

    def _answer(self, *, is_head):
        hub = self.server.hub
        hub.requests.append((self.command, self.path, self.headers.get("Range")))
        hub.tokens.add(self.headers.get("authorization"))
        if found := INFO.fullmatch(self.path):
            self._info(*found.group(1, 2, 3))
        elif found := FILE.fullmatch(self.path):
            self._file(*found.groups(), is_head=is_head)
        else:
            self._fail(404, "RepoNotFound")

    def _revision(self, name, revision):
        """The commit of a revision; None if the answer is an error, which was sent."""
        hub = self.server.hub
        if name != hub.name:
            return self._fail(401, "RepoNotFound")
        if hub.token is not None and self.headers.get("authorization") != f"Bearer {hub.token}":
            return self._fail(403 if self.headers.get("authorization") else 401, "GatedRepo")
        commit = {"main": COMMIT}.get(revision, revision)
        return commit if commit in hub.files else self._fail(404, "RevisionNotFound")

    def _info(self, name, kind, revision):
        commit = self._revision(name, revision)
        if commit is None:
            return
        hub = self.server.hub
        if kind == "revision":
            siblings = [{"rfilename": file} for file in hub.files[commit]]
            body: object = {"id": name, "modelId": name, "sha": commit, "siblings": siblings}
        else:
            body = [
                {"type": "file", "path": file, "size": len(content), "oid": hub.etag("", content)}
                for file, content in hub.files[commit].items()
            ]
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, name, revision, file, *, is_head):
        commit = self._revision(name, revision)
        if commit is None:
            return
        hub = self.server.hub
        content = hub.files[commit].get(file)
        if content is None:
            self._fail(404, "EntryNotFound")
            return
        headers = {"ETag": f'"{hub.etag(file, content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if hub.storage and file.endswith(LARGE):
            headers |= {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(len(content))}
            self._send(302, b"", {**headers, "Location": hub.storage + self.path}, is_head=True)
            return
        if hub.down and not is_head and file.endswith(LARGE):
            self._fail(hub.down, "")
            return
        if hub.damages and file.endswith(LARGE):
            content = bytes(len(content))
        status = 200
        if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start, status = int(asked[1]), 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = content[start:]
        self._send(status, content, headers, is_head=is_head, is_large=file.endswith(LARGE))

    def _send(self, status, body, headers, *, is_head=False, is_large=False):
        hub = self.server.hub
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if is_head:
            return
        if hub.cut is not None and is_large:
            body, hub.cut = body[: hub.cut], None
            self.close_connection = True
        self.wfile.write(body)

    def _fail(self, status, code):
        """Sends an error; None. code: why, for the library."""
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code} if code else {}, is_head=True)


@contextlib.contextmanager
def running(hub):
    """The hub with its endpoint, while it answers."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hub = hub
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
