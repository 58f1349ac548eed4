"""One CloudEvent: its attributes, its JSON form and its two content modes. The lower half of `events.py`.

The `cloudevents` package makes, checks, reads and writes events. This module adds what it lacks: recognising an event
in a message, sentences for people, and attributes as header text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.v1.event import CloudEvent

from redelivery.base.json import dumps, is_exact, loads
from redelivery.codes import Code
from redelivery.contract.message import Headers, Message
from redelivery.errors import Permanent
from redelivery.formats.syntax import is_media_type, is_uri, is_uri_reference

if TYPE_CHECKING:
    from cloudevents.core.formats.json import JSONFormat

#: Attributes that the CloudEvents specification itself names.
ATTRIBUTES: Final = ("id", "source", "type", "specversion", "subject", "time", "datacontenttype", "dataschema")
#: Header prefixes of the binary mode that are recognised, whichever broker wrote them.
PREFIXES: Final = ("ce_", "ce-", "cloudEvents_", "cloudEvents:")
CONTENT_TYPE: Final = "content-type"
STRUCTURED: Final = "application/cloudevents+json"

_REQUIRED: Final = ("id", "source", "type")
_NAME: Final = re.compile(r"[a-z0-9]+")
_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
#: Characters that a CloudEvents string may not hold: control characters, lone surrogates, noncharacters.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
#: What data without a type is.
_DEFAULT_TYPE: Final = "application/json"
#: The required form of an attribute's text, and how to correct it.
_SYNTAX: Final[Mapping[str, tuple[Callable[[str], bool], str]]] = {
    "source": (is_uri_reference, "must be a URI reference, as in /orders or https://example.org/orders (RFC 3986)"),
    "dataschema": (is_uri, "must be a URI, as in https://example.org/order.json (RFC 3986)"),
    "datacontenttype": (is_media_type, "must be a media type, as in application/json (RFC 2046)"),
}


class Moment(datetime):
    """A time that keeps the text it was read from, which may be more precise than microseconds.

    Attributes:
        text: RFC 3339.
    """

    text: str

    @classmethod
    def read(cls, text: str) -> Moment:
        """Return the time that a text gives. Raises ValueError where it gives no time."""
        moment = cls.fromisoformat(text.upper())
        moment.text = text
        return moment


# --- attributes ----------------------------------------------------------------------------------------------------


def validate(attributes: Mapping[str, Any]) -> None:
    """Check the attributes of a future event; attributes that are None count as absent.

    Args:
        attributes: names and values; `time` is RFC 3339 text or a datetime with a time zone. `specversion`
            may be absent.

    Raises:
        Permanent: with a sentence for people; its `code` groups the mistakes (`missing-id`, `invalid-time`, ...).
    """
    given = {name: value for name, value in attributes.items() if value is not None}
    require(given)
    for name, value in given.items():
        if not _NAME.fullmatch(name) or name == "data":
            raise Permanent(
                f"{name!r} cannot be a CloudEvents attribute: names are lower-case letters and digits, 'data' is taken",
                code=Code.INVALID_MESSAGE,
                native_code="invalid-attribute-name",
            )
        if name == "time":
            given["time"] = _moment(value)
        elif name in ATTRIBUTES and not isinstance(value, str):
            raise _invalid(name, f"must be text, not {type(value).__name__}")
        elif not isinstance(value, str | bool | int | bytes | datetime):
            raise _invalid(
                name, f"must be text, a whole number, a truth value, bytes or a time, not {type(value).__name__}"
            )
        elif isinstance(value, str) and (found := _FORBIDDEN.search(value)):
            raise _invalid(name, f"holds U+{ord(found[0]):04X}, a character that CloudEvents text may not hold")
        elif name in _SYNTAX and value and not _SYNTAX[name][0](str(value)):
            raise _invalid(name, f"{_SYNTAX[name][1]}, not {value!r:.80}")
    build(given, None)


def require(attributes: Mapping[str, Any]) -> None:
    """Check that the required attributes exist.

    Raises:
        Permanent: one is missing.
    """
    for name in _REQUIRED:
        value = attributes.get(name)
        if value is None or value == "":
            raise Permanent(
                f"a CloudEvent needs {name!r}, and it is missing or empty",
                code=Code.INVALID_MESSAGE,
                native_code=f"missing-{name}",
            )
    version = attributes.get("specversion", "1.0")
    if version != "1.0":
        raise Permanent(
            f"CloudEvents 'specversion' must be '1.0', not {version!r:.40}",
            code=Code.INVALID_MESSAGE,
            native_code="invalid-specversion",
        )


def text(value: Any) -> str:
    """Return an attribute's value in its canonical text form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def rfc3339(moment: datetime) -> str:
    """Return a time as RFC 3339 text, unchanged where it was read from text; without a time zone it is UTC."""
    if isinstance(moment, Moment):
        return moment.text
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.isoformat().removesuffix("+00:00") + ("Z" if aware.isoformat().endswith("+00:00") else "")


