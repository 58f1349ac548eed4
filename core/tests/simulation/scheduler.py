"""`Scheduler`: the clock, the threads and the processes of a run. One thread runs at a time, and a choice says which.

Threads are real, because the code under test is ordinary code; each waits for its baton. A *seam* is a call that the
code under test makes to something outside it: a broker, the clock, a lock, a file. Only at a seam another thread may
go on, time may pass, or the process may be killed. A killed process is like one after `kill -9`: each of its threads
gets `Killed` out of its next seam, so that nothing it does in `finally` has any effect.
"""

from __future__ import annotations

import _thread
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.choices import Choices

#: How often another thread goes on at a seam, where one could.
_SWITCH = 0.25
#: A run with so many seams makes no progress.
MOST_SEAMS = 30_000
#: Where the clock starts, seconds.
BEGIN = 1_700_000_000.0


class Killed(BaseException):
    """The process of this thread is dead."""


class Violated(Exception):
    """An invariant does not hold."""

    def __init__(self, number: int, name: str, what: str) -> None:
        super().__init__(f"invariant {number}, {name}: {what}")
        self.number = number
        self.name = name


@dataclass(eq=False, slots=True)
class Process:
    """A process that may be killed.

    Attributes:
        name: for the history.
        dies_at: the seam at which it is killed, counted from 1; 0: never.
        seams: how many it has passed.
        alive: whether it lives.
    """

    name: str
    dies_at: int = 0
    seams: int = 0
    alive: bool = True


@dataclass(eq=False, slots=True)
class Task:
    """A thread.

    Attributes:
        name, process: what and whose it is.
        until: what it waits for; None: nothing.
        deadline: until when it waits at most.
        done: it has ended.
        failure: what it ended with.
    """

    name: str
    process: Process
    baton: _thread.LockType = field(default_factory=_thread.allocate_lock)
    until: Callable[[], bool] | None = None
    deadline: float | None = None
    done: bool = False
    failure: BaseException | None = None


