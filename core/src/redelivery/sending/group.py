"""`Group`: rows that failed together and share their history. Rows that are delivered at once never become a group.

Usually they are many rows of one batch. A row with an order, or with an owner, is a group by itself. A group holds what
happened to its rows, and decides nothing.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from redelivery.contract.broker import Received
from redelivery.contract.context import ErrorContext, Stage
from redelivery.contract.message import ROW_OVERHEAD, Batch, Column, Message
from redelivery.errors import BrokerError, Throttled

T = TypeVar("T")

#: The size that a context adds to a message, roughly.
_CONTEXT_BYTES: Final = 1500
#: Errors that an error is chained from; one with more reads like no other.
_LONGEST_CHAIN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where rows come from, as letters and reports show it.

    Attributes:
        run: names the job; the same for all its tasks and their retries.
        query, batch: the streaming query and micro-batch.
        partition: the Spark partition.
        configs: the job's options, redacted, for contexts and logs that ask for them.
    """

    run: str
    query: str | None = None
    batch: str | None = None
    partition: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


class Owner:
    """Who handed a row over: knows more of it than the engine, and is notified of its end. The base does nothing.

    Attributes:
        subscriber: the named subscription that gave the row up.
        rename_type: the type under which an event is reposted to a sink.
        context: why the row was given up, where its broker decided that.
        lost: another consumer has the message now.
    """

    subscriber: str | None = None
    rename_type: str | None = None
    context: ErrorContext | None = None
    lost: bool = False

    @property
    def received(self) -> Received | None:
        """The message under its lease as last prolonged; None: it has no lease."""
        return None

    @property
    def comes_again(self) -> bool:
        """Whether its lease is over, so that its broker delivers it again."""
        return False

    def handled(self) -> None:
        """Take note: a sink has confirmed the row, or it was skipped."""

    def moved(self) -> None:
        """Take note: the broker itself has moved the message to its dead letter queue, which ended the lease."""

    def lose(self) -> None:
        """Take note: the lease is gone."""


