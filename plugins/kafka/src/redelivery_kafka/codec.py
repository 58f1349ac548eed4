"""Messages to Kafka's records and back: rows as `produce` takes them, rows that it cannot take, records as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from redelivery.contract.message import Batch, Headers, Message
from redelivery.errors import BrokerError, Permanent
from redelivery.kit.errors import Code
from redelivery_kafka.client.internals import raise_pending_error
from redelivery_kafka.client.pointers import death_in

#: The arguments of `produce` for one row: slot, topic, value, key, partition, timestamp, headers.
Row = tuple[Any, str, bytes | None, bytes | None, int, int, Any]

#: Prefixes of the error context's headers, and of the header that lists what was written into a letter.
_CONTEXT: Final = ("__connect.errors.", "redelivery-letter")
#: Above every timestamp that the client takes.
_TIMESTAMP_END: Final = 1 << 63
#: Rows are measured one by one only where key and value alone come this near to the limit; headers are seldom larger.
_NEAR: Final = 65_536


# --- rows ---


def is_plain(batch: Batch) -> bool:
    """Return whether rows have key and value only."""
    return batch.headers is None and batch.destination is None and batch.timestamp_ms is None and not batch.extra


def is_letter(headers: Sequence[tuple[str, Any]] | None) -> bool:
    """Return whether a row is a dead letter. It is stored without what Kafka cannot store of it, and never refused.

    Its partition is a preference, as the dead letter topic may have fewer.
    """
    return any(name.startswith(_CONTEXT) for name, _ in headers or ())


def named_partition(batch: Batch, index: int) -> int | None:
    """Return the partition that a row names; None for a letter, whose partition is a preference."""
    column = batch.extra.get("partition")
    named: int | None = None if column is None else column.values[index]
    return None if batch.headers is not None and is_letter(batch.headers.values[index]) else named


def rows(batch: Batch, slots: Sequence[Any], topic: str) -> Iterator[Row]:
    """Yield the arguments of `produce` for each row."""
    topics: Iterable[str] = repeat(topic)
    if batch.destination is not None:
        topics = [topic if each is None else each for each in batch.destination.values]
    partitions: Iterable[int] = repeat(-1)
    if "partition" in batch.extra:
        partitions = [-1 if each is None else each for each in batch.extra["partition"].values]
    stamps: Iterable[int] = repeat(0)
    if batch.timestamp_ms is not None:  # `faults` refuses what the client does not take, except in letters
        stamps = [each if each is not None and 0 < each < _TIMESTAMP_END else 0 for each in batch.timestamp_ms.values]
    keys: Iterable[bytes | None] = repeat(None) if batch.key is None else batch.key.values
    headers: Iterable[Any] = repeat(None)
    if batch.headers is not None:
        values = batch.headers.values
        headers = map(letter_headers if _letters(values) and _bad_names(values) else list, values)
    return zip(slots, topics, batch.value.values, keys, partitions, stamps, headers, strict=False)


def faults(batch: Batch, limit: int, missing: Mapping[str, BrokerError]) -> dict[int, BrokerError]:
    """Return the rows that must not be given to the client, with their errors: it would change them, or fail.

    Rows that fail for the same reason share an error.

    Args:
        batch: the rows.
        limit: bytes of the largest message.
        missing: topics to which rows cannot be sent.
    """
    found: dict[int, BrokerError] = {}
    if _may_be_large(batch, limit):
        known: dict[int, BrokerError] = {}
        for index, row in enumerate(batch.rows()):
            if (size := row.size) > limit:
                what = f"a message of {size} bytes is over the limit of {limit}; kafka.message.max.bytes sets it"
                found[index] = known.setdefault(size, Permanent(f"kafka: {what}", code=Code.TOO_LARGE))
    if batch.headers is not None and batch.headers.arrow is None:  # core has checked names that come from Arrow
        found |= _bad_headers(batch.headers.values)
    if batch.timestamp_ms is not None:
        found |= _bad_timestamps(batch.timestamp_ms.values, batch.headers.values if batch.headers is not None else [])
    if batch.headers is not None and None in batch.value.values:
        found |= _pointers(batch)
    if missing and batch.destination is not None:
        names = enumerate(batch.destination.values)
        found |= {index: missing[name] for index, name in names if name is not None and name in missing}
    return found


def letter_headers(headers: Headers) -> list[Any]:
    """Return a letter's headers as the client takes them: characters that a name cannot have are written as escapes."""
    return [(name if _is_name(name) else _escaped(name), value) for name, value in headers]


