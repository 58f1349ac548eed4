"""Convert a message to the columns of its row and back, and find messages that no file can store.

Headers are one JSON array of [name, value] pairs, readable by people and by SQLite's JSON functions. A value is text if
its bytes are UTF-8, else `{"base64": ...}`, and null if it is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quote

from redelivery.contract.message import Batch, Header, Headers, Message
from redelivery.errors import Permanent
from redelivery.kit.errors import Code
from redelivery.kit.packing import from_portable, portable

#: The columns for `decode`, after the row's number, of a table named m. Text is read as bytes, so that a damaged row is
#: reported and harms no other row.
COLUMNS = "m.seq, CAST(m.id AS BLOB), m.timestamp_ms, m.key, CAST(m.headers AS BLOB), m.value"

#: Decoded headers that are kept, to be found again.
_KNOWN = 1_000
#: Bytes of a header that may well be another's too.
_SHORT = 400
_INT64 = range(-(2**63), 2**63)
#: Names repeat, so each is encoded only once.
_name = lru_cache(maxsize=1024)(_quote)


def encode_headers(headers: Headers | None) -> str | None:
    """Return the headers as stored in their column; None for no headers."""
    if not headers:
        return None
    try:
        # Half the time of one json.dumps for all (measured). This runs once per row.
        return "[[" + "],[".join([f"{_name(name)},{_quote(value.decode())}" for name, value in headers]) + "]]"  # type: ignore[union-attr]
    except (AttributeError, UnicodeDecodeError):
        return json.dumps([(name, portable(value)) for name, value in headers], separators=(",", ":"))


def encode_headers_of(column: Sequence[Headers | None]) -> list[str | None]:
    """Return of each row what `encode_headers` returns. Letters repeat most of their headers: each is encoded once."""
    known: dict[Header, str] = {}
    return [_encoded(headers, known) for headers in column]


def _encoded(headers: Headers | None, known: dict[Header, str]) -> str | None:
    if not headers:
        return None
    try:
        parts = []
        for header in headers:
            name, value = header
            is_short = len(value) < _SHORT  # type: ignore[arg-type]
            part = known.get(header) if is_short else None
            if part is None:
                part = f"{_name(name)},{_quote(value.decode())}"  # type: ignore[union-attr]
                if is_short:
                    if len(known) > _KNOWN:
                        known.clear()
                    known[header] = part
            parts.append(part)
    except (AttributeError, UnicodeDecodeError, TypeError):
        return encode_headers(headers)
    return "[[" + "],[".join(parts) + "]]"


def decode(
    id_: bytes | None, timestamp_ms: int | None, key: bytes | None, headers: bytes | None, value: bytes | None
) -> tuple[Message, str | None]:
    """Return the message of a row, and the part that could not be decoded: the message lacks or replaces it."""
    faults: dict[int, str] = {}
    (found,) = decode_headers([headers], faults)
    (name,) = decode_ids([id_], faults)
    return Message(value=value, key=key, headers=found, id=name, timestamp_ms=timestamp_ms), faults.get(0)


def decode_headers(column: Sequence[bytes | None], faults: dict[int, str]) -> list[Headers]:
    """Return the headers of rows; a row whose headers are damaged has none, and `faults` says why, by its index."""
    known: dict[bytes, Header] = {}  # letters repeat most of their headers
    return [() if each is None else _headers(each, index, known, faults) for index, each in enumerate(column)]


def decode_ids(column: Sequence[bytes | None], faults: dict[int, str]) -> list[str | None]:
    """Return the ids of rows; where an id is damaged, `faults` says why, by the row's index."""
    try:
        return [None if each is None else each.decode() for each in column]
    except UnicodeDecodeError:
        return [None if each is None else _id(each, index, faults) for index, each in enumerate(column)]


def _id(data: bytes, index: int, faults: dict[int, str]) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        faults[index] = f"sqlite: its id is damaged ({error})"
        return data.decode(errors="replace")


