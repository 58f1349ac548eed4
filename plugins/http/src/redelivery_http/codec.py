"""Encode a message as a request, or several as one: headers and body. The README's "Form of a message" describes it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery.kit import events
from redelivery.kit.errors import Code
from redelivery.kit.packing import pack_headers, portable
from redelivery_http.options import HEADERS, Settings

#: The header with what HTTP has no place for: a JSON object in ASCII.
PACKED: Final = "redelivery"
BATCH_TYPE: Final = b"application/cloudevents-batch+json"

#: What the CloudEvents binding leaves as it is: printable ASCII without space, double quote and percent.
_SAFE: Final = "".join(chr(each) for each in range(0x21, 0x7F) if chr(each) not in '"%')
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
#: Headers that a row may not set: they frame the request, say who we are, or lead it elsewhere.
_RESERVED: Final = frozenset(
    {
        *("accept-encoding", "authorization", "connection", "content-encoding", "content-length", "cookie", "date"),
        *("expect", "forwarded", "host", "keep-alive", "redelivery", "te", "trailer", "transfer-encoding", "upgrade"),
        *("user-agent", "via", "x-http-method", "x-http-method-override", "x-method-override", "x-original-url"),
        *("x-real-ip", "x-rewrite-url"),
    }
)
_RESERVED_PREFIXES: Final = ("proxy-", "sec-", "x-forwarded-")
_STRUCTURED: Final = b"application/cloudevents"

Wire = list[tuple[bytes, bytes]]


class Encoder:
    """Encodes the rows of one sender."""

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_header_bytes
        self._default: Wire = []
        if settings.content_type is not None:
            self._default = [(b"Content-Type", settings.content_type.encode("ascii"))]

    def one(self, message: Message) -> tuple[Wire, bytes]:
        """Return headers and body of a message.

        Raises:
            Permanent: its headers are too many or too large, or it names a destination.
        """
        _check_destination(message)
        if len(message.headers) > HEADERS:
            raise _too_large(f"it has {len(message.headers)} headers, and a request {HEADERS} at most")
        wire = _plain(message.headers)
        packed: dict[str, Any] = {}
        if wire is None:
            times = Counter(name.lower() for name, _ in message.headers)
            native, packed = pack_headers(
                message.headers, lambda name, value: None if times[name.lower()] > 1 else _text(name, value)
            )
            wire = [(name.encode("ascii"), text.encode("ascii")) for name, text in native.items()]
        packed |= _rest(message, wire)
        if packed:
            wire.append((PACKED.encode("ascii"), _ascii(packed)))
        size = sum(len(name) + len(value) + 4 for name, value in wire)
        if size > self._most:
            raise _too_large(f"its headers take {size} bytes, and the server {self._most} (http.max_header_bytes)")
        if not any(name.lower() == b"content-type" for name, _ in wire):
            wire = wire + self._default
        return wire, message.value or b""

    def event(self, message: Message) -> bytes:
        """Return a message as an event in JSON, an element of a batch. What is not an event becomes one.

        Raises:
            Permanent: it cannot be written as JSON, or names a destination.
        """
        _check_destination(message)
        try:
            return json.dumps(events.to_json(message, exact=False), separators=(",", ":"), allow_nan=False).encode(
                "ascii"
            )
        except (TypeError, ValueError, RecursionError) as error:
            text = f"http: the event cannot be written as JSON: {error}"
            raise Permanent(text, code=Code.INVALID_MESSAGE) from error


def batch(encoded: Sequence[bytes]) -> tuple[Wire, bytes]:
    """Return headers and body of a request with several events."""
    return [(b"Content-Type", BATCH_TYPE)], b"[" + b",".join(encoded) + b"]"


def _plain(headers: Headers) -> Wire | None:
    """Return headers as they are sent; None if one of them needs to be packed."""
    wire = []
    for name, value in headers:
        text = None if value is None else _text(name, value)
        if text is None:
            return None
        wire.append((name.encode("ascii"), text.encode("ascii")))
    return wire if len({name.lower() for name, _ in wire}) == len(wire) else None


def _text(name: str, value: bytes) -> str | None:
    """Return a header's value as HTTP carries it; None if it, or its name, has no place there."""
    kind = _kind(name)
    if kind == "event":
        try:
            return quote(value.decode(), safe=_SAFE)
        except UnicodeDecodeError:
            return None
    return value.decode("ascii") if kind == "text" and _VALUE.fullmatch(value) else None


@lru_cache(maxsize=1024)
def _kind(name: str) -> str | None:
    """Return whether a header of this name is an attribute of an event, another one, or none that HTTP may have."""
    alike = name.lower().replace("_", "-")  # CGI and WSGI make one name of `X-Forwarded-For` and `x_forwarded_for`
    if not _NAME.fullmatch(name) or alike in _RESERVED or alike.startswith(_RESERVED_PREFIXES):
        return None
    return "event" if name.lower().startswith("ce-") else "text"


def _rest(message: Message, wire: Wire) -> dict[str, Any]:
    """Return what HTTP has no place for. An event has its own id, and no body where it has no data."""
    rest: dict[str, Any] = {}
    names = {name.lower(): text for name, text in wire}
    is_structured = names.get(b"content-type", b"").lower().startswith(_STRUCTURED)
    is_event = is_structured or b"ce-specversion" in names
    if message.id is not None and not (_is_in(message) if is_structured else _is_own(message.id, names)):
        rest["id"] = message.id
    if message.key is not None:
        rest["key"] = portable(message.key)
    if message.timestamp_ms is not None:
        rest["timestamp"] = message.timestamp_ms
    if message.value is None and not is_event:
        rest["body"] = "null"
    return rest


def _is_in(message: Message) -> bool:
    """Return whether an event in JSON holds the message's id: looked for as text, because parsing takes long."""
    spellings = (json.dumps(message.id, ensure_ascii=each).encode("utf-8", "surrogatepass") for each in (True, False))
    return any(each in (message.value or b"") for each in spellings)


def _is_own(id_: str, names: Mapping[bytes, bytes]) -> bool:
    """Return whether an id is that of the event in these headers."""
    own = quote(id_, safe=_SAFE, errors="surrogatepass").encode("ascii")
    return b"ce-specversion" in names and names.get(b"ce-id") == own


def _ascii(packed: Mapping[str, Any]) -> bytes:
    """Return JSON in the characters of a header."""
    return json.dumps(packed, separators=(",", ":")).replace("\x7f", "\\u007f").encode("ascii")


def _check_destination(message: Message) -> None:
    if message.destination is not None:
        raise Permanent(
            "http: this row names a destination, but rows go to the URL alone: whoever names another host would be "
            "given the token",
            code=Code.INVALID_DESTINATION,
        )


def _too_large(why: str) -> Permanent:
    return Permanent(f"http: this row cannot be sent: {why}", code=Code.TOO_LARGE)
