"""The receiver role. A lease is kept in the record itself: hidden until when, and for whom."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import lmdb

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.errors import BrokerError, LeaseLost, Permanent
from redelivery.kit import leases as kit
from redelivery_lmdb.address import Address
from redelivery_lmdb.client.store import POLL, StoreUser, put, scan
from redelivery_lmdb.codec import Record, now_ms
from redelivery_lmdb.options import Settings

MILLISECOND = timedelta(milliseconds=1)


class Lease(kit.Lease):
    """A lease with the record's key, and the token that the record holds while the lease lasts."""

    def __init__(self, expires: float, key: bytes, token: bytes) -> None:
        super().__init__(expires)
        self.key, self.token = key, token


class LmdbReceiver(StoreUser, Receiver):
    """Leases the oldest messages without a lease."""

    def __init__(self, address: Address, settings: Settings, lease: timedelta) -> None:
        super().__init__(address, settings)
        self._lease = lease

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        until = time.monotonic() + wait
        while not (received := self._take(max_messages)) and (left := until - time.monotonic()) > 0:
            self.sleep_unless_closed(min(POLL, left))
        return received

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling messages of")
        refused: dict[int, BrokerError] = {}
        with self._store.write() as transaction:
            call = kit.Settlement(outcomes, partial(_is_held, transaction), self._lost)
            for at, (received, outcome) in call.waiting(object):
                try:
                    self._settle(transaction, received.lease.key, outcome, at)
                except Permanent as error:
                    refused[at] = error
        for at, answer in refused.items():
            call.answer(at, answer)
        call.answer_rest(None)  # only now that the transaction is on the disk
        return call.answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        self.check_open("prolonging leases of")
        with self._store.write() as transaction:
            now, expires = now_ms(), time.monotonic() + seconds
            held = [_is_held(transaction, received) for received in leases]
            for received in (each for each, is_held in zip(leases, held, strict=True) if is_held):
                longer = _record(transaction, received.lease.key)._replace(hidden_until_ms=now + int(seconds * 1000))
                transaction.put(received.lease.key, longer.pack())
        return [
            kit.prolonged(received, expires) if is_held else self._lost(received)
            for received, is_held in zip(leases, held, strict=True)
        ]

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
                lease=Lease(expires, key, leased.lease),
                expires=expires,
                position=self._position(key),
                lasting=True,
                first_ms=leased.first_ms,
                undecodable=leased.undecodable,
            )
            for key, leased in taken
        ]

    def _settle(self, transaction: lmdb.Transaction, key: bytes, outcome: object, index: int) -> None:
        record = _record(transaction, key)._replace(lease=b"", hidden_until_ms=0)
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
        return kit.lost("lmdb", f"queue {self._address.queue!r}", received)


def _record(transaction: lmdb.Transaction, key: bytes) -> Record:
    return Record.unpack(bytes(transaction.get(key, b"")))


def _is_held(transaction: lmdb.Transaction, received: Received) -> bool:
    """Whether a lease is valid by this process's clock, and the record still holds its token."""
    return kit.is_held(received) and _record(transaction, received.lease.key).lease == received.lease.token
