"""A broker as a process of this host, for a harness: started, waited for, frozen, killed and started again.

Which program, its arguments and when it is ready is the plugin's to say; `containers.py` is the same for containers.
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

#: Seconds that a process has to end by itself, and between two looks whether a broker is ready.
_STOP: Final = 30.0
_LOOK: Final = 0.1


def program(name: str, *folders: str) -> str:
    """Path of an installed program, looked for on PATH and in further folders. Raises NotHere."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *folders]))
    if found is None:
        raise NotHere(f"install {name}, so that it is on the PATH")
    return found


class Process:
    """A process with all that it starts, in a process group; ended by `close`, or with this interpreter.

    Args:
        command: the program and its arguments; ports are chosen before (`containers.free_port`), so that they stay.
        log: file for what it writes.
        environment: added to this process's own.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        self.environment = {**os.environ, **(environment or {})}
        self._was_ready = False
        self.start()
        atexit.register(self.close)

    def start(self) -> None:
        """Start it, or start it again with the same arguments; `wait` tells when it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the program that the harness named
                self.command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, ready: Callable[[], object], seconds: float) -> None:
        """Ask `ready` again and again until it returns what is true; until then it may raise.

        Raises:
            NotHere: it never was, within so many seconds, or the process ended; it is closed then.
            RuntimeError: the same, though it was ready before.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(Exception):  # a broker that starts may answer anything
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
        """While entered, it is frozen: its connections stay, and nothing answers."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    @contextmanager
    def stopped(self, ready: Callable[[], object], seconds: float) -> Iterator[None]:
        """While entered, it is killed; afterwards it is started and waited for."""
        self.kill()
        try:
            yield
        finally:
            self.start()
            self.wait(ready, seconds)

    def kill(self) -> None:
        """Kill it, without a chance to write anything."""
        self._signal(signal.SIGKILL)
        self._process.wait(_STOP)

    def close(self) -> None:
        """Stop it, and what it started. A second call does nothing."""
        atexit.unregister(self.close)
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, number)

    def _end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
