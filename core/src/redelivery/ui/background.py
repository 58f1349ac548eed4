"""Work that goes on behind the page: begun on request, one at a time, its last result kept with its time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from redelivery.errors import RedeliveryError
from redelivery.ui.safety import one_line

T = TypeVar("T")

#: Work that hangs is given up, and may be begun again so often while it still hangs.
_ABANDONED: Final = 3
#: Seconds that work waits for its turn.
_TURN: Final = 5.0

log = logging.getLogger("redelivery.ui")


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Generic[T]):
    """The state of some work.

    Attributes:
        phase: "never" begun, "running", "done" or "failed".
        result: of the last time that it succeeded, also while it runs again; None: it never did.
        error: one line, where it failed last.
        began_ms, ended_ms: when it last began; when `result` was complete. Milliseconds since the epoch.
        progress: how much has been seen in the run that goes on.
    """

    phase: Literal["never", "running", "done", "failed"] = "never"
    result: T | None = None
    error: str | None = None
    began_ms: int | None = None
    ended_ms: int | None = None
    progress: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.phase == "running"


class Run:
    """One run of some work: it says how far it is, and asks whether it shall go on."""

    def __init__(self, ends: float) -> None:
        self._ends = ends
        self.seen = 0
        self.abandoned = False

    def progress(self, seen: int) -> None:
        """Say how much has been seen."""
        self.seen = seen

    def stop(self) -> bool:
        """Whether the time is over."""
        return self.is_late or self.abandoned

    @property
    def is_late(self) -> bool:
        """Whether it has taken longer than it may."""
        return time.monotonic() > self._ends


class Background(Generic[T]):
    """Some work of one place.

    Args:
        name: for threads.
        work: called in its own thread; it shall end soon after `Run.stop` returns True.
        seconds: how long it may take.
        slots: shared with others: how much such work goes on at a time. Who waited some seconds goes on without one,
            because those who have one may hang.
    """

    def __init__(
        self, name: str, work: Callable[[Run], T], *, seconds: float, slots: threading.BoundedSemaphore
    ) -> None:
        self._name = name
        self._work = work
        self._seconds = seconds
        self._slots = slots
        self._lock = threading.Lock()
        self._state: State[T] = State()
        self._run: Run | None = None
        self._hanging = 0

    def begin(self) -> None:
        """Begin it, unless it goes on already. A run that hangs is abandoned, and another one begins."""
        with self._lock:
            if self._state.is_running:
                if self._run is None or not self._run.is_late or self._hanging >= _ABANDONED:
                    return
                self._run.abandoned = True
                self._hanging += 1
            self._run = run = Run(time.monotonic() + self._seconds)
            self._state = State(
                phase="running",
                result=self._state.result,
                began_ms=time.time_ns() // 1_000_000,
                ended_ms=self._state.ended_ms,
            )
        threading.Thread(target=self._do, args=(run,), name=f"redelivery-look-{self._name}", daemon=True).start()

    @property
    def state(self) -> State[T]:
        """The state now."""
        with self._lock:
            state, run = self._state, self._run
        if not state.is_running or run is None:
            return state
        late = f"it has not answered within {self._seconds:g} s" if run.is_late else None
        return State(
            phase="failed" if late else "running",
            result=state.result,
            error=late,
            began_ms=state.began_ms,
            ended_ms=state.ended_ms,
            progress=run.seen,
        )

    def _do(self, run: Run) -> None:
        result: T | None = None
        error: str | None = None
        has_slot = self._slots.acquire(timeout=_TURN)
        try:
            result = self._work(run)
        except RedeliveryError as raised:
            error = one_line(raised)
        except Exception as raised:  # noqa: BLE001 - one place must not end the page
            log.error("%s: %s: %s", self._name, type(raised).__name__, one_line(raised))  # noqa: TRY400 - one line
            error = f"{type(raised).__name__}: {one_line(raised)}"
        finally:
            if has_slot:
                self._slots.release()
        with self._lock:
            if run.abandoned:
                self._hanging -= 1
                return
            before = self._state
            now = time.time_ns() // 1_000_000
            self._state = State(
                phase="done" if error is None else "failed",
                result=before.result if error else result,
                error=error,
                began_ms=before.began_ms,
                ended_ms=before.ended_ms if error else now,
            )
