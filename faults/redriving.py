"""The workloads `redrive` and `two-redrives`: letters go back to work, by processes that are started again when killed.

Poison are letters that were redriven as often as allowed: they stay. Two redrives have a journal each, as on two hosts,
so neither knows what the other has sent.
"""

from __future__ import annotations

import threading
import time
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from faults.broker import BrokerUnderTest
from faults.history import DESTINATION, LETTERS, STORED, Recorder
from faults.plan import Plan, number_of
from faults.reading import Reads
from faults.receiving import LEASE, seed
from faults.restarting import AGAIN, Growing, Life, rows_of
from faults.writing import PACE, settings_for
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.deadletters.operations import HOP_LIMIT
from redelivery.formats import dialects
from redelivery.registry import connect

#: How long letters stay hidden that a killed process had looked at, by broker; elsewhere looking hides none, or they
#: come back with the connection.
_HIDDEN: Final = {"sqs": {"sqs.dead_letter_visibility_timeout": str(int(LEASE))}}


class Redriving:
    """See `faults.workloads.Running`."""

    reads: Reads = {"queue": DESTINATION, "dead": LETTERS}  # noqa: RUF012 - not to be altered
    processes = 1
    hidden = LEASE + 2

    def __init__(self, under_test: BrokerUnderTest, plan: Plan, folder: Path) -> None:
        self._recorder = Recorder(folder, "operator")
        bury(under_test, plan, self._recorder)
        settings = settings_for(under_test, plan, folder)
        settings["options"] |= _HIDDEN.get(under_test.broker, {})
        settings["rate"] = plan.rows / PACE / self.processes
        self._stored = Growing(folder, rows_of("settled", **{"to": DESTINATION, "as": STORED}))
        self._lives = [
            Life(
                "faults.redriver",
                {**settings, "journal": str(under_test.scratch / f"journal-{number}.db")},
                folder,
                f"redriver{number}",
                self._recorder,
            )
            for number in range(self.processes)
        ]
        self._next = cycle(self._lives)
        self._owners = [threading.Thread(target=self._own, args=(life,), daemon=True) for life in self._lives]
        for owner in self._owners:
            owner.start()

    @property
    def progress(self) -> int:
        return self._stored.total

    @property
    def alive(self) -> bool:
        return any(owner.is_alive() for owner in self._owners)

    def restart(self) -> None:
        next(self._next).restart()

    def kill(self) -> None:
        for life in self._lives:
            life.kill()
        for owner in self._owners:
            owner.join()
        self._recorder.close()

    def _own(self, life: Life) -> None:
        """Start the redrive again until one has nothing to do, after what killed ones looked at is visible again."""
        while life.wait() is not None:
            end = life.outcome()
            if end is None:
                return
            if end.kind == "reported" and not _has_moved(end.data["report"]) and life.unhindered > self.hidden:
                return
            time.sleep(LEASE if end.kind == "reported" else AGAIN)
            life.again(failed=end.kind != "reported")


class TwoRedrives(Redriving):
    """Two at once."""

    processes = 2


def _has_moved(report: dict[str, Any]) -> bool:
    return bool(report["redriven"] or report["resumed"] or report["failed"] or report["stopped"])


def bury(under_test: BrokerUnderTest, plan: Plan, recorder: Recorder) -> None:
    """Dead-letter all rows."""
    with connect(under_test.place.url, under_test.options) as broker:
        sink = broker.native_sink()
    with connect(sink, under_test.options) as broker:
        capabilities = broker.capabilities

    def letter(message: Message) -> Message:
        hops = HOP_LIMIT if number_of(message.value) in plan.poison else 0
        said = ErrorContext(reason="refused", kind="permanent", attempts=1, attempts_total=1, hops=hops)
        return dialects.attach(
            message,
            said,
            dialect=capabilities.context_dialect,
            limits=capabilities.limits,
            prefix=capabilities.cloudevents_prefix,
        )

    seed(sink, under_test, plan, range(plan.rows), recorder, letter)
