"""What a plugin needs to read the URL of a destination."""

from __future__ import annotations

from redelivery.base.urls import (
    REDACTED,
    has_scheme,
    is_local,
    nearest,
    quoted,
    redact,
    redact_url,
    scheme_of,
    split_url,
    unknown,
)

__all__ = [
    "REDACTED",
    "has_scheme",
    "is_local",
    "nearest",
    "quoted",
    "redact",
    "redact_url",
    "scheme_of",
    "split_url",
    "unknown",
]
