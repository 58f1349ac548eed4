"""Processes that are killed and started again, and what is counted of their histories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from faults import clock, restarting
from faults.history import History, Recorder
from faults.restarting import Growing, Life, rows_of


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a life of processes that run this Python code."""
    made: list[Life] = []

    def begin(code: str) -> Life:
        def process(module: str, settings: Any, folder: Path, name: str) -> subprocess.Popen[bytes]:
            with (folder / f"{name}.log").open("ab") as log:
                command = [sys.executable, "-c", code, module, name]
                return subprocess.Popen(command, stderr=log, start_new_session=True)

        monkeypatch.setattr(restarting, "process", process)
        made.append(Life("of.a.test", {}, tmp_path, "role", Recorder(tmp_path, "owner")))
        return made[-1]

    yield begin
    for each in made:
        each.kill()


def test_a_killed_process_is_followed_by_the_next_and_both_are_written(life: Any, tmp_path: Path) -> None:
    one = life("import time; time.sleep(60)")
    first = one.pid
    one.restart()
    assert one.pid != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    told = [(event.kind, event.data["process"]) for event in History.load(tmp_path)]
    assert told == [("killed", "role-1"), ("restarted", "role-2")]


def test_a_process_that_was_killed_for_good_is_not_started_again(life: Any) -> None:
    one = life("import time; time.sleep(60)")
    one.kill()
    assert one.wait() is None
    one.restart()
    one.again(failed=True)
    assert one.who == "role-1"


def test_a_process_that_ends_is_waited_for_and_one_that_told_nothing_breaks_the_run(life: Any, tmp_path: Path) -> None:
    one = life("import sys; sys.exit('it broke')")
    assert one.wait() == 1
    assert one.outcome() is None
    (failed,) = History.load(tmp_path).of("failed")
    assert "it broke" in failed.data["error"]


def test_a_process_that_was_killed_by_others_has_no_exit_code_of_its_own(life: Any) -> None:
    one = life("import time; time.sleep(60)")
    os.kill(one.pid, signal.SIGKILL)
    assert one.wait() == -signal.SIGKILL


def test_rows_are_counted_as_they_come_and_each_line_once(tmp_path: Path) -> None:
    growing = Growing(tmp_path, rows_of("settled", **{"as": "stored"}))
    assert growing.total == 0
    recorder = Recorder(tmp_path, "a")
    recorder.write("settled", **{"rows": [1, 2], "to": "destination", "as": "stored"})
    recorder.write("settled", **{"rows": [3], "to": "destination", "as": "ambiguous"})
    assert growing.total == 2
    with recorder.path.open("a") as file:  # a process is in the middle of its line
        file.write(json.dumps({"t": 1.0, "who": "a", "kind": "settled", "rows": [4], "as": "stored"}))
    assert growing.total == 2
    with recorder.path.open("a") as file:
        file.write("\n")
    assert growing.total == 3


def test_the_clock_of_a_process_jumps_and_comes_back(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from faults import clock\n"
        "clock.install(pathlib.Path(sys.argv[1]))\n"
        "import time\n"
        "for _ in sys.stdin:\n"
        "    print(time.time(), time.time_ns() / 1e9, flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def told() -> list[float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("?\n")
            process.stdin.flush()
            return [float(each) - time.time() for each in process.stdout.readline().split()]

        for wanted in (-3600.0, 3600.0, 0.0):
            clock.jump(tmp_path, wanted)
            assert told() == pytest.approx([wanted, wanted], abs=30)
        process.stdin.close()
