"""Receiving from Kafka, against loops by hand over `consume(1000)`: `python benchmarks/receiving_kafka.py`.

Both loops call a function that does nothing for each record, and commit after each call of `consume`. One waits for the
commit's answer, as settling does; the other does not, and learns of no failure. Neither counts attempts, and both run
on one thread. All ways take turns, and the table compares medians of wall and of CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Final

import ways_kafka
from confluent_kafka import Consumer
from confluent_kafka.cimpl import NewTopic

from redelivery import Subscription
from redelivery.contract.message import Batch, Message
from redelivery.registry import connect

ROWS: Final = 100_000
#: Handlers side by side, and messages leased ahead of them.
WORKERS: Final = 4
PREFETCH: Final = 1_000
_BODY: Final = b"x" * 1024
_BATCH: Final = 1_000


def fill(topic: str, rows: int, partitions: int) -> None:
    """Send messages of 1 KiB to a new topic."""
    ways_kafka.admin().create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    with connect(url(topic), {}) as broker, broker.sender() as sender:
        for first in range(0, rows, _BATCH):
            some = [Message(value=_BODY, key=b"%d" % at) for at in range(first, min(rows, first + _BATCH))]
            sender.send(Batch.of(some, number=first), deadline=time.monotonic() + 60)
            settled = sender.collect(60)
            if any(each.error or each.failures for each in settled):
                raise SystemExit(f"the topic could not be filled: {settled}")


def url(topic: str) -> str:
    """Return a topic's URL, with its own group."""
    return f"kafka://{ways_kafka.bootstrap()}/{topic}?group=ours-{topic}"


def by_hand(topic: str, rows: int, *, waits: bool) -> int:
    """Consume and commit, as fast as the client can."""
    consumer = Consumer(
        {
            "bootstrap.servers": ways_kafka.bootstrap(),
            "group.id": f"by-hand-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    done = 0
    while done < rows:
        records = consumer.consume(1_000, 1.0)
        for record in records:
            _handle(record.value())
        if records and waits:
            consumer.commit(asynchronous=False)
        elif records:
            consumer.commit(asynchronous=True)
        done += len(records)
    consumer.close()
    return done


def subscribe(topic: str, rows: int) -> int:
    """Handle messages by a subscription whose handler does nothing."""
    seen = count(1)
    subscription: Subscription

    def handle(message: Message) -> None:
        _handle(message.value)
        if next(seen) == rows:
            subscription.stop()

    subscription = Subscription(url(topic), handle, workers=WORKERS, prefetch=PREFETCH, lease=timedelta(seconds=60))
    return subscription.run().accepted


def _handle(value: object) -> None:
    """Do nothing."""


def main() -> None:
    """Run all ways in turns, and print their medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=1)
    args = parser.parse_args()
    ways: dict[str, Callable[[str], int]] = {
        "consume(1000), synchronous commits": lambda topic: by_hand(topic, args.rows, waits=True),
        "consume(1000), asynchronous commits": lambda topic: by_hand(topic, args.rows, waits=False),
        f"a subscription, {WORKERS} workers": lambda topic: subscribe(topic, args.rows),
    }
    times: dict[str, list[tuple[float, float]]] = {}
    for turn in range(args.repeat + 1):
        for way, run in ways.items():
            topic = f"receiving-{time.time_ns()}"
            fill(topic, args.rows, args.partitions)
            began, cpu = time.perf_counter(), time.process_time()
            done = run(topic)
            took = time.perf_counter() - began, time.process_time() - cpu
            if done < args.rows:
                raise SystemExit(f"{way}: {done} messages of {args.rows}")
            if turn:
                times.setdefault(way, []).append(took)
    medians = {way: [statistics.median(each) for each in zip(*took, strict=True)] for way, took in times.items()}
    first = next(iter(medians.values()))
    print(f"{args.rows} messages, load {os.getloadavg()[0]:.1f}")
    for way, (wall, cpu) in medians.items():
        ratios = f"{first[0] / wall:.2f} by wall, {first[1] / cpu:.2f} by CPU time"
        print(f"{way:40} {args.rows / wall:10,.0f}/s {cpu / args.rows * 1e6:6.1f} us  {ratios}")


if __name__ == "__main__":
    main()
