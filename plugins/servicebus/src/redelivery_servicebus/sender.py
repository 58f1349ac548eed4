"""The sender role: batches of the SDK, each filled to the link's own limit.

Storing is done within `send`, bounded by its deadline: the SDK blocks, and its own encoding holds the interpreter's
lock for nearly all of the time, so a thread of ours would gain nothing. This file must not retry.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from redelivery.base.urls import quoted
from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Unattributed
from redelivery_servicebus.address import Address, fault
from redelivery_servicebus.client.connection import client
from redelivery_servicebus.client.links import Link
from redelivery_servicebus.codec import SCHEDULED, Encoded, encode_row, scheduled
from redelivery_servicebus.errors import classified, is_target
from redelivery_servicebus.options import Settings

#: Messages that Service Bus takes in one batch.
BATCH: Final = 4_500
#: Links to queues that rows name, kept open at once.
_LINKS: Final = 32
#: Seconds below which no further request is begun.
_LEAST: Final = 0.05

Row = tuple[int, Encoded]


class ServicebusSender(Sender):
    """Sends batches to the queue of `address`, or to the one that a row names."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._client: ServiceBusClient | None = None
        self._links: dict[str, Link[ServiceBusSender]] = {}
        self._settled: list[Settled] = []
        self._closed = False

    def check(self, *, deadline: float) -> None:
        self._link(self._address.queue).open(max(_LEAST, deadline - time.monotonic()))

    def send(self, batch: Batch, *, deadline: float) -> None:
        doing = f"sending to queue {self._address.queue!r}"
        if self._closed:
            raise Fatal(f"servicebus: {doing}: this sender is closed; open another", native_code="CLOSED")
        if time.monotonic() >= deadline:
            raise Retriable(f"servicebus: {doing}: the deadline had passed; nothing was sent", native_code="DEADLINE")
        failures: list[Failure] = []
        for queue, rows in self._encoded(batch, failures).items():
            failures += _Run(self._link(queue), batch.isolate, deadline, self._settings, self._is_own(queue)).store(
                rows
            )
        self._settled.append(Settled(batch=batch.number, failures=failures))

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - nothing is ever waited for
        settled, self._settled = self._settled, []
        return settled

    def close(self) -> None:
        self._closed = True
        self._settled.clear()
        for link in self._links.values():
            link.drop()
        self._links.clear()

    def _encoded(self, batch: Batch, failures: list[Failure]) -> dict[str, list[Row]]:
        """Each row as it travels, by queue; what cannot travel is a failure."""
        nothing = [None] * batch.length
        keys, headers, ids, stamps, targets = (
            nothing if column is None else column.values
            for column in (batch.key, batch.headers, batch.id, batch.timestamp_ms, batch.destination)
        )
        identities = nothing if batch.identity is None else batch.identity.values
        dues = batch.extra[SCHEDULED].values if SCHEDULED in batch.extra else nothing
        most = self._settings.max_message_bytes
        queues: dict[str, list[Row]] = {}
        values = zip(batch.value.values, keys, headers, ids, stamps, targets, dues, identities, strict=True)
        for index, (value, key, pairs, id_, stamp, target, due, identity) in enumerate(values):
            queue = self._address.queue if target is None else target
            wrong = None if target is None else fault(target)
            if wrong is not None:
                text = f"servicebus: this row cannot be sent to {quoted(target)}: {wrong}"
                failures.append(Failure(index, Permanent(text, native_code="NAME")))
                continue
            try:
                encoded = encode_row(value, key, pairs, id_, stamp, most, identity=identity)
                if due is not None:
                    encoded = scheduled(encoded, due)
            except Permanent as error:
                failures.append(Failure(index, error))
            else:
                queues.setdefault(queue, []).append((index, encoded))
        return queues

    def _link(self, queue: str) -> Link[ServiceBusSender]:
        link = self._links.pop(queue, None)
        if link is None:
            if len(self._links) >= _LINKS:
                self._links.pop(next(iter(self._links))).drop()
            found = self._client = self._client or client(self._address, self._settings)
            patience = self._settings.operation_timeout
            link = Link(lambda: found.get_queue_sender(queue), f"sending to queue {queue!r}", "Send", patience)
        self._links[queue] = link
        return link

    def _is_own(self, queue: str) -> bool:
        return queue.lower() == self._address.queue.lower()