class Scheduler:
    """Runs the threads of a world, one at a time.

    Attributes:
        now: the time, seconds.
        history: what happened: time, thread, what.
        reached: names of the rare states that the run came through, and how often.
        check: called after each step; raises Violated.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now = BEGIN
        self.history: list[tuple[float, str, str]] = []
        self.reached: dict[str, int] = {}
        self.check: Callable[[], None] = lambda: None
        self.violation: Violated | None = None
        #: Called when a process is killed: by the files that it has open, then by the world.
        self.died: Callable[[Process], None] = lambda _: None
        self.killed: Callable[[Process], None] = lambda _: None
        self._seams = 0
        self._root = self._current = Task("world", Process("world"))
        self._tasks = [self._root]
        self._root.baton.acquire()

    # --- for the world ---

    def spawn(self, target: Callable[[], object], name: str, process: Process | None = None) -> Task:
        """Start a thread; it runs when it is its turn."""
        task = Task(name, process or self._current.process)
        task.baton.acquire()
        self._tasks.append(task)
        _thread.start_new_thread(self._live, (task, target))
        return task

    def run(self, target: Callable[[], object], process: Process) -> BaseException | None:
        """Run a process to its end, as the world's own thread; return what it ended with."""
        task = self.spawn(target, process.name, process)
        self.wait(lambda: task.done)
        return task.failure

    def end(self) -> None:
        """Kill all that still lives, and see all threads out."""
        for task in self._tasks[1:]:
            task.process.alive = False
        for task in self._tasks[1:]:
            while not task.done:
                self._hand_over(task)

    def note(self, what: str) -> None:
        """Add a step to the history, and check what must hold after it."""
        self.history.append((round(self.now - BEGIN, 3), self._current.name, what))
        if self.violation is None:
            try:
                self.check()
            except Violated as violation:
                self.fail(violation)

    def reach(self, state: str) -> None:
        """Count a rare state."""
        self.reached[state] = self.reached.get(state, 0) + 1

    def fail(self, violation: Violated) -> None:
        """End the run: an invariant does not hold."""
        self.violation = self.violation or violation
        for task in self._tasks[1:]:
            task.process.alive = False
        if self._current is self._root:
            raise self.violation
        raise Killed

    @property
    def digest(self) -> str:
        """What distinguishes this history from another one."""
        return hashlib.sha256(repr((self.history, sorted(self.reached.items()))).encode()).hexdigest()[:16]

    # --- for the seams ---

    @property
    def process(self) -> Process:
        """The process of the thread that runs."""
        return self._current.process

    def seam(self, what: str) -> None:
        """Pass a seam: here the process may be killed, or another thread may go on."""
        process = self._current.process
        if process.alive:
            process.seams += 1
            if process.seams == process.dies_at:
                self.kill(process, what)
        self.switch()

    def kill(self, process: Process, where: str) -> None:
        """Kill a process."""
        process.alive = False
        self.history.append((round(self.now - BEGIN, 3), self._current.name, f"{process.name} is killed at {where}"))
        self.died(process)
        self.killed(process)

    def switch(self) -> None:
        """Let another thread go on, perhaps; raise Killed if the process is dead."""
        task = self._current
        if not task.process.alive:
            raise Killed
        self._count()
        if len(self._tasks) > 2:  # the world's own, and this one
            others = [each for each in self._tasks if each is not task and self._may_run(each)]
            if others and (chosen := self.choices.often("thread", len(others), _SWITCH)):
                self._hand_over(others[chosen - 1])
                if not task.process.alive:
                    raise Killed

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for something, or for so many seconds; return whether it is so. Time passes while nothing can run."""
        task = self._current
        if not task.process.alive:
            raise Killed
        task.until, task.deadline = until, None if seconds is None else self.now + seconds
        while not self._may_run(task):
            self._count()
            others = [each for each in self._tasks if each is not task and self._may_run(each)]
            if others:
                self._hand_over(others[self.choices.below("next thread", len(others)) if len(others) > 1 else 0])
            else:
                self._let_time_pass()
        task.until = task.deadline = None
        if not task.process.alive or self.violation is not None:
            if task is self._root and self.violation is not None:
                raise self.violation
            raise Killed
        return until()

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        self.wait(lambda: False, max(0.0, seconds))

    # --- inside ---

    def _may_run(self, task: Task) -> bool:
        if task.done:
            return False
        if task.until is None or not task.process.alive:
            return True
        return (
            task.until()
            or (task.deadline is not None and task.deadline <= self.now)
            or (task is self._root and self.violation is not None)
        )

    def _let_time_pass(self) -> None:
        deadlines = [each.deadline for each in self._tasks if not each.done and each.deadline is not None]
        if deadlines:
            self.now = max(self.now, min(deadlines))
            return
        waiting = ", ".join(each.name for each in self._tasks[1:] if not each.done)
        self._stuck(f"a deadlock: {waiting or 'nothing'} waits, and nothing will ever happen")

    def _count(self) -> None:
        self._seams += 1
        if self._seams > MOST_SEAMS and self.violation is None:
            self._stuck(f"no end after {MOST_SEAMS} steps")

    def _stuck(self, what: str) -> None:
        self.history.append((round(self.now - BEGIN, 3), self._current.name, what))
        self.fail(Violated(7, "everything_ends", what))

    def _hand_over(self, task: Task) -> None:
        """Let another thread run until it hands over to this one."""
        mine, self._current = self._current, task
        task.baton.release()
        mine.baton.acquire()

    def _live(self, task: Task, target: Callable[[], object]) -> None:
        task.baton.acquire()
        try:
            if task.process.alive:
                target()
        except BaseException as error:  # noqa: BLE001 - the task that waits for it decides
            task.failure = error
        task.done = True
        # Whoever could run goes on; the world's thread always can, if only to find that nothing else can.
        able = [each for each in self._tasks if self._may_run(each)]
        others = [each for each in able if each is not self._root]
        following = self._root
        if others and self._root not in able:
            following = others[self.choices.below("next thread", len(others)) if len(others) > 1 else 0]
        self._tasks.remove(task)
        self._current = following
        following.baton.release()
