"""The receiver role: a lease is a receipt handle and its visibility timeout.

A lease that has run out by this process's monotonic clock is lost without asking: on a standard queue an old receipt
handle may still delete a message that another receiver holds. This file must not retry, nor decide that a message is
dead.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from redelivery.contract.broker import Accept, GiveBack, Outcome, Received, Receiver, Retry, Terminate
from redelivery.errors import Ambiguous, BrokerError, Fatal, LeaseLost
from redelivery_sqs import batches, encoding
from redelivery_sqs.address import Address
from redelivery_sqs.config import Settings, client, queue_url
from redelivery_sqs.errors import classified

#: The longest visibility timeout, counted from the receipt, in seconds.
LONGEST: Final = 43_200
#: Messages of one request, and the longest that SQS itself waits for the first, in seconds.
_MOST, _LONG_POLL = 10, 20
#: Seconds between looks where less than a second is left to wait: SQS waits whole seconds.
_LOOK: Final = 0.1
#: Seconds that an answer may have been on its way, for when a lease began that SQS gave after a wait.
_ON_THE_WAY: Final = 0.1
#: The part of a lease that may pass while further messages are asked for.
_GATHERING: Final = 0.25
_SECOND: Final = timedelta(seconds=1)


class Lease:
    """What a receiver holds of a message.

    Attributes:
        handle: SQS's receipt handle.
        begun: when it was received, monotonic seconds: never later than SQS thinks, but for `_ON_THE_WAY`.
        expires: when the lease runs out, monotonic seconds.
        group: of a FIFO queue's message.
        ended: whether it was settled.
    """

    __slots__ = ("begun", "ended", "expires", "group", "handle", "pid")

    def __init__(self, handle: str, begun: float, expires: float, group: str | None) -> None:
        self.handle = handle
        self.begun = begun
        self.expires = expires
        self.group = group
        self.ended = False
        self.pid = os.getpid()

    def is_valid(self) -> bool:
        """Whether it is still ours: one that came over a fork is the parent's."""
        return not self.ended and time.monotonic() < self.expires and self.pid == os.getpid()

    def seconds(self, wanted: float) -> int:
        """Whole seconds, never too few, as far as SQS lets a message be hidden since it was received."""
        most = LONGEST - math.ceil(time.monotonic() - self.begun)
        return max(0, min(math.ceil(wanted), most))


