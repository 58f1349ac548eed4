"""The sender role: requests side by side, each in its own thread, on kept-alive connections."""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError, NotSent, Permanent
from redelivery.kit.in_flight import InFlight, SentBatch
from redelivery.kit.roles import Resource
from redelivery_http import codec
from redelivery_http.address import Address
from redelivery_http.client.connection import Connection, tls
from redelivery_http.client.tokens import Token
from redelivery_http.errors import TABLE
from redelivery_http.options import BATCH_BYTES, Settings

if TYPE_CHECKING:
    import httpx2

#: The part of an attempt's time, at its end, in which no request begins to which an answer is unlikely in time.
_LAST: Final = 0.25
#: Answers to a question that tell how every event would fare; Knative asks senders to ignore others.
_TELLING: Final = frozenset({401, 407, 410})


class PendingBatch(SentBatch):
    """A batch whose rows are still being taken.

    Attributes:
        next: index of the first row that no request has yet.
        answers: requests of the sender that had an answer when the batch was handed over.
        began: when it was handed over, monotonic seconds.
    """

    answers = 0

    def __init__(self, batch: Batch, deadline: float) -> None:
        super().__init__(batch, deadline)
        self.next = 0
        self.began = time.monotonic()
        for column in (batch.value, batch.key, batch.headers, batch.id, batch.timestamp_ms, batch.destination):
            _ = None if column is None else column.values  # a column is loaded by one thread

    def take(self, most: int) -> range:
        """Return the next rows, `most` at most."""
        first, self.next = self.next, min(self.next + most, self.batch.length)
        return range(first, self.next)


