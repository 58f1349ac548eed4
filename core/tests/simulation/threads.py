"""Replacements for `threading`, `queue`, `time`, `random` and `sqlite3` in the code under test, inside a simulation.

Each module of the library reaches these by its own name (`redelivery.receiving.workers.threading`); `installed`
replaces those names, and nothing else. So the code under test is the code that is shipped, without a seam for tests
(docs/decisions/0049).
"""

from __future__ import annotations

import contextlib
import queue as real_queue
import sqlite3 as real_sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from simulation.scheduler import Killed, Process, Scheduler, Task

#: Names that are replaced, by what replaces them.
THREADING = (
    "redelivery.sending.delivery.threading",
    "redelivery.receiving.leases.threading",
    "redelivery.receiving.running.threading",
    "redelivery.receiving.subscription.threading",
    "redelivery.receiving.workers.threading",
)
QUEUE = ("redelivery.receiving.running.queue", "redelivery.receiving.workers.queue")
TIME = (
    "redelivery.base.clock.time",
    "redelivery.sending.delivery.time",
    "redelivery.receiving.running.time",
    "redelivery_conformance.memory_receiver.time",
    "redelivery_conformance.memory_sender.time",
    "redelivery_conformance.memory_store.time",
)
RANDOM = (
    "redelivery.sending.connector.random",
    "redelivery.sending.delivery.random_module",
    "redelivery.deadletters.letter_senders.random_module",
)
SQLITE = "redelivery.deadletters.journal.sqlite3"
#: Modules that use one of these and are left unchanged: no world runs them, or nothing depends on it.
LEFT = {
    "redelivery.base.secrets": "a lock that nobody waits for",
    "redelivery.deadletters.parts": "a redrive by Spark is not simulated",
    "redelivery.deadletters.triage": "no letter of a world is parked",
    "redelivery.deadletters.scan": "reading side by side is not simulated",
    "redelivery.sending.preflight": "what the driver asks before any task is not simulated",
    "redelivery.receiving.coroutines.queue": "an event loop is not simulated",
    "redelivery.telemetry.current": "an SDK that exports; no world has one",
    "redelivery.telemetry.handling": "how long a handler takes, where an SDK records that",
    "redelivery.receiving.subscription.random_module": "an argument: the world gives its own",
}
#: Sizes that make a run short. The code under test looks for results for so long before it does other things (fewer
#: looks, more seeds), and reads and sends so many letters together (few letters, several chunks).
SIZES: Mapping[str, float] = {
    "redelivery.sending.delivery._GLANCE": 0.25,
    "redelivery.receiving.running._GLANCE": 0.25,
    "redelivery.deadletters.redrive._CHUNK": 2,
    "redelivery.contract.letters.BATCH_LETTERS": 4,
}

_OF_SQLITE = {name: getattr(real_sqlite3, name) for name in dir(real_sqlite3) if name[0] != "_"}


class Lock:
    """`threading.Lock`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False

    def acquire(self) -> None:
        self._scheduler.switch()
        if self._held:
            self._scheduler.wait(lambda: not self._held)
        self._held = True

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    """`threading.Condition`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._news = 0

    def wait(self, timeout: float | None = None) -> None:
        seen = self._news
        self.release()
        self._scheduler.wait(lambda: self._news != seen, timeout)
        self.acquire()

    def notify_all(self) -> None:
        self._news += 1


class Event:
    """`threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait(self.is_set, timeout)


class Thread:
    """`threading.Thread`."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], object], name: str, **_: Any) -> None:
        self._scheduler = scheduler
        self._target = target
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._target, self._name)

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is not None:
            self._scheduler.wait(lambda: task.done, timeout)


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._scheduler.switch()

    def get(self, *, timeout: float | None = None) -> Any:
        self._scheduler.switch()
        if not self._items and not self._scheduler.wait(lambda: bool(self._items), timeout):
            raise real_queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise real_queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class JournalFile:
    """A connection to the file of a journal: each call is a seam, and may find the disk full.

    A killed process leaves the file as the operating system would: without its open transaction, and unlocked.
    """

    def __init__(self, scheduler: Scheduler, path: Any, full: Callable[[], bool], opened: list[JournalFile]) -> None:
        self.process = scheduler.process
        self._scheduler = scheduler
        self._full = full
        # A power cut is not simulated, so nothing has to reach the disk; and no task waits for a lock in real time.
        self.real = real_sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        with contextlib.suppress(real_sqlite3.OperationalError):  # another redrive has it
            self.real.execute("PRAGMA synchronous = OFF")
        opened.append(self)

    def execute(self, text: str, *arguments: Any) -> Any:
        return self._call(text, lambda: self.real.execute(text, *arguments))

    def executemany(self, text: str, rows: Any) -> Any:
        return self._call(text, lambda: self.real.executemany(text, rows))

    def _call(self, text: str, call: Callable[[], Any]) -> Any:
        if not self.process.alive:
            raise Killed
        words = text.split()
        if words[0] == "COMMIT" or (words[0] == "BEGIN" and len(words) == 1):
            self._scheduler.seam(f"journal {words[0].lower()}")
            if words[0] == "BEGIN" and self._full():
                raise real_sqlite3.OperationalError("database or disk is full")
        return call()

    def close(self) -> None:
        self.real.close()


@contextlib.contextmanager
def installed(scheduler: Scheduler, full: Callable[[], bool]) -> Iterator[list[JournalFile]]:
    """Have the library use the threads, the clock and the files of a simulation; return the open journals.

    Args:
        scheduler: of the run.
        full: says at each transaction of a journal whether its disk is full.
    """
    opened: list[JournalFile] = []

    def released(process: Process) -> None:
        for each in opened:
            if each.process is process:
                each.real.close()

    scheduler.died = released

    def of(kind: Any) -> Callable[..., Any]:
        return lambda *args, **named: kind(scheduler, *args, **named)

    threading = SimpleNamespace(Lock=of(Lock), Condition=of(Condition), Event=of(Event), Thread=of(Thread))
    queue = SimpleNamespace(SimpleQueue=of(SimpleQueue), Empty=real_queue.Empty)
    time = SimpleNamespace(
        monotonic=lambda: scheduler.now, time_ns=lambda: int(scheduler.now * 1_000_000_000), sleep=scheduler.sleep
    )
    random = SimpleNamespace(random=scheduler.choices.jitter)
    sqlite = SimpleNamespace(**_OF_SQLITE)
    sqlite.connect = lambda path, **_: JournalFile(scheduler, path, full, opened)
    replaced: dict[str, Any] = {SQLITE: sqlite, **SIZES}
    for names, value in ((THREADING, threading), (QUEUE, queue), (TIME, time), (RANDOM, random)):
        replaced |= dict.fromkeys(names, value)
    before = [(place, name, getattr(place, name)) for place, name in map(_found, replaced)]
    for (place, name, _), value in zip(before, replaced.values(), strict=True):
        setattr(place, name, value)
    try:
        yield opened
    finally:
        for place, name, value in before:
            setattr(place, name, value)
        for each in opened:
            each.real.close()


@cache
def _found(name: str) -> tuple[Any, str]:
    module, _, attribute = name.rpartition(".")
    return import_module(module), attribute
