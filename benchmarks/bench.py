"""Measures one broker's writer against its peers, in one run: `python benchmarks/bench.py BROKER [--json FILE]`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from redelivery.registry import installed
from redelivery.spark.java import local_session

HERE = Path(__file__).parent
#: PR_SET_CHILD_SUBREAPER of Linux.
_SUBREAPER = 36


@dataclass(frozen=True)
class Way:
    """One way to write a DataFrame.

    Attributes:
        name: name in the table.
        write: writes a DataFrame to a fresh target in the given folder.
        count: counts the rows stored there, without our code; None if nothing is stored.
        to: name of the way that its ratio refers to.
    """

    name: str
    write: Callable[[DataFrame, Path], None]
    count: Callable[[Path], int] | None
    to: str


class Ways(Protocol):
    """The interface of a module `ways_<broker>`; MEMORY (few rows, many) and `target` only if memory is measured."""

    ROWS: int
    MEMORY: tuple[int, int]

    def ways(self) -> list[Way]: ...
    def rows(self, spark: SparkSession, count: int) -> DataFrame: ...
    def target(self, folder: Path) -> str: ...


@dataclass(frozen=True)
class Result:
    """One line of the table, and of the JSON."""

    name: str
    rows: int
    rows_per_s: float
    ratio: float | None
    to: str | None
    peak_bytes_per_row: float | None = None
    cpu_us_per_row: float | None = None
    cpu_ratio: float | None = None


def main() -> int:
    """Run, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("broker", help="which ways_<broker>.py to run; letters-BROKER for dead letters; telemetry")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--rows", type=int, help="instead of the module's own number")
    parser.add_argument("--repeat", type=int, default=5, help="measured runs of each way")
    parser.add_argument("--only-memory", action="store_true", help="measure nothing but how the memory grows")
    parser.add_argument("--skip-memory", action="store_true", help="leave out how the memory grows with the rows")
    parser.add_argument("--only", help="of letters-BROKER, only works whose name contains this")
    parser.add_argument("--master", default="local[2]", help="how many cores Spark has")
    parser.add_argument("--against", help="also run each way of a broker with this master, and compare: local[1]")
    parser.add_argument("--busy", type=int, default=0, help="keep this many cores busy in the meantime")
    args = parser.parse_args()
    with busy(args.busy):
        measure = of_letters if args.broker.startswith("letters-") else of_ways
        results = of_telemetry(args) if args.broker == "telemetry" else measure(args)
    show(results)
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    return 0


@contextlib.contextmanager
def busy(cores: int) -> Iterator[None]:
    """Keep cores busy while entered."""
    spin = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # it must not outlive this process
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(cores)]  # noqa: S603 - our own
    try:
        yield
    finally:
        for each in others:
            each.terminate()


def of_ways(args: argparse.Namespace) -> list[Result]:
    """Measure the ways of `ways_<broker>.py`."""
    module: Ways = importlib.import_module(f"ways_{args.broker}")
    results: list[Result] = []
    if not args.only_memory:
        rows = args.rows or module.ROWS
        results += through_spark(module, rows, args.repeat, args.master)
        if args.against:
            results += compared(results, through_spark(module, rows, args.repeat, args.against), args.against)
        results += in_process(args.broker) if hasattr(module, "IN_PROCESS") else []
    return results + (memory(args.broker, module) if hasattr(module, "MEMORY") and not args.skip_memory else [])


def compared(results: list[Result], others: list[Result], master: str) -> list[Result]:
    """Return the results again, each compared with its own under another master."""
    return [
        Result(each.name, each.rows, each.rows_per_s, round(each.rows_per_s / other.rows_per_s, 3), f"itself, {master}")
        for each, other in zip(results, others, strict=True)
    ]


def of_letters(args: argparse.Namespace) -> list[Result]:
    """Measure the works of `letters_<broker>.py`."""
    letters = importlib.import_module("letters")
    module = importlib.import_module(args.broker.replace("-", "_"))
    timed = letters.measure(module, rows=args.rows, repeat=args.repeat, only=args.only, master=args.master)
    return [Result(each.name, each.rows, each.rows_per_s, each.ratio, each.to) for each in timed]


def of_telemetry(args: argparse.Namespace) -> list[Result]:
    """Measure what telemetry costs: rows per CPU second."""
    timed = importlib.import_module("telemetry").measure(args.rows or 200_000, args.repeat)
    return [Result(each.name, each.rows, each.rows_per_s, each.ratio, each.to) for each in timed]


