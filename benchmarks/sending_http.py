"""`http:` against a loop by hand on httpx2's client, without Spark, in one run, on a server that keeps nothing.

`python benchmarks/sending_http.py [ROWS]`. Both use 16 threads and post events in binary mode. Prints rows a second and
CPU microseconds a row, medians of turns, and the ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import httpx2

from redelivery.contract.message import Batch, Message
from redelivery.registry import connect

THREADS, TURNS = 16, 5
BODY = b"x" * 1024
HEADERS = {"ce-specversion": "1.0", "ce-source": "/orders", "ce-type": "order", "content-type": "text/plain"}
#: Answers 202 to each request, on the port that it prints.
SERVER = r"""
import asyncio
class Answering(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.seen = transport, b""
    def data_received(self, data):
        self.seen += data
        while (end := self.seen.find(b"\r\n\r\n")) >= 0:
            head = self.seen[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15:].split(b"\r")[0]) if at >= 0 else 0
            if len(self.seen) < end + 4 + length:
                return
            self.seen = self.seen[end + 4 + length:]
            self.transport.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
async def main():
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def by_hand(url: str, rows: int) -> None:
    def post(first: int) -> None:
        for number in range(first, rows, THREADS):
            client.post(url, content=BODY, headers={**HEADERS, "ce-id": str(number)}).raise_for_status()

    with httpx2.Client(limits=httpx2.Limits(max_connections=THREADS)) as client:
        threads = [threading.Thread(target=post, args=(first,)) for first in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def ours(url: str, rows: int) -> None:
    fixed = tuple((name, value.encode()) for name, value in HEADERS.items())
    messages = [Message(value=BODY, headers=(*fixed, ("ce-id", b"%d" % each)), id=str(each)) for each in range(rows)]
    _send(url, {"http.concurrency": str(THREADS)}, messages)


def batched(url: str, rows: int) -> None:
    fixed = tuple((name, value.encode()) for name, value in HEADERS.items())
    messages = [Message(value=BODY, headers=(*fixed, ("ce-id", b"%d" % each)), id=str(each)) for each in range(rows)]
    _send(url, {"http.concurrency": str(THREADS), "http.batch": "100"}, messages)


def _send(url: str, options: dict[str, str], messages: list[Message]) -> None:
    with connect(url, options) as broker, broker.sender() as sender:
        sender.send(Batch.of(messages), deadline=time.monotonic() + 300)
        while not (settled := sender.collect(1.0)):
            pass
    assert not settled[0].failures, settled[0].failures[0]  # noqa: S101 - a benchmark that fails says so


def main(rows: int) -> None:
    ways: dict[str, Callable[[str, int], None]] = {"by hand": by_hand, "http:": ours, "http:, batch 100": batched}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)  # noqa: S603 - ours
    try:
        url = f"http://127.0.0.1:{int((server.stdout or sys.stdin.buffer).readline())}/orders"
        for turn in range(TURNS + 1):  # the first warms up
            for name, way in ways.items():
                began, cpu = time.perf_counter(), time.process_time()
                way(url, rows)
                if turn:
                    found[name].append((time.perf_counter() - began, time.process_time() - cpu))
    finally:
        server.terminate()
        server.wait()
    base = statistics.median(cpu for _, cpu in found["by hand"])
    for name, runs in found.items():
        took, cpu = (statistics.median(each[at] for each in runs) for at in (0, 1))
        print(f"{name}: {rows / took:,.0f} rows/s, {cpu / rows * 1e6:.0f} us CPU a row, {cpu / base:.2f} of by hand")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
