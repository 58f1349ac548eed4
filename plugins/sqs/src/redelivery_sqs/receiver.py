"""The receiver role: a lease is a receipt handle and its visibility timeout.

A lease that has expired by this process's monotonic clock is lost without a request: on a standard queue an old receipt
handle may still delete a message that another receiver holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.errors import BrokerError, LeaseLost
from redelivery.kit.leases import Lease as KitLease
from redelivery.kit.leases import Settlement, answer_extend, is_held, lost
from redelivery.kit.roles import Resource
from redelivery_sqs import codec
from redelivery_sqs.address import Address
from redelivery_sqs.client import batch_requests
from redelivery_sqs.client.batch_requests import Answer, is_lost
from redelivery_sqs.client.limits import MAX_ENTRIES
from redelivery_sqs.client.queue import Queue
from redelivery_sqs.options import Settings

#: The longest visibility timeout, counted from the receipt, in seconds.
MAX_HIDDEN: Final = 43_200
#: The longest that SQS itself waits for a message, in seconds.
_LONG_POLL: Final = 20
#: Seconds between requests if less than a second of the wait remains: SQS waits whole seconds.
_POLL: Final = 0.1
#: Seconds that an answer may take to arrive; an answer after a long poll gives no better bound for a lease's beginning.
_ANSWER_SECONDS: Final = 0.1
#: The part of a lease that may pass while further messages are requested.
_GATHERING: Final = 0.25
_SECOND: Final = timedelta(seconds=1)


class Lease(KitLease):
    """The right to settle a message.

    Attributes:
        handle: SQS's receipt handle.
        begun: when it was received, monotonic seconds: not later than SQS's own time, but for `_ANSWER_SECONDS`.
        group: of a FIFO queue's message.
    """

    __slots__ = ("begun", "group", "handle")

    def __init__(self, handle: str, begun: float, expires: float, group: str | None) -> None:
        super().__init__(expires)
        self.handle = handle
        self.begun = begun
        self.group = group

    def seconds(self, wanted: float) -> int:
        """Return whole seconds, rounded up, at most as long as SQS hides a message after its receipt."""
        most = MAX_HIDDEN - math.ceil(time.monotonic() - self.begun)
        return max(0, min(math.ceil(wanted), most))


class SqsReceiver(Resource, Receiver):
    """Leases and settles the messages of one queue. Closing it leaves the leases: a handler may still be at work.

    Args:
        address: the queue.
        settings: of the client.
        lease: duration of a lease; whole seconds, rounded up, from 1 second to 12 hours.
    """

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:
        super().__init__("sqs", f"queue {address.queue!r}")
        self._queue = Queue(address, settings)
        self._dead_letters = Queue(address.dead_letters, settings)
        self._lease = min(max(1, -(-lease // _SECOND)), MAX_HIDDEN)
        self._width = 1  # requests side by side

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        end = time.monotonic() + wait
        # The answer must arrive before the client stops waiting for it.
        longest = min(_LONG_POLL, int(self._queue.settings.read_timeout / 2))
        while max_messages > 0:
            received = self._receive(max_messages, max(0, min(longest, int(end - time.monotonic()))))
            left = end - time.monotonic()
            if received or left <= 0:
                return received
            if (left < 1 or not longest) and self.sleep_unless_closed(min(_POLL, left)):
                break
        return []

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling messages of")
        end = time.monotonic() + batch_requests.PATIENCE  # for all requests together: the network may hang
        call = Settlement(outcomes, is_held, self._lost)
        call.answer_failed_copies(self._failed_letters(call.waiting(Terminate), end))
        done = call.waiting(Accept, Terminate)
        bounds = {"end": end, "concurrency": self._queue.settings.concurrency}
        deleted = self._queue.delete("deleting from", [received.lease.handle for _, (received, _) in done], **bounds)
        self._answer(call, done, deleted)
        again = call.waiting(Retry, Release)
        hidden = [(each.lease.handle, each.lease.seconds(_delay(outcome))) for _, (each, outcome) in again]
        self._answer(call, again, self._queue.hide("giving back to", hidden, **bounds))
        return call.answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        self.check_open("prolonging leases of")
        valid = {at: each.lease for at, each in enumerate(leases) if is_held(each)}
        now = time.monotonic()
        lasting = {at: lease.seconds(seconds) for at, lease in valid.items()}
        asked = [(lease.handle, lasting[at]) for at, lease in valid.items()]
        concurrency = self._queue.settings.concurrency
        told = dict(zip(valid, self._queue.hide("prolonging leases of", asked, concurrency=concurrency), strict=True))
        ends = {at: now + lasting[at] if error is None else error for at, error in told.items() if not is_lost(error)}
        return answer_extend(leases, ends, self._lost)

    # --- receiving ---

    def _receive(self, count: int, wait: int) -> list[Received]:
        """Make requests side by side: twice as many after each that came back full, and one after any other."""
        until = time.monotonic() + self._lease * _GATHERING
        received: list[Received] = []
        while not received or (len(received) < count and time.monotonic() < until):
            width, self._width = self._width, 1
            left = min(count - len(received), MAX_ENTRIES * width)
            counts = [min(MAX_ENTRIES, left - start) for start in range(0, left, MAX_ENTRIES)]
            more = self._request(counts, 0 if received else wait, received)
            received += more
            if len(more) < left:
                break
            self._width = min(2 * width, self._queue.settings.concurrency)
        return received

    def _request(self, counts: Sequence[int], wait: int, had: Sequence[Received] = ()) -> list[Received]:
        """Receive these numbers of messages. An error is raised only if nothing was received, before or now."""
        receipts, failed = self._queue.receive_each(
            "receiving from", counts, wait=wait, hidden=self._lease, concurrency=len(counts)
        )
        received = [
            self._received(raw, max(each.before, each.after - _ANSWER_SECONDS) if wait else each.before)
            for each in receipts
            for raw in each.messages
        ]
        if failed is not None and not (received or had):
            raise failed
        return received  # what was received is leased; the next call meets the error

    def _received(self, raw: Mapping[str, Any], begun: float) -> Received:
        attributes: Mapping[str, str] = raw.get("Attributes") or {}
        message, fault = codec.decode(raw)
        first = attributes.get("ApproximateFirstReceiveTimestamp")
        lease = Lease(raw["ReceiptHandle"], begun, begun + self._lease, attributes.get("MessageGroupId"))
        return Received(
            message=message,
            attempt=max(1, int(attributes.get("ApproximateReceiveCount", 1))),
            lease=lease,
            expires=lease.expires,
            position=raw["MessageId"],
            lasting=True,
            first_ms=int(first) if first else None,
            undecodable=fault,
        )

    # --- settling ---

    @staticmethod
    def _answer(call: Settlement, outcomes: Sequence[tuple[int, Any]], answers: Sequence[Answer]) -> None:
        for (at, _), answer in zip(outcomes, answers, strict=True):
            if is_lost(answer):
                call.lose(at)
            else:
                call.answer(at, answer)

    def _failed_letters(
        self, letters: Sequence[tuple[int, tuple[Received, Terminate]]], end: float
    ) -> dict[int, BrokerError]:
        """Send letters to the dead letter queue; the errors of those that were not confirmed."""
        queue = self._dead_letters
        failed: dict[int, BrokerError] = {}
        entries: dict[int, dict[str, Any]] = {}
        size = 0

        def send() -> None:
            sent = queue.request_each("send_message_batch", "sending letters to", list(entries.values()), end=end)
            failed.update((at, error) for at, error in zip(entries, sent, strict=True) if error is not None)
            entries.clear()

        try:
            _ = queue.url if letters else ""
        except BrokerError as error:
            return {at: error for at, _ in letters}
        for at, (received, outcome) in letters:
            try:
                letter = codec.encode(outcome.letter, queue.settings.max_message_bytes)
            except BrokerError as error:
                failed[at] = error
                continue
            if len(entries) == MAX_ENTRIES or (entries and size + letter.size > queue.settings.max_message_bytes):
                send()
                size = 0
            size += letter.size
            entries[at] = letter.entry
            if letter.bare:
                codec.warn_of_bare(queue.address.queue)
            if not queue.address.fifo:
                entries[at] |= codec.group_fields(None, received.lease.group)
            else:
                # A letter without an identity has SQS's own id of its message: terminating one message twice makes one
                # letter, and two messages with the same id of ours make two.
                known_by = codec.deduplication_id(outcome.letter.identity or received.position)
                entries[at] |= {"MessageGroupId": received.lease.group, "MessageDeduplicationId": known_by}
        send()
        return failed

    def _lost(self, received: Received) -> LeaseLost:
        return lost("sqs", f"queue {self._queue.address.queue!r}", received)


def _delay(outcome: object) -> float:
    return outcome.delay.total_seconds() if isinstance(outcome, Retry) else 0.0
