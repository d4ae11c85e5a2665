import pytest

from service.edge.security.tokens import ANY_TENANT, Holder, Tokens, digest_of, line_of, new_token, read_tokens
from service.errors import StartupError, Unauthenticated

ACME, PROXY = Holder("acme"), Holder("proxy", frozenset({ANY_TENANT}))
DIGEST = digest_of("secret").hex()


def bearer(token):
    return (("user-agent", "x"), ("authorization", f"Bearer {token}"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokens"
    lines = ("# tokens", line_of("one", ACME), "", f"{line_of('two', ACME)}  # the next one", line_of("three", PROXY))
    path.write_text("\n".join(lines))
    path.chmod(0o640)
    return path


@pytest.fixture
def tokens(file):
    found = Tokens(file)
    found.read()
    return found


@pytest.mark.parametrize(("token", "holder"), [("one", ACME), ("two", ACME), ("three", PROXY)])
def test_a_token_shows_its_holder(tokens, token, holder):
    assert tokens.holder(bearer(token)) == holder
    for scheme in ("bearer", "BEARER"):
        assert tokens.holder((("authorization", f"{scheme} {token}"),)) == holder
    assert tokens.holder((*bearer(token), *bearer(token))) == holder, "Riva's client repeats its metadata"


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ((), "the call has no token; send the metadata authorization: Bearer TOKEN"),
        (bearer("four"), "the token is not known here; ask the operator"),
        (bearer("on"), "not known"),
        (bearer("one "), "not known"),
        (bearer(""), "not known"),
        (bearer("ö" * 10_000), "not known"),
        (bearer("\udc80"), "not known"),
        ((("authorization", "one"),), "must be given once, as Bearer TOKEN"),
        ((("authorization", "Basic b25l"),), "must be given once, as Bearer TOKEN"),
        ((("authorization", b"Bearer one"),), "must be given once"),
        ((*bearer("one"), *bearer("two")), "must be given once"),
        ((*bearer("one"), *bearer("four")), "must be given once"),
    ],
)
def test_a_call_without_a_known_token_is_nobodys(tokens, metadata, problem):
    with pytest.raises(Unauthenticated, match=problem) as caught:
        tokens.holder(metadata)
    assert "four" not in str(caught.value), "a token must not reach a log"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no token, so every call would be refused; fix: make one with `glossa token TENANT`"),
        ("# nothing\n", "has no token"),
        ("secret acme\n", "line 1 has no SHA-256 of 64 hexadecimal digits in front"),
        (f"\n{DIGEST}\n", r"line 2 needs a tenant of 1\.\.128 letters"),
        (f"{DIGEST} {{evil}}\n", "line 1 needs a tenant"),
        (f"{DIGEST} acme all\n", "line 1 has an unknown right, all; fix: give any-tenant, admin or none"),
        (f"{DIGEST} acme {'x' * 99}\n", f"has an unknown right, {'x' * 40}; fix"),
        (f"{DIGEST} acme\n{DIGEST} other\n", "line 2 has the token of an earlier line"),
        (f"{DIGEST} acme\n" * 20_000, "is larger than 1048576 bytes"),
    ],
)
def test_a_bad_file_is_refused_with_the_line_and_a_fix(file, text, problem):
    file.write_text(text)
    with pytest.raises(StartupError, match=problem) as caught:
        read_tokens(file)
    assert str(caught.value).startswith(f"tokens: {file}: ")
    assert "; fix: " in str(caught.value)


def test_a_file_that_is_not_text_is_refused(file):
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(StartupError, match="is not text"):
        read_tokens(file)


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(StartupError, match=rf"others may write it \(mode {mode:04o}\); fix: chmod go-w"):
        read_tokens(file)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(StartupError, match="cannot be read: No such file or directory; fix: check the path"):
        read_tokens(tmp_path / "nowhere")


def test_a_bad_change_keeps_the_tokens(tokens, file):
    file.write_text("nothing")
    with pytest.raises(StartupError):
        tokens.read()
    assert tokens.holder(bearer("one")) == ACME
    file.write_text(f"{line_of('one', PROXY)}\n")
    tokens.read()
    assert tokens.holder(bearer("one")) == PROXY
    with pytest.raises(Unauthenticated):
        tokens.holder(bearer("two"))


def test_new_tokens_differ_and_are_long():
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    assert min(map(len, made)) >= 43
