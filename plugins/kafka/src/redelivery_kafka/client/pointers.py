"""What Kafka's own dead letter queue (4.4, KIP-1191) says of a record that a share group gave up.

Its letter has these headers and no others, and by default neither key nor value: it points to the record by topic,
partition and offset. With `errors.deadletterqueue.copy.record.enable` it has the key and the value, but not the
record's own headers and time (seen on 4.4.0). `originals` reads the record itself. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from redelivery.contract.context import UNRESOLVED, ErrorContext
from redelivery.contract.message import Headers
from redelivery.kit.errors import Code

_PREFIX: Final = "__dlq.errors."
_TOPIC, _PARTITION, _OFFSET, _GROUP = (_PREFIX + name for name in ("topic", "partition", "offset", "group"))
_COUNT: Final = _PREFIX + "delivery.count"
_MESSAGE: Final = _PREFIX + "message"
#: The headers in the order in which the broker writes them; the last two may be absent.
NAMES: Final = (_TOPIC, _PARTITION, _OFFSET, _GROUP, _COUNT, _MESSAGE)
_FORMS: Final = frozenset({NAMES, NAMES[:5], NAMES[:4], (*NAMES[:4], _MESSAGE)})
#: The broker's text of a record that was delivered too often. Of any other, a member of the group rejected it.
_LIMIT: Final = "Offset delivery count exceeded the threshold."
#: The end of each number.
_PARTITIONS: Final = 1 << 31
_OFFSETS: Final = 1 << 63
_COUNTS: Final = 1 << 31


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Death:
    """What the headers of a letter say.

    Attributes:
        place: where the record is that died.
        group: the share group that gave it up.
        attempts: how often it was delivered; None: not said.
        said: the broker's text; "": none.
    """

    place: Place
    group: str
    attempts: int | None = None
    said: str = ""

    @classmethod
    def of(cls, found: Mapping[str, bytes | None]) -> Death | None:
        """Read headers; None where they name no place. Anyone may have written them."""
        topic = _text(found.get(_TOPIC))
        partition = _number(found.get(_PARTITION), _PARTITIONS)
        offset = _number(found.get(_OFFSET), _OFFSETS)
        if not topic or partition is None or offset is None:
            return None
        place = Place(topic, partition, offset)
        return cls(place, _text(found.get(_GROUP)), _number(found.get(_COUNT), _COUNTS), _text(found.get(_MESSAGE)))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an error context."""
        limited = self.said == _LIMIT
        return {
            "reason": self.said or "the share group gave it up",
            "kind": "delivery-limit" if limited else "rejected",
            "code": Code.DELIVERY_LIMIT if limited else Code.REJECTED,
            "broker": "kafka",
            "attempts": self.attempts,
            "source_topic": self.place.topic,
            "source_partition": self.place.partition,
            "source_offset": self.place.offset,
            "target": self.place.topic,
            "subscriber": self.group or None,
        }

    def context(self, died_ms: int | None, *, own: str | None) -> ErrorContext:
        """Return the context of a letter.

        Args:
            died_ms: the time of the letter's record, which is that of the death.
            own: the topic whose dead letters are read; None: not known.
        """
        fields = self.fields | {"last_failure_ms": died_ms}
        if self.place.topic == own:
            fields["target"] = None
        return ErrorContext(**fields)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the record that a letter points to cannot be read.

    Attributes:
        word: one of few words, by which people select.
        text: for people.
        lasting: nobody can read it any more.
    """

    word: str
    text: str
    lasting: bool = True

    def context(self, context: ErrorContext, *, copied: bool) -> ErrorContext:
        """Return the context of a letter whose record is missing.

        Args:
            context: why the record died.
            copied: the letter has key and value. It is as good as any that can still be had, if this is lasting.
        """
        if copied and self.lasting:
            return replace(context, reason=f"{context.reason} Its headers and its time are lost: {self.text}")
        what = "headers and time" if copied else "message"
        text = f"{context.reason} The {what} cannot be read, and so it cannot be redriven: {self.text}"
        return replace(context, kind=UNRESOLVED, native_code=self.word, reason=text)


def death_in(headers: Headers) -> Death | None:
    """Return what a record's headers say if they are as the broker writes them; None for any other record."""
    if not headers or headers[0][0] != _TOPIC or tuple([name for name, _ in headers]) not in _FORMS:
        return None
    return Death.of(dict(headers))


def deaths_in(column: Sequence[Headers]) -> dict[int, Death]:
    """Return what records say, by their index, of those whose headers are as the broker writes them."""
    found = {}
    for at in [at for at, headers in enumerate(column) if headers and headers[0][0] == _TOPIC]:
        death = death_in(column[at])
        if death is not None:
            found[at] = death
    return found


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _number(value: bytes | None, end: int) -> int | None:
    """Return a number below `end`; None for any other text."""
    if value is None or not value.isdigit() or len(value) >= 20:  # noqa: PLR2004 - digits of 64 bits
        return None
    number = int(value)
    return number if number < end else None
