"""The receiver role: messages are pulled from a durable consumer; a lease is the consumer's time to acknowledge.

The server takes an acknowledgement also when that time is over and another receiver has the message, so the clock here
decides: a lease that has ended is lost without a request. The server's clock begins when it sends a message, so ours
begins before the request.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Retry, Source, Terminate
from redelivery.errors import Ambiguous, BrokerError, Fatal, LeaseLost
from redelivery.kit.errors import Code
from redelivery.kit.leases import Lease as KitLease
from redelivery.kit.leases import Settlement, answer_extend, is_held, lost
from redelivery_nats import codec
from redelivery_nats.address import Address
from redelivery_nats.client.asking import PATIENCE, Asking, Request
from redelivery_nats.client.connection import Connection, command, payload_of, stored
from redelivery_nats.errors import NOBODY, TABLE, StatusError
from redelivery_nats.options import Settings

#: Seconds that one pull waits on the server, and the part of a lease that may pass in it, and between two looks at the
#: consumer: an operator may change it.
_LONGEST: Final = 5.0
_PART: Final = 0.25
#: Seconds that an answer may take beyond that.
_ROUND_TRIP: Final = 5.0
_NANO: Final = 1_000_000_000
#: Seconds that a pull waits for what is there. `no_wait` would have no answer where a message was delivered too often:
#: seen on 2.9.25, 2.10.29, 2.11.0 and 2.12.0, not on 2.15.1.
_AT_ONCE: Final = 0.01
#: Statuses that end a pull without an error: no message, the end of its time.
_ENDS: Final = frozenset({404, 408})
#: The tokens of the subject of an acknowledgement that has no domain and no account; others may be longer:
#: $JS.ACK.[domain.account.]STREAM.CONSUMER.DELIVERED.STREAM_SEQUENCE.CONSUMER_SEQUENCE.NANOSECONDS.PENDING[.random...]
_SHORT: Final = 9


class Lease(KitLease):
    """The right to settle a message: `reply` is the subject of its acknowledgement, `attempt` counts its deliveries."""

    __slots__ = ("attempt", "reply")

    def __init__(self, expires: float, reply: str, attempt: int) -> None:
        super().__init__(expires)
        self.reply = reply
        self.attempt = attempt


class NatsReceiver(Asking, Receiver):
    """Leases the messages of a stream by its consumer."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings)
        self._place = f"stream {address.stream!r}, consumer {address.consumer!r}"
        self._next = f"{settings.api_prefix}.CONSUMER.MSG.NEXT.{address.stream}.{address.consumer}"
        self._arrived: list[tuple[bytes, bytes, bytes, bytes | None]] = []
        self._ended: Exception | None = None
        self._changed = threading.Condition()
        #: The lease's length in seconds, by the number of the delivery; the last one counts for all further.
        self._waits = [0.0]
        #: When the consumer was looked at, monotonic seconds.
        self._looked = -math.inf

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        end = time.monotonic() + wait
        if max_messages <= 0:
            return []
        received = self._pull(max_messages, _AT_ONCE)
        while not received and (left := end - time.monotonic()) > 0:
            received = self._pull(1, min(left, _LONGEST, _PART * min(self._waits)))
            if received and max_messages > 1:
                received += self._pull(max_messages - 1, _AT_ONCE)
        return received

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling messages of")
        end = time.monotonic() + PATIENCE  # for all requests together
        call = Settlement(outcomes, is_held, self._lost)
        call.answer_failed_copies(self._failed_letters(call.waiting(Terminate), end))
        rest = call.waiting()
        requests = [(received.lease.reply, _word(outcome), b"") for _, (received, outcome) in rest]
        for (at, _), answer in zip(rest, self._ask("settling messages of", requests, end=end), strict=True):
            call.answer(at, self._error(answer, "settling messages of"))
        return call.answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002 - `leases_as_asked`
        self.check_open("prolonging leases of")
        self._look_at_consumer()
        valid = {at: each.lease for at, each in enumerate(leases) if is_held(each)}
        begun = time.monotonic()
        answers = self._ask("prolonging leases of", [(lease.reply, b"+WPI", b"") for lease in valid.values()])
        ends: dict[int, float | BrokerError | None] = {}
        for (at, lease), answer in zip(valid.items(), answers, strict=True):
            ends[at] = self._error(answer, "prolonging leases of") or begun + self._lasts(lease.attempt)
        return answer_extend(leases, ends, self._lost)

    def _new_connection(self) -> Connection:
        self._looked = -math.inf
        return Connection(self._address, self._settings, self._place, on_delivery=self._deliver, on_lost=self._cut)

    # --- receiving ---

    def _look_at_consumer(self) -> None:
        """Learn how long leases last. Raises BrokerError: the consumer does not exist, or cannot be pulled from."""
        self._connected()
        now = time.monotonic()
        if now < self._looked + _PART * min(self._waits):
            return
        what = f"CONSUMER.INFO.{self._address.stream}.{self._address.consumer}"
        config = self._api("receiving from", what)["config"]
        if config.get("deliver_subject") or config.get("headers_only") or config.get("ack_policy") != "explicit":
            text = "is not a pull consumer with explicit acknowledgements and whole messages; name another in the URL"
            raise Fatal(f"nats: {self.doing('receiving from')}: this consumer {text}", code=Code.MISCONFIGURED)
        self._waits = [each / _NANO for each in config.get("backoff") or [config["ack_wait"]]]
        self._looked = now

    def _lasts(self, attempt: int) -> float:
        """Return the length of the lease of a message's delivery, seconds."""
        return self._waits[min(max(1, attempt), len(self._waits)) - 1]

    def _pull(self, count: int, seconds: float) -> list[Received]:
        """Ask for messages, and return them when all are there, or the server says that it has no more."""
        self._look_at_consumer()
        connection = self._connected()
        body = {"batch": count, "expires": _nanos(seconds)}
        self._arrived, self._ended = [], None
        begun = time.monotonic()
        reply = connection.expect(self._end, self._next)
        connection.write(command(self._next, reply, json.dumps(body).encode()))
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._ended is not None or len(self._arrived) >= count, seconds + _ROUND_TRIP
            )
            arrived, ended = self._arrived, self._ended
        connection.forget(reply)
        if not done:
            self._release()  # what comes now would be counted for another pull
            ended = TimeoutError("no answer in time")
        is_end = isinstance(ended, StatusError) and ended.status in _ENDS
        if not arrived and ended is not None and not is_end:
            raise self._pull_error(ended)
        return [each for raw in arrived if (each := self._received(raw, begun)) is not None]

    def _pull_error(self, error: Exception) -> BrokerError:
        self._looked = -math.inf  # the consumer may have been deleted, or made again
        if isinstance(error, StatusError) and error.status == NOBODY:
            self._look_at_consumer()  # it may exist, and its leader move to another server
            error = StatusError(409, "the consumer does not answer now")
        return TABLE.error(
            error, self.doing("receiving from"), safe=True, needs=f"the right to publish to {self._next}"
        )

    def _received(self, raw: tuple[bytes, bytes, bytes, bytes | None], begun: float) -> Received | None:
        subject, reply, payload, headers = raw
        settles = reply.decode("utf-8", "replace")
        found = delivery(settles)
        if found is None:
            return None  # it came from nobody's stream
        attempt, sequence, stamp = found
        message, fault = codec.decode(headers, payload)
        under = subject.decode("utf-8", "replace")
        if under != self._address.subject:
            message = replace(message, destination=under)
        lasts = self._lasts(attempt)
        return Received(
            message=message,
            attempt=max(1, attempt),
            lease=Lease(begun + lasts, settles, attempt),
            expires=begun + lasts,
            position=f"{sequence}-{stamp}",
            lasting=True,
            undecodable=fault,
            source=Source(topic=self._address.stream, offset=sequence),
        )

    # --- in the connection's thread ---

    def _deliver(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes | None) -> None:
        with self._changed:
            self._arrived.append((subject, reply, payload, headers))
            self._changed.notify_all()

    def _end(self, answer: bytes | Exception, _one: Any, _other: Any) -> None:
        self._cut(answer if isinstance(answer, Exception) else StatusError(404, "no message"))

    def _cut(self, error: Exception) -> None:
        with self._changed:
            self._ended = error
            self._changed.notify_all()

    # --- settling ---

    def _failed_letters(
        self, letters: Sequence[tuple[int, tuple[Received, Terminate]]], end: float
    ) -> dict[int, BrokerError]:
        """Send letters to the dead letter stream; return the errors of those that were not confirmed."""
        subject = self._address.dead_letters.subject
        failed: dict[int, BrokerError] = {}
        most = self._largest(self._connected()) if letters else 0
        requests: dict[int, Request] = {}
        silent: BrokerError | None = None
        for at, (received, outcome) in letters:
            each = outcome.letter
            # Without an identity of its own it has the message's place: terminated twice, it is one letter.
            known_by = each.identity or f"{self._address.stream}-{received.position}"
            try:
                block, payload = codec.encode(
                    each.value,
                    each.key,
                    each.headers,
                    each.id,
                    known_by,
                    each.timestamp_ms,
                    most=most,
                )
                requests[at] = (subject, payload, block)
            except BrokerError as error:
                failed[at] = error
        if requests:
            answers = self._ask("sending letters of", list(requests.values()), end=end)
            for at, answer in zip(requests, answers, strict=True):
                refused = self._error(answer, "sending letters of", rows=1, is_stored=True)
                if isinstance(answer, StatusError) and answer.status == NOBODY:
                    silent = silent or self._nobody("sending letters of", subject, answer)
                    refused = silent
                if refused is not None:
                    failed[at] = refused
        return failed

    def _error(
        self, answer: bytes | Exception, doing: str, *, rows: int = 0, is_stored: bool = False
    ) -> BrokerError | None:
        """Return the error that an answer stands for; None: it was done."""
        try:
            _ = stored(answer, self._address.dead_letters.stream) if is_stored else payload_of(answer)
        except Exception as error:  # noqa: BLE001 - the table sorts it
            told = TABLE.error(error, self.doing(doing), rows=rows)
            return told if is_stored or not isinstance(error, StatusError) else told.reclassified(Ambiguous)
        return None

    def _lost(self, received: Received) -> LeaseLost:
        return lost("nats", f"stream {self._address.stream!r}", received)


def delivery(reply: str) -> tuple[int, int, str] | None:
    """Return the number of a delivery, the message's sequence and its time, of the subject of its acknowledgement."""
    tokens = reply.split(".")
    at = 4 if len(tokens) == _SHORT else 6
    try:
        return int(tokens[at]), int(tokens[at + 1]), tokens[at + 3]
    except (ValueError, IndexError):
        return None


def _word(outcome: Outcome) -> bytes:
    """Return what is sent to the subject of a message's acknowledgement."""
    if isinstance(outcome, Accept | Terminate):
        return b"+ACK"
    if isinstance(outcome, Retry) and outcome.delay > timedelta(0):
        return b'-NAK {"delay": %d}' % _nanos(outcome.delay.total_seconds())
    return b"-NAK"


def _nanos(seconds: float) -> int:
    return max(1_000_000, math.ceil(seconds * _NANO))
