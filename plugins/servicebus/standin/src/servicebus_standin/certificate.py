"""Make a certificate for localhost, a new one per stand-in: the administration client supports only https."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


def make(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the file of the authority's certificate, which clients must trust, and the server's TLS context."""
    authority, public = trustme.CA(), folder / "certificate.pem"
    authority.cert_pem.write_to_path(str(public))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return public, context
