"""Three servers with streams of three copies, of which one after another is killed: every row is accounted for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import TerminalNack
from redelivery.receiving.subscription import Subscription
from redelivery.registry import connect
from redelivery.sending import Bounds, Delivery, Origin
from redelivery_conformance.containers import free_port
from redelivery_conformance.processes import Process
from redelivery_nats.testing import HOST, Independent, server_program

ROWS = 1_000
BATCH = 50
#: Seconds for anything to come true on a busy machine, and for one look.
PATIENCE = 60.0
LOOK = 2.0
OPTIONS = {"nats.replicas": "3", "nats.ack_wait": "5", "nats.connect_timeout": "2"}


class Cluster:
    """Three servers, by name."""

    def __init__(self, scratch: Path, stack: ExitStack) -> None:
        self.clients = {name: free_port() for name in ("n1", "n2", "n3")}
        routes = {name: free_port() for name in self.clients}
        every = ", ".join(f'"nats://{HOST}:{port}"' for port in routes.values())
        self.processes: dict[str, Process] = {}
        for name, port in self.clients.items():
            lines = [
                f"listen: {HOST}:{port}",
                f"server_name: {name}",
                f'jetstream {{ store_dir: "{scratch / name}" }}',
                f"cluster {{ name: c, listen: {HOST}:{routes[name]}, routes: [{every}] }}",
            ]
            (scratch / f"{name}.conf").write_text("\n".join(lines))
            command = [server_program(), "-c", str(scratch / f"{name}.conf")]
            self.processes[name] = stack.enter_context(Process(command, scratch / f"{name}.log"))
        self.url = "nats://" + ",".join(f"{HOST}:{port}" for port in self.clients.values())
        self.independent = Independent([f"nats://{HOST}:{port}" for port in self.clients.values()])
        stack.callback(self.independent.close)

    def info(self, stream: str) -> Any:
        """Return what the servers say of a stream. Raises: nobody leads it, or none answers soon."""

        async def look(client: Any, _: Any) -> Any:
            found = await client.jetstream(timeout=LOOK).stream_info(stream)
            assert found.cluster.leader
            return found

        return self.independent.run(look)

    def leader(self, stream: str) -> str:
        """Return the name of the server that leads a stream, as soon as one does."""
        eventually(lambda: self.info(stream))
        return str(self.info(stream).cluster.leader)

    def whole(self, stream: str) -> bool:
        """Whether all copies of a stream are current."""
        return all(each.current and not each.offline for each in self.info(stream).cluster.replicas)


def eventually(done: Callable[[], Any]) -> None:
    """Wait until it returns a true value. It may raise until then: servers that come up answer anything."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if done():
                return
        except Exception:
            if time.monotonic() > until:
                raise
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        found = Cluster(tmp_path, stack)
        url = f"{found.url}/orders"

        def provisioned() -> bool:
            with connect(url, OPTIONS) as broker, broker.admin() as admin:
                admin.provision(DeliverySpec())
            return found.whole("orders")

        eventually(provisioned)
        yield found


def test_no_row_is_lost_while_leaders_are_killed_and_followers_are_away(cluster: Cluster) -> None:
    url = f"{cluster.url}/orders"
    spec = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),), retry=100, backoff_max=timedelta(seconds=1))
    rows = [Message(value=b"%d" % at, id=f"i{at}") for at in range(ROWS)]
    poison = {b"%d" % at for at in range(0, ROWS, 100)}
    refused = {b"%d" % at for at in range(1, ROWS, 100)}
    rows = [replace(each, destination="nowhere") if each.value in poison else each for each in rows]

    # Written, while the server that leads the stream is killed.
    leader = cluster.leader("orders")
    with Delivery.open(url, spec, options=OPTIONS, origin=Origin(run="r"), bounds=Bounds()) as delivery:
        for first in range(0, ROWS, BATCH):
            if first == ROWS // 2:
                eventually(lambda: delivery.so_far.delivered)
                cluster.processes[leader].kill()
            delivery.write(Batch.of(rows[first : first + BATCH]))
        report = delivery.finish()
    assert (report.delivered, report.dead_lettered) == (ROWS - len(poison), len(poison))
    cluster.processes[leader].start()
    eventually(lambda: cluster.whole("orders") and cluster.whole("orders-dead-letters"))
    assert cluster.info("orders").state.messages == ROWS - len(poison)

    # Handled, and some given up, while the one that leads the letters is killed.
    leader = cluster.leader("orders-dead-letters")
    handled: set[bytes | None] = set()
    killed = threading.Event()

    def handle(message: Message) -> None:
        if len(handled) == ROWS // 2 and not killed.is_set():
            killed.set()
            cluster.processes[leader].kill()
        handled.add(message.value)
        if message.value in refused:
            raise TerminalNack("refused")

    Subscription(url, handle, spec=spec, options=OPTIONS).run(until_empty=True)
    assert killed.is_set()
    assert handled == {each.value for each in rows} - poison
    eventually(lambda: cluster.info("orders").state.messages == 0)

    # Sent back, while that server is still away.
    cluster.leader("orders-dead-letters")
    with connect(url, OPTIONS) as broker, broker.dead_letters() as there:
        letters = [each.message.value or b"" for each in there.browse()]
    with dead_letters(url, options=OPTIONS) as queue:
        redriven = queue.redrive(spec=spec)
    assert sorted(letters) == sorted(poison | refused)
    assert (redriven.redriven, redriven.removed, redriven.failed) == (len(refused), len(refused), 0)
    eventually(lambda: cluster.info("orders").state.messages == len(refused))
