"""Runs one cell: plan, processes under test, faults at their moments, watchdog, independent reader, checker."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from faults.actions import action
from faults.broker import BrokerUnderTest, under_test
from faults.cells import Cell
from faults.checker import Verdict, check
from faults.history import BEGUN, History, Recorder
from faults.plan import Plan
from faults.reading import read
from faults.states import reached
from faults.workloads import Running, run_workload
from redelivery.contract.broker import Support
from redelivery_conformance.harness import Runtime

_LOOK: Final = 0.02
#: Seconds in which a fault must have begun, and in which it must have ended.
_TURN: Final = 150.0
#: The merged history of a cell that failed.
WHOLE: Final = "history.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a cell.

    Attributes:
        cell, plan, verdict: the cell, its plan and the verdict.
        states: rare states that were reached.
        proxy: which proxy it was, for faults of the network.
        seconds: from the start of the processes to their end.
    """

    cell: Cell
    plan: Plan
    verdict: Verdict
    states: tuple[str, ...]
    proxy: str
    seconds: float


def run_cell(cell: Cell, runtime: Runtime, *, seed: int, rows: int, folder: Path, version: str) -> Result:
    """Run a cell on a running broker; its histories stay in the folder.

    Raises:
        Exception: the fault could not begin or end, or the broker could not be read: no verdict.
    """
    plan = Plan.make(seed, rows=rows, faults=[cell.fault], poison=cell.poison, times=cell.times, seconds=cell.seconds)
    scratch, histories = folder / "scratch", folder / "histories"
    for each in (scratch, histories):
        each.mkdir(parents=True)
    recorder = Recorder(histories, "command")
    recorder.write("plan", plan=plan.to_dict())
    tested = under_test(cell.broker, runtime, cell.fault, scratch)
    try:
        began = time.monotonic()
        running = run_workload(cell.workload, tested, plan, histories)
        recorder.write("start", **_start(cell, tested, running, version))
        try:
            _faults(cell, tested, plan, running, recorder, began + cell.limit)
            _wait(lambda: running.alive, began + cell.limit)
            if running.alive:
                recorder.write("overrun", seconds=cell.limit)
        finally:
            running.kill()
        took = time.monotonic() - began
        read(tested, plan, running.reads, recorder, hidden=running.hidden)
        proxy = "" if tested.proxy is None else tested.proxy.kind
    finally:
        recorder.close()
        tested.close()
    history = History.load(histories)
    history.save(folder / WHOLE)
    return Result(cell, plan, check(history), tuple(reached(history)), proxy, took)


def _start(cell: Cell, tested: BrokerUnderTest, running: Running, version: str) -> dict[str, Any]:
    return {
        "broker": cell.broker,
        "version": version,
        "workload": cell.workload,
        "fault": cell.fault,
        "seconds": cell.limit,
        "ids": tested.capabilities.ids is not Support.NONE,
        "survives": cell.survives,
        "refuses": cell.refuses,
        "processes": running.processes,
    }


def _faults(
    cell: Cell, tested: BrokerUnderTest, plan: Plan, running: Running, recorder: Recorder, deadline: float
) -> None:
    """Begin and end each fault of the plan at its moment."""
    turns = _Turns()
    for number, moment in enumerate(plan.moments):
        fault = action(moment.fault, tested, running)
        row = moment.row
        _wait(lambda row=row: running.alive and running.progress < row, deadline)  # type: ignore[misc]
        recorder.write("fault", fault=cell.fault, destroys=sorted(fault.destroys), met=running.alive)
        try:
            turns.call(fault.begin)
            (recorder.path.parent / f"{BEGUN}{number}").touch()
            if not running.alive and any(True for _ in History.load(recorder.path.parent).of("reported")):
                recorder.write("fault", fault=cell.fault, destroys=sorted(fault.destroys), met=False)  # too slow
            _wait(lambda: running.alive, time.monotonic() + moment.seconds)
        finally:
            turns.call(fault.end)
            recorder.write("healed", fault=cell.fault, destroys=sorted(fault.destroys))


def _wait(while_: Callable[[], bool], deadline: float) -> None:
    while while_() and time.monotonic() < deadline:
        time.sleep(_LOOK)


class _Turns:
    """Calls functions in one other thread, always the same, so that a call that hangs does not hang the cell."""

    def __init__(self) -> None:
        self._asked: queue.Queue[Callable[[], None]] = queue.Queue()
        self._answers: queue.Queue[BaseException | None] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def call(self, function: Callable[[], None]) -> None:
        """Call; raise what it raises, or RuntimeError if it has not returned in time."""
        self._asked.put(function)
        try:
            raised = self._answers.get(timeout=_TURN)
        except queue.Empty:
            raise RuntimeError(f"a fault did not begin or end within {_TURN:.0f} s") from None
        if raised is not None:
            raise raised

    def _run(self) -> None:
        while True:
            try:
                self._asked.get()()
            except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
                self._answers.put(error)
            else:
                self._answers.put(None)
