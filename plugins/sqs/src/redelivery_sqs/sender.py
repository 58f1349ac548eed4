"""The sender role: requests of up to ten entries, several in flight, each made by its own thread.

boto3 blocks, so there are threads. They start when they are needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Ambiguous, BrokerError, NotSent, Permanent, Retriable, Unattributed
from redelivery.kit.address import quoted
from redelivery.kit.roles import Resource
from redelivery_sqs.address import Address, invalid_name
from redelivery_sqs.client.batch_requests import MAX_ENTRIES, Answer, answers_by_entry
from redelivery_sqs.client.queue import Queue
from redelivery_sqs.client.send_queues import (
    DONE,
    WAITING,
    FifoSendQueue,
    PendingBatch,
    PendingRow,
    SendQueue,
    StandardSendQueue,
)
from redelivery_sqs.codec import GROUP, encode_row, fifo_fields
from redelivery_sqs.errors import is_denied, is_target
from redelivery_sqs.options import Settings


class SqsSender(Resource, Sender):
    """Sends batches to the queue of `address`, or to the queue that a row names."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("sqs", f"queue {address.queue!r}")
        self._queue = Queue(address, settings)
        self._settings = settings
        self._lock = threading.Lock()
        self._to_send = threading.Condition(self._lock)
        self._to_report = threading.Condition(self._lock)
        self._send_queues: dict[str, SendQueue] = {}
        self._pending: dict[int, PendingBatch] = {}
        self._settled: list[PendingBatch] = []  # and not reported yet
        self._threads = 0
        self._idle = 0

    def check(self, *, deadline: float) -> None:  # noqa: ARG002 - the client has its own timeouts
        _ = self._queue.url
        if self._queue.address.account is None:
            return
        try:  # the URL of a queue with a known account needs no request, so nothing has shown yet that it exists
            self._queue.attributes("QueueArn", doing="looking for")
        except BrokerError as error:
            if not is_denied(error):  # sending does not need the right to look
                raise

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        if time.monotonic() >= deadline:
            raise Retriable(f"sqs: {self.doing('sending to')}: the deadline has passed; nothing was sent")
        pending = PendingBatch(batch, deadline)
        rows = list(self._rows(batch, pending))
        with self._lock:
            self._pending[pending.number] = pending
            count = sum(map(self._add, rows))
            self._settle_if_done(pending)
            self._wake(count if batch.isolate else -(-count // MAX_ENTRIES))

    def collect(self, wait: float) -> Sequence[Settled]:
        end = time.monotonic() + wait
        with self._lock:
            while not self._settled and self._pending:
                now = time.monotonic()
                first = min(pending.deadline for pending in self._pending.values())
                if first <= now:
                    self._expire(now)
                elif now >= end:
                    break
                else:
                    self._to_report.wait(min(end, first) - now)
            settled, self._settled = self._settled, []
            for pending in settled:
                for queue, group in pending.groups:
                    queue.unblock(group, pending)
        return [Settled(batch=pending.number, failures=pending.failures) for pending in settled]

    def _release(self) -> None:
        with self._lock:
            self._send_queues.clear()
            self._pending.clear()
            self._settled.clear()
            self._to_send.notify_all()

    # --- taking rows, in the engine's thread ---

    def _rows(self, batch: Batch, pending: PendingBatch) -> Iterator[PendingRow]:
        """Each row as an entry for its queue, or with the reason why it cannot be sent."""
        nothing = [None] * batch.length
        keys, headers, ids, timestamps, destinations = (
            nothing if column is None else column.values
            for column in (batch.key, batch.headers, batch.id, batch.timestamp_ms, batch.destination)
        )
        identities = self._identities(batch) or ids
        groups = batch.extra[GROUP].values if GROUP in batch.extra else nothing
        max_bytes, default_group = self._settings.max_message_bytes, self._settings.message_group
        values = zip(batch.value.values, keys, headers, ids, timestamps, destinations, groups, identities, strict=True)
        for index, (value, key, pairs, id_, timestamp, destination, group, identity) in enumerate(values):
            row = PendingRow(pending, index)
            try:
                row.queue = queue = self._send_queue(destination)
                if isinstance(queue, FifoSendQueue):
                    ordering = key if key is not None or group is None else str(group).encode("utf-8", "surrogatepass")
                    row.entry = fifo_fields(id_ if identity is None else identity, ordering, default_group)
                    row.group = row.entry["MessageGroupId"]
                    row.ordered = pending.ordered and ordering is not None
                encoded = encode_row(value, key, pairs, id_, timestamp, max_bytes)
            except Permanent as error:
                row.refused = error
            else:
                row.size = encoded.size
                row.entry["MessageBody"] = encoded.body
                if encoded.attributes:
                    row.entry["MessageAttributes"] = encoded.attributes
            yield row

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
                    f"sqs: this row cannot be sent to {quoted(name)}: {wrong}", native_code="QueueDoesNotExist"
                )
            address = own.sibling(name)
            kind = FifoSendQueue if address.fifo else StandardSendQueue
            queue = kind(Queue(address, self._settings), own=name == own.queue)
            with self._lock:
                self._send_queues[name] = queue
        return queue

    def _add(self, row: PendingRow) -> bool:
        """Add a row to its queue, or settle it as failed; whether it was added."""
        queue, batch = row.queue, row.batch
        if row.ordered and isinstance(queue, FifoSendQueue):
            if queue.is_blocked(row.group):
                self._not_sent(queue, row)
                return False
            if row.refused is not None:
                queue.block(row.group, batch)
            batch.rows[row.index] = row
        if row.refused is not None or queue is None:
            batch.settle(row.index, row.refused or Permanent("sqs: this row has no queue"))
            return False
        queue.add(row)
        return True

    def _wake(self, requests: int) -> None:
        self._to_send.notify(requests)
        for _ in range(min(requests - self._idle, self._settings.concurrency - self._threads)):
            self._threads += 1
            threading.Thread(target=self._run, name=f"sqs-sender-{self._threads}", daemon=True).start()

    # --- settling, under the lock ---

    def _settle_if_done(self, batch: PendingBatch) -> None:
        if not batch.unsettled and not batch.settled:
            batch.settled = True
            self._pending.pop(batch.number, None)
            self._settled.append(batch)
            self._to_report.notify()

    def _failed(self, row: PendingRow, error: BrokerError) -> None:
        if row.batch.settled:
            return  # it was settled at its deadline, together with the rows behind it
        row.batch.settle(row.index, error)
        if row.ordered and isinstance(row.queue, FifoSendQueue):
            for behind in row.queue.withdraw(row.group, row.batch):
                if behind is not row:  # the row itself may have been waiting
                    self._not_sent(row.queue, behind)
                    self._settle_if_done(behind.batch)

    @staticmethod
    def _not_sent(queue: FifoSendQueue, row: PendingRow) -> None:
        text = "sqs: this row was not sent, because an earlier one of its message group has failed"
        row.batch.settle(row.index, NotSent(text, native_code="ORDER"))
        queue.block(row.group, row.batch)

    def _expire(self, now: float) -> None:
        """Settle the batches past their deadline: rows in flight may still be stored."""
        doing = f"sqs: {self.doing('sending to')}: no answer by the deadline"
        ambiguous = Ambiguous(f"{doing}; it may have been stored or not", native_code="deadline")
        retriable = Retriable(f"{doing} to earlier requests; this row was not sent", native_code="deadline")
        for batch in [each for each in self._pending.values() if each.deadline <= now]:
            for index in range(len(batch.states)):
                state = batch.states[index]  # read now: an earlier row may just have withdrawn this one
                error = retriable if state == WAITING else ambiguous
                if index in batch.rows and state != DONE:
                    self._failed(batch.rows[index], error)
                else:
                    batch.settle(index, error)
            self._settle_if_done(batch)

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
                        row.batch.settle(row.index)
                    else:
                        self._failed(row, error)
                    self._settle_if_done(row.batch)
                queue.request_ended(rows)

    def _take(self) -> tuple[SendQueue, list[PendingRow]] | None:
        now = time.monotonic()
        for queue in self._send_queues.values():
            while queue.ready:
                rows = queue.take(now)
                if rows:
                    return queue, rows
        return None

    def _request(self, queue: SendQueue, rows: list[PendingRow]) -> Sequence[Answer]:
        """Send rows in one request; the answer to each."""
        entries = [{**row.entry, "Id": str(at)} for at, row in enumerate(rows)]
        doing = queue.destination.doing("sending to")
        try:
            answer = queue.destination.request("send_message_batch", "sending to", Entries=entries)
            return answers_by_entry(answer, len(rows), doing)
        except BrokerError as error:
            return [self._attributed(error, queue, rows)] * len(rows)
        except Exception as error:  # noqa: BLE001 - the thread must not end with rows in flight
            unknown = Ambiguous(f"sqs: {doing}: {type(error).__name__}; it may have been stored or not")
            unknown.__cause__ = error
            return [unknown] * len(rows)

    @staticmethod
    def _attributed(error: BrokerError, queue: SendQueue, rows: list[PendingRow]) -> BrokerError:
        """Make an error permanent if it is about a row sent alone, or about the queue that a row itself names."""
        alone = len(rows) == 1 and isinstance(error, Unattributed)
        if alone or (not queue.own and is_target(error)):
            found = error.reclassified(Permanent)
            found.__cause__ = error
            return found
        return error
