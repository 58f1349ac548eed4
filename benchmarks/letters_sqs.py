"""Letters and receiving on SQS, against loops by hand over boto3: `python benchmarks/letters_sqs.py [--null]`.

On ElasticMQ, which the plugin's harness starts. `--null`: receiving from a server that does nothing and is not the
limit.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import null_sqs
from botocore.config import Config
from letters_queues import Bench, main

from redelivery_conformance.harness import start
from redelivery_sqs.testing import SqsHarness, SqsRuntime

ROWS = 10_000
_THREADS = 16


class SqsBench(Bench):
    """SQS, or a stand-in."""

    def __init__(self, runtime: SqsRuntime) -> None:
        self._runtime = runtime
        self.options = runtime.options
        given = dict(runtime.options)
        self._client = boto3.client(
            "sqs",
            endpoint_url=given["sqs.endpoint_url"],
            region_name=given["sqs.region"],
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - a stand-in's
            config=Config(max_pool_connections=_THREADS, retries={"total_max_attempts": 1}, parameter_validation=False),
        )

    def queue(self, name: str) -> str:
        self._client.create_queue(QueueName=name)
        return name

    def url(self, queue: str) -> str:
        return self._runtime.address(queue).url

    def receive(self, queue: str, rows: int) -> int:
        return self._by_threads(queue, rows, self._delete)

    def look(self, queue: str, rows: int) -> int:
        return self._by_threads(queue, rows, lambda _url, _messages: None)

    def move(self, queue: str, to: str, rows: int) -> int:
        target = self._native(to)

        def work(url: str, messages: list[Any]) -> None:
            entries = [
                {"Id": str(at), "MessageBody": each["Body"], "MessageAttributes": each.get("MessageAttributes", {})}
                for at, each in enumerate(messages)
            ]
            if self._client.send_message_batch(QueueUrl=target, Entries=entries).get("Failed"):
                raise RuntimeError("not sent")
            self._delete(url, messages)

        return self._by_threads(queue, rows, work)

    def _native(self, queue: str) -> str:
        return str(self._client.get_queue_url(QueueName=queue)["QueueUrl"])

    def _delete(self, url: str, messages: list[Any]) -> None:
        entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)]
        if self._client.delete_message_batch(QueueUrl=url, Entries=entries).get("Failed"):
            raise RuntimeError("not deleted")

    def _by_threads(self, queue: str, rows: int, work: Callable[[str, list[Any]], None]) -> int:
        url = self._native(queue)
        done: list[int] = []

        def run() -> None:
            while sum(done) < rows:
                messages = self._client.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0, MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=["All"], VisibilityTimeout=120,
                ).get("Messages", ())  # fmt: skip
                if messages:
                    work(url, messages)
                    done.append(len(messages))

        threads = [threading.Thread(target=run) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(done)


class NullBench(SqsBench):
    """The server that does nothing; the queue's name says how many messages it gives."""

    def __init__(self) -> None:
        process, endpoint = null_sqs.start()
        atexit.register(process.terminate)
        options = {"sqs.endpoint_url": endpoint, "sqs.region": "us-east-1", "sqs.access_key_id": "test"}
        runtime: Any = type("Runtime", (), {"options": options})
        super().__init__(runtime)
        self.options = {"sqs.region": "us-east-1", "sqs.access_key_id": "test", "sqs.secret_access_key": "test"}
        self._endpoint = endpoint

    def queue(self, name: str) -> str:
        return f"{name}-10000"

    def url(self, queue: str) -> str:
        return f"sqs:{self._endpoint}/000000000000/{queue}"

    def fill(self, queue: str, rows: int) -> None:
        """Do nothing: the server has as many as the name says."""

    def _native(self, queue: str) -> str:
        return f"{self._endpoint}/000000000000/{queue}"


if __name__ == "__main__":
    if "--null" in sys.argv:
        sys.argv.remove("--null")
        sys.exit(main(NullBench(), 10_000))
    found = start(SqsHarness(), None, {}, Path(tempfile.mkdtemp()))
    if not isinstance(found, SqsRuntime):
        raise SystemExit(f"no SQS: {found}")
    atexit.register(found.close)
    sys.exit(main(SqsBench(found), ROWS))
