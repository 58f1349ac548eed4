"""Processes that their owner starts again when they die: what the workloads of this kind share."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from faults.history import Event, History, Kind, Recorder
from faults.writing import process

#: Seconds after which an owner starts a process again that has failed.
AGAIN: Final = 0.5


class Life:
    """One process under test after another, in one role.

    Args:
        module: run by `python -m`.
        settings: for the process, as JSON.
        folder: of histories.
        name: of the role. Each process writes its history as `<name>-<number>`.
        recorder: gets `killed` and `restarted`.
    """

    def __init__(self, module: str, settings: Mapping[str, Any], folder: Path, name: str, recorder: Recorder) -> None:
        self.number = 0
        self._module = module
        self._settings = settings
        self._folder = folder
        self._name = name
        self._recorder = recorder
        self._lock = threading.Lock()
        self._over = False
        self._killed = float("-inf")
        self._start()

    @property
    def unhindered(self) -> float:
        """Seconds between the last kill and the start of the present process."""
        return self._started - self._killed

    @property
    def who(self) -> str:
        """The present process, as the history names it."""
        return f"{self._name}-{self.number}"

    @property
    def pid(self) -> int:
        """The present process, which leads its group."""
        return self._process.pid

    def again(self, *, failed: bool) -> None:
        """Start the next process, where the last one has ended by itself."""
        with self._lock:
            if not self._over:
                self._start()
                if failed:
                    self._recorder.write("restarted", process=self.who)

    def outcome(self) -> Event | None:
        """Return how the last process ended: what it reported, or its error (a note).

        None: it told nothing, so the run itself is broken, and that is written.
        """
        ends = [event for event in History.load(self._folder).of("reported", "note") if event.who == self.who]
        if ends:
            return ends[-1]
        log = (self._folder / f"{self.who}.log").read_text(errors="replace")
        self._recorder.write("failed", error=f"{self.who} told nothing: {log[-1000:]}")
        return None

    def restart(self) -> None:
        """Kill the present process and its children (kill -9), and start the next one."""
        with self._lock:
            if self._over:
                return
            self._end()
            self._killed = time.monotonic()
            self._recorder.write("killed", process=self.who)
            self._start()
            self._recorder.write("restarted", process=self.who)

    def wait(self) -> int | None:
        """Wait until a process ends that is not restarted; return its exit code; None: it was killed for good."""
        while True:
            process = self._process
            code = process.wait()
            with self._lock:
                if self._over:
                    return None
                if process is self._process:
                    return code

    def kill(self) -> None:
        """End the present process (kill -9); no other is started."""
        with self._lock:
            self._over = True
            self._end()

    def _start(self) -> None:
        self.number += 1
        self._started = time.monotonic()
        self._process: subprocess.Popen[bytes] = process(
            self._module, {**self._settings, "who": self.who}, self._folder, self.who
        )

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Growing:
    """Counts rows in the histories of a folder, reading each file's new lines only.

    Args:
        folder: of histories.
        counts: how many rows an event adds.
    """

    def __init__(self, folder: Path, counts: Callable[[Event], int]) -> None:
        self._folder = folder
        self._counts = counts
        self._read: dict[Path, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        """The number so far."""
        for path in self._folder.glob("*.history.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            self._total += sum(self._counts(Event.from_json(line)) for line in whole.decode().splitlines())
        return self._total


def rows_of(kind: Kind, **wanted: str) -> Callable[[Event], int]:
    """Return a count of the rows of such events."""
    return lambda event: (
        len(event.rows)
        if event.kind == kind and all(event.data.get(name) == value for name, value in wanted.items())
        else 0
    )
