"""The receiver. A lease is kept in the record itself: hidden until when, and for whom."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import lmdb

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.errors import BrokerError, LeaseLost
from redelivery_lmdb.roles import LmdbRole, dead_letters_of
from redelivery_lmdb.store import POLL, Record, Store, now_ms, prefix_of, put, scan

MILLISECOND = timedelta(milliseconds=1)


class LmdbReceiver(LmdbRole, Receiver):
    """Leases the oldest messages that nobody holds."""

    def __init__(self, store: Store, queue: str, lease: timedelta) -> None:
        super().__init__(store, queue)
        self._lease = lease

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        until = time.monotonic() + wait
        while not (received := self._take(max_messages)) and (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL, left))
        return received

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        answers: list[LeaseLost | BrokerError | None] = []
        with self.store.write() as transaction:
            for received, outcome in outcomes:
                if (record := _held(transaction, received)) is None:
                    answers.append(_lost(received))
                    continue
                try:
                    self._settle(transaction, received.lease[0], record, outcome, len(answers))
                    answers.append(None)
                except BrokerError as error:
                    answers.append(error)
        return answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        answers: list[Received | LeaseLost] = []
        with self.store.write() as transaction:
            now, expires = now_ms(), time.monotonic() + seconds
            for received in leases:
                if (record := _held(transaction, received)) is None:
                    answers.append(_lost(received))
                    continue
                longer = record._replace(hidden_until_ms=now + int(seconds * 1000))
                transaction.put(received.lease[0], longer.pack())
                answers.append(replace(received, expires=expires))
        return answers

    def _take(self, max_messages: int) -> list[Received]:
        taken: list[tuple[bytes, Record]] = []
        with self.store.write() as transaction:
            now, expires = now_ms(), time.monotonic() + self._lease.total_seconds()
            for key, record in scan(transaction, self.prefix):
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
                position=self.position(key),
                lasting=True,
                first_ms=leased.first_ms,
                undecodable=leased.undecodable,
            )
            for key, leased in taken
        ]

    def _settle(self, transaction: lmdb.Transaction, key: bytes, record: Record, outcome: Outcome, index: int) -> None:
        free = record._replace(lease=b"", hidden_until_ms=0)
        match outcome:
            case Accept():
                transaction.delete(key)
            case Retry(delay=delay):
                transaction.put(key, free._replace(hidden_until_ms=now_ms() + delay // MILLISECOND).pack())
            case Terminate(letter=letter):
                put(transaction, prefix_of(dead_letters_of(self.queue)), index, letter)
                transaction.delete(key)
            case Release():
                transaction.put(key, free._replace(attempts=record.attempts - 1).pack())


def _held(transaction: lmdb.Transaction, received: Received) -> Record | None:
    """The record under a lease; None where the lease is lost."""
    key, lease = received.lease
    data = transaction.get(key)
    record = None if data is None else Record.unpack(bytes(data))
    return record if record and record.lease == lease and record.hidden_until_ms > now_ms() else None


def _lost(received: Received) -> LeaseLost:
    return LeaseLost(f"lmdb: the lease of {received.position} has run out, or it was settled before")
