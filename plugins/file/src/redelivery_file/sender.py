"""The sender role: `send` stores one file per message."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.errors import Code
from redelivery.kit.in_flight import SettledBatches
from redelivery.kit.roles import Resource
from redelivery_file import codec
from redelivery_file.address import Address
from redelivery_file.client.folder import open_folder
from redelivery_file.errors import TABLE, unconfirmed


class FileSender(Resource, Sender):
    """Writes letters into the folder of `address`, which must exist."""

    def __init__(self, address: Address) -> None:
        super().__init__("file", address.place)
        self._folder = open_folder(address)
        self._context = address.context
        self._doing = self.doing("writing a letter into")
        self._settled = SettledBatches()
        try:
            with TABLE.while_doing(self.doing("trying")):
                self._folder.probe()
        except BrokerError:
            self._folder.close()
            raise

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("writing a letter into")
        failures: dict[int, BrokerError] = {}
        stop: BrokerError | None = None
        for index, message in enumerate(batch.rows()):
            if stop is None and time.monotonic() >= deadline:
                text = f"file: {self._doing}: the deadline passed; it was not written"
                stop = Retriable(text, code=Code.DEADLINE_EXCEEDED)
            error = stop or self._write(message)
            if error is not None:
                failures[index] = error
                stop = error if isinstance(error, Fatal) else stop
        if len(failures) < batch.length:
            try:
                self._folder.sync()
            except OSError as error:
                failures = {**dict.fromkeys(range(batch.length), unconfirmed(error, self._doing)), **failures}
        self._settled.add(batch, failures)

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - it never waits
        return self._settled.take()

    def _release(self) -> None:
        self._folder.close()

    def _write(self, message: Message) -> BrokerError | None:
        if message.destination is not None:
            text = f"file: {self._doing}: the row names the destination {message.destination!r}, but a folder has none"
            return Permanent(text, code=Code.INVALID_DESTINATION)
        try:
            event_id, line = codec.encode(message, context=self._context)
            self._folder.write(event_id, line)
        except OSError as error:
            return TABLE.error(error, self._doing)
        except Permanent as error:
            return error
        return None
