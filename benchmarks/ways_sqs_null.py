"""`sqs:` from Spark against 16 threads by hand, on a server that stores nothing, so that the client is the limit."""

from __future__ import annotations

import atexit
import os
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import null_sqs
import ways_sqs
from bench import Way

ROWS = ways_sqs.ROWS
rows = ways_sqs.rows
_VARIABLE = "REDELIVERY_NULL_SQS"
os.environ[_VARIABLE] = "none"  # the server takes any


@cache
def _server() -> Any:
    process, endpoint = null_sqs.start()
    atexit.register(process.terminate)
    options = {
        "sqs.region": "us-east-1",
        "sqs.access_key_id": "test",
        "sqs.secret_access_key": f"env:{_VARIABLE}",
        "sqs.endpoint_url": endpoint,
    }
    return SimpleNamespace(
        options=options,
        sqs=ways_sqs.client(options),
        address=lambda queue: SimpleNamespace(url=f"sqs:{endpoint}/000000000000/{queue}"),
    )


ways_sqs.server = _server


def count(folder: Path) -> int:
    """Return how many messages the server has counted."""
    server, name = _server(), "ApproximateNumberOfMessages"
    url = server.address(ways_sqs.queue_of(folder)).url.removeprefix("sqs:")
    return int(server.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])


def ways() -> list[Way]:
    """By hand, and ours against it."""
    hand = "boto3, tens, 16 threads"
    return [
        Way(hand, partial(ways_sqs.from_spark, ways_sqs.by_threads), count, hand),
        Way("redelivery", ways_sqs.ours, count, hand),
    ]
