"""The sender role: requests of up to ten entries, several in flight, each made by its own thread.

boto3 blocks, so there are threads. They start when they are needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError, NotSent, Permanent
from redelivery.kit.address import quoted
from redelivery.kit.errors import Code
from redelivery.kit.in_flight import FailedKeys, InFlight, SentBatch
from redelivery.kit.roles import Resource
from redelivery_sqs.address import Address, invalid_name
from redelivery_sqs.client.batch_requests import Answer
from redelivery_sqs.client.limits import GROUP, MAX_ENTRIES
from redelivery_sqs.client.queue import Queue
from redelivery_sqs.client.send_queues import FifoSendQueue, PendingBatch, PendingRow, SendQueue, StandardSendQueue
from redelivery_sqs.codec import (
    Native,
    encode_row,
    fifo_fields,
    group_fields,
    warn_of_bare,
)
from redelivery_sqs.options import Settings


class SqsSender(Resource, Sender):
    """Sends batches to the queue of `address`, or to the queue that a row names."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("sqs", f"queue {address.queue!r}")
        self._queue = Queue(address, settings)
        self._settings = settings
        self._in_flight = InFlight("sqs", f"queue {address.queue!r}", on_failure=self._on_failure)
        self._lock = self._in_flight.lock
        self._to_send = threading.Condition(self._lock)
        #: Queues and groups of rows that failed: their later rows are not sent until `collect` has returned that.
        self._failed_groups = FailedKeys("sqs")
        self._send_queues: dict[str, SendQueue] = {}
        self._threads = 0
        self._idle = 0

    def check(self, *, deadline: float) -> None:  # noqa: ARG002 - the client has its own timeouts
        _ = self._queue.url
        if self._queue.address.account is None:
            return
        try:  # the URL of a queue with a known account needs no request, so nothing has shown yet that it exists
            self._queue.attributes("QueueArn", doing="looking for")
        except BrokerError as error:
            if error.code is not Code.NOT_AUTHORIZED:  # sending does not need the right to look
                raise

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        rows = list(self._rows(batch))
        with self._lock:
            sent = self._in_flight.add(batch, deadline, kind=PendingBatch)
            count = sum(self._add(row, sent) for row in rows)
            self._wake(count if batch.isolate else -(-count // MAX_ENTRIES))

    def collect(self, wait: float) -> Sequence[Settled]:
        settled = self._in_flight.collect(wait)
        with self._lock:
            for each in settled:
                self._failed_groups.told(each.batch)
        return settled

    def _release(self) -> None:
        with self._lock:
            self._send_queues.clear()
            self._to_send.notify_all()

    # --- taking rows, in the engine's thread ---

    def _rows(self, batch: Batch) -> Iterator[PendingRow]:
        """Each row as an entry for its queue, or with the reason why it cannot be sent."""
        nothing = [None] * batch.length
        keys, headers, ids, timestamps, destinations, natives = (
            nothing if column is None else column.values
            for column in (batch.key, batch.headers, batch.id, batch.timestamp_ms, batch.destination, batch.native)
        )
        identities = self._identities(batch) or ids
        groups = _groups(batch)
        max_bytes = self._settings.max_message_bytes
        values = zip(
            batch.value.values, keys, headers, ids, timestamps, destinations, groups, natives, identities, strict=True
        )
        for index, (value, key, pairs, id_, timestamp, destination, group, native, identity) in enumerate(values):
            row = PendingRow(index)
            try:
                row.send_queue = queue = self._send_queue(destination)
                if isinstance(queue, FifoSendQueue):
                    self._into_group(row, id_ if identity is None else identity, key, group, ordered=batch.ordered)
                elif group is not None or (key is not None and self._settings.fair_by_key):
                    row.entry = group_fields(None if group is not None else key, group)
                encoded = encode_row(value, key, pairs, id_, timestamp, max_bytes, native)
            except Permanent as error:
                row.refused = error
            else:
                row.size = encoded.size
                row.entry |= encoded.entry
                if encoded.bare:
                    warn_of_bare(queue.destination.address.queue)
            yield row

    def _into_group(
        self, row: PendingRow, known_by: str | None, key: bytes | None, group: object, *, ordered: bool
    ) -> None:
        """Give a row the fields that a FIFO queue requires."""
        ordering = key if key is not None or group is None else str(group).encode("utf-8", "surrogatepass")
        row.entry = fifo_fields(known_by, ordering, self._settings.message_group)
        row.group = row.entry["MessageGroupId"]
        row.ordered = ordered and ordering is not None

    def _identities(self, batch: Batch) -> list[str | None] | None:
        """The identities, if a FIFO queue may need them: no other queue recognises a message."""
        if batch.identity is None or (batch.destination is None and not self._queue.address.fifo):
            return None
        return batch.identity.values

    def _send_queue(self, destination: str | None) -> SendQueue:
        own = self._queue.address
        name = own.queue if destination is None else destination
        queue = self._send_queues.get(name)
        if queue is None:
            wrong = invalid_name(name)
            if wrong is not None:
                raise Permanent(
                    f"sqs: this row cannot be sent to {quoted(name)}: {wrong}", code=Code.INVALID_DESTINATION
                )
            address = own.sibling(name)
            kind = FifoSendQueue if address.fifo else StandardSendQueue
            queue = kind(Queue(address, self._settings, own=name == own.queue))
            with self._lock:
                self._send_queues[name] = queue
        return queue

    def _add(self, row: PendingRow, sent: PendingBatch) -> bool:
        """Add a row to its queue, or settle it as failed; whether it was added."""
        row.sent = sent
        if row.ordered:
            sent.ordered[row.index] = row
            if _group(row) in self._failed_groups:
                row.refused = self._failed_groups.not_sent()
        if row.refused is not None or row.send_queue is None:
            self._in_flight.failed(
                sent, row.index, row.refused or Permanent("sqs: this row has no queue", code=Code.BUG)
            )
            return False
        row.send_queue.add(row)
        return True

    def _on_failure(self, sent: SentBatch, index: int, error: BrokerError) -> None:
        """Keep back the rows behind an ordered row; called under the lock, by whatever settles the row."""
        row = sent.ordered.get(index) if isinstance(sent, PendingBatch) else None
        if row is None or row.send_queue is None:
            return
        self._failed_groups.add(_group(row), sent.batch.number)
        if isinstance(error, NotSent):
            return  # kept back itself, together with the rows behind it
        for behind in row.send_queue.withdraw(row):
            self._in_flight.failed(behind.sent, behind.index, self._failed_groups.not_sent())

    def _wake(self, requests: int) -> None:
        self._to_send.notify(requests)
        for _ in range(min(requests - self._idle, self._settings.concurrency - self._threads)):
            self._threads += 1
            threading.Thread(target=self._run, name=f"sqs-sender-{self._threads}", daemon=True).start()

    # --- sending, each request in its own thread ---

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (taken := self._take()):
                    if self.is_closed:
                        return
                    self._idle += 1
                    self._to_send.wait()
                    self._idle -= 1
            queue, rows = taken
            answers = self._request(queue, rows)
            with self._lock:
                for row, error in zip(rows, answers, strict=True):
                    if error is None:
                        self._in_flight.stored(row.sent, row.index)
                    else:
                        self._in_flight.failed(row.sent, row.index, error)
                queue.request_ended(rows)

    def _take(self) -> tuple[SendQueue, list[PendingRow]] | None:
        now = time.monotonic()
        for queue in self._send_queues.values():
            while queue.ready:
                rows = queue.take(now)
                if rows:
                    for row in rows:
                        self._in_flight.sent(row.sent, row.index)
                    return queue, rows
        return None

    def _request(self, queue: SendQueue, rows: list[PendingRow]) -> Sequence[Answer]:
        """Send rows in one request; the answer to each."""
        try:
            return queue.destination.request_entries("send_message_batch", "sending to", [row.entry for row in rows])
        except BrokerError as error:
            return [error] * len(rows)


def _groups(batch: Batch) -> Sequence[object]:
    """The message group of each row: that of its column, or the one that it had when it was read from SQS."""
    given: Sequence[object] = batch.extra[GROUP].values if GROUP in batch.extra else [None] * batch.length
    if batch.native is None:
        return given
    return [
        native.group if group is None and isinstance(native, Native) else group
        for group, native in zip(given, batch.native.values, strict=True)
    ]


def _group(row: PendingRow) -> tuple[SendQueue | None, str]:
    return row.send_queue, row.group
