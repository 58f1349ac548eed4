"""The receiver role. A lease is a reservation: it lasts for the job's time to run, and ends with the connection."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import timedelta

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Retry, Terminate
from redelivery.errors import BrokerError, LeaseLost, Permanent
from redelivery.kit import leases as kit
from redelivery_beanstalk import codec
from redelivery_beanstalk.address import Address
from redelivery_beanstalk.client.asking import ROUND_TRIP, Asking, until
from redelivery_beanstalk.client.connection import Answer, Connection, put
from redelivery_beanstalk.errors import TABLE, Refused
from redelivery_beanstalk.options import Settings

PAGE = 100  # messages taken at a time
POLL = 0.05  # seconds between two looks, where the server is asked for whole seconds only
LONGEST_DELAY = timedelta(days=365)


class Lease(kit.Lease):
    """A lease with the job's number, priority and time to run, and the connection that reserved it."""

    def __init__(self, expires: float, job: int, statistics: Answer, connection: Connection) -> None:
        super().__init__(expires)
        self.job, self.connection = job, connection
        self.priority = int(statistics.statistics["pri"])
        self.ttr = int(statistics.statistics["ttr"])


class BeanstalkReceiver(Asking, Receiver):
    """Reserves the oldest messages that are ready."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings)
        tube, letters = address.tube.encode(), address.dead_letters.tube.encode()
        others = (b"ignore default",) if address.tube != "default" else ()
        self.greeting = (b"watch " + tube, *others, b"use " + letters)

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        end = time.monotonic() + wait
        while True:
            left = end - time.monotonic()
            with self._connected("receiving from", safe=True) as connection:
                received = self._take(connection, min(max_messages, PAGE), min(1, max(0, int(left))))
            if received or left <= 0 or self.sleep_unless_closed(min(POLL, left)):
                return received

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling messages of")
        call = kit.Settlement(outcomes, self._is_held, self._lost)
        if call.waiting():
            with self._connected("settling messages of") as connection:
                self._send_letters(connection, call)
                rest = call.waiting()
                answers = connection.ask([_command(*pair) for _, pair in rest], until())
                for (at, _), answer in zip(rest, answers, strict=True):
                    self._answer(call, at, answer, "DELETED", "RELEASED")
        return call.answers

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:  # noqa: ARG002 - a touch gives a whole time to run
        self.check_open("prolonging leases of")
        held = [received for received in leases if self._is_held(received)]
        touched: dict[int, float] = {}
        if held:
            with self._connected("prolonging leases of") as connection:
                now = time.monotonic()
                for received, answer in zip(held, self._touch(connection, held), strict=True):
                    if answer.word == "TOUCHED":
                        touched[id(received)] = now + received.lease.ttr
        return [kit.prolonged(each, touched[id(each)]) if id(each) in touched else self._lost(each) for each in leases]

    def _take(self, connection: Connection, most: int, seconds: int) -> list[Received]:
        asked = time.monotonic()
        first, rest = b"reserve-with-timeout %d" % seconds, [b"reserve-with-timeout 0"] * (most - 1)
        answers = connection.ask([first, *rest], until(seconds + ROUND_TRIP))
        jobs = [each for each in answers if each.expect("RESERVED", "TIMED_OUT", "DEADLINE_SOON").word == "RESERVED"]
        told = connection.ask([b"stats-job %d" % each.job for each in jobs], until(ROUND_TRIP))
        return [
            self._received(job, statistics, asked, connection)
            for job, statistics in zip(jobs, told, strict=True)
            if statistics.word == "OK"  # somebody may have deleted it
        ]

    @staticmethod
    def _received(job: Answer, statistics: Answer, asked: float, connection: Connection) -> Received:
        message, undecodable = codec.decode(job.body)
        expires = asked + int(statistics.statistics["ttr"])
        return Received(
            message=message,
            attempt=int(statistics.statistics["reserves"]),
            lease=Lease(expires, job.job, statistics, connection),
            expires=expires,
            position=str(job.job),
            undecodable=undecodable,
        )

    def _send_letters(self, connection: Connection, call: kit.Settlement) -> None:
        """Copy what is terminated to the dead letter tube. What was not confirmed there is answered, and kept here."""
        held = call.waiting(Terminate)
        touched = self._touch(connection, [received for _, (received, _) in held])
        for (at, _), answer in zip(held, touched, strict=True):  # so that a lost lease leaves no letter
            if answer.word != "TOUCHED":
                self._answer(call, at, answer)
        failed: dict[int, BrokerError] = {}
        letters: dict[int, bytes] = {}
        for at, (_, outcome) in call.waiting(Terminate):
            try:
                letters[at] = put(codec.encode(outcome.letter, self._settings.max_job_size), self._settings.ttr)
            except Permanent as error:
                failed[at] = error
        answers = connection.ask(letters.values(), until())
        for at, answer in zip(letters, answers, strict=True):
            if answer.word != "INSERTED":
                failed[at] = TABLE.error(Refused(answer.word), self.doing("sending a letter of"), rows=1)
        call.answer_failed_copies(failed)

    @staticmethod
    def _touch(connection: Connection, leases: Sequence[Received]) -> list[Answer]:
        return connection.ask([b"touch %d" % each.lease.job for each in leases], until())

    def _answer(self, call: kit.Settlement, at: int, answer: Answer, *done: str) -> None:
        if answer.word in done:
            call.answer(at, None)
        elif answer.word == "NOT_FOUND":  # it is not reserved by this connection any more
            call.lose(at)
        else:
            call.answer(at, TABLE.error(Refused(answer.word), self.doing("settling a message of"), rows=1))

    def _is_held(self, received: Received) -> bool:
        return kit.is_held(received) and received.lease.connection is self._connection

    def _lost(self, received: Received) -> LeaseLost:
        return kit.lost("beanstalk", f"tube {self._address.tube!r}", received)


def _command(received: Received, outcome: Outcome) -> bytes:
    lease = received.lease
    if isinstance(outcome, Accept | Terminate):
        return b"delete %d" % lease.job
    delay = math.ceil(min(outcome.delay, LONGEST_DELAY).total_seconds()) if isinstance(outcome, Retry) else 0
    return b"release %d %d %d" % (lease.job, lease.priority, delay)
