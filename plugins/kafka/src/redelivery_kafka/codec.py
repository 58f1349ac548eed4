"""Rows as the client takes them, and what no client could take. This file must not call a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from redelivery.contract.message import Batch, Headers
from redelivery.errors import BrokerError, Permanent

#: Begins the names of the error context's headers, and of the header that says what was written into a letter.
_CONTEXT: Final = ("__connect.errors.", "redelivery-letter")
#: Beyond every time that the client takes.
_FAR: Final = 1 << 63
#: What the client reckons for the frame of one record.
_FRAME: Final = 36
#: Rows are measured one by one only where key and value alone come this near to the limit; headers are seldom larger.
_NEAR: Final = 65_536


def largest(message_bytes: int) -> int:
    """The largest message (value, key and headers) that a client with this `message.max.bytes` takes."""
    return message_bytes - _FRAME


def plain(batch: Batch) -> bool:
    """Whether rows are key and value only."""
    return batch.headers is None and batch.destination is None and batch.timestamp_ms is None and not batch.extra


def is_letter(headers: Sequence[tuple[str, Any]] | None) -> bool:
    """Whether a row is a dead letter: what of it cannot be had as wished is left out, rather than it not be stored.

    Its partition is a wish, for the dead letter topic may have fewer.
    """
    return any(name.startswith(_CONTEXT) for name, _ in headers or ())


def unknown_partition(error: Exception) -> bool:
    """Whether the client knows no such partition."""
    found = error.args[0] if isinstance(error, KafkaException) else None
    return isinstance(found, KafkaError) and found.name() == "_UNKNOWN_PARTITION"


def named_partition(batch: Batch, index: int) -> int | None:
    """The partition that a row names, unless it is a letter's wish."""
    column = batch.extra.get("partition")
    named: int | None = None if column is None else column.values[index]
    return None if batch.headers is not None and is_letter(batch.headers.values[index]) else named


def calls(batch: Batch, slots: Sequence[Any], topic: str) -> Iterator[tuple[Any, ...]]:
    """What `produce` is called with for each row: slot, topic, value, key, partition, timestamp, headers."""
    topics: Iterable[str] = repeat(topic)
    if batch.destination is not None:
        topics = [topic if each is None else each for each in batch.destination.values]
    partitions: Iterable[int] = repeat(-1)
    if "partition" in batch.extra:
        partitions = [-1 if each is None else each for each in batch.extra["partition"].values]
    stamps: Iterable[int] = repeat(0)  # which stands for now
    if batch.timestamp_ms is not None:  # what the client does not take was refused, but for letters
        stamps = [each if each is not None and 0 < each < _FAR else 0 for each in batch.timestamp_ms.values]
    keys: Iterable[bytes | None] = repeat(None) if batch.key is None else batch.key.values
    headers: Iterable[Any] = repeat(None)
    if batch.headers is not None:
        headers = map(carried if _letters(batch.headers.values) else list, batch.headers.values)
    return zip(slots, topics, batch.value.values, keys, partitions, stamps, headers, strict=False)


def faults(batch: Batch, limit: int, nowhere: Mapping[str, BrokerError]) -> dict[int, BrokerError]:
    """Rows that the client could not be given: it would change them, or fail by them."""
    found: dict[int, BrokerError] = {}
    if _may_be_large(batch, limit):
        for index, row in enumerate(batch.rows()):
            if row.size > limit:
                what = f"a message of {row.size} bytes is over the limit of {limit}; kafka.message.max.bytes sets it"
                found[index] = Permanent(f"kafka: {what}", native_code="MSG_SIZE_TOO_LARGE")
    if batch.headers is not None and batch.headers.arrow is None:  # core has looked through names that come from Arrow
        found |= _bad_headers(batch.headers.values)
    if batch.timestamp_ms is not None:
        found |= _bad_timestamps(batch.timestamp_ms.values, batch.headers.values if batch.headers is not None else [])
    if nowhere and batch.destination is not None:
        names = enumerate(batch.destination.values)
        found |= {index: nowhere[name] for index, name in names if name is not None and name in nowhere}
    return found


def carried(headers: Headers) -> list[Any]:
    """A letter's headers as the client takes them: what cannot be in a name is written as an escape."""
    return [(name if _is_name(name) else _escaped(name), value) for name, value in headers]


def carried_time(timestamp_ms: int | None) -> int:
    """A letter's time as the client takes it: where that cannot be, 0, which stands for now."""
    return timestamp_ms if timestamp_ms is not None and 0 < timestamp_ms < _FAR else 0


def _escaped(name: str) -> str:
    return name.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def _letters(column: Sequence[Headers]) -> bool:
    """Whether these rows are letters, which come among themselves."""
    return bool(column) and is_letter(column[0])


def _bad_timestamps(stamps: Sequence[int | None], column: Sequence[Headers]) -> dict[int, BrokerError]:
    known = [each for each in stamps if each is not None]
    if not known or (min(known) > 0 and max(known) < _FAR):
        return {}
    text = "kafka: a timestamp must lie after 1970-01-01T00:00:00Z, within 64 bits: the client takes 0 for now"
    bad = (index for index, each in enumerate(stamps) if each is not None and not 0 < each < _FAR)
    return {
        index: Permanent(text, native_code="TIMESTAMP") for index in bad if not column or not is_letter(column[index])
    }


def _bad_headers(column: Sequence[Headers]) -> dict[int, BrokerError]:
    bad = {name for name in {name for headers in column for name, _ in headers} if not _is_name(name)}
    if not bad:
        return {}
    text = "kafka: a header's name is text without NUL and lone surrogates: the client would cut it, or crash"
    rows = (index for index, headers in enumerate(column) if any(name in bad for name, _ in headers))
    letters = _letters(column)
    return {
        index: Permanent(text, native_code="HEADER") for index in rows if not letters or not is_letter(column[index])
    }


def _is_name(name: str) -> bool:
    return "\0" not in name and name.encode("utf-8", "replace").decode("utf-8") == name


def _may_be_large(batch: Batch, limit: int) -> bool:
    if batch.nbytes <= limit:
        return False
    columns = [column.values for column in (batch.value, batch.key) if column is not None]
    most = sum(max(map(len, filter(None, values)), default=0) for values in columns)
    return most > limit - _NEAR
