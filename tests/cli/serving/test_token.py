import os
import stat

import pytest

from service.edge.security.tokens import ADMIN, ANY_TENANT, Holder, digest_of, read_tokens
from tests.cli.command import run


def test_a_token_is_printed_and_its_digest_added(tmp_path):
    file = tmp_path / "tokens"
    first = run("token", "acme", "--file", str(file)).strip()
    second = run("token", "proxy", "--file", str(file), "--any-tenant").strip()
    third = run("token", "operator", "--file", str(file), "--admin").strip()
    assert first not in file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert read_tokens(file) == {
        digest_of(first): Holder("acme"),
        digest_of(second): Holder("proxy", frozenset({ANY_TENANT})),
        digest_of(third): Holder("operator", frozenset({ADMIN})),
    }


def test_a_line_without_an_end_stays_one(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"{'ab' * 32} old")
    file.chmod(0o600)
    run("token", "acme", "--file", str(file))
    assert [holder.tenant for holder in read_tokens(file).values()] == ["old", "acme"]


@pytest.mark.parametrize(
    ("tenant", "text", "problem"),
    [
        ("a b", "", "tenant: must be 1..128 letters"),
        ("acme", "secret acme\n", "line 1 has no SHA-256"),
    ],
)
def test_bad_names_and_files_are_refused(tmp_path, tenant, text, problem):
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(0o600)
    assert problem in run("token", tenant, "--file", str(file), fails=True)
    assert file.read_text() == text
