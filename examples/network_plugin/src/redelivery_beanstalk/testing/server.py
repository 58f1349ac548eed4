"""A small server of beanstalkd's protocol, for tests where beanstalkd is not installed. It keeps all in memory.

Run it as `python -m redelivery_beanstalk.testing.server PORT`. What it leaves out: kick, peek by state, list-tubes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import secrets
import sys
from collections import defaultdict
from dataclasses import dataclass, field

MOST = 65535  # bytes of a job
SOON = 1.0  # seconds before the end of a reservation in which its holder is warned
NAME = re.compile(rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")


@dataclass(eq=False)
class Job:
    """A job and where it is."""

    number: int
    tube: bytes
    priority: int
    ttr: int
    body: bytes
    state: str = "ready"
    reserves: int = 0
    holder: Session | None = None
    ends: float = 0.0
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class Tube:
    """A queue: its jobs by number, and those that may be ready in their order."""

    jobs: dict[int, Job] = field(default_factory=dict)
    ready: list[tuple[int, int]] = field(default_factory=list)
    pause: int = 0


class Server:
    """What all connections share."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.numbers = itertools.count(1)
        self.total = 0
        self.jobs: dict[int, Job] = {}
        self.tubes: defaultdict[bytes, Tube] = defaultdict(Tube)
        self.changed = asyncio.Event()

    def move(self, job: Job, state: str, seconds: float = 0) -> None:
        """Put a job into a state; after so many seconds in it, it is ready."""
        if job.timer:
            job.timer.cancel()
        job.state, job.holder, job.timer = state, None, None
        if seconds:
            loop = asyncio.get_running_loop()
            job.ends = loop.time() + seconds
            job.timer = loop.call_at(job.ends, self.move, job, "ready")
        if state == "ready":
            heapq.heappush(self.tubes[job.tube].ready, (job.priority, job.number))
            self.changed.set()
            self.changed = asyncio.Event()

    def first(self, names: set[bytes]) -> Job | None:
        """The job that is given next, from any of these tubes."""
        found: list[Job] = []
        for tube in (self.tubes[name] for name in names if name in self.tubes):
            while tube.ready and (job := tube.jobs.get(tube.ready[0][1]), job and job.state)[1] != "ready":
                heapq.heappop(tube.ready)
            if tube.ready and not tube.pause:
                found.append(tube.jobs[tube.ready[0][1]])
        return min(found, key=lambda job: (job.priority, job.number), default=None)

    def forget(self, job: Job) -> None:
        """Delete a job, and its tube if that was the last."""
        self.move(job, "deleted")
        del self.jobs[job.number]
        tube = self.tubes[job.tube]
        del tube.jobs[job.number]
        if not tube.jobs and not tube.pause:
            del self.tubes[job.tube]


