"""Headers in one column, without loss, readable by people and by SQLite's JSON functions.

A JSON array of [name, value] pairs: a value is text where its bytes are UTF-8, `{"base64": ...}` where not, null where
there is none. This file must not give any header a meaning.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quote
from typing import Any

from redelivery.contract.message import Headers

#: Names are few, so each is written once.
_name = lru_cache(maxsize=1024)(_quote)


def write(headers: Headers | None) -> str | None:
    """Headers as the column holds them; None for none."""
    if not headers:
        return None
    try:
        # Half the time of a json.dumps for all of them (measured): this runs once a row.
        return "[[" + "],[".join([f"{_name(name)},{_quote(value.decode())}" for name, value in headers]) + "]]"  # type: ignore[union-attr]
    except (AttributeError, UnicodeDecodeError):
        return json.dumps([(name, _any(value)) for name, value in headers], separators=(",", ":"))


def read(text: str | None) -> Headers:
    """What `write` wrote."""
    if text is None:
        return ()
    return tuple((name, _bytes(value)) for name, value in json.loads(text))


def _any(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    return b64decode(value["base64"]) if isinstance(value, dict) else value.encode()
