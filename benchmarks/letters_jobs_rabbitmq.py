"""Jobs with dead and retried rows on RabbitMQ's quorum queues: `bench.py letters-jobs-rabbitmq`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import ways_rabbitmq
from letters import Place, Work
from pyspark.sql import SparkSession

ROWS: Final = 50_000
LETTERS: Final = 0
_SETTLED: Final = 10.0


def place(folder: Path) -> Place:
    """Return two fresh queues."""
    urls = []
    for name in ("rows", "dead"):
        (folder / name).mkdir()
        urls.append(ways_rabbitmq.target(folder / name))
    return Place(*urls)


def count(url: str) -> int:
    """Count a queue's messages once the count stands still."""
    queue, found = url.partition("queue=")[2], -1
    end = time.monotonic() + _SETTLED
    while (now := ways_rabbitmq.waiting(queue)) != found and time.monotonic() < end:
        found = now
        time.sleep(0.5)
    return found


def works(_spark: SparkSession, _letters: int) -> list[Work]:
    """Return none besides the jobs."""
    return []
