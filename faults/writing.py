"""The workload `write`: a writing job in its own process, paced so that faults meet it in the middle of its work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from faults.broker import BrokerUnderTest
from faults.history import DESTINATION, LETTERS, Tail
from faults.plan import Plan
from faults.reading import Reads
from redelivery.contract.broker import Support

ROOT: Final = Path(__file__).resolve().parents[1]
#: Enough tries to outlast each fault of the table; an attempt that hangs ends after two seconds.
SPEC: Final[Mapping[str, str]] = {
    "retry": "60",
    "timeout": "PT2S",
    "backoffPolicy": "linear",
    "backoffDelay": "PT0.1S",
    "backoffMax": "PT0.5S",
}
#: Seconds that the rows of a run take at least.
PACE: Final = 3.0


def settings_for(under_test: BrokerUnderTest, plan: Plan, folder: Path) -> dict[str, Any]:
    """Return what a process under test needs: URL, options, spec, plan, where poison goes, where its history goes."""
    sink = {} if under_test.sink is None else {"deadLetterSink": under_test.sink}
    destinations = under_test.capabilities.destinations is not Support.NONE
    return {
        "url": under_test.url,
        "options": dict(under_test.options),
        "spec": {**SPEC, **sink},
        "plan": plan.to_dict(),
        "nowhere": under_test.place.impossible_destination() if destinations else "nowhere",
        "folder": str(folder),
        "scratch": str(under_test.scratch),
        "rate": plan.rows / PACE,
    }


def process(module: str, settings: Mapping[str, Any], folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE SETTINGS` in its own process group; its output goes to `<name>.log` of the folder."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - ours
            [sys.executable, "-m", module, str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Writing:
    """See `faults.workloads.Running`."""

    reads: Reads = {"queue": DESTINATION, "dead": LETTERS}  # noqa: RUF012 - not to be altered
    processes = 1
    hidden = 0.0
    #: What its spec has beyond `SPEC`.
    spec: Mapping[str, str] = {}

    def __init__(self, under_test: BrokerUnderTest, plan: Plan, folder: Path) -> None:
        self._handed = Tail(folder, "handed")
        settings = settings_for(under_test, plan, folder)
        settings["spec"] |= self.spec
        self._process = process("faults.writer", settings, folder, "writer")

    @property
    def progress(self) -> int:
        return self._handed.count()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def restart(self) -> None:
        raise ValueError("nobody starts a writing job again: the workload `stream` is one that Spark replays")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class WritingOnce(Writing):
    """A job that tries nothing twice: rows of which it does not know whether they were stored are given up."""

    spec: Mapping[str, str] = {"retry": "0"}
