"""Shared by the benchmarks of letters on queues: how redelivery reads and redrives them, and the table of results.

A module `letters_<broker>.py` has a class `Bench` with the broker's hand-written loops. `main` fills a queue, runs each
way on it, verifies how many messages it moved, and compares medians of runs in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count
from typing import Final

from bench import Result, show

from redelivery import Subscription, dead_letters
from redelivery.contract.broker import DeadLetters
from redelivery.contract.letters import EVERYTHING
from redelivery.contract.message import Batch, Message
from redelivery.registry import connect

#: Handlers side by side.
WORKERS: Final = 4
_BODY: Final = b"x" * 1024
_BATCH: Final = 1_000

#: Name of a way, what it does with a queue and another, how many messages it must move, and the way it is compared to.
Way = tuple[str, Callable[[str, str], int], str]


class Bench(ABC):
    """One broker, and loops written by hand over its client."""

    options: Mapping[str, str]

    @abstractmethod
    def queue(self, name: str) -> str:
        """Create a queue and return its name."""

    @abstractmethod
    def url(self, queue: str) -> str:
        """Return a queue's URL."""

    @abstractmethod
    def receive(self, queue: str, rows: int) -> int:
        """Receive and acknowledge `rows` messages as fast as the client can; return how many."""

    @abstractmethod
    def look(self, queue: str, rows: int) -> int:
        """Look at `rows` messages as fast as the client can; return how many."""

    @abstractmethod
    def move(self, queue: str, to: str, rows: int) -> int:
        """Receive, send, confirm and acknowledge `rows` messages; return how many."""

    def fill(self, queue: str, rows: int) -> None:
        """Send messages of 1 KiB with ids to a queue."""
        with connect(self.url(queue), self.options) as broker, broker.sender() as sender:
            for first in range(0, rows, _BATCH):
                messages = [Message(value=_BODY, id=f"id-{at}") for at in range(first, min(rows, first + _BATCH))]
                sender.send(Batch.of(messages, number=first), deadline=time.monotonic() + 60)
                settled = sender.collect(60)
                if any(each.error or each.failures for each in settled):
                    raise SystemExit(f"the queue could not be filled: {settled}")

    def subscribe(self, queue: str, rows: int) -> int:
        """Handle `rows` messages by a subscription whose handler does nothing."""
        seen = count(1)
        subscription: Subscription

        def handle(_: Message) -> None:
            if next(seen) == rows:
                subscription.stop()

        subscription = Subscription(
            self.url(queue), handle, options=self.options, workers=WORKERS, prefetch=1_000, lease=timedelta(seconds=60)
        )
        return subscription.run().accepted

    def read(self, queue: str, _: int) -> int:
        """Read all letters as columns."""
        with connect(self.url(queue), self.options) as broker, broker.dead_letters(direct=True) as letters:
            return sum(len(batch) for split in letters.splits(EVERYTHING) for batch in letters.read(split, EVERYTHING))

    def take(self, queue: str, _: int) -> int:
        """Read letters and remove them, batch by batch."""
        with connect(self.url(queue), self.options) as broker, broker.dead_letters(direct=True) as letters:
            return sum(_removed(letters, split) for split in letters.splits(EVERYTHING))

    def redrive(self, queue: str, to: str, _: int) -> int:
        """Redrive all letters, with the account."""
        with dead_letters(self.url(to), sink=self.url(queue), options=self.options) as letters:
            return letters.redrive(to=self.url(to)).removed


def _removed(letters: DeadLetters, split: str) -> int:
    return sum(letters.remove(batch.position.values) for batch in letters.read(split, EVERYTHING))


def main(bench: Bench, rows: int) -> int:
    """Run each way, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("only", nargs="*", help="receive, look, redrive")
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    pairs: dict[str, list[tuple[str, Callable[[str, str], int]]]] = {
        "receive": [
            ("receive by hand", lambda queue, _: bench.receive(queue, args.rows)),
            (f"a subscription, {WORKERS} workers", lambda queue, _: bench.subscribe(queue, args.rows)),
        ],
        "look": [
            ("look by hand", lambda queue, _: bench.look(queue, args.rows)),
            ("letters read as columns", lambda queue, _: bench.read(queue, args.rows)),
        ],
        "redrive": [
            ("take, send, confirm, delete by hand", lambda queue, to: bench.move(queue, to, args.rows)),
            ("letters read and removed", lambda queue, _: bench.take(queue, args.rows)),
            ("letters redriven", lambda queue, to: bench.redrive(queue, to, args.rows)),
        ],
    }
    results = []
    for name, ways in pairs.items():
        if args.only and name not in args.only:
            continue
        times: dict[str, list[tuple[float, float]]] = {}
        for turn in range(args.repeat + 1):
            for way, run in ways:
                tag = f"letters-{time.time_ns()}"
                queue, to = bench.queue(f"{tag}-a"), bench.queue(f"{tag}-b")
                bench.fill(queue, args.rows)
                began, used = time.perf_counter(), time.process_time()
                done = run(queue, to)
                took = time.perf_counter() - began, time.process_time() - used
                if done < args.rows:
                    raise SystemExit(f"{way}: {done} messages of {args.rows}")
                if turn:
                    times.setdefault(way, []).append(took)
        first = ways[0][0]
        medians = {way: [statistics.median(each) for each in zip(*took, strict=True)] for way, took in times.items()}
        results += [
            Result(
                way,
                args.rows,
                round(args.rows / wall),
                round(medians[first][0] / wall, 3),
                first,
                cpu_us_per_row=round(used / args.rows * 1e6, 1),
                cpu_ratio=round(used / medians[first][1], 3),
            )
            for way, (wall, used) in medians.items()
        ]
    show(results)
    return 0
