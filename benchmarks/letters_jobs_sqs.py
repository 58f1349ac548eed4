"""Jobs with dead and retried rows on SQS: `bench.py letters-jobs-sqs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import ways_sqs
from letters import Place, Work
from pyspark.sql import SparkSession

from redelivery.registry import connect

ROWS: Final = 5_000
LETTERS: Final = 0


def options() -> Mapping[str, str]:
    """Return the client options of the server."""
    return ways_sqs.options()


def place(folder: Path) -> Place:
    """Return two fresh queues."""
    return Place(*(ways_sqs.fresh(f"{folder.name}-{name}") for name in ("rows", "dead")))


def count(url: str) -> int:
    """Count the messages of a queue."""
    with connect(url, dict(options())) as broker, broker.admin() as admin:
        return admin.depth()


def works(_spark: SparkSession, _letters: int) -> list[Work]:
    """Return none besides the jobs."""
    return []
