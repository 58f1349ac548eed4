"""beanstalkd for the conformance suite: the small server beside this file, as a process, or one that a URL names.

What is stored is read with a socket, by the numbers of the jobs, and not with the plugin's code.
"""

from __future__ import annotations

import base64
import json
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from redelivery.contract.message import Message
from redelivery_conformance.containers import free_port
from redelivery_conformance.harness import Foreign, Harness, NotHere, Outage, Place, Runtime, RuntimeKind
from redelivery_conformance.processes import Process
from redelivery_conformance.proxy import Proxy

HOST = "127.0.0.1"
PORT = 11300
START = 20.0  # seconds for a server to come up, on a busy machine


class Wire:
    """A server, as anybody with a socket sees it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def ask(self, *commands: bytes) -> list[bytes]:
        """Write commands; return the body of each answer, or its line where it has none."""
        found = []
        with socket.create_connection((self.host, self.port), timeout=10) as there, there.makefile("rb") as answers:
            for at in range(0, len(commands), 100):
                part = commands[at : at + 100]
                there.sendall(b"".join(each + b"\r\n" for each in part))
                for _ in part:
                    line = answers.readline().rstrip()
                    has_body = line.startswith((b"OK", b"FOUND"))
                    found.append(answers.read(int(line.split()[-1]) + 2)[:-2] if has_body else line)
        return found

    def statistics(self, command: bytes) -> dict[str, str]:
        """The server's answer to a command such as `stats`."""
        lines = self.ask(command)[0].decode().splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def jobs(self, tube: str, after: int) -> list[tuple[int, bytes]]:
        """The jobs of a tube, in the order in which they came; those before a number are left out."""
        numbers = range(after + 1, int(self.statistics(b"stats")["total-jobs"]) + 1)
        told = self.ask(*(b"stats-job %d" % number for number in numbers))
        mine = [at for at, text in zip(numbers, told, strict=True) if _tube(text) == tube]
        return list(zip(mine, self.ask(*(b"peek %d" % number for number in mine)), strict=True))


class BeanstalkPlace(Place):
    """Its own tube. The server has others, so only later jobs are looked at."""

    patience = 3.0
    lease = 2.0  # a lease is whole seconds, and in the last of them the server warns

    def __init__(self, runtime: BeanstalkRuntime, tube: str) -> None:
        self.runtime = runtime
        self.tube = tube
        self.url = f"beanstalk://{runtime.wire.host}:{runtime.wire.port}/{tube}"
        self.options = {"beanstalk.ttr": "2", "beanstalk.connect_timeout": "2"}
        self.after = int(runtime.wire.statistics(b"stats")["total-jobs"])

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        return [_message(body) for _, body in self.runtime.wire.jobs(destination or self.tube, self.after)]

    def snapshot(self) -> object:
        names = [self.tube, f"{self.tube}-dead-letters"]
        return [(name, self.runtime.wire.jobs(name, self.after)) for name in names]

    def destination(self, label: str) -> str:
        return f"{self.tube}-{label}"

    def unreachable(self) -> str:
        return f"beanstalk://{HOST}:1/{self.tube}"

    @property
    def outage_url(self) -> str:
        return f"beanstalk://{HOST}:{self.runtime.proxy.port}/{self.tube}"

    @contextmanager
    def outage(self, kind: Outage = "refused") -> Iterator[None]:
        # The server keeps its messages in memory, so it is frozen but never killed: a proxy refuses and resets.
        process = self.runtime.process
        with process.paused() if process and kind == "silent" else self.runtime.proxy.outage(kind):
            yield

    def vanish(self) -> None:
        numbers = [number for number, _ in self.runtime.wire.jobs(self.tube, self.after)]
        self.runtime.wire.ask(*(b"delete %d" % number for number in numbers))

    def alter(self) -> None:
        name = self.tube.encode()
        self.runtime.wire.ask(b"use " + name, b"put 0 0 60 1\r\nx", b"pause-tube %b 3600" % name)

    def put_foreign(self, *, dead: bool) -> Foreign:
        """A job of another client is a body, and nothing else."""
        tube, body = f"{self.tube}-dead-letters" if dead else self.tube, b"theirs \xff"
        self.runtime.wire.ask(b"use " + tube.encode(), b"put 1024 0 2 %d\r\n%b" % (len(body), body))
        (written,) = self.foreign(dead=dead)
        return written

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        return [
            Foreign(dict(each.headers), {"value": each.value, "key": each.key, "id": each.id})
            for each in self.stored(f"{self.tube}-dead-letters" if dead else None)
        ]

    def damage(self) -> None:
        body = b"redelivery {oops\nvalue"
        self.runtime.wire.ask(b"use " + self.tube.encode(), b"put 1024 0 2 %d\r\n%b" % (len(body), body))


class BeanstalkRuntime(Runtime):
    """A running server, with a proxy before it. `process` is None where it was not started here."""

    def __init__(self, kind: RuntimeKind, description: str, wire: Wire, process: Process | None = None) -> None:
        self.kind = kind
        self.description = description
        self.wire = wire
        self.process = process
        self.proxy = Proxy(wire.host, wire.port)

    def place(self) -> Place:
        return BeanstalkPlace(self, self.fresh_name("conformance"))

    def close(self) -> None:
        self.proxy.close()
        if self.process:
            self.process.close()


class BeanstalkHarness(Harness):
    """What the entry point `beanstalk` of the group `redelivery_testing` names."""

    name = "beanstalk"

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"process": _start}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - needs neither
        parts = urlsplit(url)
        wire = Wire(parts.hostname or HOST, parts.port or PORT)
        try:
            version = wire.statistics(b"stats")["version"]
        except OSError as error:
            raise NotHere(f"nothing answers at {wire.host}:{wire.port}: {error}") from None
        return BeanstalkRuntime("url", f"beanstalkd {version}", wire)


def _start(scratch: Path) -> Runtime:
    wire = Wire(HOST, free_port())
    command = [sys.executable, "-m", "redelivery_beanstalk.testing.server", str(wire.port)]
    process = Process(command, scratch / "server.log")
    process.wait(lambda: wire.statistics(b"stats"), START)
    return BeanstalkRuntime("process", "the stand-in for beanstalkd", wire, process)


def _tube(statistics: bytes) -> str:
    lines = statistics.decode().splitlines()
    return next((line[len("tube: ") :].strip('"') for line in lines if line.startswith("tube: ")), "")


def _message(body: bytes) -> Message:
    if not body.startswith(b"redelivery "):
        return Message(value=body)
    line, _, value = body.partition(b"\n")
    more = json.loads(line.partition(b" ")[2])
    return Message(
        value=None if more["null"] else value,
        key=_bytes(more["key"]),
        headers=tuple(_headers(more["headers"] or ())),
        id=more["id"],
        timestamp_ms=more["timestamp_ms"],
    )


def _headers(pairs: Iterable[Sequence[object]]) -> Iterator[tuple[str, bytes | None]]:
    return ((str(name), _bytes(value)) for name, value in pairs)


def _bytes(value: object) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode("utf-8", "surrogatepass")
