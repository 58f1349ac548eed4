"""The sender role."""

from __future__ import annotations

from collections.abc import Sequence

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError, Permanent
from redelivery.kit.in_flight import SettledBatches, time_left
from redelivery_lmdb.address import Address
from redelivery_lmdb.client.store import StoreUser, put
from redelivery_lmdb.options import Settings


class LmdbSender(StoreUser, Sender):
    """Stores a batch in one transaction, which is on the disk when `send` returns."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings)
        self._settled = SettledBatches()

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        failures: dict[int, BrokerError] = {}
        with self._store.write(time_left(deadline, self.doing("lmdb: sending to"))) as transaction:
            for index, message in enumerate(batch.rows()):
                named = message.destination
                try:
                    prefix = self._prefix if named is None else self._address.sibling(named).prefix
                    put(transaction, prefix, index, message)
                except Permanent as error:
                    failures[index] = error
        self._settled.add(batch, failures)

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - nothing is ever in flight
        return self._settled.take()
