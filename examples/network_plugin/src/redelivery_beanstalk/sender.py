"""The sender role: messages are sent one behind the other, and confirmed later."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Permanent
from redelivery.kit.in_flight import InFlight, SentBatch, time_left
from redelivery.kit.roles import Resource
from redelivery_beanstalk import codec
from redelivery_beanstalk.address import Address
from redelivery_beanstalk.client.connection import Answer, Connection
from redelivery_beanstalk.client.pipeline import Pipeline
from redelivery_beanstalk.errors import TABLE, Refused
from redelivery_beanstalk.options import Settings

WINDOW = 10_000  # messages that may be on their way


class BeanstalkSender(Resource, Sender):
    """Puts messages, and keeps account of those that are not confirmed."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("beanstalk", f"tube {address.tube!r}")
        self._address = address
        self._settings = settings
        self._in_flight = InFlight("beanstalk", f"tube {address.tube!r}", window=WINDOW)
        self._pipeline: Pipeline | None = None

    def check(self, *, deadline: float) -> None:
        self.check_open("connecting to")
        self._connected(deadline)

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        pipeline = self._connected(deadline)
        sent = self._in_flight.add(batch, deadline)
        try:
            for index, message in enumerate(batch.rows()):
                named = message.destination
                try:
                    tube = (self._address if named is None else self._address.sibling(named)).checked
                    body = codec.encode(message, self._settings.max_job_size)
                except Permanent as error:
                    self._in_flight.failed(sent, index, error)
                    continue
                if not self._in_flight.wait_for_room(deadline) or not self._in_flight.sent(sent, index):
                    break  # `collect` tells of the rest
                pipeline.put(tube, body, self._settings.ttr, partial(self._answered, sent, index), deadline)
        except OSError as error:  # half a command may have been written
            self._disconnected(error)
            self._release()
        if pipeline.lost is not None:  # perhaps before this batch was added
            self._disconnected(pipeline.lost)

    def collect(self, wait: float) -> Sequence[Settled]:
        return self._in_flight.collect(wait)

    def _connected(self, deadline: float) -> Pipeline:
        """The connection; a new one if the last was lost, of which every message in flight has been told."""
        left = time_left(deadline, self.doing("beanstalk: sending to"))
        if self._pipeline is not None and self._pipeline.lost is not None:
            self._release()
        if self._pipeline is None:
            patience = min(left, self._settings.connect_timeout)
            with TABLE.while_doing(self.doing("connecting to"), safe=True):
                connection = Connection(self._address.host, self._address.port, patience)
            self._pipeline = Pipeline(connection, self._disconnected)
        return self._pipeline

    def _answered(self, sent: SentBatch, index: int, answer: Answer) -> None:
        if answer.word == "INSERTED":
            self._in_flight.stored(sent, index)
        else:
            self._in_flight.failed(sent, index, TABLE.error(Refused(answer.word), self.doing("sending to"), rows=1))

    def _disconnected(self, error: Exception) -> None:
        self._in_flight.lost(TABLE.error(error, self.doing("sending to")))

    def _release(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()
