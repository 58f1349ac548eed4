"""Jobs that are killed at random moments, for tests of what survives it."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: Seconds after which a job hangs, however busy the machine is: starting Spark has taken two minutes.
PATIENCE = 400
#: Between the moment that is waited for and the kill, up to so many seconds.
_JITTER = 0.3


def start(script: Path, *arguments: object, log: Path) -> subprocess.Popen[bytes]:
    """Start a script in its own process group."""
    with log.open("ab") as out:
        command = [sys.executable, str(script), *map(str, arguments)]
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


def wait_until(job: subprocess.Popen[bytes], reached: Callable[[], bool]) -> bool:
    """Wait for a moment of a job; return False where it ended first."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        if job.poll() is not None:
            return False
        assert time.monotonic() < deadline, "the job makes no progress"
        time.sleep(0.02)
    return True


def kill_driver(job: subprocess.Popen[bytes]) -> None:
    """Kill the whole job: the driver, its JVM, its workers."""
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def kill_a_worker(job: subprocess.Popen[bytes], draw: random.Random) -> bool:
    """Kill one Python worker of a job's Spark, as soon as it has one; return False where the job ended first."""
    deadline = time.monotonic() + PATIENCE
    while job.poll() is None and time.monotonic() < deadline:
        workers = _workers(job)
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(workers), signal.SIGKILL)
                return True
        time.sleep(0.01)
    return False


def _workers(job: subprocess.Popen[bytes]) -> list[int]:
    """Return the Python workers of a job's Spark: forks of its daemon."""
    parents = {int(each.name): _parent(each) for each in Path("/proc").iterdir() if each.name.isdigit()}
    daemons = {pid for pid in parents if _session(pid) == job.pid and _is_daemon(pid)}
    return sorted(pid for pid in daemons if parents[pid] in daemons)


def moment(draw: random.Random) -> None:
    """Wait for a random part of a batch's time."""
    time.sleep(draw.random() * _JITTER)


def _parent(process: Path) -> int:
    try:
        return int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _is_daemon(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
