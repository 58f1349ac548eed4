"""Run a broker as a process of this host, for a harness: start it, wait for it, freeze it, kill it, restart it.

The plugin chooses the program, its arguments and the check for readiness. `containers.py` does the same for containers.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from redelivery_conformance.harness import NotHere

#: Seconds that a process has to end by itself, and seconds between two checks whether a broker is ready.
_STOP: Final = 30.0
_LOOK: Final = 0.1


def program(name: str, *folders: str) -> str:
    """Return the path of an installed program, from PATH or from further folders. Raises NotHere."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *folders]))
    if found is None:
        raise NotHere(f"install {name}, so that it is on the PATH")
    return found


class Process:
    """A process and its children, in one process group. It ends at `close`, or with this interpreter.

    Args:
        command: the program and its arguments, with ports from `containers.free_port`, so that a restart keeps them.
        log: file for its output.
        environment: variables added to those of this process.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        self.environment = {**os.environ, **(environment or {})}
        self._was_ready = False
        self.start()
        atexit.register(self.close)

    def start(self) -> None:
        """Start the process, or restart it with the same arguments. Call `wait` until it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the harness names the program
                self.command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, ready: Callable[[], object], seconds: float) -> None:
        """Call `ready` until it returns a true value. It may raise until then.

        Raises:
            NotHere: the broker did not become ready within this many seconds, or the process ended. It is closed.
            RuntimeError: the same, but the broker was ready before.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(Exception):  # a starting broker may answer anything
                if ready():
                    self._was_ready = True
                    return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK)
        text = f"{self.command[0]} is not ready after {seconds:.0f} s; the end of its log:\n{self._end_of_log()}"
        if self._was_ready:
            raise RuntimeError(text)
        self.close()
        raise NotHere(text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze the process for the length of the `with` block: connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    @contextmanager
    def stopped(self, ready: Callable[[], object], seconds: float) -> Iterator[None]:
        """Kill the process for the length of the `with` block; then restart it and wait until it is ready."""
        self.kill()
        try:
            yield
        finally:
            self.start()
            self.wait(ready, seconds)

    def kill(self) -> None:
        """Kill the process, without a chance to write anything."""
        self._signal(signal.SIGKILL)
        self._process.wait(_STOP)

    def close(self) -> None:
        """Stop the process and its children. A second call does nothing."""
        atexit.unregister(self.close)
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended already
            os.killpg(self._process.pid, number)

    def _end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