class Session:
    """One connection: its commands, one after the other."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.tube, self.watched = b"default", {b"default"}
        self.held: dict[int, Job] = {}

    async def run(self) -> None:
        """Answer until the connection ends; then what it held is ready again."""
        try:
            while line := await self.reader.readline():
                name, *arguments = line.removesuffix(b"\r\n").split(b" ")
                command = getattr(self, f"do_{name.decode('ascii', 'replace').replace('-', '_')}", None)
                try:
                    answer = await command(*arguments) if command else "UNKNOWN_COMMAND"
                except (TypeError, ValueError):
                    answer = "BAD_FORMAT"
                self.writer.write(answer if isinstance(answer, bytes) else answer.encode() + b"\r\n")
                await self.writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for job in self.mine():
                self.server.move(job, "ready")
            self.writer.close()

    def mine(self) -> list[Job]:
        """The jobs that this connection still holds."""
        self.held = {number: job for number, job in self.held.items() if job.holder is self}
        return list(self.held.values())

    def held_job(self, number: bytes) -> Job | None:
        """A job by its number, if this connection holds it."""
        job = self.held.get(int(number))
        return job if job and job.holder is self else None

    async def do_put(self, priority: bytes, delay: bytes, ttr: bytes, size: bytes) -> str:
        body = (await self.reader.readexactly(int(size) + 2))[:-2]
        if len(body) > MOST:
            return "JOB_TOO_BIG"
        number = self.server.total = next(self.server.numbers)
        job = Job(number, self.tube, int(priority), max(int(ttr), 1), body)
        self.server.jobs[number] = self.server.tubes[self.tube].jobs[number] = job
        self.server.move(job, "delayed" if int(delay) else "ready", int(delay))
        return f"INSERTED {number}"

    async def do_use(self, tube: bytes) -> str:
        if not NAME.fullmatch(tube):
            return "BAD_FORMAT"
        self.tube = tube
        return f"USING {tube.decode()}"

    async def do_watch(self, tube: bytes) -> str:
        if not NAME.fullmatch(tube):
            return "BAD_FORMAT"
        self.watched.add(tube)
        return f"WATCHING {len(self.watched)}"

    async def do_ignore(self, tube: bytes) -> str:
        if self.watched == {tube}:
            return "NOT_IGNORED"
        self.watched.discard(tube)
        return f"WATCHING {len(self.watched)}"

    async def do_reserve_with_timeout(self, seconds: bytes) -> str | bytes:
        loop = asyncio.get_running_loop()
        end = loop.time() + int(seconds)
        while not (job := self.server.first(self.watched)):
            warned = min((each.ends for each in self.mine()), default=float("inf")) - SOON
            if loop.time() >= min(end, warned):
                return "DEADLINE_SOON" if warned <= loop.time() else "TIMED_OUT"
            try:
                await asyncio.wait_for(self.server.changed.wait(), min(end, warned) - loop.time())
            except TimeoutError:
                continue
        self.server.move(job, "reserved", job.ttr)
        job.holder, job.reserves = self, job.reserves + 1
        self.held[job.number] = job
        return b"RESERVED %d %d\r\n%b\r\n" % (job.number, len(job.body), job.body)

    async def do_touch(self, number: bytes) -> str:
        if not (job := self.held_job(number)):
            return "NOT_FOUND"
        self.server.move(job, "reserved", job.ttr)
        job.holder = self
        return "TOUCHED"

    async def do_release(self, number: bytes, priority: bytes, delay: bytes) -> str:
        if not (job := self.held_job(number)):
            return "NOT_FOUND"
        job.priority = int(priority)
        self.server.move(job, "delayed" if int(delay) else "ready", int(delay))
        return "RELEASED"

    async def do_bury(self, number: bytes, priority: bytes) -> str:
        if not (job := self.held_job(number)):
            return "NOT_FOUND"
        job.priority = int(priority)
        self.server.move(job, "buried")
        return "BURIED"

    async def do_delete(self, number: bytes) -> str:
        job = self.server.jobs.get(int(number))
        if not job or job.holder not in {None, self}:
            return "NOT_FOUND"
        self.server.forget(job)
        return "DELETED"

    async def do_peek(self, number: bytes) -> str | bytes:
        job = self.server.jobs.get(int(number))
        return b"FOUND %d %d\r\n%b\r\n" % (job.number, len(job.body), job.body) if job else "NOT_FOUND"

    async def do_stats_job(self, number: bytes) -> str | bytes:
        if not (job := self.server.jobs.get(int(number))):
            return "NOT_FOUND"
        return _yaml(
            id=job.number, tube=job.tube.decode(), state=job.state, pri=job.priority, ttr=job.ttr, reserves=job.reserves
        )

    async def do_stats_tube(self, name: bytes) -> str | bytes:
        if name not in self.server.tubes:
            return "NOT_FOUND"
        tube = self.server.tubes[name]
        counts = dict.fromkeys(("ready", "reserved", "delayed", "buried"), 0)
        for job in tube.jobs.values():
            counts[job.state] += 1
        return _yaml(
            name=name.decode(), pause=tube.pause, **{f"current-jobs-{state}": n for state, n in counts.items()}
        )

    async def do_stats(self) -> bytes:
        return _yaml(**{"total-jobs": self.server.total, "max-job-size": MOST, "id": self.server.id, "version": "none"})

    async def do_pause_tube(self, tube: bytes, seconds: bytes) -> str:
        self.server.tubes[tube].pause = int(seconds)
        return "PAUSED"


def _yaml(**values: object) -> bytes:
    body = b"---\n" + b"".join(f"{name}: {value}\n".encode() for name, value in values.items())
    return b"OK %d\r\n%b\r\n" % (len(body), body)


async def serve(port: int) -> None:
    """Serve on a port of this host, until the process ends."""
    server = Server()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Session(server, reader, writer).run()

    async with await asyncio.start_server(answer, "127.0.0.1", port) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
