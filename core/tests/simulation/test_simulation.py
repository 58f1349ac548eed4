"""The simulation itself: a seed is a history, a failure is made short, and seeds that once failed pass."""

from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation import __main__ as command
from simulation import results
from simulation.invariants import ALWAYS, AT_THE_END, INVARIANTS, End, Item, always, at_the_end
from simulation.mutants import MUTANTS
from simulation.regressions import FOUND
from simulation.runs import WORLDS, run
from simulation.scheduler import Violated
from simulation.tally import Tally
from simulation.threads import LEFT, QUEUE, RANDOM, SQLITE, THREADING, TIME

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src/redelivery"
SEEDS = range(40)
DIGESTS = """
import json, sys
from simulation.runs import WORLDS, run
seeds = range(int(sys.argv[1]))
print(json.dumps({world: [run(world, seed).digest for seed in seeds] for world in WORLDS}))
"""


def digests(hash_seed: int) -> dict[str, list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", DIGESTS, str(len(SEEDS))]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_a_run_leaves_logging_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    for world in WORLDS:
        run(world, 0)
    assert not caplog.records
    logging.getLogger("redelivery").warning("heard")
    assert caplog.messages == ["heard"]


def test_one_seed_has_one_history_in_any_process() -> None:
    first, second = digests(1), digests(4711)
    assert first == second
    assert set(first) == set(WORLDS)
    for of_world in first.values():
        assert len(set(of_world)) > len(SEEDS) * 0.8, "other seeds have other histories"


@pytest.mark.parametrize("world", WORLDS)
def test_the_invariants_hold(world: str) -> None:
    assert [str(found.violation) for seed in SEEDS if (found := run(world, seed)).violation] == []


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_is_repeated_from_its_decisions(world: str) -> None:
    for seed in range(5):
        first = run(world, seed)
        assert run(world, seed + 1000, first.recorded).digest == first.digest


@pytest.mark.parametrize(("world", "seed", "what"), FOUND)
def test_a_seed_that_once_failed_passes(world: str, seed: int, what: str) -> None:
    assert run(world, seed).violation is None, what


@pytest.mark.parametrize(
    "bad",
    [
        (1, Item(name="m", gone=True, confirmed=True)),
        (3, Item(name="m", copies=2)),
        (3, Item(name="m", ids=2)),
        (4, Item(name="m", altered="its key")),
        (5, Item(name="m", gone=True, kept=True)),
        (8, Item(name="m", harmed="a neighbour")),
        (10, Item(name="m", retries=3, allowed=2)),
        (10, Item(name="m", early="too early")),
        (11, Item(name="m", suppressed=True)),
        (12, Item(name="m", altered="its type", foreign=True)),
        (13, Item(name="m", commanded="it goes elsewhere")),
        (15, Item(name="m", overtook="is sent too early")),
    ],
)
def test_each_invariant_can_fail(bad: tuple[int, Item]) -> None:
    number, item = bad
    with pytest.raises(Violated) as found:
        always([Item(name="good", gone=True, kept=True, confirmed=True, copies=1), item])
    assert found.value.number == number


@pytest.mark.parametrize(
    "bad",
    [
        (2, End(open=["m"])),
        (2, End(open=[], account="one is missing")),
        (5, End(open=[], unexplained="why")),
        (7, End(open=[], late="an hour")),
    ],
)
def test_each_invariant_of_the_end_can_fail(bad: tuple[int, End]) -> None:
    number, end = bad
    with pytest.raises(Violated) as found:
        at_the_end(end)
    assert found.value.number == number


def test_the_table_names_each_invariant_and_existing_worlds() -> None:
    assert {number for number, _ in (*ALWAYS, *AT_THE_END)} == set(INVARIANTS)
    assert {world for worlds in INVARIANTS.values() for world in worlds} == {*WORLDS, "model"}


def test_no_module_reaches_a_thread_or_a_clock_that_is_not_simulated() -> None:
    replaced = {*THREADING, *QUEUE, *TIME, *RANDOM, SQLITE}
    missed = []
    for folder in ("base", "policy", "sending", "receiving", "deadletters"):
        for path in sorted((SOURCE / folder).rglob("*.py")):
            module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for each in node.names if isinstance(node, ast.Import) else ():
                    name = f"{module}.{each.asname or each.name}"
                    if each.name in {"threading", "queue", "time", "random", "sqlite3"} and not {name, module} & {
                        *replaced,
                        *LEFT,
                    }:
                        missed.append(name)
    assert missed == []


def test_a_state_that_was_never_reached_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    states = WORLDS["redrive"].states
    whole = Tally(seeds=command.ENOUGH)
    whole.reached.update(states)
    assert command.report({"redrive": whole}, 1.0) == 0
    del whole.reached[states[0]]
    assert command.report({"redrive": whole}, 1.0) == 1
    assert f"never reached: {states[0]}" in capsys.readouterr().out
    whole.seeds = command.ENOUGH - 1
    assert command.report({"redrive": whole}, 1.0) == 0


def test_the_document_shows_the_recorded_run() -> None:
    assert results.DOCUMENT.read_text(encoding="utf-8") == results.generated()
    recorded = json.loads(results.RECORDED.read_text(encoding="utf-8"))
    assert recorded["model"]["violations"] == 0
    runs = [*recorded["earlier"], recorded]
    failed = {(world, seed) for run in runs for world, each in run["worlds"].items() for seed in each["failed"]}
    assert failed <= {(world, seed) for world, seed, _ in FOUND}, "each is mended, and a test"
    text = results.DOCUMENT.read_text(encoding="utf-8").partition(results.BEGIN)[0]
    assert [seed for _, seed in sorted(failed) if f"{seed:,}" not in text] == [], "the document tells of it"
    assert {world: set(each["reached"]) for world, each in recorded["worlds"].items()} == {
        name: set(world.states) for name, world in WORLDS.items()
    }
    assert all(runs for each in recorded["worlds"].values() for runs in each["reached"].values())
    assert [each["name"] for each in recorded["mutants"]] == [each.name for each in MUTANTS]


def part(first: int, seeds: int, **other: Any) -> dict[str, Any]:
    one = {"seeds": seeds, "steps": 3, "failed": [first], "reached": {"rare": 1, "never": 0}}
    worlds = {world: dict(one) for world in WORLDS}
    return {"commit": "a", "first": first, "seconds": 2, "seeds": seeds * 4, "steps": 12, "worlds": worlds, **other}


def test_the_parts_of_a_run_are_summed() -> None:
    whole = results.summed([part(1100, 50), part(1000, 100)])
    assert (whole["first"], whole["seeds"], whole["steps"], whole["seconds"]) == (1000, 600, 24, 4)
    assert whole["worlds"]["redrive"] == {
        "seeds": 150,
        "steps": 6,
        "failed": [1000, 1100],
        "reached": {"rare": 2, "never": 0},
    }


def test_runs_of_several_commits_are_recorded_beside_each_other() -> None:
    found = results.last_of([part(1000, 100), part(2000, 50, commit="b"), part(1100, 50)])
    assert (found["commit"], found["seeds"]) == ("a", 600)
    assert [(each["commit"], each["seeds"]) for each in found["earlier"]] == [("b", 200)]


@pytest.mark.parametrize("other", [part(1100, 50, commit="b"), part(1101, 50), part(1050, 50), part(1000, 100)])
def test_what_is_not_one_run_is_not_summed(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"commits|begins"):
        results.summed([part(1000, 100), other])


def test_the_command_runs_seeds_side_by_side_and_writes_what_they_came_to(tmp_path: Path) -> None:
    written = tmp_path / "results.json"
    assert command.main(["--seeds", "8", "--jobs", "2", "--json", str(written)]) == 0
    found = json.loads(written.read_text(encoding="utf-8"))
    assert found["seeds"] >= 8
    assert {world: each["failed"] for world, each in found["worlds"].items()} == {world: [] for world in WORLDS}
