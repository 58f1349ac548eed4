"""The sender role: rows are published mandatory, in one stream, and settled by publisher confirms.

Nothing happens outside calls of the engine: `send` encodes and writes, `send` and `collect` read confirms and answer
heartbeats. After a lost connection the next `send` opens another.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

from pika.exceptions import ConnectionClosedByBroker

from redelivery.codes import Code
from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.address import quoted
from redelivery.kit.in_flight import time_left
from redelivery.kit.roles import Resource
from redelivery_rabbitmq.address import DEAD_LETTERS, Address
from redelivery_rabbitmq.client.frames import SHORT_STRING, FrameEncoder
from redelivery_rabbitmq.client.parameters import user_of
from redelivery_rabbitmq.client.publisher import Publisher
from redelivery_rabbitmq.client.routing import Route, Router, RowError
from redelivery_rabbitmq.client.stream_headers import refused_header, unkept_error, unkept_header
from redelivery_rabbitmq.client.unconfirmed import UnconfirmedBatch
from redelivery_rabbitmq.codec import Native, decode, encode_native, encode_properties, typed_headers
from redelivery_rabbitmq.errors import TABLE
from redelivery_rabbitmq.options import Settings

#: Bytes written at once.
_CHUNK: Final = 128 << 10
#: Bytes that may wait for the socket; rows behind them are known not to have been sent.
_MAX_UNWRITTEN: Final = 256 << 10
_INTERNAL_ERROR: Final = 541


class RabbitmqSender(Resource, Sender):
    """Publishes to the queue or exchange of `address`, or where a row says. No I/O until `open`."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._router = Router(address)
        self._route = self._router.default
        super().__init__("rabbitmq", str(self._route))
        self._address = address
        self._settings = settings
        self._user = user_of(address, settings)
        self._publisher: Publisher | None = None
        self._frames: FrameEncoder
        self._next_tag = 1
        self._returned_tag = 0  # of the row that was returned last
        self._batches: deque[UnconfirmedBatch] = deque()
        self._settled: list[Settled] = []
        self._exchanges: set[str] = {""}  # that exist
        #: exchanges that rows of one call name, and that do not exist or that this user has no permission on
        self._refused: dict[str, Permanent] = {}
        #: whether queues are streams; None: unknown
        self._streams: dict[str, bool | None] = {}

    def open(self) -> RabbitmqSender:
        """Connect, so that a wrong URL or option fails before there are rows."""
        deadline = time.monotonic() + self._settings.connection_timeout
        try:
            self._check_exchange(self._connected(deadline), self._route, deadline)
        except BaseException:
            self.close()
            raise
        return self

    def check(self, *, deadline: float) -> None:
        self.check_open("sending to")
        if self._route.exchange:  # only sending shows which queues take its rows
            return
        queue = self._route.routing_key
        error = self._connected(deadline).missing_error("queue", queue, deadline)
        if error is None:
            return
        found = TABLE.error(error, f"looking for queue {queue!r} at {self._address.where}")
        if not isinstance(found, Fatal) or found.code is Code.NO_SUCH_DESTINATION:
            raise found  # any other refusal is of the right to look, which sending does not need

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        time_left(deadline, f"rabbitmq: {self.doing('sending to')}")
        self._refused = {}
        if batch.isolate:
            self._publish_isolated(batch, deadline)
        else:
            self._publish(batch, deadline)

    def collect(self, wait: float) -> Sequence[Settled]:
        self.check_open("sending to")
        end = time.monotonic() + wait
        self._step(0)
        while not self._settled and self._unreported() and (left := end - time.monotonic()) > 0:
            self._step(left)
        settled, self._settled = self._settled, []
        return settled

    def _release(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

    # --- publishing ---

    def _publish(self, batch: Batch, deadline: float) -> UnconfirmedBatch:
        """Write a batch. Rows that cannot be sent become failures of it."""
        publisher = self._connected(deadline)
        unconfirmed = UnconfirmedBatch(batch, self._next_tag, deadline)
        routes = self._routes(publisher, batch, unconfirmed, deadline)
        if batch.native is not None:
            self._refuse_unkept(publisher, batch, unconfirmed, routes, deadline)
        self._batches.append(unconfirmed)
        chunks = self._chunks(batch, unconfirmed.failures, routes)
        if not all(self._write(publisher, unconfirmed, frames, rows) for frames, rows in chunks):
            unconfirmed.fail_unwritten(self._unwritten_error(publisher))
        unconfirmed.is_written = True
        self._step(0)
        return unconfirmed

    def _write(self, publisher: Publisher, unconfirmed: UnconfirmedBatch, frames: list[bytes], rows: list[int]) -> bool:
        """Write rows as soon as there is room. False: no room until the deadline, or the connection is lost."""
        publisher.until(lambda: not publisher.blocked and publisher.unwritten < _MAX_UNWRITTEN, unconfirmed.deadline)
        if publisher.error is not None or publisher.blocked or publisher.unwritten >= _MAX_UNWRITTEN:
            return False
        publisher.write(b"".join(frames))
        self._next_tag += len(rows)
        unconfirmed.published(rows)
        publisher.step(0)
        return True

    def _unwritten_error(self, publisher: Publisher) -> BrokerError:
        if publisher.error is not None:
            error = TABLE.error(publisher.error, self.doing("sending to"), safe=True)
            return error if isinstance(error, Retriable) else error.reclassified(Retriable)
        why = "an alarm (memory, disk) blocks publishers" if publisher.blocked else "the broker reads no more"
        return Retriable(f"rabbitmq: {why}; this row was not sent by the deadline", code=Code.DEADLINE_EXCEEDED)

    def _publish_isolated(self, batch: Batch, deadline: float) -> None:
        """Publish each row when the one before is settled: a closed channel is then the fault of one row."""
        failures = []
        for index in range(batch.length):
            try:
                unconfirmed = self._publish(Batch.of([batch.row(index)], number=batch.number), deadline)
            except BrokerError as error:
                failures.append(Failure(index, error))
                continue
            while unconfirmed.batch is not None:
                self._step(max(0.0, deadline - time.monotonic()))
            (settled,) = (each for each in self._settled if each.batch == batch.number)
            self._settled.remove(settled)
            failures += (Failure(index, each.error) for each in settled.failures)
        self._settled.append(Settled(batch=batch.number, failures=failures))

    # --- rows ---

    def _chunks(
        self, batch: Batch, failures: dict[int, BrokerError], routes: Sequence[Route] | None
    ) -> Iterator[tuple[list[bytes], list[int]]]:
        """Yield the frames of the next rows and their indexes. A row that cannot be encoded becomes a failure."""
        encode_row, publish = self._frames.row, self._frames.publish
        default = publish(self._route.exchange, self._route.routing_key)
        columns = (batch.key, batch.headers, batch.id, batch.timestamp_ms)
        given = [repeat(None) if column is None else column.values for column in columns]
        natives = None if batch.native is None else batch.native.values
        frames: list[bytes] = []
        rows: list[int] = []
        size = 0
        for index, (value, key, headers, id_, timestamp_ms) in enumerate(zip(batch.value.values, *given, strict=False)):
            if index in failures:
                continue
            try:
                if natives is None or not isinstance(native := natives[index], Native):
                    properties = encode_properties(value, key, headers or (), id_, timestamp_ms)
                else:
                    properties = encode_native(batch.row(index), native, self._user)
                to = default if routes is None else publish(routes[index].exchange, routes[index].routing_key)
                encoded = encode_row(to, properties, value or b"")
            except Permanent as error:
                failures[index] = error
                continue
            frames += encoded
            rows.append(index)
            size += sum(map(len, encoded))
            if size >= _CHUNK:
                yield frames, rows
                frames, rows, size = [], [], 0
        if rows:
            yield frames, rows

    def _routes(
        self, publisher: Publisher, batch: Batch, unconfirmed: UnconfirmedBatch, deadline: float
    ) -> list[Route] | None:
        """Return the route of each row; None if all have the default. A row without a route becomes a failure."""
        self._check_exchange(publisher, self._route, deadline)
        if self._router.columns(batch) is None:
            return None
        routes = []
        for index in range(batch.length):
            route = self._route
            try:
                route = self._router.route(batch, index)
                refused = self._refused.get(route.exchange)
                if refused is None:  # each check costs a channel
                    self._check_exchange(publisher, route, deadline)
                else:
                    unconfirmed.failures[index] = refused
            except Permanent as error:
                unconfirmed.failures[index] = error
                if error.code is not Code.INVALID_DESTINATION:  # that is the row's own
                    self._refused[route.exchange] = error
            routes.append(route)
        return routes

    def _refuse_unkept(
        self,
        publisher: Publisher,
        batch: Batch,
        unconfirmed: UnconfirmedBatch,
        routes: Sequence[Route] | None,
        deadline: float,
    ) -> None:
        """Fail rows for a stream with headers that it would lose, or that would end the connection of all rows."""
        for index in range(batch.length):
            typed = {} if index in unconfirmed.failures else _typed(batch, index)
            name = unkept_header(typed, publisher.broker_version) if typed else None
            route = self._route if routes is None else routes[index]
            if name is not None and not route.exchange and self._is_stream(publisher, route.routing_key, deadline):
                unconfirmed.failures[index] = unkept_error("row", name)

    def _is_stream(self, publisher: Publisher, queue: str, deadline: float) -> bool:
        """Whether a queue is a stream, as the broker says, or else the URL."""
        if queue not in self._streams:
            self._streams[queue] = publisher.is_stream(queue, deadline)
        known = self._streams[queue]
        if known is None:
            return self._settings.dead_letters == "stream" and DEAD_LETTERS.is_dead_letters(queue)
        return known

    def _check_exchange(self, publisher: Publisher, route: Route, deadline: float) -> None:
        """Check that an exchange exists: publishing to a missing one would close the channel for all rows.

        From 4.2.6 and 4.3.0 on the broker also refuses this to a user without write permission on it. Raises Permanent
        or, for the URL's own exchange, Fatal.
        """
        if route.exchange in self._exchanges:
            return
        if len(route.exchange.encode("utf-8", "replace")) > SHORT_STRING:
            text = f"its exchange's name is longer than {SHORT_STRING} bytes: {quoted(route.exchange)}"
            raise Permanent(f"rabbitmq: this row cannot be sent: {text}", code=Code.INVALID_DESTINATION)
        error = publisher.missing_error("exchange", route.exchange, deadline)
        if error is None:
            self._exchanges.add(route.exchange)
            return
        doing = f"looking for exchange {route.exchange!r} at {self._address.where}"
        found = TABLE.error(error, doing, own_target=not route.by_row)
        raise found if isinstance(found, Fatal | Permanent) else found.reclassified(Retriable) from error

    # --- settling ---

    def _connected(self, deadline: float) -> Publisher:
        """Return the connection; open it if it is not open or was lost. Raises BrokerError."""
        self._step(0)
        if self._publisher is None:
            self._next_tag, self._returned_tag = 1, 0
            self._publisher = Publisher(
                self._address, self._settings, deadline, on_confirm=self._confirmed, on_return=self._returned
            )
            self._frames = FrameEncoder(
                self._publisher.channel.channel_number, self._publisher.frame_max, self._settings.message_bytes
            )
        return self._publisher

    def _step(self, wait: float) -> None:
        """Let the connection work for up to `wait` seconds, and settle finished batches."""
        publisher = self._publisher
        if publisher is None:
            return
        unreported = self._unreported()
        if unreported:
            wait = max(0.0, min(wait, min(each.deadline for each in unreported) - time.monotonic()))
        publisher.step(wait)
        if publisher.error is not None:
            self._lost(publisher.error)
            self._publisher = None
            publisher.close()
        now = time.monotonic()
        for each in unreported:
            if each.is_written and (each.is_settled or each.deadline <= now):
                if not each.is_settled:  # the deadline has passed; late confirms are still awaited
                    text = "rabbitmq: the broker has not confirmed this row by the deadline; it may be stored or not"
                    each.fail_unconfirmed(Ambiguous(text, code=Code.UNCONFIRMED))
                self._settled.append(each.report())
        while self._batches and self._batches[0].is_settled:
            self._batches.popleft()

    def _unreported(self) -> list[UnconfirmedBatch]:
        """Return the batches that are not reported by `collect`."""
        return [each for each in self._batches if each.batch is not None]

    def _unconfirmed_rows(self, start: int = 0) -> Iterator[tuple[UnconfirmedBatch, Batch, int, int]]:
        """Yield the unconfirmed rows of unreported batches: with delivery tag and index."""
        for each in self._batches:
            if each.batch is not None:
                for tag, index in each.unconfirmed(start=start):
                    yield each, each.batch, tag, index

    def _confirmed(self, tag: int, multiple: bool, is_ack: bool) -> None:  # noqa: FBT001 - called by position
        for each in self._batches:
            if each.first_tag > tag:
                break
            if not is_ack and each.batch is not None:
                for _, index in each.unconfirmed(tag, 0 if multiple else tag):
                    each.failures.setdefault(index, self._nack_error(each.batch, index))
            if multiple or tag <= each.last_tag:
                each.confirm(tag, multiple=multiple)

    def _nack_error(self, batch: Batch, index: int) -> BrokerError:
        """Return the error for a `basic.nack`. Through an exchange, some of several queues may have taken the row."""
        route = self._router.route(batch, index)
        text = f"rabbitmq: the broker did not take this row for {route}: a queue is full, or has no quorum"
        return (Ambiguous if route.exchange else Retriable)(text, code=Code.REJECTED, native_code="basic.nack")

    def _returned(self, method: Any, properties: Any, body: bytes) -> None:
        """Handle a `basic.return`: no queue takes a row. Returns come in the order of publishing, without a tag.

        So the row is recognised by its content. A broker may add headers to what it returns, and it also confirms the
        row as taken: if the row is not certain, none that it may be counts as stored.
        """
        message = decode(properties, body)[0]
        place = (method.exchange, method.routing_key)
        similar: list[tuple[UnconfirmedBatch, int, int, Message]] = []  # but for their headers
        for unconfirmed, batch, tag, index in self._unconfirmed_rows(self._returned_tag + 1):
            if batch.value.values[index] != message.value or self._router.route(batch, index)[:2] != place:
                continue
            row = batch.row(index)
            if _is_same(message, row):
                similar = [(unconfirmed, tag, index, row)]
                break
            if row.id == message.id:
                similar.append((unconfirmed, tag, index, row))
        if len({(row.key, row.headers) for *_, row in similar}) == 1:
            unconfirmed, self._returned_tag, index, _ = similar[0]
            route = self._router.route(unconfirmed.batch, index) if unconfirmed.batch else self._route
            kind = Permanent if route.by_row else Fatal
            text = f"rabbitmq: no queue takes this row: {route} at {self._address.where}: {method.reply_text}"
            unconfirmed.failures[index] = kind(text, code=Code.NO_SUCH_DESTINATION, native_code=method.reply_text)
            return
        text = f"rabbitmq: an unknown row to {place} was returned ({method.reply_text}); it may be this one"
        for unconfirmed, batch, _, index in self._unconfirmed_rows():
            if self._router.route(batch, index)[:2] == place:
                unconfirmed.failures.setdefault(
                    index, Ambiguous(text, code=Code.UNCONFIRMED, native_code=method.reply_text)
                )

    def _lost(self, error: BaseException) -> None:
        """Fail all unconfirmed rows: the connection or the channel is closed."""
        found = TABLE.error(error, self.doing("sending to"))
        blamed = self._router.blamed(error) or self._blamed_by_stream(error)
        ambiguous = found if isinstance(found, Ambiguous) else found.reclassified(Ambiguous)
        if blamed is not None:
            text = f"{found}; this row was written before that, and its confirm is missing"
            ambiguous = Ambiguous(text, code=Code.UNCONFIRMED, native_code=found.native_code)
        text = f"{found}; the broker did not read this row, because it had refused an earlier one"
        unread = found.reclassified(Retriable, text)
        for each in (ambiguous, unread):
            each.__cause__ = error
        is_behind = False
        for unconfirmed in self._batches:
            if unconfirmed.batch is not None:
                for _, index in unconfirmed.unconfirmed():
                    own = None if blamed is None else blamed(unconfirmed.batch, index)
                    is_behind = is_behind or own is not None
                    unconfirmed.failures.setdefault(index, own or (unread if is_behind else ambiguous))
            unconfirmed.pending = 0
            unconfirmed.is_written = True
        self._exchanges = {""}
        self._streams = {}

    def _blamed_by_stream(self, error: BaseException) -> RowError | None:
        """Return what finds the rows at which a stream behind an exchange ended the connection; None: another end."""
        if not isinstance(error, ConnectionClosedByBroker) or error.reply_code != _INTERNAL_ERROR:
            return None
        streams = dict(self._streams)

        def refused(batch: Batch, index: int) -> BrokerError | None:
            route = self._router.route(batch, index)
            if not route.exchange and streams.get(route.routing_key) is False:
                return None
            name = refused_header(_typed(batch, index))
            return None if name is None else unkept_error("row", name)

        return refused


def _typed(batch: Batch, index: int) -> dict[str, Any]:
    """Return the headers of a row that have another client's types."""
    native = None if batch.native is None else batch.native.values[index]
    return typed_headers(batch.row(index), native) if isinstance(native, Native) and native.headers else {}


def _is_same(message: Message, row: Message) -> bool:
    return (message.value, message.key, message.id, message.headers) == (row.value, row.key, row.id, row.headers)