class SqsReceiver(Receiver):
    """Leases and settles the messages of one queue.

    Args:
        address: the queue.
        settings: of the client.
        lease: how long a lease lasts; whole seconds, rounded up, from 1 second to 12 hours.
    """

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:
        self._address = address
        self._settings = settings
        self._lease = min(max(1, -(-lease // _SECOND)), LONGEST)
        self._closed = threading.Event()

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self._check_open()
        end = time.monotonic() + wait
        # An answer must come before the client gives up waiting for it.
        longest = min(_LONG_POLL, int(self._settings.read_timeout / 2))
        while max_messages > 0:
            received = self._take(max_messages, max(0, min(longest, int(end - time.monotonic()))))
            left = end - time.monotonic()
            if received or left <= 0:
                return received
            if (left < 1 or not longest) and self._closed.wait(min(_LOOK, left)):
                break
        return []

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self._check_open()
        answers: list[LeaseLost | BrokerError | None] = [None] * len(outcomes)
        done: dict[int, Received] = {}
        again: dict[int, tuple[Received, float]] = {}
        letters: dict[int, tuple[Received, Terminate]] = {}
        taken: set[Lease] = set()
        end = time.monotonic() + batches.PATIENCE  # of all its requests: a network may hang
        for at, (received, outcome) in enumerate(outcomes):
            lease = received.lease
            if not isinstance(lease, Lease) or lease in taken or not lease.is_valid():
                answers[at] = self._lost(received)
                continue
            taken.add(lease)
            match outcome:
                case Accept():
                    done[at] = received
                case Terminate():
                    letters[at] = (received, outcome)
                case Retry(delay):
                    again[at] = (received, delay.total_seconds())
                case GiveBack():
                    again[at] = (received, 0.0)
        for at, refused in self._bury(letters, end).items():
            if refused is None:
                done[at] = letters[at][0]
            else:
                answers[at] = refused
        self._delete(done, answers, end)
        self._show_again(again, answers, end)
        return answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        self._check_open()
        asked = {
            at: each.lease for at, each in enumerate(leases) if isinstance(each.lease, Lease) and each.lease.is_valid()
        }
        now = time.monotonic()
        lasting = {at: lease.seconds(seconds) for at, lease in asked.items()}
        told = self._visibility({at: (lease, lasting[at]) for at, lease in asked.items()}, "prolonging leases of")
        failed = [error for error in told.values() if error is not None and not batches.is_lost(error)]
        if failed and len(failed) == len(told):
            raise failed[0]
        answers: list[Received | LeaseLost] = []
        for at, received in enumerate(leases):
            if at not in told or batches.is_lost(told[at]):
                answers.append(self._lost(received))
            elif told[at] is not None:
                answers.append(received)  # as long as it was: whoever asked sees that, and may ask again
            else:
                asked[at].expires = now + lasting[at]
                answers.append(replace(received, expires=asked[at].expires))
        return answers

    def close(self) -> None:
        """What is leased stays so until its lease ends: somebody may still be handling it."""
        self._closed.set()

    # --- receiving ---

    def _take(self, most: int, wait: int) -> list[Received]:
        received = self._request(min(_MOST, most), wait)
        until = time.monotonic() + self._lease * _GATHERING
        came = len(received)
        while came == _MOST and len(received) < most and time.monotonic() < until:
            try:
                more = self._request(min(_MOST, most - len(received)), 0)
            except BrokerError:
                break  # what came is leased; who asks again is told
            received += more
            came = len(more)
        return received

    def _request(self, most: int, wait: int) -> list[Received]:
        url = self._url()
        before = time.monotonic()
        with classified(self._doing("receiving from")):
            answer = client(self._address, self._settings).receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=wait,
                VisibilityTimeout=self._lease,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
        begun = max(before, time.monotonic() - _ON_THE_WAY) if wait else before
        return [self._received(raw, begun) for raw in answer.get("Messages") or ()]

    def _received(self, raw: Mapping[str, Any], begun: float) -> Received:
        attributes: Mapping[str, str] = raw.get("Attributes") or {}
        message, fault = encoding.decode(raw)
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

    def _delete(self, done: Mapping[int, Received], answers: list[LeaseLost | BrokerError | None], end: float) -> None:
        if not done:
            return
        entries = [{"ReceiptHandle": received.lease.handle} for received in done.values()]
        call, doing = self._call("delete_message_batch"), self._doing("deleting from")
        told = batches.each(call, self._url(), entries, doing, end=end)
        for (at, received), answer in zip(done.items(), told, strict=True):
            answers[at] = self._ended(received, answer)

    def _show_again(
        self, again: Mapping[int, tuple[Received, float]], answers: list[LeaseLost | BrokerError | None], end: float
    ) -> None:
        asked = {at: (received.lease, received.lease.seconds(delay)) for at, (received, delay) in again.items()}
        told = self._visibility(asked, "giving back to", end)
        for at, (received, _) in again.items():
            answers[at] = self._ended(received, told[at])

    def _visibility(
        self, asked: Mapping[int, tuple[Lease, int]], what: str, end: float | None = None
    ) -> dict[int, batches.Answer]:
        if not asked:
            return {}
        entries = [{"ReceiptHandle": lease.handle, "VisibilityTimeout": seconds} for lease, seconds in asked.values()]
        call = self._call("change_message_visibility_batch")
        return dict(zip(asked, batches.each(call, self._url(), entries, self._doing(what), end=end), strict=True))

    def _ended(self, received: Received, answer: batches.Answer) -> LeaseLost | BrokerError | None:
        lost = batches.is_lost(answer)
        received.lease.ended = answer is None or lost
        return self._lost(received) if lost else answer

    def _bury(self, letters: Mapping[int, tuple[Received, Terminate]], end: float) -> dict[int, BrokerError | None]:
        """Send letters to the dead letter queue; what became of each."""
        if not letters:
            return {}
        place = self._address.dead_letters
        doing = f"sending letters to queue {place.queue!r}"
        answers: dict[int, BrokerError | None] = {}
        batch: dict[int, dict[str, Any]] = {}
        size = 0
        try:
            url = queue_url(place, self._settings)
        except BrokerError as error:
            return dict.fromkeys(letters, error)

        def flush() -> None:
            call = self._call("send_message_batch")
            answers.update(zip(batch, batches.each(call, url, list(batch.values()), doing, end=end), strict=True))
            batch.clear()

        for at, (received, outcome) in letters.items():
            try:
                letter = encoding.encode(outcome.letter, self._settings.max_message_bytes)
            except BrokerError as error:
                answers[at] = error
                continue
            if len(batch) == batches.MOST or (batch and size + letter.size > self._settings.max_message_bytes):
                flush()
                size = 0
            size += letter.size
            batch[at] = {"MessageBody": letter.body, "MessageAttributes": letter.attributes}
            if place.fifo:
                # Without an identity by SQS's own id of the message: one that is buried again is one letter, and two
                # messages under one id of ours are two.
                known_by = encoding.token(outcome.letter.identity or received.position)
                batch[at] |= {"MessageGroupId": received.lease.group, "MessageDeduplicationId": known_by}
        if batch:
            flush()
        return {at: _of_letter(answer) for at, answer in answers.items()}

    # --- words ---

    def _call(self, name: str) -> Callable[..., Mapping[str, Any]]:
        found: Callable[..., Mapping[str, Any]] = getattr(client(self._address, self._settings), name)
        return found

    def _url(self) -> str:
        return queue_url(self._address, self._settings)

    def _check_open(self) -> None:
        if self._closed.is_set():
            text = "this receiver is closed; open another (what it leased comes back when the leases end)"
            raise Fatal(f"sqs: {self._doing('receiving from')}: {text}", code="CLOSED")

    def _lost(self, received: Received) -> LeaseLost:
        text = "its lease has run out, is another process's, or was settled before; nothing was changed"
        return LeaseLost(f"sqs: message {received.position} of queue {self._address.queue!r}: {text}")

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._address.queue!r}"


def _of_letter(answer: BrokerError | None) -> BrokerError | None:
    """A letter that may be there: its message is kept, so there may be two."""
    if isinstance(answer, Ambiguous):
        return Ambiguous(f"{answer}; its message is kept, so that it may be dead-lettered twice", code=answer.code)
    return answer
