"""A certificate for localhost, a new one for each stand-in: the administration client speaks https only."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


def make(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """The file of its authority's certificate, for clients to trust, and the context of a server that has it."""
    authority, public = trustme.CA(), folder / "certificate.pem"
    authority.cert_pem.write_to_path(str(public))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return public, context
