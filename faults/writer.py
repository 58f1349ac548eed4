"""The process under test of the workload `write`: a job that writes through the engine, without Spark.

`python -m faults.writer SETTINGS`: a JSON file, see `faults.writing`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from faults import clock
from faults.history import BEGUN, Recorder
from faults.plan import Plan
from faults.recording import recorded
from redelivery.contract.message import Batch, Message
from redelivery.errors import RedeliveryError
from redelivery.formats.specs import options as spec_options
from redelivery.sending import Bounds, Delivery, Origin

#: Rows per batch. Small, so that faults meet batches before, in and after their moment.
BATCH = 50
#: Seconds per batch while a fault is due and has not begun.
SLOWED = 0.4
#: Seconds to wait for the first stored row.
WARM = 5.0


def message(plan: Plan, number: int, nowhere: str | None) -> Message:
    """Return the message that is written for a row. Poison goes to a destination that cannot exist."""
    row = plan.row(number)
    destination = nowhere if number in plan.poison else None
    return Message(value=row.value, key=row.key, headers=row.headers, id=row.id, destination=destination)


def write(settings: dict[str, Any], recorder: Recorder) -> None:
    """Write all rows at the wanted rate; then wait for the account."""
    plan = Plan.from_dict(settings["plan"])
    url: str = settings["url"]
    spec = spec_options.read(settings["spec"])
    delivery = Delivery.open(
        url,
        spec,
        options=settings["options"],
        origin=Origin(run=f"faults-{plan.seed}"),
        bounds=Bounds(),
        connection_factory=recorded(recorder, url),
        skipped=lambda rows: recorder.write("skipped", rows=list(rows)),
    )
    with delivery:
        began = time.monotonic()
        for first in range(0, plan.rows, BATCH):
            numbers = list(range(first, min(first + BATCH, plan.rows)))
            recorder.write("handed", rows=numbers)
            delivery.write(Batch.of([message(plan, each, settings["nowhere"]) for each in numbers]))
            if not first:
                began = _warm(delivery)
            began += _slowed(plan, first, Path(settings["folder"]))
            time.sleep(max(0.0, began + first / settings["rate"] - time.monotonic()))
        report = delivery.finish()
    recorder.write("reported", report=report.to_dict())


def _warm(delivery: Delivery) -> float:
    """Wait until the first row is stored, so that faults meet a job at work; return the time. It may never come."""
    until = time.monotonic() + WARM
    while not delivery.so_far.delivered and time.monotonic() < until:
        time.sleep(0.01)
    return time.monotonic()


def _slowed(plan: Plan, row: int, folder: Path) -> float:
    """Return how much longer to wait before the next batch: much, while a fault is due that takes long to begin."""
    due = sum(moment.row <= row for moment in plan.moments)
    return SLOWED if sum(1 for _ in folder.glob(f"{BEGUN}*")) < due else 0.0


def main(path: str) -> int:
    """Run; return the exit code: 0 reported, 1 failed."""
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    clock.install(Path(settings["scratch"]))
    recorder = Recorder(Path(settings["folder"]), "writer")
    try:
        write(settings, recorder)
    except RedeliveryError as error:
        recorder.write("failed", error=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