def through_spark(module: Ways, count: int, repeat: int, master: str) -> list[Result]:
    """Measure rows/s of every way: medians of `repeat` runs in turns, after one warm-up each."""
    times: dict[str, list[tuple[float, float]]] = {}
    config = module.config() if hasattr(module, "config") else None
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # Spark kills parents of workers: count those too
    with contextlib.closing(_Session(local_session("bench", master=master, config=config))) as session:
        df = module.rows(session.spark, count)
        for turn in range(repeat + 1):
            for way in module.ways():
                with tempfile.TemporaryDirectory() as folder:
                    began, used = time.perf_counter(), cpu()
                    way.write(df, Path(folder))
                    took = time.perf_counter() - began, cpu() - used
                    if way.count is not None and way.count(Path(folder)) != count:
                        raise SystemExit(f"{way.name}: stored {way.count(Path(folder))} rows of {count}")
                if turn:
                    times.setdefault(way.name, []).append(took)
    speed = {name: count / statistics.median(took for took, _ in each) for name, each in times.items()}
    each_row = {name: statistics.median(used for _, used in each) / count * 1e6 for name, each in times.items()}
    return [
        Result(
            way.name,
            count,
            round(speed[way.name]),
            round(speed[way.name] / speed[way.to], 3),
            way.to,
            cpu_us_per_row=round(each_row[way.name], 1),
            cpu_ratio=round(each_row[way.name] / each_row[way.to], 3),
        )
        for way in module.ways()
    ]


def cpu() -> float:
    """Return CPU seconds of this process and its children, Spark's too, but not of a broker: it has its own session."""
    tick, total = os.sysconf("SC_CLK_TCK"), 0
    found: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if each.name.isdigit():
                words = (each / "stat").read_text().rpartition(")")[2].split()
                found[int(each.name)] = [int(word) for word in words[1:15]]
    for pid, numbers in found.items():
        above: int | None = pid
        while above is not None and above != os.getpid():
            above = found[above][0] if above in found else None
        if above is not None and numbers[2] == os.getsid(0):
            total += sum(numbers[10:14])
    return total / tick


class _Session:
    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def close(self) -> None:
        self.spark.stop()


def run(broker: str, *args: str) -> dict[str, float]:
    """Run `inprocess.py` in its own process and return its result."""
    command = [sys.executable, str(HERE / "inprocess.py"), broker, *args]
    out = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own file
    found: dict[str, float] = json.loads(out.stdout)
    return found


def in_process(broker: str) -> list[Result]:
    """Measure the engine's share, and receiving."""
    each = run(broker, "overhead")
    plugin = Result("plugin alone, no Spark", int(each["rows"]), round(each["plugin"]), 1.0, "plugin alone, no Spark")
    engine = Result(
        "engine over plugin, no Spark", int(each["rows"]), round(each["engine"]), each["ratio"], plugin.name
    )
    results = [plugin, engine]
    if installed().plugins.get(broker) and installed().plugins[broker].capabilities.receive:
        each = run(broker, "receive")
        hand = Result(
            "receive and accept by hand", int(each["rows"]), round(each["hand"]), 1.0, "receive and accept by hand"
        )
        results += [
            hand,
            Result("subscription", int(each["rows"]), round(each["subscription"]), each["ratio"], hand.name),
        ]
    return results


def memory(broker: str, module: Ways) -> list[Result]:
    """Measure how a sending process's peak memory grows from few to many rows; verify the broker's count."""
    found = []
    for rows in module.MEMORY:
        with tempfile.TemporaryDirectory() as folder:
            target = [module.target(Path(folder))] if hasattr(module, "target") else []
            found.append(run(broker, "memory", str(rows), *target))
            count = module.ways()[-1].count if target else None
            if count is not None and (stored := count(Path(folder))) != rows:
                raise SystemExit(f"memory: stored {stored} rows of {rows}")
    small, large = found
    grown = (large["peak"] - small["peak"]) / (large["rows"] - small["rows"])
    name = f"memory, {small['rows']:,} to {large['rows']:,} rows"
    results = [Result(name, int(large["rows"]), round(large["rate"]), None, None, round(grown, 3))]
    return results + (outage(broker, *module.OUTAGE) if hasattr(module, "OUTAGE") else [])


def outage(broker: str, rows: int, seconds: float) -> list[Result]:
    """Compare the peak memory of a task in an outage of this length with that of a task without an outage."""
    without, within = (run(broker, "outage", str(rows), str(each)) for each in (0.0, seconds))
    grown = (within["peak"] - without["peak"]) / 2**20
    name = f"memory in an outage of {seconds:g} s: {within['peak'] / 2**20:.0f} MiB, which is {grown:.0f} more"
    return [Result(name, rows, round(within["rate"]), None, None)]


def show(results: list[Result]) -> None:
    """Print the table."""
    width = max(len(each.name) for each in results)
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{'way':<{width}}  {'rows/s':>10}  {'ratio':>6}  {'CPU us':>7}  {'ratio':>6}  to")
    for each in results:
        ratio, cpu_ratio = ("" if value is None else f"{value:.2f}" for value in (each.ratio, each.cpu_ratio))
        used = "" if each.cpu_us_per_row is None else f"{each.cpu_us_per_row:.1f}"
        print(
            f"{each.name:<{width}}  {each.rows_per_s:>10,.0f}  {ratio:>6}  {used:>7}  {cpu_ratio:>6}  {each.to or ''}"
        )
        if each.peak_bytes_per_row is not None:
            print(f"{'':<{width}}  peak memory grew by {each.peak_bytes_per_row} bytes a row")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
