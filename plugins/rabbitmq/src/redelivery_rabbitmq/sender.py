"""The sender role: rows are published mandatory, in one stream, and settled by the broker's confirms.

Nothing happens but in a call of the engine: `send` encodes and writes, both calls serve confirms and heartbeats.
A connection that was lost is opened anew by the next `send`. This file must not send a row again.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery_rabbitmq.address import Address, Settings
from redelivery_rabbitmq.client.frames import Frames
from redelivery_rabbitmq.client.publisher import Stream
from redelivery_rabbitmq.client.routing import Target, Targets, values_of
from redelivery_rabbitmq.client.unconfirmed import Flight
from redelivery_rabbitmq.codec import SHORT, decode, properties
from redelivery_rabbitmq.errors import classify

#: Bytes handed to the socket in one piece.
_PIECE: Final = 128 << 10
#: Bytes that may wait for the socket: what is behind them is known not to have been sent.
_WAITING: Final = 256 << 10
_NOT_FOUND: Final = 404
_NO_EXCHANGE: Final = "NO_EXCHANGE"


class RabbitmqSender(Sender):
    """Publishes to the queue or exchange of `address`, or where a row says. No I/O until `open`."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._targets = Targets(address)
        self._target = self._targets.default
        self._pid = os.getpid()
        self._closed = False
        self._stream: Stream | None = None
        self._frames = Frames(1, 4096)
        self._next = 1  # delivery tag of the next row
        self._returned = 0  # delivery tag of the row that came back last
        self._flights: deque[Flight] = deque()
        self._settled: list[Settled] = []
        self._known: set[str] = {""}  # exchanges that are there
        self._missing: dict[str, Permanent] = {}  # those that rows of one call name, and are not

    def open(self) -> RabbitmqSender:
        """Connect, so that an error of the URL or the options is told before there are rows."""
        deadline = time.monotonic() + self._settings.connection_timeout
        try:
            self._exchange(self._connected(deadline), self._target, deadline)
        except BaseException:
            self.close()
            raise
        return self

    def check(self, *, deadline: float) -> None:
        self._usable()
        if self._target.exchange:  # what takes its rows is known by sending alone
            return
        queue = self._target.routing_key
        error = self._connected(deadline).queue_error(queue, deadline)
        if error is None:
            return
        found = classify(error, f"looking for queue {queue!r} at {self._address.where}")
        if not isinstance(found, Fatal) or getattr(error, "reply_code", None) == _NOT_FOUND:
            raise found from error  # else it may not be looked at, and sending needs no such right

    def send(self, batch: Batch, *, deadline: float) -> None:
        self._usable()
        if time.monotonic() >= deadline:
            raise Retriable(
                f"rabbitmq: sending to {self._target}: the deadline had passed before it began", native_code="DEADLINE"
            )
        self._missing = {}
        if batch.isolate:
            self._isolated(batch, deadline)
        else:
            self._publish(batch, deadline)

    def collect(self, wait: float) -> Sequence[Settled]:
        self._usable()
        end = time.monotonic() + wait
        self._step(0)
        while not self._settled and self._untold() and (left := end - time.monotonic()) > 0:
            self._step(left)
        settled, self._settled = self._settled, []
        return settled

    def close(self) -> None:
        self._closed = True
        stream, self._stream = self._stream, None
        if stream is not None and self._pid == os.getpid():  # in a fork it is the parent's
            stream.close()

    def _usable(self) -> None:
        if self._closed or self._pid != os.getpid():
            why = "is closed" if self._closed else "was made by another process"
            raise Fatal(f"rabbitmq: sending to {self._target}: this sender {why}; open another", native_code="CLOSED")

    # --- publishing ---

    def _publish(self, batch: Batch, deadline: float) -> Flight:
        """Write a batch; what is wrong with a row of it is told when the others are settled."""
        stream = self._connected(deadline)
        flight = Flight(batch, self._next, deadline)
        targets = self._where(stream, batch, flight, deadline)
        self._flights.append(flight)
        row = self._row(batch, targets)
        pieces: list[bytes] = []
        rows: list[int] = []
        size = 0
        for index in range(batch.length):
            if index in flight.failures:
                continue
            try:
                encoded = row(index)
            except Permanent as error:
                flight.failures[index] = error
                continue
            pieces += encoded
            rows.append(index)
            size += sum(map(len, encoded))
            if size >= _PIECE:
                if not self._write(stream, flight, pieces, rows):
                    break
                pieces, rows, size = [], [], 0
        else:
            if not rows or self._write(stream, flight, pieces, rows):
                flight.whole = True
                self._step(0)
        if not flight.whole:
            self._cut_short(stream, flight)
        return flight

    def _write(self, stream: Stream, flight: Flight, pieces: list[bytes], rows: list[int]) -> bool:
        """Write rows when there is room; False: there was none until the deadline, or the connection is lost."""
        stream.until(lambda: not stream.blocked and stream.waiting < _WAITING, flight.deadline)
        if stream.error is not None or stream.blocked or stream.waiting >= _WAITING:
            return False
        stream.write(b"".join(pieces))
        self._next += len(rows)
        flight.published(rows)
        stream.step(0)
        return True

    def _cut_short(self, stream: Stream, flight: Flight) -> None:
        """The rows of a batch that were not written are told as such."""
        why = self._why_not(stream)
        published = set(flight.rows)
        for index in range(flight.batch.length if flight.batch else 0):
            if index not in published:
                flight.failures.setdefault(index, why)
        flight.whole = True
        self._step(0)

    def _why_not(self, stream: Stream) -> BrokerError:
        if stream.error is not None:
            error = classify(stream.error, f"sending to {self._target}", opening=True)
            error.__cause__ = stream.error
            return error if isinstance(error, Retriable) else error.reclassified(Retriable)
        why = "an alarm of the broker (memory, disk) blocks those who publish" if stream.blocked else "it takes no more"
        return Retriable(f"rabbitmq: {why}; this row was not sent by the deadline", native_code="BLOCKED")

    def _isolated(self, batch: Batch, deadline: float) -> None:
        """Each row on its own, the next one when it is settled; what closes the channel is then its own fault."""
        failures = []
        for index in range(batch.length):
            try:
                flight = self._publish(Batch.of([batch.row(index)], number=batch.number), deadline)
            except BrokerError as error:
                failures.append(Failure(index, error))
                continue
            while flight.batch is not None:
                self._step(max(0.0, deadline - time.monotonic()))
            (settled,) = (each for each in self._settled if each.batch == batch.number)
            self._settled.remove(settled)
            failures += (Failure(index, each.error) for each in settled.failures)
        self._settled.append(Settled(batch=batch.number, failures=failures))

    # --- rows ---

    def _row(self, batch: Batch, targets: Sequence[Target] | None) -> Callable[[int], tuple[bytes, ...]]:
        """What encodes a row, by its index; it raises Permanent."""
        frames, most = self._frames, self._settings.message_bytes
        values = batch.value.values
        keys, headers, ids, stamps = map(values_of, (batch.key, batch.headers, batch.id, batch.timestamp_ms))
        publish = frames.publish
        here = publish(self._target.exchange, self._target.routing_key)

        def row(index: int) -> tuple[bytes, ...]:
            value = values[index]
            encoded = properties(
                value,
                keys[index] if keys else None,
                headers[index] if headers else (),
                ids[index] if ids else None,
                stamps[index] if stamps else None,
            )
            body = value or b""
            if len(body) > most:
                text = f"its value is {len(body)} bytes, and the broker takes {most} (rabbitmq.message_bytes)"
                raise Permanent(f"rabbitmq: this row cannot be sent: {text}", native_code="TOO_LARGE")
            to = here if targets is None else publish(targets[index].exchange, targets[index].routing_key)
            return frames.row(to, encoded, body)

        return row

    def _where(self, stream: Stream, batch: Batch, flight: Flight, deadline: float) -> list[Target] | None:
        """Where each row goes; None: all to the URL's own. A row that goes nowhere is a failure of the flight."""
        self._exchange(stream, self._target, deadline)
        if self._targets.columns(batch) is None:
            return None
        found = []
        for index in range(batch.length):
            target = self._target
            try:
                target = self._targets.of(batch, index)
                missing = self._missing.get(target.exchange)
                if missing is None:  # a look costs a channel: one for all of them
                    self._exchange(stream, target, deadline)
                else:
                    flight.failures[index] = missing
            except Permanent as error:
                flight.failures[index] = error
                if error.native_code == _NO_EXCHANGE:
                    self._missing[target.exchange] = error
            found.append(target)
        return found

    def _exchange(self, stream: Stream, target: Target, deadline: float) -> None:
        """See that an exchange is there: publishing to one that is not would close the channel for all rows.

        Raises Permanent or, for the URL's own, Fatal.
        """
        if target.exchange in self._known:
            return
        if len(target.exchange.encode("utf-8", "replace")) <= SHORT:
            error = stream.exchange_error(target.exchange, deadline)
            if error is None:
                self._known.add(target.exchange)
                return
            found = classify(error, f"looking for exchange {target.exchange!r}")
            if getattr(error, "reply_code", None) != _NOT_FOUND:
                raise (found if isinstance(found, Fatal) else found.reclassified(Retriable)) from error
        kind = Permanent if target.own else Fatal
        text = f"there is no exchange {target.exchange!r} at {self._address.where}"
        raise kind(f"rabbitmq: {text}", native_code=_NO_EXCHANGE)

    # --- settling ---

    def _connected(self, deadline: float) -> Stream:
        """The connection; a new one where there is none, or it was lost. Raises BrokerError."""
        self._step(0)
        if self._stream is None:
            self._next, self._returned = 1, 0
            self._stream = Stream(
                self._address, self._settings, deadline, confirmed=self._confirmed, returned=self._came_back
            )
            self._frames = Frames(self._stream.channel.channel_number, self._stream.frame_max)
        return self._stream

    def _step(self, wait: float) -> None:
        """Let the connection work, for so long at most, and settle what has ended."""
        stream = self._stream
        if stream is None:
            return
        untold = self._untold()
        if untold:
            wait = max(0.0, min(wait, min(each.deadline for each in untold) - time.monotonic()))
        stream.step(wait)
        if stream.error is not None:
            self._lost(stream.error)
            self._stream = None
            stream.close()
        now = time.monotonic()
        for flight in untold:
            if flight.whole and (flight.landed or flight.deadline <= now):
                if not flight.landed:
                    self._expire(flight)
                self._settled.append(flight.settled())
        while self._flights and self._flights[0].landed:
            self._flights.popleft()

    def _untold(self) -> list[Flight]:
        """Batches that `collect` has not told of."""
        return [each for each in self._flights if each.batch is not None]

    def _expire(self, flight: Flight) -> None:
        """Its deadline has passed: of what was not confirmed nobody knows. Its tags are still waited for."""
        text = "rabbitmq: the broker has not confirmed this row by the deadline; it may be stored or not"
        for _, index in flight.unconfirmed():
            flight.failures.setdefault(index, Ambiguous(text, native_code="UNCONFIRMED"))

    def _confirmed(self, tag: int, multiple: bool, taken: bool) -> None:  # noqa: FBT001 - called by position
        for flight in self._flights:
            if flight.first > tag:
                break
            if not taken and flight.batch is not None:
                for _, index in flight.unconfirmed(tag, 0 if multiple else tag):
                    flight.failures.setdefault(index, self._refusal(flight.batch, index))
            if multiple or tag <= flight.last:
                flight.confirm(tag, multiple=multiple)

    def _refusal(self, batch: Batch, index: int) -> BrokerError:
        """A `basic.nack`: through an exchange, some of several queues may have taken it."""
        target = self._targets.of(batch, index)
        text = f"rabbitmq: the broker did not take this row for {target}: a queue is full, or has no quorum"
        return Ambiguous(text, native_code="NACK") if target.exchange else Retriable(text, native_code="NACK")

    def _came_back(self, method: Any, given: Any, body: bytes) -> None:
        """A `basic.return`: no queue takes it. They come in the order of publishing; the row is told by what it is.

        A broker may add headers to what it returns, and confirms it as taken all the same: where it is not plain which
        row came back, none that may have counts as stored.
        """
        message = decode(given, body)[0]
        place = (method.exchange, method.routing_key)
        alike: list[tuple[Flight, int, int, Message]] = []  # but for their headers
        for flight, batch, tag, index in self._unconfirmed(self._returned + 1):
            if batch.value.values[index] != message.value or self._targets.of(batch, index)[:2] != place:
                continue
            row = batch.row(index)
            if _same(message, row):
                alike = [(flight, tag, index, row)]
                break
            if row.id == message.id:
                alike.append((flight, tag, index, row))
        if len({(row.key, row.headers) for *_, row in alike}) == 1:
            flight, self._returned, index, _ = alike[0]
            target = self._targets.of(flight.batch, index) if flight.batch else self._target
            kind = Permanent if target.own else Fatal
            text = f"rabbitmq: no queue takes this row: {target} at {self._address.where}: {method.reply_text}"
            flight.failures[index] = kind(text, native_code="NO_ROUTE")
            return
        text = (
            f"rabbitmq: a row to {place} came back ({method.reply_text}), and which one cannot be told; it may be this"
        )
        for flight, batch, _, index in self._unconfirmed():
            if self._targets.of(batch, index)[:2] == place:
                flight.failures.setdefault(index, Ambiguous(text, native_code="RETURNED"))

    def _unconfirmed(self, start: int = 0) -> Iterator[tuple[Flight, Batch, int, int]]:
        """Rows that are not confirmed, of batches not told of: flight, batch, delivery tag, index."""
        for flight in self._flights:
            if flight.batch is not None:
                for tag, index in flight.unconfirmed(start=start):
                    yield flight, flight.batch, tag, index

    def _lost(self, error: BaseException) -> None:
        """The connection or the channel is gone: whatever was not confirmed failed."""
        found = classify(error, f"sending to {self._target}")
        unknown = found if isinstance(found, Ambiguous) else found.reclassified(Ambiguous)
        unread = found.reclassified(
            Retriable, f"{found}; this row came behind one that the broker refused, and was not read"
        )
        for each in (unknown, unread):
            each.__cause__ = error
        blame = self._targets.blame(error)
        refused = False
        for flight in self._flights:
            if flight.batch is not None:
                for _, index in flight.unconfirmed():
                    blamed = None if blame is None else blame(flight.batch, index)
                    refused = refused or blamed is not None
                    flight.failures.setdefault(index, blamed or (unread if refused else unknown))
            flight.left = 0
            flight.whole = True
        self._known = {""}


def _same(message: Message, row: Message) -> bool:
    return (message.value, message.key, message.id, message.headers) == (row.value, row.key, row.id, row.headers)
