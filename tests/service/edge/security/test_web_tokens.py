import asyncio
import base64
import hashlib
import hmac
import json

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from glossa.client import AsyncClient, ClientError
from glossa.client.admin import AdminClient
from service.edge.security import signing_keys, watched_files, web_tokens
from service.edge.security.signing_keys import SigningKeys
from service.edge.security.tokens import ANY_TENANT, Holder, Tokens, line_of
from service.edge.security.web_tokens import Identities, WebTokens
from service.errors import PermissionDenied, StartupError, Unauthenticated
from service.server import Server
from tests.edge import running, settings
from tests.fakes import FakeClock
from tests.issuer import AUDIENCE, ISSUER, KINDS, NULL, SignatureKey, jwks, published

NOW_S = 1_700_000_000
KEYS = {algorithm: SignatureKey(algorithm, algorithm) for algorithm in KINDS}
KEY, STRANGER = KEYS["ES256"], SignatureKey("ES256")
OIDC = {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(jwks(*KEYS.values()))
    return path


@pytest.fixture
def keys(file):
    keys = SigningKeys(str(file))
    keys.read()
    return keys


@pytest.fixture
def clock():
    return FakeClock(NOW_S)


@pytest.fixture
def tokens(keys, clock):
    return WebTokens(settings(**OIDC, oidc_jwks=keys.source), keys, clock)


def token(key=KEY, **claims):
    return key.token(now_s=NOW_S, **claims)


def forged(header, secret=b"", **claims):
    """A token with any header, and what somebody makes of a signature."""
    _, payload, _ = token(**claims).split(".")
    signed = f"{encoded(json.dumps(header).encode())}.{payload}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), hashlib.sha256) if secret else b'')}"


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", KINDS)
def test_a_token_of_each_asymmetric_algorithm_names_its_tenant(tokens, algorithm):
    assert tokens.holder(token(KEYS[algorithm])) == Holder("acme", subject="service-7")


@pytest.mark.parametrize(
    ("claims", "holder"),
    [
        ({"glossa_rights": "admin any-tenant other"}, Holder("acme", frozenset({"admin", "any-tenant"}), "service-7")),
        ({"glossa_rights": ["admin", 7]}, Holder("acme", frozenset({"admin"}), "service-7")),
        ({"glossa_rights": {"admin": True}, "scope": "admin"}, Holder("acme", subject="service-7")),
        ({"aud": ["other", AUDIENCE], "sub": None, "nbf": NOW_S + 29, "iat": None}, Holder("acme")),
        ({"exp": NOW_S - 29, "nbf": NULL, "iat": NULL}, Holder("acme", subject="service-7")),
    ],
)
def test_claims_name_rights_and_may_be_half_a_minute_off(tokens, claims, holder):
    assert tokens.holder(token(**claims)) == holder


def test_claims_may_have_other_names_and_lie_within_others(keys, clock):
    named = "tenant=https://acme.example/team,rights=resource_access.glossa.roles"
    tokens = WebTokens(settings(**OIDC, oidc_jwks=keys.source, oidc_claims=named), keys, clock)
    claims = {"https://acme.example/team": "a/b", "resource_access": {"glossa": {"roles": [ANY_TENANT]}}}
    assert tokens.holder(token(**claims)) == Holder("a/b", frozenset({ANY_TENANT}), "service-7")
    with pytest.raises(PermissionDenied, match=r"the token's claim https://acme\.example/team must be a tenant"):
        tokens.holder(token(resource_access=7))


PUBLIC = (
    KEYS["RS256"]
    .private.public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (token(exp=NOW_S - 31), "claim exp: it has expired"),
        (token(exp=None), "claim exp: must be there, in seconds since 1970"),
        (token(exp="tomorrow"), "claim exp: must be there"),
        (token(exp=True), "claim exp: must be there"),
        (token(exp=float("inf")), "claim exp: must be there"),
        (token(nbf=NOW_S + 31), "claim nbf: it is not valid yet"),
        (token(nbf="now"), "claim nbf: must be a time"),
        (token(iat=NOW_S + 31), "claim iat: it is not valid yet"),
        (token(aud="other"), f"claim aud: must name {AUDIENCE}"),
        (token(aud=None), "claim aud: must name"),
        (token(aud=AUDIENCE + "s"), "claim aud: must name"),
        (token(iss=ISSUER + "/"), f"claim iss: must be {ISSUER}"),
        (token(STRANGER), "the signature of the token is not by the key that its header names"),
        (token(SignatureKey("other")), f"header kid names no key that {ISSUER} publishes; a new key is known within"),
        (token(headers={"kid": None}), "header kid names no key"),
        (forged({"alg": "none", "kid": "ES256"}), "header alg must be one of RS256, "),
        (forged({"alg": "HS256", "kid": "RS256"}, PUBLIC), "header alg must be one of RS256, "),
        (forged({"alg": "ES384", "kid": "ES256"}), "header alg must be ES256, as its key has it"),
        (forged({"alg": ["ES256"], "kid": "ES256"}), "header alg must be one of"),
        (forged({"alg": "ES256", "kid": ["ES256"]}), "header kid names no key"),
        (token(headers={"crit": ["x"], "x": 1}), "the token is no signed JSON Web Token"),
        (forged(["ES256"]), "the token is no signed JSON Web Token"),
        ("ö.b.c", "the token is no signed JSON Web Token"),
        ("a.b.c", "the token is no signed JSON Web Token"),
        (token() + ".", "the token is no signed JSON Web Token"),
        (token() + "AA", "the (signature of the )?token is no"),
        (token(more="x" * 8192), "the token has [0-9]+ characters, and may have 8192"),
    ],
)
def test_a_token_that_proves_nothing_is_refused_with_the_claim_and_the_rule(tokens, given, problem):
    with pytest.raises(Unauthenticated, match=problem) as caught:
        tokens.holder(given)
    assert not [part for part in given.split(".") if len(part) > 3 and part in str(caught.value)]


