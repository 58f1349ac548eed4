"""A letter's signature: HMAC-SHA256 over what we wrote and the message that it is about.

It covers the meaning of a letter, not the place of its parts: a broker may reorder headers, or give events another
prefix. Must not know any header.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Final

from redelivery.contract.message import Message

#: Prevents another use of the same key from signing the same bytes.
_DOMAIN: Final = b"redelivery letter 1\0"


def of(key: bytes, marker: bytes, texts: Mapping[str, str], documents: Sequence[bytes], message: Message) -> str:
    """Return the signature, 43 characters.

    Args:
        key: the secret.
        marker: without a signature.
        texts: the context by name, as read.
        documents: the context in JSON.
        message: the message without these; its key and value are signed.
    """
    parts = [
        marker.decode("ascii"),
        sorted(texts.items()),
        [_base64(each) for each in documents],
        _base64(message.key or b""),
        _base64(hashlib.sha256(message.value or b"").digest()),
    ]
    return _base64(hmac.digest(key, _DOMAIN + json.dumps(parts).encode(), "sha256"))


def is_by(
    key: bytes, mac: str, marker: bytes, texts: Mapping[str, str], documents: Sequence[bytes], message: Message
) -> bool:
    """Whether this key made this signature, in constant time; arguments as of `of`."""
    return hmac.compare_digest(of(key, marker, texts, documents, message).encode(), mac.encode("utf-8", "replace"))


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode().rstrip("=")