def is_plain(value: str) -> bool:
    """Whether an attribute may hold this text unchanged."""
    return _FORBIDDEN.search(value) is None


def clean(value: str) -> str:
    """Return text that an attribute may hold: white space becomes a space, forbidden characters U+FFFD."""
    return _FORBIDDEN.sub("\ufffd", re.sub(r"[\t\r\n]+", " ", value))


def binary_headers(attributes: Mapping[str, Any], prefix: str) -> Headers:
    """Return attributes as headers of the binary mode: `<prefix><name>`, and `content-type` for `datacontenttype`.

    Values are canonical text in UTF-8 (`time` as RFC 3339); None is left out; `specversion` is added.
    """
    given = {"specversion": "1.0"} | {name: value for name, value in attributes.items() if value is not None}
    return tuple(
        (CONTENT_TYPE if name == "datacontenttype" else prefix + name, text(value).encode("utf-8", "replace"))
        for name, value in given.items()
    )


# --- JSON ----------------------------------------------------------------------------------------------------------


@cache
def _json_format() -> JSONFormat:
    from cloudevents.core.formats.json import JSONFormat  # noqa: PLC0415 - with dateutil; rows that are no events go without

    return JSONFormat()


def to_json(event: BaseCloudEvent) -> dict[str, Any]:
    """Return the JSON form of an event: a mapping that `json.dumps` takes."""
    form: dict[str, Any] = json.loads(_json_format().write(event))
    moment = event.get_attributes().get("time")
    return form | {"time": rfc3339(moment)} if moment is not None else form


def from_json(form: Mapping[str, Any]) -> CloudEvent:
    """Return the event of a JSON form.

    Raises:
        Permanent: it is not an event; `code` and text say why.
    """
    try:
        return _read(dumps(dict(form)))
    except Permanent:
        raise
    except Exception as error:
        raise Permanent(
            f"not a CloudEvent: {type(error).__name__}", code=Code.INVALID_MESSAGE, native_code="invalid-event"
        ) from error


def _read(document: str | bytes) -> CloudEvent:
    # Not by the package: it cuts times to microseconds, and accepts NaN, which is not JSON.
    if isinstance(document, bytes):  # as UTF-8 only (RFC 8259): UTF-16 would break where we insert into the body
        document = document.decode("utf-8-sig", "surrogatepass")
    form = json.loads(document, parse_constant=_refuse)
    attributes = {name: value for name, value in form.items() if name not in ("data", "data_base64")}
    if attributes.get("time") is not None:
        attributes["time"] = Moment.read(attributes["time"])
    data = form.get("data")
    if data is None and form.get("data_base64") is not None:
        data = base64.b64decode(form["data_base64"])
    return build(attributes, data)


def build(attributes: dict[str, Any], data: Any) -> CloudEvent:
    """Return an event with these attributes only (None: absent): the package would make up an id and a time.

    Raises:
        Permanent: they do not form an event.
    """
    require(attributes)
    had_time = attributes.get("time") is not None
    try:
        event = CloudEvent({name: value for name, value in attributes.items() if value is not None}, data)
    except CloudEventValidationError as error:
        named = ", ".join(sorted(error.errors))
        why = "; ".join(str(each) for several in error.errors.values() for each in several)
        raise Permanent(
            f"not a CloudEvent: {why}", code=Code.INVALID_MESSAGE, native_code=f"invalid-{named}"[:80]
        ) from error
    if not had_time:
        event.get_attributes().pop("time")
    return event


# --- messages ------------------------------------------------------------------------------------------------------


def event_in(message: Message) -> CloudEvent | None:
    """Return the event that a message is, in either mode; None for a raw message and for a malformed event."""
    try:
        if is_structured(message):
            return _read(message.value or b"")
        prefix = prefix_in(message)
        return None if prefix is None else _from_binary(message, prefix)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is then a raw message, and kept unchanged
        return None


def is_valid_text(name: str, text: bytes) -> bool:
    """Return whether an event in headers may have this id, or this time."""
    try:
        return bool(_moment(text.decode()) if name == "time" else text.decode())
    except (ValueError, Permanent):
        return False