@pytest.mark.parametrize("tenant", [None, "", "a b", 7, ["acme"], "x" * 129])
def test_a_token_without_a_tenant_may_do_nothing(tokens, tenant):
    with pytest.raises(PermissionDenied, match=r"claim tenant must be a tenant of 1\.\.128 letters"):
        tokens.holder(token(tenant=tenant))


def test_the_only_key_needs_no_name(file, clock):
    file.write_bytes(jwks(KEY))
    keys = SigningKeys(str(file))
    keys.read()
    unnamed = token(headers={"kid": None})
    assert "kid" not in jwt.get_unverified_header(unnamed)
    tokens = WebTokens(settings(**OIDC, oidc_jwks=keys.source), keys, clock)
    assert tokens.holder(unnamed).tenant == "acme"


def test_what_was_verified_is_kept_until_it_expires_or_the_keys_change(tokens, keys, file, clock, monkeypatch):
    verified, decode = list[str](), jwt.PyJWS.decode

    def counted(library, token, *more):
        verified.append(token)
        return decode(library, token, *more)

    monkeypatch.setattr(jwt.PyJWS, "decode", counted)
    monkeypatch.setattr(web_tokens, "MAX_KEPT", 2)
    first, second, third = (token(sub=name) for name in "abc")
    assert [tokens.holder(one).subject for one in (first, second, first, second)] == ["a", "b", "a", "b"]
    assert len(verified) == 2
    assert [tokens.holder(one).subject for one in (third, first)] == ["c", "a"]
    assert len(verified) == 4, "the oldest made room"
    clock.advance(3600 + 29)
    assert tokens.holder(first).subject == "a"
    clock.advance(1)
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="claim exp: it has expired"):
            tokens.holder(first)
    assert len(verified) == 4, "also that it has expired"
    file.write_bytes(jwks(STRANGER))
    keys.read()
    with pytest.raises(Unauthenticated, match="the signature of the token"):
        tokens.holder(first)


def test_tokens_of_a_file_go_first(tokens, tmp_path):
    (tmp_path / "tokens").write_text(line_of("a.b.c", Holder("static")))
    static = Tokens(tmp_path / "tokens")
    static.read()
    both = Identities(static, tokens)

    def of(text):
        return both.holder((("authorization", f"Bearer {text}"),)).tenant

    assert (of("a.b.c"), of(token())) == ("static", "acme")
    for unknown, problem in (("secret", "not known here"), ("b.c.d", "no signed JSON Web Token")):
        with pytest.raises(Unauthenticated, match=problem):
            of(unknown)


async def translated(edge, text):
    """The tenant of a call with this token, or the code of its end."""
    async with AsyncClient(edge.address, token=text, retries=False) as client:
        try:
            await client.translate("a black cat", timeout_s=5.0)
        except ClientError as error:
            return error.code
    return edge.pool.requests[-1].caller.tenant


async def test_calls_and_administrators_are_proven_by_an_issuer_whose_keys_change(monkeypatch):
    monkeypatch.setattr(signing_keys, "CHECK_S", 0.01)
    monkeypatch.setattr(signing_keys, "UNKNOWN_S", 0.0)
    new = SignatureKey("new", "EdDSA")
    with published(jwks(KEY)) as page:
        async with running(**OIDC, oidc_jwks=page.address, admin_port=0) as edge:
            assert [
                await translated(edge, one) for one in (KEY.token(), KEY.token(aud="x"), KEY.token(tenant=None), "x")
            ] == [*("acme", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNAUTHENTICATED")]
            page.data = jwks(new)
            assert await translated(edge, new.token()) == "UNAUTHENTICATED"
            async with asyncio.timeout(10):
                while 'kind="jwks",outcome="taken"} 1.0' not in edge.server.metrics.render().decode():
                    await asyncio.sleep(0.01)
            assert [await translated(edge, one) for one in (new.token(tenant="b"), KEY.token())] == [
                "b",
                "UNAUTHENTICATED",
            ]
            address = f"127.0.0.1:{edge.server.admin_port}"
            for rights, code in (("admin", None), ("", grpc.StatusCode.PERMISSION_DENIED)):
                with AdminClient(address, token=new.token(glossa_rights=rights)) as client:
                    if code is None:
                        assert await asyncio.to_thread(client.versions)
                    else:
                        with pytest.raises(ClientError, match="has not the right admin"):
                            await asyncio.to_thread(client.versions)


async def test_a_file_of_keys_is_reloaded(file, monkeypatch):
    monkeypatch.setattr(watched_files, "CHECK_S", 0.01)
    new = SignatureKey("new", "EdDSA")
    async with running(**OIDC, oidc_jwks=str(file)) as edge:
        assert await translated(edge, KEY.token()) == "acme"
        file.write_bytes(jwks(KEY, new) + b" ")
        async with asyncio.timeout(10):
            while await translated(edge, new.token()) != "acme":
                await asyncio.sleep(0.01)


def test_a_server_whose_issuer_is_away_does_not_start():
    with pytest.raises(StartupError, match=r"oidc_jwks: http://127\.0\.0\.1:1/keys: cannot be fetched"):
        Server(settings(**OIDC, oidc_jwks="http://127.0.0.1:1/keys"))
