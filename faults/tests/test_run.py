"""The command: what it prints, what it keeps, and how it ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faults import run
from faults.cells import CELLS, Cell
from faults.checker import Verdict, Violation
from faults.history import Recorder
from faults.plan import Plan
from faults.results import load
from faults.running import Result
from faults.states import STATES
from redelivery_conformance.harness import Harness, NotHere, Place, Runtime

CELL = Cell("locked", "sqlite")
EVERY = tuple(state.name for state in STATES)


class FakeRuntime(Runtime):
    kind = "embedded"
    description = "SQLite 3.40.1, files"

    def place(self) -> Place:
        raise NotImplementedError


class FakeHarness(Harness):
    name = "sqlite"

    def starts(self):
        return {"embedded": lambda _: FakeRuntime()}


class AbsentHarness(Harness):
    name = "sqlite"

    def starts(self):
        def absent(_: Path) -> Runtime:
            raise NotHere("install it")

        return {"container": absent}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs the command on a table of one cell with this verdict; a verdict that is an exception is raised."""
    monkeypatch.delenv(run.REQUIRED, raising=False)
    monkeypatch.setattr(run, "CELLS", (CELL,))
    monkeypatch.setattr(run, "_harness", lambda _: FakeHarness())
    monkeypatch.chdir(tmp_path)

    def ran(verdict: Verdict | Exception, *arguments: str, states: tuple[str, ...] = EVERY) -> int:
        def run_cell(cell: Cell, runtime: Runtime, *, seed: int, rows: int, folder: Path, version: str) -> Result:
            folder.mkdir()
            Recorder(folder, "command").write("note", text="here")
            if isinstance(verdict, Exception):
                raise verdict
            return Result(cell, Plan.make(seed, rows=rows, faults=[]), verdict, states, "", 1.0)

        monkeypatch.setattr(run, "run_cell", run_cell)
        return run.main(arguments)

    return ran


HOLDS = Verdict(Counter(ok=2_000))
FAILS = Verdict(Counter(lost=20), [Violation(1, f"number {number}", (1, 2)) for number in range(20)])


def test_a_cell_that_holds_is_success(command, capsys) -> None:
    assert command(HOLDS, "--seed", "7") == 0
    out = capsys.readouterr().out
    assert "seed 7: 1 cells, 2000 rows each" in out
    assert "holds  sqlite/locked/write  ok 2000" in out


def test_a_seed_that_was_not_given_is_chosen_and_printed(command, capsys) -> None:
    command(HOLDS)
    command(HOLDS)
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed")]
    assert first != second


def test_a_cell_that_fails_prints_ten_violations_and_how_to_run_it_again_and_keeps_its_history(command, capsys) -> None:
    assert command(FAILS, "--seed", "7", "--rows", "3000") == 1
    out = capsys.readouterr().out
    assert out.count("invariant 1: number") == 10
    assert "again: nox -s faults -- --broker sqlite --fault locked --workload write --seed 7 --rows 3000" in out
    assert len(list(Path(".nox/faults").glob("sqlite-locked-write-*/command.history.jsonl"))) == 1


def test_a_cell_without_a_verdict_is_a_failure(command, capsys) -> None:
    assert command(RuntimeError("the broker did not come back")) == 1
    assert "BROKEN sqlite/locked/write: RuntimeError: the broker did not come back" in capsys.readouterr().out


def test_a_rare_state_that_the_whole_table_never_reaches_is_a_failure_of_the_table(command, capsys) -> None:
    assert command(HOLDS, states=EVERY[1:]) == 1
    assert f"the table never reached: {EVERY[0]}" in capsys.readouterr().out


def test_a_part_of_the_table_need_not_reach_all(command, monkeypatch) -> None:
    monkeypatch.setattr(run, "CELLS", (CELL, Cell("reset", "kafka")))
    assert command(HOLDS, "--broker", "sqlite", states=()) == 0


def test_a_broker_that_is_not_here_is_shown_and_fails_where_brokers_are_required(command, monkeypatch, capsys) -> None:
    monkeypatch.setattr(run, "_harness", lambda _: AbsentHarness())
    monkeypatch.setattr(run, "STATES", ())
    assert command(HOLDS) == 0
    assert "not run: 1 cells (sqlite/locked/write, ...)" in capsys.readouterr().out
    monkeypatch.setenv(run.REQUIRED, "1")
    assert command(HOLDS) == 1


def test_results_are_recorded_by_broker_and_version_and_cells_are_replaced(command, tmp_path) -> None:
    assert command(FAILS, "--seed", "7", "--record", str(tmp_path / "results")) == 1
    assert command(HOLDS, "--seed", "8", "--record", str(tmp_path / "results")) == 0
    record = load(tmp_path / "results" / "sqlite-3.40.1.json")
    assert [(cell["seed"], cell["ok"], cell["counts"]) for cell in record["cells"]] == [(8, True, {"ok": 2000})]


def test_an_unknown_cell_is_an_error(command) -> None:
    assert command(HOLDS, "--fault", "earthquake") == 2


def test_the_table_can_be_listed(capsys) -> None:
    assert run.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CELLS)
