"""Headers, keys and ids at brokers that take text only: unchanged where nothing is lost, packed elsewhere.

A broker's own attributes carry the headers that it can carry unchanged, for others to read. The rest, and the order of
all, goes into one attribute of ours as JSON::

    native, packed = pack_headers(headers, lambda name, value: as_text(value) if NAME.fullmatch(name) else None)
    packed["key"] = portable(key)
    attributes = {**native, "redelivery": json.dumps(packed)}

    packed = json.loads(attributes.pop("redelivery"))
    headers, key = unpack_headers(packed, attributes), from_portable(packed["key"])
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from redelivery.contract.message import Header, Headers

__all__ = [
    "as_text",
    "from_portable",
    "hashed_id",
    "pack_headers",
    "portable",
    "quoted_id",
    "unpack_headers",
    "unquoted_id",
]

#: The member of the packed object that lists the headers.
_HEADERS = "headers"


def as_text(value: bytes) -> str | None:
    """Return the text that these bytes are in UTF-8; None where they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def portable(value: bytes | None, as_text: Callable[[bytes], str | None] = as_text) -> Any:
    """Return bytes as JSON holds them: as a text where they are text, else `{"base64": ...}`; None as null.

    Args:
        value: the bytes.
        as_text: returns the text that is written in place of bytes; None where base64 is needed.
    """
    if value is None:
        return None
    text = as_text(value)
    return {"base64": base64.b64encode(value).decode("ascii")} if text is None else text


def from_portable(value: Any) -> bytes | None:
    """Return the bytes that `portable` wrote.

    Raises:
        ValueError, TypeError, LookupError: `portable` did not write this.
    """
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return None if value is None else _utf8(str(value))


def pack_headers(
    headers: Headers,
    native: Callable[[str, bytes], str | None],
    as_text: Callable[[bytes], str | None] = as_text,
) -> tuple[dict[str, str], dict[str, Any]]:
    """Divide headers into those that become separate attributes and the rest.

    Of several headers with one name the last becomes the attribute: that is the one which readers of letters expect.

    Args:
        headers: the message's headers, in order.
        native: returns a header's value as an attribute has it; None where it must be packed. It is called only once
            for each name, as attributes do not repeat.
        as_text: as in `portable`.

    Returns:
        The attributes; and the packed object, which may be empty.
    """
    attributes: dict[str, str] = {}
    listed: list[Any] = []
    last = {name: at for at, (name, _) in enumerate(headers)}
    for at, (name, value) in enumerate(headers):
        text = None if value is None or at != last[name] else native(name, value)
        if text is None:
            listed.append([name, portable(value, as_text)])
        else:
            attributes[name] = text
            listed.append(name)
    is_plain = not headers or listed == [headers[0][0]]  # the order of one is known
    return attributes, {} if is_plain else {_HEADERS: listed}


def unpack_headers(packed: Mapping[str, Any], attributes: Mapping[str, bytes | None]) -> Headers:
    """Return the headers as they were sent; then, by name, the attributes that others added.

    Raises:
        ValueError, TypeError, LookupError: `pack_headers` did not write this.
    """
    rest = dict(attributes)
    found: list[Header] = []
    for each in packed.get(_HEADERS, ()):
        if not isinstance(each, str):
            found.append((str(each[0]), from_portable(each[1])))
        elif each in rest:
            found.append((each, rest.pop(each)))
    return (*found, *sorted(rest.items()))


def hashed_id(value: str | bytes, is_valid: Callable[[str], bool]) -> str:
    """Return a text by which a broker recognises a message: the value itself where it is valid, else its SHA-256.

    Args:
        value: an identity, an id or a key, of any length.
        is_valid: whether the broker takes a text.
    """
    data = _utf8(value) if isinstance(value, str) else value
    text = data.decode("ascii", "replace") if isinstance(value, bytes) else value
    return text if is_valid(text) else f"sha256-{hashlib.sha256(data).hexdigest()}"


def quoted_id(value: str, safe: Collection[str], escape: str = "%") -> str:
    """Return an id or name in the characters that a broker takes; `unquoted_id` returns the same text again.

    No two texts have the same quoted form. It may be three times as long as the text, or more.

    Args:
        value: any text.
        safe: the characters that are not quoted; the escape is not one of them.
        escape: one character that the broker takes, as it takes the digits and A to F; it begins each quoted byte.
    """
    return "".join(
        each if each in safe and each != escape else "".join(f"{escape}{byte:02X}" for byte in _utf8(each))
        for each in value
    )


def unquoted_id(value: str, escape: str = "%") -> str:
    """Return the text that `quoted_id` was given.

    Raises:
        ValueError: `quoted_id` did not write this.
    """
    first, *rest = value.split(escape)
    data = _utf8(first) + b"".join(bytes.fromhex(f"{each[:2]:?<2}") + _utf8(each[2:]) for each in rest)
    return data.decode("utf-8", "surrogatepass")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
