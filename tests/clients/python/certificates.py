"""A certificate authority and a certificate of `localhost`, made with openssl for one test run."""

import subprocess
from typing import NamedTuple


class Certificates(NamedTuple):
    authority: str  # path of a PEM file, as the rest
    key: str
    certificate: str


def make_certificates(directory):
    """Valid for a day, for localhost and 127.0.0.1."""

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=directory)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-days", "1")
    openssl(*new, "-x509", "-subj", "/CN=authority of a test", "-keyout", "authority.key", "-out", "authority.pem")
    openssl(*new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    (directory / "names.cnf").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    signed = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-extfile", "names.cnf")
    openssl("x509", "-req", "-in", "server.csr", "-days", "1", *signed, "-out", "server.pem")
    return Certificates(*(str(directory / name) for name in ("authority.pem", "server.key", "server.pem")))
