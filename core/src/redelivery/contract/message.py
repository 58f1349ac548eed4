"""Messages: `Message` (one, for people and for the receiving side) and `Batch` (columns, for the sending path).

A column that comes from Arrow is given as a function that loads it, so that this module needs no Arrow library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")

#: One header: a text name and bytes, or None where the header has a name only.
Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]

#: Shared by all rows without columns of the broker's own.
_NO_EXTRA: Mapping[str, Any] = {}

#: The cost of a row apart from its bytes, when bytes in flight are bounded.
ROW_OVERHEAD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message.

    Attributes:
        value: the body; None is a null body (a tombstone, where the broker has them).
        key: orders and places the message, where the broker has keys.
        headers: (name, bytes or None) pairs in order; names may repeat where the broker allows it.
        id: the message's name for people and consumers, which comes back unchanged; None where it has no id.
        identity: the text by which a de-duplicating broker recognises the message, of any length; None: its id. It need
            not come back, and is not part of the content: two messages that differ only in it are equal.
        destination: where it goes, if not to the URL's own target (topic, queue, routing key).
        timestamp_ms: creation time, milliseconds since the epoch.
        extra: the broker's own columns as its capabilities name them (partition, exchange, ...).
        native: what the broker's own message holds beyond all this: properties, types of headers. Opaque, picklable,
            and made by the plugin that received the message or read the letter; None: nothing. Core carries it along,
            and never reads it. A sender of the same plugin writes it again where the other attributes do not say
            otherwise; any other sender ignores it. It is not part of the content, as `identity` is not. Where it has
            `nbytes`, they count in the message's.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    id: str | None = None
    destination: str | None = None
    timestamp_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    identity: str | None = field(default=None, compare=False)
    native: Any = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Return `size` plus the native part's and a fixed overhead: bounds are counted in it."""
        return self.size + ROW_OVERHEAD + (0 if self.native is None else getattr(self.native, "nbytes", 0))

    @property
    def size(self) -> int:
        """Return the bytes of value, key and headers, which `Limits.message_bytes` limits."""
        size = len(self.value or b"") + len(self.key or b"")
        for name, value in self.headers:
            size += len(name.encode("utf-8", "surrogatepass")) + len(value or b"")
        return size


class Column(Generic[T]):
    """A column of a batch: loaded into a list at the first use of `values`, and not before.

    Args:
        length: number of rows.
        load: returns the rows as a list; called at most once.
        arrow: the Arrow array behind it, for a plugin that can use its buffers; None where no such array exists.
    """

    __slots__ = ("_length", "_load", "_made", "_values", "arrow")

    def __init__(self, length: int, load: Callable[[], list[T]], *, arrow: Any = None) -> None:
        self._length = length
        self._load: Callable[[], list[T]] | None = load
        self._values: list[T] = []
        self._made: dict[str, Any] = {}
        self.arrow = arrow

    @classmethod
    def of(cls, values: list[T]) -> Column[T]:
        """Return a column over an existing list."""
        return cls(len(values), lambda: values)

    def __len__(self) -> int:
        return self._length

    def once(self, name: str, make: Callable[[], U]) -> U:
        """Return what `make` makes of the rows; it is called once for a column and a name, however many ask."""
        if name not in self._made:
            self._made[name] = make()
        found: U = self._made[name]
        return found

    def take(self, indices: Sequence[int]) -> Column[T]:
        """Return a column of the rows at these indices, in the order of the indices."""

        def load() -> list[T]:
            values = self.values
            return [values[index] for index in indices]

        return Column(len(indices), load, arrow=None if self.arrow is None else self.arrow.take(indices))

    @property
    def values(self) -> list[T]:
        """The rows as a list, the same list each time; not to be altered."""
        if self._load is not None:
            self._values = self._load()
            self._load = None
        return self._values


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Batch:
    """Parallel columns of messages to one destination. Absent columns are None: every row is null there.

    Attributes:
        number: names the batch in settlements; unique within one engine.
        length: number of rows, at least 1.
        nbytes: its size in terms of `maxInFlightBytes`.
        first: position of the first row among all rows that the engine has taken.
        isolate: each row must be sent alone, so that a failure belongs to one row.
        ordered: where the broker's `order` is native, rows of one key must be stored in their order: when one fails,
            every later row of its key that is not yet stored fails with `NotSent`, in this batch and in later ones.
        value, key, headers, id, destination, timestamp_ms, extra, identity, native: as in `Message`, a column each.
            Senders that do not de-duplicate do not read `identity`, which may have to be computed.
    """

    number: int
    length: int
    nbytes: int
    value: Column[bytes | None]
    key: Column[bytes | None] | None = None
    headers: Column[Headers] | None = None
    id: Column[str | None] | None = None
    destination: Column[str | None] | None = None
    timestamp_ms: Column[int | None] | None = None
    extra: Mapping[str, Column[Any]] = field(default_factory=dict)
    identity: Column[str | None] | None = None
    native: Column[Any] | None = None
    first: int = 0
    isolate: bool = False
    ordered: bool = False

    def __len__(self) -> int:
        return self.length

    def row(self, index: int) -> Message:
        """Return row `index` as a message. The engine reads only failed rows this way."""

        def at(column: Column[T] | None) -> T | None:
            return None if column is None else column.values[index]

        return Message(
            value=self.value.values[index],
            key=at(self.key),
            headers=at(self.headers) or (),
            id=at(self.id),
            destination=at(self.destination),
            timestamp_ms=at(self.timestamp_ms),
            extra={name: column.values[index] for name, column in self.extra.items()} if self.extra else _NO_EXTRA,
            identity=at(self.identity),
            native=at(self.native),
        )

    def take(self, indices: Sequence[int]) -> Batch:
        """Return a batch of the rows at these indices, in the order of the indices; its size is estimated."""

        def at(column: Column[T] | None) -> Column[T] | None:
            return None if column is None else column.take(indices)

        return replace(
            self,
            length=len(indices),
            nbytes=-(-self.nbytes * len(indices) // self.length),
            value=self.value.take(indices),
            key=at(self.key),
            headers=at(self.headers),
            id=at(self.id),
            destination=at(self.destination),
            timestamp_ms=at(self.timestamp_ms),
            extra={name: column.take(indices) for name, column in self.extra.items()} if self.extra else self.extra,
            identity=at(self.identity),
            native=at(self.native),
        )

    def rows(self) -> Iterable[Message]:
        """Return every row as a message: for plugins whose client takes one message at a time, and for tests."""
        return (self.row(index) for index in range(self.length))

    @classmethod
    def of(cls, messages: Sequence[Message], *, number: int = 0, isolate: bool = False, ordered: bool = False) -> Batch:
        """Return a batch of messages, in their order."""
        names = {name: None for message in messages for name in message.extra}
        return cls(
            number=number,
            length=len(messages),
            nbytes=sum(message.nbytes for message in messages),
            value=Column.of([m.value for m in messages]),
            key=Column.of([m.key for m in messages]),
            headers=Column.of([m.headers for m in messages]),
            id=Column.of([m.id for m in messages]),
            destination=Column.of([m.destination for m in messages]),
            timestamp_ms=Column.of([m.timestamp_ms for m in messages]),
            extra={name: Column.of([m.extra.get(name) for m in messages]) for name in names},
            identity=Column.of([m.identity for m in messages]) if any(m.identity for m in messages) else None,
            native=Column.of([m.native for m in messages]) if any(m.native is not None for m in messages) else None,
            isolate=isolate,
            ordered=ordered,
        )