#: The owner of a job's rows.
NOBODY: Final = Owner()


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """Rows that failed together, in the send queue where they now are. At least one row.

    Attributes:
        rows: the rows as they were sent first, never altered: a batch, or the message of one row.
        nbytes: their size in terms of `maxInFlightBytes`, before their letters are made.
        positions: of each row, among all rows that the engine has taken.
        render: makes the letters that this send queue sends; None: it sends the messages themselves. Letters are made
            when they are sent, and again when they are sent again: those that wait take no memory.
        attempts, first_attempt: in this send queue.
        isolated: its one row must be sent alone.
        apart: must be sent as its own batch: part of a batch that was refused as a whole.
        isolating: the next attempt only finds the culprit, and does not count.
        counted: the last attempt counted.
        untried: attempts that counted although none was made, because the destination accepted nothing.
        holds: its key is held because of it (`KeyOrder`).
        component: fully qualified name of the code that failed it; None: the destination's sender.
        sent: attempts at the job's own destination.
        ambiguous: one of them ended ambiguous.
        seconds: how long those attempts took, including the waits between them.
        errors: the errors for which its rows were given up: one for all, or one per row; empty before.
        sink_errors: the errors of the sinks that could not take it.
        spans: `traceparent` of the span in which its rows failed: one for all, or one per row; empty: none is known.
        owner: who handed it over, and is notified of its end. A group with an owner has one row.
        wrapped: its send queue gets events that stand for the rows, because the queue has refused their content.
    """

    rows: Batch | Message
    nbytes: int = field(init=False)
    positions: Sequence[int] = (0,)
    render: Callable[[Group], Batch] | None = None
    attempts: int = 0
    first_attempt: float = 0.0
    isolated: bool = False
    apart: bool = False
    isolating: bool = False
    counted: bool = True
    untried: int = 0
    holds: bool = False
    retried: bool = False
    sent: int = 0
    ambiguous: bool = False
    stage: Stage = "TASK_PUT"
    component: str | None = None
    why: str = ""
    seconds: float = 0.0
    errors: Sequence[BrokerError] = ()
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    sink_errors: tuple[str, ...] = ()
    spans: Sequence[str | None] = ()
    owner: Owner = NOBODY
    wrapped: bool = False

    def __post_init__(self) -> None:
        self.nbytes = self.rows.nbytes

    def __len__(self) -> int:
        return 1 if isinstance(self.rows, Message) else self.rows.length

    @property
    def messages(self) -> Batch:
        """The rows as a batch."""
        return Batch.of([self.rows]) if isinstance(self.rows, Message) else self.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one of its rows as it is sent, on average; a letter's context is estimated."""
        return -(-self.nbytes // len(self)) + (0 if self.render is None else _CONTEXT_BYTES)

    @property
    def position(self) -> int:
        """The position of its first row."""
        return self.positions[0]

    @property
    def key(self) -> bytes | None:
        """The key of its first row."""
        key = self.rows.key
        return key.values[0] if isinstance(key, Column) else key

    @property
    def reason(self) -> str:
        """The reason under which the account counts it: the code with the client's own word, or the error class."""
        return self.errors[0].label if self.errors else ""

    def error(self, row: int) -> BrokerError | None:
        """Return why a row was given up; None before."""
        return (self.errors[row] if len(self.errors) > 1 else self.errors[0]) if self.errors else None

    def take(self, rows: Sequence[int]) -> Group:
        """Return the group of these rows, in ascending order, with the same history; all of them: the group itself."""
        if len(rows) == len(self):
            return self
        return replace(
            self,
            rows=picked(self.messages, rows),
            positions=_at(self.positions, rows),
            errors=_at(self.errors, rows) if len(self.errors) > 1 else self.errors,
            spans=_at(self.spans, rows) if len(self.spans) > 1 else self.spans,
        )

    def split(self, rows: int) -> tuple[Group, Group]:
        """Return the group of the first rows, and the group of the others; neither is empty."""
        return self.take(range(rows)), self.take(range(rows, len(self)))

    def halves(self) -> Sequence[Group]:
        """Return its halves, each to be sent as its own batch, and a half of one row alone: that finds a culprit."""
        parts = (self,) if len(self) == 1 else self.split(len(self) // 2)
        for part in parts:
            part.isolating = True
            part.isolated = len(part) == 1
            part.apart = not part.isolated
        return parts

    def enter(self, render: Callable[[Group], Batch], *, wrapped: bool = False) -> None:
        """Begin again in the next send queue, or in the same one in another form."""
        self.render = render
        self.wrapped = wrapped
        self.attempts = self.untried = 0
        self.first_attempt = 0.0
        self.isolated = self.apart = False
        self.isolating = False

    def begin_attempt(self, now: float) -> None:
        """Count the attempt that begins now."""
        if self.attempts == 0:
            self.first_attempt = now
        self.counted = not self.isolating
        self.attempts += self.counted
        self.isolating = False


def together(groups: Sequence[Group]) -> Batch:
    """Return the rows of groups as one batch."""
    messages = [group.rows for group in groups if isinstance(group.rows, Message)]
    return Batch.of(messages) if len(messages) == len(groups) else joined([group.messages for group in groups])


def outgoing(groups: Sequence[Group]) -> Batch:
    """Return what a send queue sends for groups, as one batch: their rows, or the letters of their rows, made now."""
    if all(group.render is None for group in groups):
        return together(groups)
    return joined([group.messages if group.render is None else group.render(group) for group in groups])


# --- rows that failed alike ---


def alike(
    failures: Mapping[int, BrokerError], rows: Sequence[int], *, by_text: bool, each: bool
) -> Iterator[tuple[list[int], list[BrokerError]]]:
    """Return the failed rows that go on together, each time with their errors: one for all, or one per row.

    Args:
        failures: the error of each row.
        rows: the failed rows, ascending.
        by_text: rows go on together only if their errors read alike.
        each: every row goes on by itself.
    """
    if each:
        for row in rows:
            yield [row], [failures[row]]
        return
    one = {id(failures[row]): failures[row] for row in rows}
    if len(one) == 1:
        yield list(rows), list(one.values())
        return
    by_error: dict[int, tuple[list[int], list[BrokerError]]] = {}
    by_kind: dict[object, tuple[list[int], list[BrokerError]]] = {}
    for row in rows:
        error = failures[row]
        found = by_error.get(id(error))
        if found is None:
            kind = (_kind(error), str(error) if by_text else None)
            found = by_error[id(error)] = by_kind.setdefault(kind, ([], []))
        found[0].append(row)
        found[1].append(error)
    for together, errors in by_kind.values():
        yield together, errors[:1] if len(set(map(id, errors))) == 1 else errors


def distinct(errors: Sequence[BrokerError]) -> Sequence[BrokerError]:
    """Return the errors of some rows: one for all, if they read alike, with all that they are chained from."""
    return errors[:1] if len({_shown(error) for error in errors}) == 1 else errors


def _kind(error: BrokerError) -> object:
    """Return what a decision and the account depend on."""
    pause = error.retry_after if isinstance(error, Throttled) else None
    return type(error), error.code, error.native_code, pause


def _shown(error: BaseException) -> object:
    """Return what a letter shows of an error: its text, where it was raised, and those that it is chained from."""
    shown: list[object] = []
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, BaseExceptionGroup) or len(shown) > _LONGEST_CHAIN:
            return id(error)
        shown.append((type(link), link.args, _text(link), tuple(getattr(link, "__notes__", ())), _raised(link)))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return tuple(shown)


def _text(error: BaseException) -> object:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - of a client's own error, which may do anything
        return id(error)


def _raised(error: BaseException) -> tuple[object, ...]:
    """Return the lines that an error came through."""
    return tuple((frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__))


# --- rows as columns ---


def picked(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return some rows by themselves: unlike `Batch.take`, they keep none of the others, and their size is exact.

    Few failed rows may wait for long, each from another large batch.
    """

    def at(column: Column[T] | None) -> Column[T] | None:
        return None if column is None else Column.of(_at(column.values, rows))

    value = _at(batch.value.values, rows)
    key, headers = at(batch.key), at(batch.headers)
    nbytes = len(rows) * ROW_OVERHEAD + sum(map(len, filter(None, value)))
    if key is not None:
        nbytes += sum(map(len, filter(None, key.values)))
    if headers is not None:
        nbytes += sum(
            len(name.encode("utf-8", "surrogatepass")) + len(text or b"")
            for each in headers.values
            for name, text in each or ()
        )
    return replace(
        batch,
        length=len(rows),
        nbytes=nbytes,
        value=Column.of(value),
        key=key,
        headers=headers,
        id=at(batch.id),
        destination=at(batch.destination),
        timestamp_ms=at(batch.timestamp_ms),
        extra={name: Column.of(_at(column.values, rows)) for name, column in batch.extra.items()},
        identity=at(batch.identity),
        native=at(batch.native),
    )


def joined(batches: Sequence[Batch]) -> Batch:
    """Return one batch of the rows of several, in their order."""
    if len(batches) == 1:
        return batches[0]

    def chain(columns: Sequence[Column[T] | None], absent: T) -> Column[T] | None:
        if all(column is None for column in columns):
            return None
        parts = (
            itertools.repeat(absent, batch.length) if column is None else column.values
            for batch, column in zip(batches, columns, strict=True)
        )
        return Column.of(list(itertools.chain.from_iterable(parts)))

    names = {name: None for batch in batches for name in batch.extra}
    return Batch(
        number=0,
        length=sum(batch.length for batch in batches),
        nbytes=sum(batch.nbytes for batch in batches),
        value=Column.of([value for batch in batches for value in batch.value.values]),
        key=chain([batch.key for batch in batches], None),
        headers=chain([batch.headers for batch in batches], ()),
        id=chain([batch.id for batch in batches], None),
        destination=chain([batch.destination for batch in batches], None),
        timestamp_ms=chain([batch.timestamp_ms for batch in batches], None),
        extra={
            name: column
            for name in names
            if (column := chain([batch.extra.get(name) for batch in batches], None)) is not None
        },
        identity=chain([batch.identity for batch in batches], None),
        native=chain([batch.native for batch in batches], None),
    )


def _at(values: Sequence[T], rows: Sequence[int]) -> list[T]:
    if isinstance(rows, range) and rows.step == 1:
        return list(values[rows.start : rows.stop])
    return [values[row] for row in rows]
