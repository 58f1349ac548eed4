"""The receiver role. A lease is kept in the record itself: hidden until when, and for whom."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import lmdb

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.errors import BrokerError, LeaseLost, Permanent
from redelivery_plainlmdb.address import Address
from redelivery_plainlmdb.client.store import POLL, StoreUser, put, scan
from redelivery_plainlmdb.codec import Record, now_ms
from redelivery_plainlmdb.options import Settings

MILLISECOND = timedelta(milliseconds=1)


class LmdbReceiver(StoreUser, Receiver):
    """Leases the oldest messages without a lease."""

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:
        super().__init__(address, settings)
        self._lease = lease

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        until = time.monotonic() + wait
        while not (received := self._take(max_messages)) and (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL, left))
        return received

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        answers: list[LeaseLost | BrokerError | None] = []
        with self._store.write() as transaction:
            for at, (received, outcome) in enumerate(outcomes):
                answers.append(self._lost(received))
                if (record := _held(transaction, received)) is not None:
                    try:
                        self._settle(transaction, received.lease[0], record, outcome, at)
                        answers[at] = None
                    except Permanent as error:
                        answers[at] = error
        return answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        answers: list[Received | LeaseLost] = []
        with self._store.write() as transaction:
            now, expires = now_ms(), time.monotonic() + seconds
            for received in leases:
                if (record := _held(transaction, received)) is None:
                    answers.append(self._lost(received))
                    continue
                longer = record._replace(hidden_until_ms=now + int(seconds * 1000))
                transaction.put(received.lease[0], longer.pack())
                answers.append(replace(received, expires=expires))
        return answers

    def _take(self, max_messages: int) -> list[Received]:
        with self._store.write() as transaction:
            now, expires = now_ms(), time.monotonic() + self._lease.total_seconds()
            taken: list[tuple[bytes, Record]] = []
            for key, record in scan(transaction, self._prefix):
                if len(taken) == max_messages:
                    break
                if record.hidden_until_ms <= now:
                    leased = record._replace(
                        attempts=record.attempts + 1,
                        first_ms=now if record.first_ms is None else record.first_ms,
                        hidden_until_ms=now + self._lease // MILLISECOND,
                        lease=os.urandom(8),
                    )
                    taken.append((key, leased))
            for key, leased in taken:
                transaction.put(key, leased.pack())
        return [
            Received(
                message=leased.message(),
                attempt=leased.attempts,
                lease=(key, leased.lease),
                expires=expires,
                position=self._position(key),
                lasting=True,
                first_ms=leased.first_ms,
                undecodable=leased.undecodable,
            )
            for key, leased in taken
        ]

    def _settle(self, transaction: lmdb.Transaction, key: bytes, record: Record, outcome: Outcome, index: int) -> None:
        record = record._replace(lease=b"", hidden_until_ms=0)
        match outcome:
            case Accept():
                transaction.delete(key)
            case Retry(delay=delay):
                transaction.put(key, record._replace(hidden_until_ms=now_ms() + delay // MILLISECOND).pack())
            case Terminate(letter=letter):
                put(transaction, self._address.dead_letters.prefix, index, letter)
                transaction.delete(key)
            case Release():
                transaction.put(key, record._replace(attempts=record.attempts - 1).pack())

    def _lost(self, received: Received) -> LeaseLost:
        text = "its lease has expired, or it was settled before; nothing was changed"
        return LeaseLost(f"plainlmdb: message {received.position} of queue {self._address.queue!r}: {text}")


def _held(transaction: lmdb.Transaction, received: Received) -> Record | None:
    """The record under a lease; None if the lease is lost."""
    key, lease = received.lease
    data = transaction.get(key)
    record = None if data is None else Record.unpack(bytes(data))
    return record if record and record.lease == lease and record.hidden_until_ms > now_ms() else None
