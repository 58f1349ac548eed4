"""The command of `nox -s faults`: runs cells, prints verdicts, records them.

As in `nox -s faults -- --broker kafka --fault freeze --seed 7 --rows 5000`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from faults import results
from faults.actions import harness_of
from faults.cells import CELLS, ROWS, Cell
from faults.running import Result, run_cell
from faults.states import STATES
from redelivery_conformance.harness import GROUP, Harness, NotHere, Runtime, start

#: Violations that are printed of each cell.
SHOWN: Final = 10
REQUIRED: Final = "REDELIVERY_REQUIRE_BROKERS"


@dataclass(slots=True)
class Outcome:
    """What one command has found.

    Attributes:
        done: results of the cells that ran.
        broken: cells that ran and gave no verdict, with their error.
        absent: cells that could not run, with the reason.
    """

    done: list[Result] = field(default_factory=list)
    broken: list[tuple[Cell, str]] = field(default_factory=list)
    absent: list[tuple[Cell, str]] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    """Run; return the exit code: 0 only if every cell that ran holds, and all ran where brokers are required."""
    options = _parser().parse_args(arguments)
    cells = _chosen(options)
    if not cells:
        print("no such cell; --list shows them")
        return 2
    if options.list:
        print(*(f"{'short ' if cell.short else '      '}{cell.name}" for cell in cells), sep="\n")
        return 0
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    print(f"seed {seed}: {len(cells)} cells, {options.rows} rows each", flush=True)
    outcome = Outcome()
    for broker in dict.fromkeys(cell.broker for cell in cells):
        of_broker = [cell for cell in cells if cell.broker == broker]
        _run_broker(broker, of_broker, seed, options, outcome)
    return _end(outcome, whole=len(cells) == len(CELLS))


def _run_broker(broker: str, cells: list[Cell], seed: int, options: argparse.Namespace, outcome: Outcome) -> None:
    with tempfile.TemporaryDirectory(prefix="redelivery-faults-") as scratch:
        runtime: Runtime | None = None
        done: list[Result] = []
        version = ""
        try:
            for at, cell in enumerate(cells):
                if runtime is None:
                    fresh = Path(scratch) / f"broker-{at}"
                    fresh.mkdir()
                    runtime = start(_harness(broker), None, {}, fresh)
                    version = results.version_of(runtime.description)
                    print(f"{results.product(broker)} {version}", flush=True)
                folder = Path(scratch) / f"cell-{at}"
                try:
                    result = run_cell(cell, runtime, seed=seed, rows=options.rows, folder=folder, version=version)
                except NotHere as error:  # what this cell needs besides the broker
                    outcome.absent.append((cell, str(error)))
                    continue
                except Exception as error:  # noqa: BLE001 - a cell without a verdict is a failure, and others still run
                    traceback.print_exc()
                    _broken(outcome, cell, error, folder, seed, options)
                    runtime.close()
                    runtime = None
                    continue
                done.append(result)
                outcome.done.append(result)
                _show(result, folder, options)
                if options.record is not None:  # at once: a run that is stopped keeps what it has
                    results.save(options.record, broker, version, [result])
        except NotHere as error:
            ran = {each.cell for each in done} | {cell for cell, _ in (*outcome.broken, *outcome.absent)}
            outcome.absent += [(cell, str(error)) for cell in cells if cell not in ran]
        finally:
            if runtime is not None:
                runtime.close()


def _show(result: Result, folder: Path, options: argparse.Namespace) -> None:
    counts = ", ".join(f"{name} {number}" for name, number in sorted(result.verdict.counts.items()) if number)
    word = "holds" if result.verdict.ok else "FAILS"
    print(f"  {word}  {result.cell.name}  {counts}  {result.seconds:.1f} s  [{', '.join(result.states)}]", flush=True)
    if result.verdict.ok:
        if options.keep is not None:
            _keep(folder, options.keep, result.cell)
        shutil.rmtree(folder, ignore_errors=True)
        return
    for violation in result.verdict.violations[:SHOWN]:
        print(f"         {violation}")
    _again(result.cell, folder, result.plan.seed, options)


def _broken(
    outcome: Outcome, cell: Cell, error: Exception, folder: Path, seed: int, options: argparse.Namespace
) -> None:
    outcome.broken.append((cell, f"{type(error).__name__}: {error}"))
    print(f"  BROKEN {cell.name}: {type(error).__name__}: {error}")
    _again(cell, folder, seed, options)


def _again(cell: Cell, folder: Path, seed: int, options: argparse.Namespace) -> None:
    """Keep the history, and print the command that runs the cell again."""
    print(f"         history: {_keep(folder, options.keep or Path('.nox/faults'), cell)}")
    chosen = f"--broker {cell.broker} --fault {cell.fault} --workload {cell.workload}"
    print(f"         again: nox -s faults -- {chosen} --seed {seed} --rows {options.rows}", flush=True)


def _keep(folder: Path, where: Path, cell: Cell) -> Path:
    kept = where / f"{cell.name.replace('/', '-')}-{time.strftime('%H%M%S')}"
    shutil.copytree(folder, kept, ignore=lambda _, names: [name for name in names if name == "scratch"])
    return kept


def _end(outcome: Outcome, *, whole: bool) -> int:
    failed = [result for result in outcome.done if not result.verdict.ok]
    seen = {state for result in outcome.done for state in result.states}
    missing = [state.name for state in STATES if state.name not in seen]
    print(
        f"{len(outcome.done) - len(failed)} cells hold, {len(failed)} fail, {len(outcome.broken)} broke off, ", end=""
    )
    print(f"{len(outcome.absent)} not run; rare states reached: {len(seen)} of {len(STATES)}")
    for reason in dict.fromkeys(reason for _, reason in outcome.absent):
        names = [cell.name for cell, why in outcome.absent if why == reason]
        print(f"not run: {len(names)} cells ({names[0]}, ...): {reason}")
    if whole and missing:
        print(f"the table never reached: {', '.join(missing)}")
    required = bool(os.environ.get(REQUIRED)) and bool(outcome.absent)
    return int(bool(failed or outcome.broken or required or (whole and missing)))


def _chosen(options: argparse.Namespace) -> list[Cell]:
    wanted = (("broker", options.broker), ("fault", options.fault), ("workload", options.workload))
    return [
        cell
        for cell in CELLS
        if all(not names or getattr(cell, name) in names for name, names in wanted)
        and (cell.short or not options.short)
    ]


def _harness(broker: str) -> Harness:
    own: Harness | None = harness_of(broker)
    if own is not None:
        return own
    for entry in importlib.metadata.entry_points(group=GROUP):
        found = entry.load()
        if found.name == broker:
            harness: Harness = found()
            return harness
    raise NotHere(f"no harness for {broker}: install redelivery-{broker}[testing]")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nox -s faults --", description="Faults on real brokers; every row is counted."
    )
    parser.add_argument("--broker", action="append", help="only this broker; may be repeated")
    parser.add_argument("--fault", action="append", help="only this fault; may be repeated")
    parser.add_argument("--workload", action="append", help="only this workload; may be repeated")
    parser.add_argument("--seed", type=int, help="chooses rows, moments and order of faults; a random one is printed")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of each cell")
    parser.add_argument("--all", action="store_true", help="the whole table, as without any choice")
    parser.add_argument("--short", action="store_true", help="the short table of continuous integration")
    parser.add_argument(
        "--record", type=Path, nargs="?", const=results.FOLDER, help="write the results into this folder"
    )
    parser.add_argument("--keep", type=Path, help="keep all histories here, not only those of failing cells")
    parser.add_argument("--list", action="store_true", help="print the cells")
    return parser


if __name__ == "__main__":
    logging.getLogger("redelivery").setLevel(logging.ERROR)  # provisioning says what stand-ins lack
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that brokers and disks are given back
    sys.exit(main(sys.argv[1:]))
