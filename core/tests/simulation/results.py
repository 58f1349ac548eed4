"""Results of a long run: `document` makes them, `results.json` keeps them, docs/simulation.md shows them (`page`).

`python -m simulation.results FILE...` records runs, of which each part was written by `--json FILE`, and what the
mutants and the model come to now. The tables are those of the commit whose part is named last. Without files it writes
the document again.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

from simulation.invariants import INVARIANTS
from simulation.model import MUTANTS as OF_PROTOCOL
from simulation.model import SURROUNDINGS, search
from simulation.mutants import MUTANTS, Mutant
from simulation.runs import WORLDS, run
from simulation.tally import Tally

ROOT: Final = Path(__file__).resolve().parents[3]
RECORDED: Final = Path(__file__).with_name("results.json")
DOCUMENT: Final = ROOT / "docs/simulation.md"
#: What stands around the generated part of the document.
BEGIN: Final = "<!-- generated from core/tests/simulation/results.json: python -m simulation.results -->"
END: Final = "<!-- end of what is generated -->"
#: Seeds within which a mutant must be found.
BOUND: Final = 250


def first_seed(mutant: Mutant) -> tuple[int, int]:
    """Return the first seed that finds a mutant, and the number of the invariant that it violates.

    Raises:
        AssertionError: no seed within the bound finds it, or it violates an invariant that it should not.
    """
    with mock.patch.object(*mutant.where, mutant.wrong):
        for seed in range(BOUND):
            one = run(mutant.world, seed)
            if one.violation is not None:
                assert one.violation.number in mutant.invariants, f"{mutant.name}: {one.violation}"
                return seed, one.violation.number
    raise AssertionError(f"{mutant.name}: not found by {BOUND} seeds")


def document(found: Mapping[str, Tally], seconds: float, first: int) -> dict[str, Any]:
    """Return what a run came to."""
    return {
        "commit": _commit(),
        "seconds": round(seconds),
        "first": first,
        "seeds": sum(each.seeds for each in found.values()),
        "steps": sum(each.steps for each in found.values()),
        "worlds": {
            world: {
                "seeds": each.seeds,
                "steps": each.steps,
                "failed": sorted(seed for seed, _ in each.failed),
                "reached": {state: each.reached[state] for state in WORLDS[world].states},
            }
            for world, each in found.items()
        },
    }


def proofs() -> dict[str, Any]:
    """Return what the mutants and the model come to. Raises AssertionError: a mutant is not found."""
    mutants = [(each, *first_seed(each)) for each in MUTANTS]
    searched = [search(rules) for rules in SURROUNDINGS]
    return {
        "proved": _commit(),
        "mutants": [
            {"world": each.world, "name": each.name, "seeds": seed + 1, "invariant": number}
            for each, seed, number in mutants
        ],
        "model": {
            "searches": len(searched),
            "states": sum(each.states for each in searched),
            "steps": sum(each.steps for each in searched),
            "violations": sum(each.violation is not None for each in searched),
        },
    }


def summed(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the parts of one run came to together.

    Raises:
        ValueError: they are not parts of one run: of one commit, each beginning where the one before it ended.
    """
    parts = sorted(parts, key=lambda part: part["first"])
    whole: dict[str, Any] = {**parts[0], "worlds": {}}
    if len({part["commit"] for part in parts}) > 1:
        raise ValueError(f"several commits: {', '.join(sorted({part['commit'] for part in parts}))}")
    for before, part in itertools.pairwise(parts):
        ends = {before["first"] + each["seeds"] for each in before["worlds"].values()}
        if ends != {part["first"]}:
            raise ValueError(
                f"the part from {before['first']} on ends at {sorted(ends)}, the next begins at {part['first']}"
            )
    for name in ("seconds", "seeds", "steps"):
        whole[name] = sum(part[name] for part in parts)
    for world in parts[0]["worlds"]:
        each = [part["worlds"][world] for part in parts]
        reached: Counter[str] = sum((Counter(one["reached"]) for one in each), Counter())
        whole["worlds"][world] = {
            "seeds": sum(one["seeds"] for one in each),
            "steps": sum(one["steps"] for one in each),
            "failed": sorted(seed for one in each for seed in one["failed"]),
            "reached": {state: reached[state] for state in each[0]["reached"]},
        }
    return whole


def _commit() -> str:
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _line(run: Mapping[str, Any]) -> str:
    failed = sum(len(each["failed"]) for each in run["worlds"].values())
    figures = (run["first"], run["seeds"], run["steps"], run["seconds"], failed)
    return f"| {run['commit']} | " + " | ".join(f"{each:,}" for each in figures) + " |"


def page(recorded: Mapping[str, Any]) -> str:
    """Return the generated part of the document."""
    runs = [*recorded["earlier"], recorded]
    lines = [
        BEGIN,
        "",
        f"Recorded: {sum(each['seeds'] for each in runs):,} seeds. The tables show the last run.",
        "",
        "| commit | from seed | seeds | steps | seconds | failed |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_line(each) for each in runs),
    ]
    for world, each in recorded["worlds"].items():
        lines += ["", f"| {world}: rare state | runs of {each['seeds']:,} |", "| --- | ---: |"]
        lines += [f"| {state} | {runs:,} |" for state, runs in each["reached"].items()]
    lines += [
        "",
        f"The mutants and the model were run at commit {recorded['proved']}.",
        "",
        "| mutant of the real code | world | found by invariant | seeds it took |",
        "| --- | --- | ---: | ---: |",
    ]
    lines += [
        f"| {each['name']} | {each['world']} | {each['invariant']} | {each['seeds']} |" for each in recorded["mutants"]
    ]
    model = recorded["model"]
    lines += [
        "",
        f"The model of the redrive protocol: {model['searches']} searches with {model['states']:,} states and",
        f"{model['steps']:,} steps, {model['violations']} violations. Each of its own mutants breaks an invariant:",
        f"{', '.join(name.replace('_', ' ') for name in OF_PROTOCOL)}.",
        "",
        "| invariant | checked in |",
        "| ---: | --- |",
        *(f"| {number} | {', '.join(worlds)} |" for number, worlds in INVARIANTS.items()),
        "",
        END,
    ]
    return "\n".join(lines)


def generated() -> str:
    """Return the document with its generated part as the recorded run has it."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + page(json.loads(RECORDED.read_text(encoding="utf-8"))) + after


def record(files: Sequence[str]) -> None:
    """Record runs, the mutants and the model. Raises ValueError, AssertionError."""
    parts = [json.loads(Path(file).read_text(encoding="utf-8")) for file in files]
    RECORDED.write_text(json.dumps(last_of(parts) | proofs(), indent=2) + "\n", encoding="utf-8")


def last_of(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the run of the last part's commit, with those of other commits as `earlier`. Raises ValueError."""
    commits = list(dict.fromkeys(part["commit"] for part in (*parts, parts[-1])))
    commits.sort(key=parts[-1]["commit"].__eq__)
    *earlier, last = (summed([part for part in parts if part["commit"] == commit]) for commit in commits)
    return {**last, "earlier": earlier}


if __name__ == "__main__":
    if sys.argv[1:]:
        record(sys.argv[1:])
    DOCUMENT.write_text(generated(), encoding="utf-8")