def is_json(content_type: str | None) -> bool:
    """Whether data of this type is JSON; data without a type is JSON."""
    return bool(_json_format().JSON_CONTENT_TYPE_PATTERN.match(content_type or _DEFAULT_TYPE))


def is_text(content_type: str | None) -> bool:
    """Whether the name of this type marks its data as text."""
    return (content_type or "").strip().lower().startswith("text/")


def is_structured(message: Message) -> bool:
    """Whether a message declares its body to be an event in JSON."""
    return _content_type(message.headers).partition(";")[0].strip().lower() == STRUCTURED


def prefix_in(message: Message) -> str | None:
    """Return the header prefix of an event in binary mode; None where the message is not such an event."""
    names = {name for name, _ in message.headers}
    return next((p for p in PREFIXES if all(p + each in names for each in ("specversion", *_REQUIRED))), None)


def to_structured(message: Message, event: CloudEvent) -> Message:
    """Return a binary event as JSON; the message's other headers stay."""
    prefix = prefix_in(message)
    if prefix is None:
        return message
    form = to_json(event)
    others = _without(message.headers, prefix)
    body = json.dumps(form, separators=(",", ":")).encode()
    return replace(message, value=body, headers=(*others, (CONTENT_TYPE, STRUCTURED.encode())))


def to_binary(message: Message, event: CloudEvent, prefix: str) -> Message:
    """Return a structured event as headers and body; the message's other headers stay."""
    form: dict[str, Any] = loads(message.value or b"{}")
    data = event.get_data() if "data_base64" in form else form.get("data")
    if isinstance(data, bytes) or data is None:
        body = data
    elif isinstance(data, str) and not is_json(event.get_datacontenttype()):
        body = data.encode("utf-8", "surrogatepass")
    else:
        body = dumps(data).encode("utf-8", "surrogatepass")
        form.setdefault("datacontenttype", _DEFAULT_TYPE)
    attributes = {name: value for name, value in form.items() if name not in ("data", "data_base64")}
    written = binary_headers(attributes, prefix)
    taken = {name for name, _ in written} | {CONTENT_TYPE}
    others = tuple(header for header in message.headers if header[0] not in taken and header[0].lower() != CONTENT_TYPE)
    return replace(message, value=body, headers=(*others, *written))


def _from_binary(message: Message, prefix: str) -> CloudEvent:
    attributes: dict[str, Any] = dict(_texts(message.headers, prefix))
    if "time" in attributes:
        attributes["time"] = _moment(attributes["time"])
    content_type = _content_type(message.headers)
    if content_type:
        attributes["datacontenttype"] = content_type
    return build(attributes, _data(message.value, content_type))


def _data(body: bytes | None, content_type: str) -> Any:
    """Return a binary event's data as JSON shows it; as bytes, where more than white space would be lost."""
    if body is None:
        return None
    try:
        document = body.decode()
        if is_json(content_type):
            data = json.loads(document, parse_float=_exact, parse_constant=_refuse, object_pairs_hook=_unique)
            return body if data is None else data
    except (ValueError, RecursionError):
        return body
    return document if is_text(content_type) else body


def _exact(number: str) -> float:
    if not is_exact(number):
        raise ValueError(number)
    return float(number)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _texts(headers: Headers, prefix: str) -> dict[str, str]:
    """Return the attributes in headers. Raises ValueError where one is not text, or repeats."""
    pairs = [(name.removeprefix(prefix), (value or b"").decode()) for name, value in headers if name.startswith(prefix)]
    return _unique(pairs)


def _without(headers: Headers, prefix: str) -> Headers:
    return tuple(h for h in headers if not h[0].startswith(prefix) and h[0].lower() != CONTENT_TYPE)


def _content_type(headers: Headers) -> str:
    return next((v.decode("utf-8", "replace") for n, v in headers if n.lower() == CONTENT_TYPE and v), "")


def _moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _invalid("time", "needs a time zone")
        return value
    if isinstance(value, str) and _RFC3339.fullmatch(value):
        try:
            return Moment.read(value)
        except ValueError:
            pass
    raise _invalid("time", f"must be RFC 3339, as in 2024-01-31T12:00:00Z, not {value!r:.60}")


def _invalid(name: str, why: str) -> Permanent:
    return Permanent(
        f"the CloudEvents attribute {name!r} {why}", code=Code.INVALID_MESSAGE, native_code=f"invalid-{name}"
    )
