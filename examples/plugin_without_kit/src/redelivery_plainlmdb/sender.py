"""The sender role."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Permanent
from redelivery_plainlmdb.address import Address
from redelivery_plainlmdb.client.store import StoreUser, put
from redelivery_plainlmdb.options import Settings


class LmdbSender(StoreUser, Sender):
    """Stores a batch in one transaction, which is on the disk when `send` returns."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings)
        self._settled: list[Settled] = []

    def send(self, batch: Batch, *, deadline: float) -> None:
        failures = []
        with self._store.write(deadline - time.monotonic()) as transaction:
            for index, message in enumerate(batch.rows()):
                named = message.destination
                try:
                    prefix = self._prefix if named is None else self._address.sibling(named).prefix
                    put(transaction, prefix, index, message)
                except Permanent as error:
                    failures.append(Failure(index, error))
        self._settled.append(Settled(batch=batch.number, failures=failures))

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - nothing is ever in flight
        settled, self._settled = self._settled, []
        return settled
