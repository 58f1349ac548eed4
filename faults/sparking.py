"""The workloads `spark` and `stream`: a batch job whose workers are killed, and a stream whose driver is."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from faults.broker import BrokerUnderTest
from faults.history import DESTINATION, LETTERS, STORED, Recorder
from faults.plan import Plan
from faults.reading import Reads
from faults.restarting import AGAIN, Growing, Life, rows_of
from faults.writing import settings_for
from redelivery_conformance.harness import NotHere

#: Seconds that a job without a worker is waited for: between two tasks it may have none.
_PATIENCE: Final = 10.0
_LOOK: Final = 0.01
#: Seconds that a task's rows take at least.
_PACE: Final = 2.0
_TASKS: Final = 4


class Sparking:
    """A batch job; see `faults.workloads.Running`. Spark itself starts a killed worker's task again."""

    reads: Reads = {"queue": DESTINATION, "dead": LETTERS}  # noqa: RUF012 - not to be altered
    processes = 1
    hidden = 0.0
    stream = False

    def __init__(self, under_test: BrokerUnderTest, plan: Plan, folder: Path) -> None:
        if find_spec("pyspark") is None:
            raise NotHere("a Spark job: pip install 'redelivery[spark]'")
        self._recorder = Recorder(folder, "owner")
        settings = {
            **settings_for(under_test, plan, folder),
            "stream": self.stream,
            "rate": max(plan.rows / _TASKS / _PACE, 1.0),
        }
        self._stored = Growing(folder, rows_of("settled", **{"to": DESTINATION, "as": STORED}))
        self._life = Life("faults.spark_job", settings, folder, "driver", self._recorder)
        self._owner = threading.Thread(target=self._own, daemon=True)
        self._owner.start()

    @property
    def progress(self) -> int:
        return self._stored.total

    @property
    def alive(self) -> bool:
        return self._owner.is_alive()

    def restart(self) -> None:
        raise ValueError("nobody starts a batch job again whose driver was killed: see the workload `stream`")

    def kill_worker(self) -> None:
        """Kill a Python worker of the job, as soon as it has one."""
        deadline = time.monotonic() + _PATIENCE
        while self.alive and time.monotonic() < deadline:
            for worker in workers(self._life.pid)[:1]:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    self._recorder.write("killed", process=f"worker-{worker}")
                    self._recorder.write("restarted", process=f"worker-{worker}")
                    return
            time.sleep(_LOOK)

    def kill(self) -> None:
        self._life.kill()
        self._owner.join()
        self._recorder.close()

    def _own(self) -> None:
        if self._life.wait() is not None:
            end = self._life.outcome()
            if end is not None and end.kind == "note":
                self._recorder.write("failed", error=end.data["text"])


class Streaming(Sparking):
    """A stream, started again from its checkpoint."""

    stream = True

    def restart(self) -> None:
        self._life.restart()

    def _own(self) -> None:
        while self._life.wait() is not None:
            end = self._life.outcome()
            if end is None or end.kind == "reported":
                return
            time.sleep(AGAIN)
            self._life.again(failed=True)


def workers(driver: int) -> list[int]:
    """Return the Python workers of a driver's Spark: forks of its daemon, all in the driver's session."""
    processes = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
    ours = {pid for pid in processes if _session(pid) == driver and _is_daemon(pid)}
    return sorted(pid for pid in ours if _parent(pid) in ours)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _is_daemon(pid: int) -> bool:
    try:
        return b"faults.spark_daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