def record_timestamp(timestamp_ms: int | None) -> int:
    """Return a timestamp as the client takes it; 0, which means now, where Kafka cannot store it."""
    return timestamp_ms if timestamp_ms is not None and 0 < timestamp_ms < _TIMESTAMP_END else 0


def _escaped(name: str) -> str:
    return name.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def _letters(column: Sequence[Headers]) -> bool:
    """Return whether these rows are letters. A batch never mixes letters with other rows."""
    return bool(column) and is_letter(column[0])


def _bad_timestamps(stamps: Sequence[int | None], column: Sequence[Headers]) -> dict[int, BrokerError]:
    known = [each for each in stamps if each is not None]
    if not known or (min(known) > 0 and max(known) < _TIMESTAMP_END):
        return {}
    text = "kafka: a timestamp must lie after 1970-01-01T00:00:00Z, within 64 bits: the client takes 0 for now"
    error = Permanent(text, code=Code.INVALID_MESSAGE)
    bad = (index for index, each in enumerate(stamps) if each is not None and not 0 < each < _TIMESTAMP_END)
    return {index: error for index in bad if not column or not is_letter(column[index])}


def _bad_headers(column: Sequence[Headers]) -> dict[int, BrokerError]:
    bad = _bad_names(column)
    if not bad:
        return {}
    text = "kafka: a header's name must be text without NUL and lone surrogates: the client would cut it, or crash"
    indexes = (index for index, headers in enumerate(column) if any(name in bad for name, _ in headers))
    letters = _letters(column)
    error = Permanent(text, code=Code.INVALID_MESSAGE)
    return {index: error for index in indexes if not letters or not is_letter(column[index])}


def _pointers(batch: Batch) -> dict[int, BrokerError]:
    """Return the rows that only point to a record: of a letter whose record could not be read."""
    text = "kafka: it only points to a message, as a letter of Kafka's own dead letter queue; give it key and value"
    error = Permanent(text, code=Code.INVALID_MESSAGE)
    headers = [] if batch.headers is None else batch.headers.values
    keys = [None] * len(batch) if batch.key is None else batch.key.values
    rows = enumerate(zip(batch.value.values, keys, headers, strict=True))
    return {
        at: error for at, (value, key, each) in rows if value is None and key is None and death_in(each) is not None
    }


def _bad_names(column: Sequence[Headers]) -> set[str]:
    return {name for name in {name for headers in column for name, _ in headers} if not _is_name(name)}


def _is_name(name: str) -> bool:
    return "\0" not in name and name.encode("utf-8", "replace").decode("utf-8") == name


def _may_be_large(batch: Batch, limit: int) -> bool:
    if batch.nbytes <= limit:
        return False
    columns = [column.values for column in (batch.value, batch.key) if column is not None]
    most = sum(max(map(len, filter(None, values)), default=0) for values in columns)
    return most > limit - _NEAR


# --- records ---


def message_of(record: Any) -> tuple[Message, str | None]:
    """Return a record of the client as a message, and what of it cannot be decoded. Its place is not part of it."""
    kind, timestamp = record.timestamp()
    fault = None
    try:
        headers = record.headers()
        if headers is not None:
            raise_pending_error()  # where a name is not UTF-8, the client returns as if nothing were wrong
    except (UnicodeDecodeError, SystemError) as error:
        headers, fault = None, header_fault(error)
    message = Message(
        value=record.value(),
        key=record.key(),
        headers=tuple(headers or ()),
        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
    )
    return message, fault


def header_fault(error: Exception) -> str:
    """Return what cannot be decoded of a record where the client fails to decode its headers."""
    return f"the name of a header is not UTF-8 ({error}); its headers are left out"


def position(topic: str, partition: int, offset: int) -> str:
    """Return the name of a record, for people and for `remove`."""
    return f"{topic}/{partition}/{offset}"


def parse_position(text: str, topic: str) -> tuple[int, int] | None:
    """Return partition and offset that a position names; None if it names no record of this topic."""
    named, partition, offset = (["", "", *text.split("/")])[-3:]
    return (int(partition), int(offset)) if named == topic and _is_number(partition) and _is_number(offset) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20  # noqa: PLR2004 - digits of 64 bits
