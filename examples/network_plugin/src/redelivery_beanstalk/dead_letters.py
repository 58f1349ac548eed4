"""The dead letters role. beanstalkd shows a job only to who reserves it, so browsing hides letters until `close`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.kit.letters import undecodable
from redelivery_beanstalk import codec
from redelivery_beanstalk.address import Address
from redelivery_beanstalk.client.asking import Asking, until
from redelivery_beanstalk.client.connection import Answer, Connection
from redelivery_beanstalk.options import Settings

PAGE = 50  # letters taken at a time


class BeanstalkDeadLetters(Asking, DeadLetters):
    """Reserves letters to show them. A position is the server's own id and the job's number."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings)
        others = (b"ignore default",) if address.tube != "default" else ()
        self.greeting = (b"watch " + address.tube.encode(), *others)

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        self._release()  # the server returns what an earlier look has hidden
        with self._connected("browsing", safe=True) as connection:
            server, left = _server(connection), self._ready(connection)
        seen: set[int] = set()
        while left > 0:
            with self._connected("browsing", safe=True) as connection:
                jobs = [each for each in _reserve(connection, min(left, PAGE)) if each.job not in seen]
            if not jobs:
                return
            left -= len(jobs)
            seen.update(each.job for each in jobs)
            for each in jobs:
                message, reason = codec.decode(each.body)
                context = None if reason is None else undecodable("beanstalk", reason)
                yield Letter(position=f"{server}-{each.job}", message=message, context=context)

    def remove(self, positions: Sequence[str]) -> int:
        with self._connected("removing from") as connection:
            # Without a log the server numbers from 1 when it starts, so a number alone could name another letter.
            server = _server(connection)
            named = [each.rpartition("-") for each in dict.fromkeys(positions)]
            jobs = [int(job) for of, _, job in named if of == server and job.isdecimal()]
            told = connection.ask([b"stats-job %d" % job for job in jobs], until())
            mine = [
                job
                for job, answer in zip(jobs, told, strict=True)
                if answer.statistics.get("tube") == self._address.tube
            ]
            return _delete(connection, mine)

    def purge(self) -> int:
        self.check_open("purging")
        self._release()
        count = 0
        with self._connected("purging") as connection:
            while jobs := _reserve(connection, PAGE):
                count += _delete(connection, [each.job for each in jobs])
        return count

    def _ready(self, connection: Connection) -> int:
        (answer,) = connection.ask([b"stats-tube " + self._address.tube.encode()], until())
        return int(answer.expect("OK", "NOT_FOUND").statistics.get("current-jobs-ready", 0))


def _server(connection: Connection) -> str:
    """The id that the server gave itself when it started."""
    (answer,) = connection.ask([b"stats"], until())
    return answer.expect("OK").statistics["id"]


def _reserve(connection: Connection, most: int) -> list[Answer]:
    answers = connection.ask([b"reserve-with-timeout 0"] * most, until())
    return [each for each in answers if each.expect("RESERVED", "TIMED_OUT", "DEADLINE_SOON").word == "RESERVED"]


def _delete(connection: Connection, jobs: Sequence[int]) -> int:
    answers = connection.ask([b"delete %d" % job for job in jobs], until())
    return sum(each.expect("DELETED", "NOT_FOUND").word == "DELETED" for each in answers)
