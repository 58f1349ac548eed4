"""The sender role: batches of the SDK, each filled to the link's own limit.

Messages are stored within `send`, by its deadline: the SDK blocks, and its encoding holds the interpreter's lock nearly
all of that time, so that another thread would gain nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from redelivery.codes import Code
from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch, Column
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.address import quoted
from redelivery.kit.in_flight import FailedKeys, SettledBatches, time_left
from redelivery.kit.roles import Resource
from redelivery_servicebus.address import Address, why_invalid
from redelivery_servicebus.admin import ServicebusAdmin
from redelivery_servicebus.client.connection import Namespace
from redelivery_servicebus.client.limits import BATCH, SCHEDULED
from redelivery_servicebus.client.links import Link
from redelivery_servicebus.codec import Encoded, encode_row, in_session, outgoing, scheduled
from redelivery_servicebus.errors import is_denied
from redelivery_servicebus.options import Settings

#: Bytes of a batch that stay free: the SDK counts a few less than it sends, and then the whole batch is refused.
_MARGIN: Final = 256
#: Links to queues that rows name, kept open at once.
_LINKS: Final = 32
#: Seconds below which no request is begun.
_LEAST: Final = 0.05

Row = tuple[int, Encoded]


class ServicebusSender(Resource, Sender):
    """Sends batches to the queue of `address`, or to the queue that a row names."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("servicebus", f"queue {address.queue!r}")
        self._address = address
        self._settings = settings
        self._namespace = Namespace(address, settings)
        self._links: dict[str, Link[ServiceBusSender]] = {}
        self._settled = SettledBatches()
        self._failed_keys = FailedKeys("servicebus")
        self._checked: set[str] = set()

    def check(self, *, deadline: float) -> None:
        self.check_open("sending to")
        self._link(self._address.queue).open(max(_LEAST, deadline - time.monotonic()))

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        time_left(deadline, f"servicebus: {self.doing('sending to')}")
        failures: dict[int, BrokerError] = {}
        encoded = self._encoded(batch, failures, deadline)
        order = _Order(batch, self._failed_keys, failures) if batch.ordered and self._address.sessions else None
        for queue, rows in encoded.items():
            upload = _Upload(self._link(queue), deadline, self._settings.operation_timeout, failures, order)
            upload.send(rows, isolate=batch.isolate)
        if order is not None:
            self._failed_keys.remember(batch, failures)
        self._settled.add(batch, failures)

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - `send` has settled everything
        self._failed_keys.clear()
        return self._settled.take()

    def _release(self) -> None:
        self._settled.take()
        for link in self._links.values():
            link.drop()

    def _encoded(self, batch: Batch, failures: dict[int, BrokerError], deadline: float) -> dict[str, list[Row]]:
        """Return each row in wire form, by queue; a row that cannot be sent is put into `failures`."""
        nothing = [None] * batch.length
        due = batch.extra.get(SCHEDULED)
        columns: tuple[Column[Any] | None, ...]
        columns = (batch.key, batch.headers, batch.id, batch.timestamp_ms, batch.identity, batch.destination, due)
        columns += (batch.native,)
        rows = zip(batch.value.values, *(nothing if each is None else each.values for each in columns), strict=True)
        most = self._settings.max_message_bytes
        queues: dict[str, list[Row]] = {}
        refused: dict[str, BrokerError] = {}
        for index, (value, key, headers, id_, stamp, identity, target, due_ms, native) in enumerate(rows):
            try:
                if target is not None and (why := why_invalid(target)) is not None:
                    text = f"servicebus: this row cannot be sent to {quoted(target)}: {why}"
                    raise Permanent(text, code=Code.INVALID_DESTINATION)
                # A redrive gives each row an identity, but for those that keep their ids.
                keeps = identity is None and id_ is not None and (native is not None or batch.identity is not None)
                if keeps:
                    self._check_ids(self._address.queue if target is None else target, refused, deadline)
                encoded = encode_row(value, key, headers, id_, stamp, most, identity=identity, native=native)
                if self._address.sessions and target is None:
                    encoded = in_session(encoded, key, self._settings.session_id)
                if due_ms is not None:
                    encoded = scheduled(encoded, due_ms)
            except BrokerError as error:
                failures[index] = error
            else:
                queues.setdefault(self._address.queue if target is None else target, []).append((index, encoded))
        return queues

    def _check_ids(self, queue: str, refused: dict[str, BrokerError], deadline: float) -> None:
        """Check that a queue takes messages under ids that they had before: duplicate detection would drop them.

        Args:
            queue: its name.
            refused: what this raised for other rows of the batch, by queue: each queue is asked about once.
            deadline: monotonic seconds.

        Raises:
            Fatal: it would drop them, or may.
            BrokerError: that could not be found out.
        """
        name = queue.lower()
        if self._settings.duplicate_detection is not None or name in self._checked:
            return
        if name not in refused:
            try:
                self._ask_about_ids(queue, time_left(deadline, f"servicebus: looking at {queue!r}"))
            except BrokerError as error:
                refused[name] = error
            else:
                self._checked.add(name)
                return
        raise refused[name]

    def _ask_about_ids(self, queue: str, within: float) -> None:
        """Raise what `_check_ids` raises; `within` is in seconds."""
        settings = replace(self._settings, operation_timeout=min(within, self._settings.operation_timeout))
        text = f"servicebus: a message that was stored before keeps its id, and {queue!r}"
        try:
            with ServicebusAdmin(self._address.at(queue), settings) as admin:
                remembers = admin.remembers_ids()
        except BrokerError as error:
            if not is_denied(error):
                raise
            text = f"{text} may have duplicate detection, which would drop it: that could not be checked without Manage"
            text = f"{text}; set servicebus.duplicate_detection to true or false"
            raise Fatal(text, code=Code.MISCONFIGURED) from error
        if remembers:
            text = f"{text} has duplicate detection, which may drop it: set servicebus.duplicate_detection to true"
            raise Fatal(text, code=Code.MISCONFIGURED)

    def _link(self, queue: str) -> Link[ServiceBusSender]:
        link = self._links.pop(queue, None)
        if link is None:
            if len(self._links) >= _LINKS:
                self._links.pop(next(iter(self._links))).drop()
            link = self._namespace.sender(queue, own_target=queue.lower() == self._address.queue.lower())
        self._links[queue] = link  # the last one, so that the first is the one that was unused for longest
        return link


