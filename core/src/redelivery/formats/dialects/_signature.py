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
    value = hashlib.sha256(message.value or b"").digest()
    encoded = [base64_of(each) for each in documents]
    return seal(key, payload(marker, texts, encoded, base64_of(message.key or b""), base64_of(value)))


def payload(marker: bytes, texts: Mapping[str, str], documents: Sequence[str], key: str, value: str) -> bytes:
    """Return the bytes that are signed: documents, the message's key and the digest of its value are base64."""
    return heading(marker, texts) + ending(documents, key, value)


def heading(marker: bytes, texts: Mapping[str, str]) -> bytes:
    """Return the first of the bytes that are signed: what many letters share."""
    return _DOMAIN + json.dumps([marker.decode("ascii"), sorted(texts.items())])[:-1].encode()


def ending(documents: Sequence[str], key: str, value: str) -> bytes:
    """Return the last of the bytes that are signed."""
    return f', {json.dumps(documents)}, "{key}", "{value}"]'.encode()


def seal(key: bytes, signed: bytes) -> str:
    """Return the signature of bytes."""
    return base64_of(hmac.digest(key, signed, "sha256"))


def is_by(
    key: bytes, mac: str, marker: bytes, texts: Mapping[str, str], documents: Sequence[bytes], message: Message
) -> bool:
    """Whether this key made this signature, in constant time; arguments as of `of`."""
    return hmac.compare_digest(of(key, marker, texts, documents, message).encode(), mac.encode("utf-8", "replace"))


def base64_of(value: bytes) -> str:
    """Return base64 without padding."""
    return base64.b64encode(value).decode().rstrip("=")
