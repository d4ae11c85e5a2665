"""An issuer of JSON Web Tokens for tests: its keys, what it publishes, and the address where it does."""

import contextlib
import http.server
import json
import threading
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://issuer.example", "glossa.example"
KINDS: dict[str, Any] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "PS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


NULL = object()  # as a claim: JSON's null


class SignatureKey:
    """A key that signs tokens."""

    def __init__(self, kid="one", algorithm="ES256"):
        self.kid, self.algorithm, self.private = kid, algorithm, KINDS[algorithm]()

    def public(self, **more):
        """As a member of a JWKS."""
        jwk = json.loads(jwt.get_algorithm_by_name(self.algorithm).to_jwk(self.private.public_key()))
        return {**jwk, "kid": self.kid, "use": "sig", **more}

    def token(self, *, now_s=None, headers=None, **claims):
        """A token for the tenant acme and the next hour, but for what `claims` has; None: without the claim."""
        now_s = int(time.time() if now_s is None else now_s)
        usual = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "exp": now_s + 3600,
            "iat": now_s,
            "sub": "service-7",
            "tenant": "acme",
        }
        given = {
            name: None if value is NULL else value for name, value in {**usual, **claims}.items() if value is not None
        }
        header = {"kid": self.kid, **(headers or {})}
        signer = jwt.PyJWS(algorithms=[self.algorithm])
        named = {name: value for name, value in header.items() if value is not None}
        return signer.encode(json.dumps(given).encode(), self.private, self.algorithm, named)


def jwks(*keys, **more):
    """What an issuer publishes of these keys."""
    return json.dumps({"keys": [key.public(**more) for key in keys]}).encode()


class Page:
    """What the address of an issuer answers. status: 0 for what is no HTTP. asked: how often it was."""

    def __init__(self, data):
        self.data, self.status, self.asked, self.address = data, 200, 0, ""


@contextlib.contextmanager
def published(data):
    """A page at an address of this machine."""
    page = Page(data)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            page.asked += 1
            if not page.status:
                self.wfile.write(b"this is no HTTP\r\n")
                return
            self.send_response(page.status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(page.data)))
            self.end_headers()
            self.wfile.write(page.data)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        page.address = f"http://127.0.0.1:{server.server_address[1]}/keys"
        try:
            yield page
        finally:
            server.shutdown()
            thread.join()
