"""Changed manifests with the digest that belongs to them."""

import hashlib
import json

from export.bundle.directory import digest_line
from export.bundle.manifest import MANIFEST, MANIFEST_DIGEST


def read_manifest(bundle):
    """The manifest of a bundle, as data."""
    return json.loads((bundle / MANIFEST).read_bytes())


def write_manifest(bundle, manifest):
    """Replaces the manifest of a bundle, given as data or as its bytes, and its digest."""
    data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    (bundle / MANIFEST).write_bytes(data)
    (bundle / MANIFEST_DIGEST).write_bytes(digest_line(hashlib.sha256(data).hexdigest()))
