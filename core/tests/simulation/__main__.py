"""`python -m simulation`: runs seeds, prints the rare states that they reached, and the shortest history of a failure.

A seed that violates an invariant fails the run, and so does a rare state that no seed has reached (in a run of
`ENOUGH` seeds and more).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from simulation import results
from simulation.runs import WORLDS, Run, run
from simulation.shrink import shrunk
from simulation.tally import Tally, tally

#: Seeds of a world after which each of its rare states must have been reached.
ENOUGH = 2_000
#: Seeds that one process takes at a time.
_PIECE = 100


def shares(worlds: Sequence[str], first: int, seeds: int) -> dict[str, range]:
    """Return which seeds each world gets: they share the number."""
    each = -(-seeds // len(worlds))
    return {world: range(first, first + each) for world in worlds}


def _pieces(planned: dict[str, range]) -> Iterator[tuple[str, range]]:
    for start in range(0, max(map(len, planned.values())), _PIECE):
        for world, seeds in planned.items():
            if piece := seeds[start : start + _PIECE]:
                yield world, piece


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 where an invariant was violated or a rare state was never reached."""
    parser = argparse.ArgumentParser(prog="nox -s simulate --", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10_000, help="how many, over all worlds (10000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="run this one, and print its history, shortened if it fails")
    parser.add_argument("--only", choices=WORLDS, help="one world")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    parser.add_argument("--minutes", type=float, help="end after so long, whatever the number of seeds")
    parser.add_argument("--json", type=Path, help="write what the run came to")
    given = parser.parse_args(arguments)
    worlds = [given.only] if given.only else list(WORLDS)
    if given.seed is not None:
        return max(show(world, given.seed) for world in worlds)
    began = time.monotonic()
    found = _all(shares(worlds, given.first, given.seeds), given.jobs, given.minutes)
    seconds = time.monotonic() - began
    if given.json:
        whole = results.document(found, seconds, given.first)
        given.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    return report(found, seconds)


def _all(planned: dict[str, range], jobs: int, minutes: float | None) -> dict[str, Tally]:
    """Run all seeds, several processes side by side."""
    found = {world: Tally() for world in planned}
    end = None if minutes is None else time.monotonic() + 60 * minutes
    pieces = _pieces(planned)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running: dict[concurrent.futures.Future[Tally], str] = {}
        while True:
            while len(running) < 2 * jobs and (end is None or time.monotonic() < end):
                world, seeds = next(pieces, ("", range(0)))
                if not world:
                    break
                running[pool.submit(tally, world, seeds)] = world
            if not running:
                return found
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in done:
                found[running.pop(each)].add(each.result())


def report(found: dict[str, Tally], seconds: float) -> int:
    """Print what a run came to; return 1 where it fails."""
    bad = 0
    for world, each in found.items():
        print(f"\n{world}: {each.seeds} seeds, {each.steps} steps")
        for state in WORLDS[world].states:
            print(f"  {each.reached[state]:>8} runs: {state}")
        unreached = [state for state in WORLDS[world].states if not each.reached[state]]
        if unreached and each.seeds >= ENOUGH:
            print(f"never reached: {'; '.join(unreached)}")
            bad = 1
        for seed, violation in sorted(each.failed)[:10]:
            print(f"seed {seed} fails: {violation}")
        if each.failed:
            bad = 1
            show(world, min(each.failed)[0])
    total = sum(each.seeds for each in found.values())
    print(f"\n{total} seeds in {seconds:.0f} s: {total / max(seconds, 0.001):.0f} seeds/s")
    return bad


def show(world: str, seed: int) -> int:
    """Print the history of a seed, shortened where it fails; return 1 where it fails."""
    one = run(world, seed)
    print(f"\n{world}, seed {seed}: {one.violation or 'all invariants hold'} (history {one.digest})")
    if one.violation is not None:
        _print(shortest := shrunk(one))
        print(f"{shortest.violation}\nrun it again: nox -s simulate -- --only {world} --seed {seed}")
        return 1
    _print(one)
    return 0


def _print(one: Run) -> None:
    for at, who, what in one.history:
        print(f"{at:>9.3f} s  {who:<20} {what}")


if __name__ == "__main__":
    sys.exit(main())
