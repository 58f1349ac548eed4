"""An SQS server that stores nothing and accepts everything: `python benchmarks/null_sqs.py` prints its port.

It answers about 8,000 requests of ten messages per second on one core, so that the client is the limit. A receive
returns ten messages until `limit` of them have been given; `limit` is the number in the queue's name ("many-20000").
It counts what was sent to each queue.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Final

_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TARGET: Final = re.compile(rb"x-amz-target: *AmazonSQS\.(\w+)", re.IGNORECASE)
_QUEUE: Final = re.compile(rb'"QueueUrl": ?"[^"]*-(\d+)"')
_NAME: Final = re.compile(rb'"QueueUrl": ?"[^"]*/([^"/]+)"')
_TEN: Final = 10
_BODY: Final = "x" * 1024


class NullSqs(asyncio.Protocol):
    """One connection."""

    given: ClassVar[int] = 0
    sent: ClassVar[Counter[bytes]] = Counter()

    def __init__(self) -> None:
        self._read = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._read, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._read) < whole:
                if b"100-continue" in self._read[:end]:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            head, body, self._read = self._read[:end], self._read[end + 4 : whole], self._read[whole:]
            target = _TARGET.search(head)
            answer = self._answer(target[1] if target else b"", body)
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
                b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)
            )

    def _answer(self, target: bytes, body: bytes) -> bytes:
        if target.endswith(b"Batch"):
            entries = body.count(b'"Id"')
            if target == b"SendMessageBatch":
                NullSqs.sent[_queue_in(body)] += entries
            return _DONE[entries]
        if target == b"ReceiveMessage":
            queue = _QUEUE.search(body)
            left = (int(queue[1]) if queue else 0) - NullSqs.given
            if left <= 0:
                NullSqs.given = 0
                return b"{}"
            NullSqs.given += _TEN
            return _received(NullSqs.given)
        return _ABOUT % NullSqs.sent[_queue_in(body)]


def _queue_in(body: bytes) -> bytes:
    found = _NAME.search(body)
    return found[1] if found else b""


def _received(first: int) -> bytes:
    return b'{"Messages": [%s]}' % b", ".join(_MESSAGE % (first + at, first + at) for at in range(_TEN))


_ABOUT: Final = (
    b'{"QueueUrl": "http://localhost/000000000000/null", "Attributes": {"ApproximateNumberOfMessages": "%d"}}'
)
_ATTRIBUTES: Final = {
    "ApproximateReceiveCount": "1",
    "ApproximateFirstReceiveTimestamp": "1767225600000",
    "SentTimestamp": "1767225600000",
}
_MESSAGE: Final = (
    b'{"MessageId": "00000000-0000-4000-8000-%012d", "ReceiptHandle": "handle-%d-'
    + b"h" * 150
    + b'", "Body": "'
    + _BODY.encode()
    + b'", "Attributes": '
    + json.dumps(_ATTRIBUTES).encode()
    + b"}"
)
_DONE: Final = [
    json.dumps(
        {"Successful": [{"Id": str(at), "MessageId": f"m{at}", "MD5OfMessageBody": "0" * 32} for at in range(count)]}
    ).encode()
    for count in range(_TEN + 1)
]


def start() -> tuple[subprocess.Popen[str], str]:
    """Start a server in its own process; return it and its endpoint."""
    process = subprocess.Popen([sys.executable, str(Path(__file__))], stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own
    if process.stdout is None:
        raise RuntimeError("the null server has no output")
    return process, f"http://127.0.0.1:{process.stdout.readline().strip()}"


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(NullSqs, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
