"""Certificates and tokens as the kubelet mounts secrets: links to `..data`, a link that is replaced as a whole."""

import hashlib

import grpc
import pytest

from glossa.client import Client, ClientError
from tests.certificates import issue
from tests.e2e.process import serving

TEXT = "the small red house"


class Mount:
    """A volume of a secret. Files are of root and of the group of fsGroup, with the chart's defaultMode."""

    def __init__(self, folder, **files):
        self.folder, self._updates = folder, 0
        folder.mkdir()
        self.update(**files)
        for name in files:
            self.path(name).symlink_to(f"..data/{name}")

    def path(self, name):
        return self.folder / name

    def update(self, mode=0o440, **files):
        """Replaces all files in one step, as the kubelet's AtomicWriter does, and removes those before."""
        before = (self.folder / "..data").resolve()
        self._updates += 1
        new = self.folder / f"..2026_11_25_{self._updates}"
        new.mkdir(mode=0o2750)
        for name, content in files.items():
            (new / name).write_bytes(content)
            (new / name).chmod(mode)
        (self.folder / "..data_tmp").symlink_to(new.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")
        if self._updates > 1:
            for path in before.iterdir():
                path.unlink()
            before.rmdir()


def line(token):
    return f"{hashlib.sha256(token.encode()).hexdigest()} acme\n".encode()


def translates(address, tls, token):
    with Client(address, tls=tls, token=token, retries=False) as client:
        return client.translate(TEXT, max_tokens=2).generated_tokens > 0


def wait_for_reload(server, kind):
    """Returns when changed files of a kind were taken over. Fails after some thousand looks."""
    for _ in range(5000):
        if any(event["event"] == "read_files" and event["kind"] == kind for event in server.events):
            return
        server.metrics()
    pytest.fail(str(server.events))


@pytest.mark.slow
def test_mounted_secrets_are_read_and_exchanged(tmp_path, tiny_translation_bundle):
    authority, other = issue("authority"), issue("other")
    first, second = issue(by=authority), issue(by=other)
    trusting_first, trusting_second = (grpc.ssl_channel_credentials(each.pem) for each in (authority, other))
    tls = Mount(tmp_path / "tls", **{"tls.crt": first.pem, "tls.key": first.key_pem})
    tokens = Mount(tmp_path / "tokens", tokens=line("one"))
    with serving(
        models={"demo": str(tiny_translation_bundle)},
        engines=1,
        tls_certificate=str(tls.path("tls.crt")),
        tls_key=str(tls.path("tls.key")),
        tokens=str(tokens.path("tokens")),
    ) as server:
        assert translates(server.address, trusting_first, "one")
        tls.update(**{"tls.crt": second.pem, "tls.key": second.key_pem})
        wait_for_reload(server, "certificate")
        assert translates(server.address, trusting_second, "one")
        tokens.update(tokens=line("two"))
        wait_for_reload(server, "tokens")
        assert translates(server.address, trusting_second, "two")
        with pytest.raises(ClientError) as refused:
            translates(server.address, trusting_second, "one")
        assert refused.value.code == grpc.StatusCode.UNAUTHENTICATED.name
        tokens.update(mode=0o460, tokens=line("three"))  # as if the chart had not set a mode
        assert "others may write it" in server.wait_for("refused_files")["reason"]
