import asyncio
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from pydantic import ValidationError

from service.edge.security import signing_keys
from service.edge.security.signing_keys import REFRESH_S, UNKNOWN_S, SigningKeys, check_library, parse_keys
from service.errors import StartupError
from tests.edge import settings
from tests.fakes import FakeClock
from tests.issuer import AUDIENCE, ISSUER, SignatureKey, jwks, published

ONE, TWO, RSA = SignatureKey("one"), SignatureKey("two", "EdDSA"), SignatureKey("rsa", "RS256")


def names(keys):
    return {kid: key.algorithms for kid, key in keys.current.items()}


def test_a_key_verifies_the_algorithms_of_its_type_or_the_one_that_it_names():
    keys, left_out = parse_keys(jwks(ONE, TWO, RSA), "x")
    rsa_names = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
    assert {kid: key.algorithms for kid, key in keys.items()} == {
        "one": ("ES256",),
        "two": ("EdDSA",),
        "rsa": rsa_names,
    }
    assert left_out == {}
    assert parse_keys(jwks(RSA, alg="PS512"), "x")[0]["rsa"].algorithms == ("PS512",)


WEAK = SignatureKey("weak", "RS256")
WEAK.private = rsa.generate_private_key(65537, 1024)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ({"kty": "oct", "k": "c2VjcmV0", "kid": "bad"}, "its type is not RSA, EC or Ed25519"),
        (ONE.public(kid="bad", crv="secp256k1"), "its type is not RSA, EC or Ed25519"),
        (ONE.public(kid="bad", d="x"), "it is a private key"),
        (ONE.public(kid="bad", use="enc"), "it is not for signatures"),
        (ONE.public(kid="bad", key_ops=["encrypt"]), "it is not for signatures"),
        (ONE.public(kid="bad", key_ops=7), "it is malformed: TypeError"),
        (ONE.public(kid="bad", alg="HS256"), "its alg is not one of ES256"),
        (ONE.public(kid="bad", x="AA"), "it is malformed: "),
        (WEAK.public(kid="bad"), "RSA keys must have 2048 bits, it has 1024"),
        (ONE.public(kid="good"), "an earlier key has its kid"),
    ],
)
def test_a_key_that_cannot_be_used_is_left_out_with_the_reason(key, reason):
    keys, left_out = parse_keys(json.dumps({"keys": [TWO.public(kid="good"), key]}).encode(), "x")
    assert set(keys) == {"good"}
    (found,) = left_out.values()
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", 'is no JWKS, a JSON object with the list "keys"; fix: give the JWKS that the issuer publishes'),
        (b"[1]", "is no JWKS"),
        (b'{"keys": [1]}', "is no JWKS"),
        (b'{"keys": 1}', "is no JWKS"),
        (b"[" * 100_000, "is no JWKS"),
        (b'{"keys": []}', "has no key that verifies tokens: it is empty"),
        (b'{"keys": [{"kid": "a"}]}', "has no key that verifies tokens: a: its type is not"),
        (json.dumps({"keys": [{}] * 101}).encode(), "has more than 100 keys"),
    ],
)
def test_a_set_without_keys_is_refused(data, problem):
    with pytest.raises(StartupError, match=problem) as caught:
        parse_keys(data, "keys.json")
    assert str(caught.value).startswith("oidc_jwks: keys.json: ")


def test_a_file_is_read(tmp_path):
    file = tmp_path / "keys"
    with pytest.raises(StartupError, match="cannot be read: No such file or directory; fix: check the path"):
        SigningKeys(str(file)).read()
    file.write_bytes(jwks(ONE) + b" " * (1 << 20))
    with pytest.raises(StartupError, match="is larger than 1048576 bytes"):
        SigningKeys(str(file)).read()
    file.write_bytes(jwks(ONE))
    keys = SigningKeys(str(file))
    keys.read()
    assert set(keys.current) == {"one"}


@pytest.fixture
def page():
    with published(jwks(ONE)) as page:
        yield page


