"""A job whose broker confirms some batches that it never got: `python -m faults.tests.lying_writer SETTINGS`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from faults import recording, writer
from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch


class Lying(recording.RecordingSender):
    """Drops every third batch, and says that it is stored."""

    def send(self, batch: Batch, *, deadline: float) -> None:
        if batch.number % 3:
            super().send(batch, deadline=deadline)
        else:
            self._dropped = batch

    def collect(self, wait: float) -> Sequence[Settled]:
        dropped, self._dropped = self._dropped, None
        if dropped is None:
            return super().collect(wait)
        told = Settled(batch=dropped.number)
        self._in_flight[dropped.number] = [recording.number_of(value) for value in dropped.value.values]
        self._settle(self._in_flight.pop(dropped.number), told)
        return [told]

    _dropped: Batch | None = None


if __name__ == "__main__":
    recording.RecordingSender = Lying
    sys.exit(writer.main(sys.argv[1]))