class HttpSender(Resource, Sender):
    """Posts messages to the resource of `address`."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("http", address.origin)
        self._address, self._settings = address, settings
        self._encoder = codec.Encoder(settings)
        self._token = Token(settings.token, settings.audience)
        self._in_flight = InFlight("http", address.origin, late=self._late)
        self._answers = 0
        self._took = 0.0  # the last answer, in seconds
        self._to_send = threading.Condition()
        self._waiting: deque[PendingBatch] = deque()
        self._threads = self._idle = 0
        self._connections: list[Connection] = []
        self._context: ssl.SSLContext | None = None

    def check(self, *, deadline: float) -> None:
        """Ask which methods the resource has. Knative's specification allows that, and no event is sent."""
        self.check_open("looking for")
        connection = self._connection()
        watch = threading.Timer(max(0.0, deadline - time.monotonic()) + 1, connection.end_if_late)
        watch.daemon = True
        watch.start()
        try:
            with TABLE.while_doing(self.doing("looking for"), safe=True):
                response = self._exchange(connection, "OPTIONS", [], b"", deadline)
                answer = connection.refusal(response, deadline)
        finally:
            watch.cancel()
            connection.close()
        if answer.status in _TELLING:
            raise TABLE.error(answer, self.doing("looking for"), safe=True)

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        pending = self._in_flight.add(batch, deadline, kind=PendingBatch)
        with self._to_send:
            pending.answers = self._answers
            self._waiting.append(pending)
            rows = 1 if batch.isolate else self._settings.batch
            requests = -(-batch.length // rows)
            woken = min(requests, self._idle)
            self._idle -= woken  # here, as they wake later: the next batch must not count on them
            self._to_send.notify(woken)
            for _ in range(min(requests - woken, self._settings.concurrency - self._threads)):
                self._threads += 1
                threading.Thread(target=self._run, name=f"http-sender-{self._threads}", daemon=True).start()

    def collect(self, wait: float) -> Sequence[Settled]:
        for connection in self._connections:
            connection.end_if_late()
        return self._in_flight.collect(wait)

    def _late(self, sent: SentBatch) -> BrokerError | None:
        """Return why rows were not sent by their deadline: not by an outage, if the server answers, but slowly."""
        if sent.batch.ordered or not isinstance(sent, PendingBatch) or sent.answers == self._answers:
            return None
        return NotSent(f"http: {self.doing('sending to')}: the rows before this one took all the time of an attempt")

    def _release(self) -> None:
        with self._to_send:
            self._waiting.clear()
            self._to_send.notify_all()
        for connection in self._connections:  # else an answer without end keeps its thread for as long as the process
            connection.end()

    def _connection(self) -> Connection:
        """Return a new connection, which is not open yet. Raises BrokerError: a file of the TLS settings is no good."""
        with TABLE.while_doing(self.doing("preparing a connection to"), safe=True):
            if self._context is None:
                self._context = tls(self._settings, needed=self._settings.proxy is not None or self._is_https)
            made = Connection(self._address, self._settings, self._context)
            self._connections.append(made)  # at most one for each thread, and one for each check
            return made

    @property
    def _is_https(self) -> bool:
        return self._address.scheme == "https"

    def _exchange(
        self, connection: Connection, method: str, headers: codec.Wire, body: bytes, deadline: float
    ) -> httpx2.Response:
        """Send a request with the token; again if the server refuses a token that has been replaced since."""
        token = self._token.header()
        response = connection.request(method, _login(token) + headers, body, deadline)
        if response.status_code != HTTPStatus.UNAUTHORIZED:
            return response
        try:
            fresh = self._token.instead_of(token)
        except BrokerError:
            response.close()  # else the connection stays taken
            raise
        if not fresh:
            return response
        connection.drain(response, deadline)
        connection.finished()
        return connection.request(method, _login(fresh) + headers, body, deadline)

    # --- each in its own thread ---

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            while True:
                with self._to_send:
                    while not (taken := self._take()):
                        if self.is_closed:
                            return
                        self._idle += 1
                        self._to_send.wait()
                pending, rows = taken
                try:
                    connection = self._connection() if connection is None else connection
                    self._post(connection, pending, rows)
                except Exception as error:  # noqa: BLE001 - whatever it is, these rows failed with it
                    self._fail(pending, rows, error)
        finally:
            if connection is not None:
                connection.close()

    def _take(self) -> tuple[PendingBatch, range] | None:
        while self._waiting:
            pending = self._waiting[0]
            if not pending.is_settled:
                rows = pending.take(1 if pending.batch.isolate else self._settings.batch)
                if pending.next == pending.batch.length:
                    self._waiting.popleft()
                if rows:
                    return pending, rows
            else:
                self._waiting.popleft()
        return None

    def _post(self, connection: Connection, pending: PendingBatch, rows: range) -> None:
        if self._settings.batch > 1:
            self._post_events(connection, pending, rows)
            return
        for index in rows:
            try:
                headers, body = self._encoder.one(pending.batch.row(index))
            except Permanent as error:
                self._in_flight.failed(pending, index, error)
            else:
                self._request(connection, pending, [index], headers, body)

    def _post_events(self, connection: Connection, pending: PendingBatch, rows: range) -> None:
        """Post rows as few batches of events, none of them larger than a server takes."""
        indices: list[int] = []
        encoded: list[bytes] = []
        size = 0
        for index in rows:
            try:
                event = self._encoder.event(pending.batch.row(index))
            except Permanent as error:
                self._in_flight.failed(pending, index, error)
                continue
            if indices and size + len(event) > BATCH_BYTES:
                self._request(connection, pending, indices, *codec.batch(encoded))
                indices, encoded, size = [], [], 0
            indices.append(index)
            encoded.append(event)
            size += len(event)
        if indices:
            self._request(connection, pending, indices, *codec.batch(encoded))

    def _request(
        self, connection: Connection, pending: PendingBatch, rows: Sequence[int], headers: codec.Wire, body: bytes
    ) -> None:
        """Post a request with these rows, and settle them."""
        try:
            began = time.monotonic()
            if pending.deadline - began <= min(2 * self._took, _LAST * (pending.deadline - pending.began)):
                return  # no answer would come in time, and nobody would know; `collect` tells of the row
            if not all(self._in_flight.sent(pending, index) for index in rows):
                return
            response = self._exchange(connection, "POST", headers, body, pending.deadline)
            self._took = time.monotonic() - began
            self._answers += 1  # of threads that do so at once one may not count: it is only seen to grow
            if response.is_success:
                for index in rows:
                    self._in_flight.stored(pending, index)
                connection.drain(response, pending.deadline)
            else:
                self._fail(pending, rows, connection.refusal(response, pending.deadline))
        except Exception as error:  # noqa: BLE001 - whatever it is, these rows failed with it
            self._fail(pending, rows, error)
        finally:
            connection.finished()

    def _fail(self, pending: PendingBatch, rows: Sequence[int], error: object) -> None:
        """Settle rows as failed; a row that is settled already stays so."""
        told = error
        if not isinstance(error, BrokerError):
            told = TABLE.error(error, self.doing("sending to"), rows=len(rows))
        assert isinstance(told, BrokerError)  # noqa: S101 - for the type checker
        for index in rows:
            self._in_flight.failed(pending, index, told)


def _login(token: bytes) -> codec.Wire:
    return [(b"Authorization", token)] if token else []