def test_keys_are_rotated_and_stay_while_the_issuer_is_away(page, caplog):
    clock = FakeClock()
    keys = SigningKeys(page.address, clock)
    keys.read()
    assert (keys.refresh(), page.asked) == (None, 1), "it is not time yet"
    clock.advance(REFRESH_S)
    assert (keys.refresh(), page.asked) == (None, 2), "nothing is new"
    page.status = 503
    clock.advance(REFRESH_S)
    assert (keys.refresh(), set(keys.current)) == (False, {"one"})
    page.status, page.data = 200, b"{}"
    clock.advance(REFRESH_S)
    assert (keys.refresh(), set(keys.current)) == (False, {"one"})
    page.data = jwks(ONE, TWO)
    clock.advance(REFRESH_S)
    assert (keys.refresh(), set(keys.current)) == (True, {"one", "two"})
    refused = [record.fields["reason"] for record in caplog.records if record.getMessage() == "refused_signing_keys"]
    assert [reason.partition("keys: ")[2].partition(";")[0] for reason in refused] == [
        "answers 503",
        'is no JWKS, a JSON object with the list "keys"',
    ]


def test_a_key_that_is_missed_is_asked_for_at_most_every_half_minute(page):
    clock = FakeClock()
    keys = SigningKeys(page.address, clock)
    keys.read()
    page.data = jwks(TWO)
    keys.miss()
    clock.advance(UNKNOWN_S - 1)
    assert (keys.refresh(), page.asked) == (None, 1)
    clock.advance(1)
    assert (keys.refresh(), set(keys.current), page.asked) == (True, {"two"}, 2)
    clock.advance(UNKNOWN_S)
    assert (keys.refresh(), page.asked) == (None, 2), "it is found"


@pytest.mark.parametrize(("status", "problem"), [(302, "answers 302"), (404, "answers 404")])
def test_an_address_that_leads_elsewhere_is_refused(page, status, problem):
    page.status = status
    with pytest.raises(StartupError, match=problem):
        SigningKeys(page.address).read()
    assert page.asked == 1


def test_an_address_that_does_not_answer_or_too_much_is_refused(page):
    page.status = 0
    with pytest.raises(StartupError, match="cannot be fetched: this is no HTTP"):
        SigningKeys(page.address).read()
    page.status, page.data = 200, b" " * ((1 << 20) + 1)
    with pytest.raises(StartupError, match="is larger than 1048576 bytes"):
        SigningKeys(page.address).read()
    with pytest.raises(StartupError, match=r"cannot be fetched: .*; fix: check the address"):
        SigningKeys("http://127.0.0.1:1/").read()


async def test_watching_asks_and_tells(page, monkeypatch):
    monkeypatch.setattr(signing_keys, "CHECK_S", 0.001)
    clock, keys = FakeClock(), None
    keys = SigningKeys(page.address, clock)
    keys.read()
    changes: asyncio.Queue[bool] = asyncio.Queue()
    watching = asyncio.create_task(keys.watch(changes.put_nowait))
    page.data = jwks(TWO)
    clock.advance(REFRESH_S)
    assert await changes.get() is True
    page.status = 500
    clock.advance(REFRESH_S)
    assert await changes.get() is False
    watching.cancel()
    assert set(keys.current) == {"two"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"oidc_audience": ""},
            "oidc_audience must be given: tokens of an issuer need oidc_issuer, oidc_audience, oidc",
        ),
        ({"oidc_issuer": ""}, "oidc_issuer must be given"),
        ({"oidc_issuer": "", "oidc_audience": "", "oidc_jwks": "", "oidc_claims": "tenant=azp"}, "oidc_issuer must be"),
        ({"oidc_jwks": "http://issuer.example/keys"}, "must be a file or https://…, http:// only on this machine"),
        ({"oidc_jwks": "ftp://127.0.0.1/keys"}, "must be a file or https"),
        ({"oidc_claims": "role=x"}, "must be tenant=CLAIM,rights=CLAIM, or one of them"),
        ({"oidc_claims": "tenant="}, "must be tenant=CLAIM"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, problem):
    with pytest.raises(ValidationError, match=problem):
        settings(**{"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, "oidc_jwks": "https://issuer.example", **changes})


def test_a_missing_library_is_named(monkeypatch):
    check_library(ISSUER)
    monkeypatch.setitem(__import__("sys").modules, "jwt", None)
    with pytest.raises(
        StartupError, match=r"oidc_issuer: .* needs PyJWT and cryptography .*; fix: pip install 'glossa\["
    ):
        check_library(ISSUER)