class _Order:
    """Keeps back the rows of a batch whose key has a failed row before them, here or in an earlier batch."""

    def __init__(self, batch: Batch, failed_keys: FailedKeys, failures: dict[int, BrokerError]) -> None:
        self._keys = [None] * batch.length if batch.key is None else batch.key.values
        self._failed_keys = failed_keys
        self._failures = failures
        self._failed: set[bytes | None] = set()  # keys of rows that failed as they were sent
        failures.update(failed_keys.keep_back(batch, failures))

    def note(self, rows: Iterable[int]) -> None:
        """Remember the keys of rows that failed as they were sent."""
        self._failed.update(self._keys[index] for index in rows)
        self._failed.discard(None)

    def keeps_back(self, index: int) -> bool:
        """Return whether a row must not be sent; its failure is noted."""
        if self._keys[index] in self._failed:
            self._failures.setdefault(index, self._failed_keys.not_sent())
        return index in self._failures


class _Upload:
    """Rows on their way to one queue.

    Args:
        link: to the queue.
        deadline: monotonic seconds.
        timeout: seconds that one request may take.
        failures: where errors go, by row.
        order: which rows must not be sent; None: the batch has no order.
    """

    def __init__(
        self,
        link: Link[ServiceBusSender],
        deadline: float,
        timeout: float,
        failures: dict[int, BrokerError],
        order: _Order | None,
    ) -> None:
        self._link = link
        self._deadline = deadline
        self._timeout = timeout
        self._failures = failures
        self._order = order
        self._batch: ServiceBusMessageBatch | None = None
        self._rows: list[int] = []  # of that batch
        self._stop: BrokerError | None = None  # why nothing more is tried

    def send(self, rows: Sequence[Row], *, isolate: bool) -> None:
        """Send the rows, in batches or each by itself."""
        for index, encoded in rows:
            if self._is_kept_back(index):
                continue
            try:
                message = outgoing(encoded)
            except Permanent as error:
                self._fail([index], error)
                continue
            if isolate:
                self._request(message, [index])
            elif not self._add(message, index):
                self._flush()
                if not self._is_kept_back(index) and not self._add(
                    message, index
                ):  # larger than a batch may be, and perhaps not than a message may be
                    self._request(message, [index])
        self._flush()

    def _is_kept_back(self, index: int) -> bool:
        return self._order is not None and self._order.keeps_back(index)

    def _fail(self, rows: Sequence[int], error: BrokerError) -> None:
        self._failures.update(dict.fromkeys(rows, error))
        if self._order is not None:
            self._order.note(rows)

    def _add(self, message: ServiceBusMessage, index: int) -> bool:
        """Add a message to the batch; return whether it had room."""
        if self._batch is None:
            self._batch = self._new_batch()
        if self._batch is None or len(self._rows) >= BATCH:
            return False
        try:
            self._batch.add_message(message)
        except MessageSizeExceededError:
            return False
        self._rows.append(index)
        return True

    def _new_batch(self) -> ServiceBusMessageBatch | None:
        if self._stop is None:
            try:
                with self._link.using(self._left(), safe=True) as handler:
                    most = handler.create_message_batch().max_size_in_bytes
                    return handler.create_message_batch(max(1, most - _MARGIN))
            except BrokerError as error:
                self._stop = error
        return None

    def _flush(self) -> None:
        batch, rows = self._batch, self._rows
        self._batch, self._rows = None, []
        if batch is not None and rows:
            self._request(batch, rows)

    def _request(self, what: ServiceBusMessage | ServiceBusMessageBatch, rows: list[int]) -> None:
        if self._stop is not None:
            self._fail(rows, self._stop)
            return
        try:
            self._link.open(self._left())
            left = self._left()
            with self._link.using(left, rows=len(rows)) as handler:
                handler.send_messages(what, timeout=left)
        except BrokerError as error:
            self._fail(rows, error)
            if isinstance(error, Ambiguous):
                text = f"servicebus: {self._link.doing}: not tried, because an earlier request failed"
                self._stop = Retriable(text, code=Code.NOT_SENT)
            elif isinstance(error, Fatal | Retriable):
                self._stop = error

    def _left(self) -> float:
        """Return the seconds that a request may take. Raises Retriable."""
        return min(time_left(self._deadline - _LEAST, f"servicebus: {self._link.doing}") + _LEAST, self._timeout)