def _headers(data: bytes, index: int, known: dict[bytes, Header], faults: dict[int, str]) -> Headers:
    # If each part between these separators is a JSON array, then they are the elements of the whole, because JSON is
    # unambiguous. Less than the time of json.loads (measured), much less where headers repeat.
    if data.startswith(b'[["') and data.endswith(b'"]]'):
        found = []
        for part in data[3:-3].split(b'"],["'):
            is_short = len(part) < _SHORT  # a long one hardly repeats
            header = (known.get(part) if is_short else None) or _header(part)
            if header is None:
                break
            if is_short:
                if len(known) > _KNOWN:
                    known.clear()
                known[part] = header
            found.append(header)
        else:
            return tuple(found)
    try:
        return tuple((_text(name), from_portable(text)) for name, text in json.loads(data.decode()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        faults[index] = f"sqlite: its headers are damaged ({type(error).__name__}: {error})"
        return ()


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name is of type {type(name).__name__}")
    return name


def _header(part: bytes) -> Header | None:
    """Return the header whose JSON is `["<part>"]`; None if this is no array of two texts."""
    name, comma, value = part.partition(b'","')
    if comma and part.isascii() and b"\\" not in name and b'"' not in name:
        # Half the time of json.loads (measured), where the only escapes are those of quotes, as in a JSON document.
        bare = value.translate(None, b"\\")
        quotes = bare.count(b'"')
        if quotes == len(value) - len(bare) and (not quotes or quotes == value.count(b'\\"')):
            return name.decode(), bare
    try:
        first, second = json.loads(b'["%b"]' % part)
    except ValueError:
        return None
    is_text = isinstance(first, str) and isinstance(second, str)
    return (first, second.encode("utf-8", "surrogatepass")) if is_text else None


def is_surely_storable(batch: Batch, *, message_bytes: int) -> bool:
    """Return whether `unstorable` refuses none of these rows but for their destinations. False: some may be refused."""
    stamps = [] if batch.timestamp_ms is None else [each for each in batch.timestamp_ms.values if each is not None]
    texts = [column.values for column in (batch.id, batch.identity) if column is not None]
    parts = [column.values for column in (batch.value, batch.key) if column is not None]
    try:
        for column in texts:
            "".join([text for text in column if text is not None]).encode()
    except (TypeError, UnicodeEncodeError):
        return False
    names = [] if batch.destination is None else batch.destination.values
    return (
        batch.nbytes <= message_bytes
        and set(map(type, names)) <= {str, type(None)}
        and all(set(map(type, column)) <= {bytes, type(None)} for column in parts)
        and set(map(type, stamps)) <= {int}
        and (not stamps or (min(stamps) in _INT64 and max(stamps) in _INT64))
    )


def unstorable(message: Message, *, message_bytes: int) -> Permanent | None:
    """Return why a message cannot be stored; None if it can."""
    found = (
        _text_fault("id", message.id)
        or _text_fault("identity", message.identity)
        or _text_fault("destination", message.destination)
        or _type_fault(message)
        or _size_fault(message, message_bytes)
    )
    if found is None:
        return None
    code, why = found
    return Permanent(f"sqlite: this row cannot be stored: {why}", code=code)


def has_odd_timestamps(batch: Batch) -> bool:
    """Return whether a timestamp is not an integer: SQLite would silently store NaN as null."""
    column = batch.timestamp_ms
    return column is not None and not set(map(type, column.values)) <= {int, type(None)}


def _text_fault(what: str, text: object) -> tuple[Code, str] | None:
    if text is None:
        return None
    if not isinstance(text, str):
        return Code.INVALID_MESSAGE, f"its {what} is of type {type(text).__name__}, not text"
    if what == "destination" and not text:
        return Code.INVALID_DESTINATION, "its destination is an empty name"
    try:
        text.encode()
    except UnicodeEncodeError:
        return Code.INVALID_MESSAGE, f"its {what} holds a lone surrogate, which has no form in UTF-8"
    return None


def _type_fault(message: Message) -> tuple[Code, str] | None:
    for what, value in (("value", message.value), ("key", message.key)):
        if not isinstance(value, bytes | None):
            return Code.INVALID_MESSAGE, f"its {what} is of type {type(value).__name__}, not bytes"
    stamp = message.timestamp_ms
    if stamp is not None and (type(stamp) is not int or stamp not in _INT64):
        return Code.INVALID_MESSAGE, "its timestamp is no integer of 64 bits"
    return None


def _size_fault(message: Message, message_bytes: int) -> tuple[Code, str] | None:
    if message.nbytes <= message_bytes:
        return None
    return Code.TOO_LARGE, f"it has {message.nbytes:,} bytes, and a row takes {message_bytes:,}"
