"""`python -m servicebus_standin`: the stand-in in its own process, for jobs in other processes."""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from servicebus_standin.standin import StandIn


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m servicebus_standin",
        description="A stand-in for Azure Service Bus, for tests. It is not Azure: its queues are in memory.",
    )
    parser.add_argument("--port", type=int, default=5671, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--admin-port", type=int, help="a port of its own for the administration, also without TLS; 0 takes a free one"
    )
    parser.add_argument("--queue", action="append", default=[], help="make this queue; repeatable")
    parser.add_argument("--topic", action="append", default=[], help="make this topic; repeatable")
    given = parser.parse_args(arguments)
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    with StandIn(given.port, admin_port=given.admin_port) as server:
        for name in given.queue:
            server.create_queue(name)
        for name in given.topic:
            server.create_topic(name)
        sys.stdout.write(f"{server.connection_string}\n{server.certificate}\n")
        if server.admin_port is not None:
            sys.stdout.write(f"{server.admin_connection_string}\n")
        sys.stdout.flush()
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
