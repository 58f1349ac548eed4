"""The workload `receive`: a subscription over seeded messages, some of them poison; started again when killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from faults.broker import BrokerUnderTest
from faults.history import LETTERS, SOURCE, Recorder
from faults.plan import Plan
from faults.reading import Reads
from faults.restarting import AGAIN, Growing, Life, rows_of
from faults.writing import PACE, settings_for
from redelivery.contract.message import Batch, Message
from redelivery.registry import connect

#: Rows per seeded batch.
_BATCH: Final = 500
_PATIENCE: Final = 60.0
#: Seconds that a lease lasts, where its receiver chooses: as long as a killed process hides messages.
LEASE: Final = 6.0


class Receiving:
    """See `faults.workloads.Running`."""

    reads: Reads = {"queue": SOURCE, "dead": LETTERS}  # noqa: RUF012 - not to be altered
    processes = 1
    hidden = LEASE + 2

    def __init__(self, under_test: BrokerUnderTest, plan: Plan, folder: Path) -> None:
        self._recorder = Recorder(folder, "subscriber")
        seed(under_test.place.url, under_test, plan, range(plan.rows), self._recorder)
        settings = settings_for(under_test, plan, folder)
        settings["pause"] = PACE / plan.rows
        settings["lease"] = LEASE
        self._handled = Growing(folder, rows_of("handled", **{"as": "accepted"}))
        self._life = Life("faults.receiver", settings, folder, "receiver", self._recorder)
        self._owner = threading.Thread(target=self._own, daemon=True)
        self._owner.start()

    @property
    def progress(self) -> int:
        return self._handled.total

    @property
    def alive(self) -> bool:
        return self._owner.is_alive()

    def restart(self) -> None:
        self._life.restart()

    def kill(self) -> None:
        self._life.kill()
        self._owner.join()
        self._recorder.close()

    def _own(self) -> None:
        """Start the subscription again until one finds nothing, after the leases of killed ones are over."""
        while self._life.wait() is not None:
            end = self._life.outcome()
            if end is None or (end.kind == "reported" and not end.data["report"]["received"]):
                return
            time.sleep(LEASE if end.kind == "reported" else AGAIN)
            self._life.again(failed=end.kind != "reported")


def seed(
    url: str, under_test: BrokerUnderTest, plan: Plan, rows: Sequence[int], recorder: Recorder, letters: Any = None
) -> None:
    """Store rows before anything breaks, and write an event that says so.

    Args:
        url: where to.
        under_test: its options are used.
        plan: the rows.
        rows: numbers of the rows to store.
        recorder: gets the event.
        letters: makes a row's letter of its message, where letters are stored.
    """
    with connect(url, under_test.options) as broker, broker.sender() as sender:
        for first in range(0, len(rows), _BATCH):
            some = rows[first : first + _BATCH]
            found = [_message(plan, number) for number in some]
            batch = Batch.of(found if letters is None else list(map(letters, found)), number=first)
            sender.send(batch, deadline=time.monotonic() + _PATIENCE)
            settled: list[Any] = []
            while not settled:
                settled += sender.collect(1.0)
            if settled[0].error or settled[0].failures:
                raise RuntimeError(f"{url} was not seeded: {settled[0]}")
            recorder.write("seeded", rows=list(some))


def _message(plan: Plan, number: int) -> Message:
    row = plan.row(number)
    return Message(value=row.value, key=row.key, headers=row.headers, id=row.id)
