"""The process under test of the workload `receive`: a subscription that runs until its queue is empty.

`python -m faults.receiver SETTINGS`: a JSON file, see `faults.receiving`. Its handler refuses poison, fails once
for some other rows, and accepts the rest.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from faults import clock
from faults.history import Recorder
from faults.plan import Plan, number_of
from faults.recording import recorded
from redelivery.contract.message import Message
from redelivery.errors import RedeliveryError, TerminalNack
from redelivery.formats.specs import options as spec_options
from redelivery.receiving.subscription import Subscription

#: Of so many rows the handler fails once.
_CLUMSY: Final = 53
#: Counts of a subscription's report.
_ACCOUNT: Final = (
    *("received", "accepted", "failures", "retried", "dead_lettered"),
    *("skipped", "terms", "lost", "given_back"),
)


def handler(plan: Plan, recorder: Recorder, pause: float) -> Callable[[Message], None]:
    """Return a handler that writes what it does to each row."""
    failed: set[int] = set()

    def handle(message: Message) -> None:
        number = number_of(message.value)
        if number is None:
            raise TerminalNack("no row of the plan")
        time.sleep(pause)
        if number in plan.poison:
            recorder.write("handled", **{"rows": [number], "as": "terminated"})
            raise TerminalNack(f"row {number} is poison")
        if number % _CLUMSY == 0 and number not in failed:
            failed.add(number)
            recorder.write("handled", **{"rows": [number], "as": "raised"})
            raise RuntimeError(f"row {number} fails once")
        recorder.write("handled", **{"rows": [number], "as": "accepted"})

    return handle


def main(path: str) -> int:
    """Run; return the exit code: 0 reported, 1 failed."""
    settings: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    clock.install(Path(settings["scratch"]))
    recorder = Recorder(Path(settings["folder"]), settings["who"])
    plan, url = Plan.from_dict(settings["plan"]), settings["url"]
    subscription = Subscription(
        url,
        handler(plan, recorder, settings["pause"]),
        spec=spec_options.read(settings["spec"]),
        options=settings["options"],
        lease=timedelta(seconds=settings["lease"]),
        connection_factory=recorded(recorder, url),
    )
    try:
        report = subscription.run(until_empty=True)
    except RedeliveryError as error:
        recorder.write("note", text=f"it failed: {type(error).__name__}: {error}"[:2000])
        return 1
    recorder.write("reported", report={name: getattr(report, name) for name in _ACCOUNT})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
