"""A cell from its start to its verdict, on a real broker of one file."""

from __future__ import annotations

import json
from pathlib import Path

from faults import workloads
from faults.cells import Cell
from faults.history import Event
from faults.running import WHOLE, run_cell
from faults.writing import Writing, process, settings_for
from redelivery_sqlite.testing import SqliteRuntime

CELL = Cell("locked", "sqlite", seconds=(0.5, 0.6))


def test_a_cell_runs_from_its_plan_to_its_verdict(tmp_path: Path) -> None:
    result = run_cell(CELL, SqliteRuntime("embedded", tmp_path), seed=7, rows=500, folder=tmp_path / "cell", version="")
    assert result.verdict.violations == []
    assert result.verdict.counts == {"ok": 495, "dead-lettered": 5, "unexpected": 0}
    history = [Event.from_json(line) for line in (tmp_path / "cell" / WHOLE).read_text().splitlines()]
    assert history[0].kind == "plan"
    assert history[0].data["plan"] == json.loads(json.dumps(result.plan.to_dict()))
    assert [event.data["met"] for event in history if event.kind == "fault"] == [True]


def test_a_broker_that_confirms_what_it_never_got_is_found(tmp_path: Path, monkeypatch) -> None:
    class Lied(Writing):
        def __init__(self, under_test, plan, folder) -> None:
            super().__init__(under_test, plan, folder)
            super().kill()
            for each in folder.glob("writer.history.jsonl"):
                each.unlink()
            self._process = process(
                "faults.tests.lying_writer", settings_for(under_test, plan, folder), folder, "writer"
            )

    monkeypatch.setattr(workloads, "WORKLOADS", {"write": Lied})
    result = run_cell(CELL, SqliteRuntime("embedded", tmp_path), seed=7, rows=500, folder=tmp_path / "cell", version="")
    assert {each.invariant for each in result.verdict.violations} >= {1}
    assert result.verdict.counts["lost"] >= 50