class _Run:
    """Some rows on their way to one queue."""

    def __init__(
        self,
        link: Link[ServiceBusSender],
        isolate: bool,  # noqa: FBT001 - the contract's own word
        deadline: float,
        settings: Settings,
        own: bool,  # noqa: FBT001 - whether it is the URL's own queue
    ) -> None:
        self._link = link
        self._isolate = isolate
        self._deadline = deadline
        self._settings = settings
        self._own = own
        self._failures: list[Failure] = []
        self._group: ServiceBusMessageBatch | None = None
        self._rows: list[int] = []  # of the batch at hand
        self._stop: BrokerError | None = None  # why nothing more is tried

    def store(self, rows: Sequence[Row]) -> list[Failure]:
        """Send them; what failed."""
        for index, encoded in rows:
            message = outgoing(encoded)
            if self._isolate:
                self._send(message, [index])
            elif not self._add(message, index):
                self._flush()
                if not self._add(message, index):  # larger than a batch may be, and perhaps not than a message may be
                    self._send(message, [index])
        self._flush()
        return self._failures

    def _add(self, message: ServiceBusMessage, index: int) -> bool:
        """Put it into the batch at hand; False where there is no room."""
        if self._group is None:
            handler = self._handler()
            if handler is None:
                return False
            self._group = handler.create_message_batch()
        if len(self._rows) >= BATCH:
            return False
        try:
            self._group.add_message(message)
        except MessageSizeExceededError:
            return False
        self._rows.append(index)
        return True

    def _flush(self) -> None:
        group, rows = self._group, self._rows
        self._group, self._rows = None, []
        if group is not None and rows:
            self._send(group, rows)

    def _handler(self) -> ServiceBusSender | None:
        """The open link; None once nothing more is tried."""
        if self._stop is None:
            left = self._deadline - time.monotonic()
            if left < _LEAST:
                text = f"servicebus: {self._link.doing}: the deadline came before it was sent"
                self._stop = Retriable(text, native_code="DEADLINE")
            else:
                try:
                    return self._link.open(min(left, self._settings.operation_timeout))
                except BrokerError as error:
                    self._stop = self._attributed(error)
        return None

    def _send(self, what: ServiceBusMessage | ServiceBusMessageBatch, rows: list[int]) -> None:
        handler = self._handler()
        if handler is None:
            self._fail(rows, self._stop or Retriable("servicebus: not tried", native_code="NOT_TRIED"))
            return
        left = min(self._deadline - time.monotonic(), self._settings.operation_timeout)
        try:
            with classified(self._link.doing, claim="Send"):
                handler.send_messages(what, timeout=max(left, _LEAST))
        except BrokerError as error:
            if not isinstance(error.__cause__, MessageSizeExceededError):
                self._link.drop()
            alone = len(rows) == 1 and isinstance(error, Unattributed)
            if alone:
                found: BrokerError = error.reclassified(Permanent)
                found.__cause__ = error.__cause__
            else:
                found = self._attributed(error)
            self._fail(rows, found)
            if isinstance(found, Ambiguous | Fatal | Retriable):
                self._stop = _untried(found, self._link.doing)

    def _attributed(self, error: BrokerError) -> BrokerError:
        """A row's own missing queue is no other row's."""
        if self._own or not is_target(error):
            return error
        found = error.reclassified(Permanent)
        found.__cause__ = error.__cause__
        return found

    def _fail(self, rows: list[int], error: BrokerError) -> None:
        self._failures += [Failure(index, error) for index in rows]


def outgoing(encoded: Encoded) -> ServiceBusMessage:
    """As the SDK sends it."""
    properties: dict[str | bytes, Any] = dict(encoded.properties.items())
    return ServiceBusMessage(
        encoded.body,
        message_id=encoded.message_id,
        content_type=encoded.content_type,
        application_properties=properties or None,
        scheduled_enqueue_time_utc=encoded.due,
    )


def _untried(error: BrokerError, doing: str) -> BrokerError:
    """What is said of rows behind a request that failed: nothing happened to them."""
    if not isinstance(error, Ambiguous):
        return error
    return Retriable(f"servicebus: {doing}: not tried, as what went before has failed", native_code="NOT_TRIED")
