"""The sender role: requests of up to ten entries, several in flight, each made by a thread of its own.

boto3 blocks, so there are threads; they are started as they are needed. This file must not retry, nor know SQS's codes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redelivery.base.urls import quoted
from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Ambiguous, BrokerError, Fatal, NotSent, Permanent, Retriable, Unattributed
from redelivery_sqs.address import Address, fault
from redelivery_sqs.config import Settings, client, queue_url
from redelivery_sqs.encoding import GROUP, encode_row, fifo_fields
from redelivery_sqs.errors import classified, classify_entry, is_denied, is_target
from redelivery_sqs.feeds import BATCH, FLYING, WAITING, Feed, GroupFeed, PlainFeed, Row, Work

_IDS = [str(number) for number in range(BATCH)]


class SqsSender(Sender):
    """Sends batches to the queue of `address`, or to the one that a row names."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._settings = settings
        self._lock = threading.Lock()
        self._to_send = threading.Condition(self._lock)
        self._to_tell = threading.Condition(self._lock)
        self._feeds: dict[str, Feed] = {}
        self._works: dict[int, Work] = {}
        self._told: list[Work] = []  # settled, and not told yet
        self._threads = 0
        self._idle = 0
        self._closed = False

    def check(self, *, deadline: float) -> None:  # noqa: ARG002 - the client has time-outs of its own
        url = queue_url(self._address, self._settings)
        if self._address.account is None:
            return
        try:  # such a URL is not asked for: whether there is the queue is still to be seen
            with classified(f"looking for queue {self._address.queue!r}"):
                client(self._address, self._settings).get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        except BrokerError as error:
            if not is_denied(error):  # else it may not be looked at, and sending needs no such right
                raise

    def send(self, batch: Batch, *, deadline: float) -> None:
        if self._closed:
            raise Fatal(f"sqs: sending to {self._address.queue!r}: this sender is closed; open another", code="CLOSED")
        if time.monotonic() >= deadline:
            raise Retriable(f"sqs: sending to {self._address.queue!r}: the deadline has passed; nothing was sent")
        work = Work(batch, deadline)
        rows = list(self._rows(batch, work))
        with self._lock:
            self._works[work.number] = work
            count = sum(map(self._add, rows))
            self._settle(work)
            self._wake(count if batch.isolate else -(-count // BATCH))

    def collect(self, wait: float) -> Sequence[Settled]:
        end = time.monotonic() + wait
        with self._lock:
            while not self._told and self._works:
                now = time.monotonic()
                first = min(work.deadline for work in self._works.values())
                if first <= now:
                    self._expire(now)
                elif now >= end:
                    break
                else:
                    self._to_tell.wait(min(end, first) - now)
            works, self._told = self._told, []
            for work in works:
                for feed, group in work.groups:
                    feed.told(group, work)
        return [Settled(batch=work.number, failures=work.failures) for work in works]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._feeds.clear()
            self._works.clear()
            self._told.clear()
            self._to_send.notify_all()

    # --- taking rows, by the engine's thread ---

    def _rows(self, batch: Batch, work: Work) -> Iterator[Row]:
        """Each row as an entry for its queue, or with what is wrong with it."""
        nothing = [None] * batch.length
        keys, headers, ids, stamps, destinations = (
            nothing if column is None else column.values
            for column in (batch.key, batch.headers, batch.id, batch.timestamp_ms, batch.destination)
        )
        identities = self._identities(batch) or ids
        groups = batch.extra[GROUP].values if GROUP in batch.extra else nothing
        most, group = self._settings.max_message_bytes, self._settings.message_group
        values = zip(batch.value.values, keys, headers, ids, stamps, destinations, groups, identities, strict=True)
        for index, (value, key, pairs, id_, stamp, destination, own, identity) in enumerate(values):
            row = Row(work, index)
            try:
                row.feed = feed = self._feed(destination)
                if isinstance(feed, GroupFeed):
                    ordering = key if key is not None or own is None else str(own).encode("utf-8", "surrogatepass")
                    row.entry = fifo_fields(id_ if identity is None else identity, ordering, group)
                    row.group = row.entry["MessageGroupId"]
                    row.ordered = work.ordered and ordering is not None
                encoded = encode_row(value, key, pairs, id_, stamp, most)
            except Permanent as error:
                row.refused = error
            else:
                row.size = encoded.size
                row.entry["MessageBody"] = encoded.body
                if encoded.attributes:
                    row.entry["MessageAttributes"] = encoded.attributes
            yield row

    def _identities(self, batch: Batch) -> list[str | None] | None:
        """Only FIFO queues recognise anything: elsewhere no identity need be computed."""
        if batch.identity is None or (batch.destination is None and not self._address.fifo):
            return None
        return batch.identity.values

    def _feed(self, destination: str | None) -> Feed:
        name = self._address.queue if destination is None else destination
        feed = self._feeds.get(name)
        if feed is None:
            wrong = fault(name)
            if wrong is not None:
                raise Permanent(f"sqs: this row cannot be sent to {quoted(name)}: {wrong}", code="QueueDoesNotExist")
            address = self._address.at(name)
            kind = GroupFeed if address.fifo else PlainFeed
            feed = kind(address, self._settings.max_message_bytes, own=name == self._address.queue)
            with self._lock:
                self._feeds[name] = feed
        return feed

    def _add(self, row: Row) -> bool:
        """Let a row wait to be sent; or count it as failed."""
        feed, work = row.feed, row.work
        if row.ordered and isinstance(feed, GroupFeed):
            if row.group in feed.failed:
                self._not_sent(feed, row)
                return False
            if row.refused is not None:
                feed.held(row.group, work)
            work.rows[row.index] = row
        if row.refused is not None or feed is None:
            work.fail(row.index, row.refused or Permanent("sqs: this row has no queue"))
            return False
        feed.add(row)
        return True

    def _wake(self, requests: int) -> None:
        self._to_send.notify(requests)
        for _ in range(min(requests - self._idle, self._settings.concurrency - self._threads)):
            self._threads += 1
            threading.Thread(target=self._run, name=f"sqs-sender-{self._threads}", daemon=True).start()

    # --- settling, under the lock ---

    def _settle(self, work: Work) -> None:
        if not work.left and not work.settled:
            work.settled = True
            self._works.pop(work.number, None)
            self._told.append(work)
            self._to_tell.notify()

    def _failed(self, row: Row, error: BrokerError) -> None:
        if row.work.settled:
            return  # told at its deadline already, and what was behind it with it
        row.work.fail(row.index, error)
        if row.ordered and isinstance(row.feed, GroupFeed):
            for behind in row.feed.hold_back(row.group, row.work):
                if behind is not row:  # which may have been waiting itself
                    self._not_sent(row.feed, behind)
                    self._settle(behind.work)

    @staticmethod
    def _not_sent(feed: GroupFeed, row: Row) -> None:
        text = "sqs: this row was not sent, because an earlier one of its message group has failed"
        row.work.fail(row.index, NotSent(text, code="ORDER"))
        feed.held(row.group, row.work)

    def _expire(self, now: float) -> None:
        """Settle what is past its deadline: what is in flight may still arrive."""
        late = [work for work in self._works.values() if work.deadline <= now]
        doing = f"sqs: sending to {self._address.queue!r}: no answer by the deadline"
        ambiguous = Ambiguous(f"{doing}; it may have been stored or not", code="deadline")
        retriable = Retriable(f"{doing} of what went before; this row was not sent", code="deadline")
        for work in late:
            for index in range(len(work.states)):
                state = work.states[index]  # looked at now: a row may have been held back meanwhile
                error = retriable if state == WAITING else ambiguous
                if state in (WAITING, FLYING) and index in work.rows:
                    self._failed(work.rows[index], error)
                elif state in (WAITING, FLYING):
                    work.fail(index, error)
            self._settle(work)

    # --- sending, each request by a thread of its own ---

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (taken := self._take()):
                    if self._closed:
                        return
                    self._idle += 1
                    self._to_send.wait()
                    self._idle -= 1
            feed, rows = taken
            answers = self._request(feed, rows)
            with self._lock:
                for row, error in zip(rows, answers, strict=True):
                    if error is None:
                        row.work.done(row.index)
                    else:
                        self._failed(row, error)
                    self._settle(row.work)
                feed.landed(rows)

    def _take(self) -> tuple[Feed, list[Row]] | None:
        now = time.monotonic()
        for feed in self._feeds.values():
            while feed.ready:
                rows = feed.take(now)
                if rows:
                    return feed, rows
        return None

    def _request(self, feed: Feed, rows: list[Row]) -> Sequence[BrokerError | None]:
        """Send these rows in one request; returns what became of each."""
        doing = f"sending to queue {feed.address.queue!r}"
        entries = []
        for name, row in zip(_IDS, rows, strict=False):
            row.entry["Id"] = name
            entries.append(row.entry)
        try:
            url = queue_url(feed.address, self._settings)
            with classified(doing):
                answer = client(feed.address, self._settings).send_message_batch(QueueUrl=url, Entries=entries)
            return _told(answer, len(rows), doing)
        except BrokerError as error:
            return [self._attributed(error, feed, rows)] * len(rows)
        except Exception as error:  # noqa: BLE001 - a thread of ours must not end with rows in flight
            unknown = Ambiguous(f"sqs: {doing}: {type(error).__name__}; it may have been stored or not")
            unknown.__cause__ = error
            return [unknown] * len(rows)

    @staticmethod
    def _attributed(error: BrokerError, feed: Feed, rows: list[Row]) -> BrokerError:
        """A row that was sent alone is the culprit; a row's own missing queue is no other row's."""
        alone = len(rows) == 1 and isinstance(error, Unattributed)
        if alone or (not feed.own and is_target(error)):
            found = Permanent(str(error), code=error.code)
            found.__cause__ = error
            return found
        return error


def _told(answer: Mapping[str, Any], count: int, doing: str) -> Sequence[BrokerError | None]:
    """What an answer says of each row."""
    stored = {each.get("Id") for each in answer.get("Successful") or ()}
    if len(stored) == count:
        return [None] * count
    failed = {each.get("Id"): classify_entry(each, doing) for each in answer.get("Failed") or ()}
    silent = Ambiguous(f"sqs: {doing}: the answer does not tell of this row; it may have been stored or not")
    return [None if name in stored else failed.get(name, silent) for name in _IDS[:count]]
