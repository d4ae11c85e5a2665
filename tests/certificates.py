"""Certificates for tests: of an authority, of servers and clients, good and bad."""

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

NAMES = ("localhost", "127.0.0.1")
DAY = datetime.timedelta(days=1)


class Issued(NamedTuple):
    """A certificate and its key; both as PEM, and as objects to sign others with."""

    pem: bytes
    key_pem: bytes
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def issue(
    name="server",
    by=None,
    *,
    names=NAMES,
    first=-1.0,
    last=2.0,
    rsa_bits=0,
    password=b"",
) -> Issued:
    """A certificate of an authority, `by`; None: of itself, which is then one.

    names: for which it is good. first, last: days from now between which it is valid. rsa_bits: of its key, which is of
    an elliptic curve otherwise.
    """
    key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + first * DAY)
        .not_valid_after(now + last * DAY)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
    )
    signed = builder.sign(by.key if by else key, hashes.SHA256())
    protection = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
    return Issued(signed.public_bytes(serialization.Encoding.PEM), key_pem, signed, key)


def _name(text):
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def save(folder, issued, *, client_ca=None):
    """Writes certificate and key, each in one step, and returns the settings that name them."""
    parts = {"tls_certificate": issued.pem, "tls_key": issued.key_pem, "tls_client_ca": client_ca}
    found = {}
    for setting, data in parts.items():
        if data is not None:
            path = folder / f"{setting}.pem"
            unfinished = path.with_suffix(".new")
            unfinished.write_bytes(data)
            unfinished.rename(path)
            found[setting] = path
    return found
