"""`Taker`: a receiver under test, as the statements use it.

It keeps the bookkeeping of leasing, waiting and settling out of the statements. This file must not state anything
itself, besides what receiving rests on: as many messages as were asked for, and one answer for each outcome.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from redelivery.contract.broker import Broker, Outcome, Received, Receiver
from redelivery.errors import BrokerError, LeaseLost
from redelivery_conformance.subject import Subject

#: A lease that does not run out within a test.
LONG = 30.0
#: How long nothing must come, in seconds, where nothing is to come.
QUIET = 0.15
#: How much later than told a lease may truly end, in seconds.
_LATER = 0.4
#: How long one call waits, in seconds.
_LOOK = 0.1


class Taker:
    """Its own receiver, of its own broker, at the subject's place.

    Args:
        lease: seconds; a long one if nothing is said.
        options: client options besides the place's.
        broker: in place of one of its own.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        lease: float = LONG,
        options: Mapping[str, str] | None = None,
        broker: Broker | None = None,
    ) -> None:
        self.subject = subject
        self.lease = lease
        self.patience = subject.place.patience
        broker = subject.connect(options=options) if broker is None else broker
        self.receiver: Receiver = subject.keep(broker.receiver(lease=timedelta(seconds=lease)))

    def take(self, count: int = 1, *, within: float | None = None) -> list[Received]:
        """Lease exactly so many; more do not come at once, and they come within a patient time."""
        end = time.monotonic() + (self.patience if within is None else within)
        taken: list[Received] = []
        while len(taken) < count:
            more = self.receiver.receive(count - len(taken), wait=_LOOK)
            assert len(more) <= count - len(taken), f"{len(more)} received where {count - len(taken)} were asked for"
            taken += more
            assert len(taken) == count or time.monotonic() < end, f"{len(taken)} of {count} messages came in time"
        return taken

    def one(self, *, within: float | None = None) -> Received:
        """Lease one message."""
        (received,) = self.take(1, within=within)
        return received

    def drain(self, quiet: float = QUIET) -> list[Received]:
        """Lease whatever comes, until nothing has come for a while; it must end within a patient time."""
        taken: list[Received] = []
        last = time.monotonic() + quiet + self.patience
        end = time.monotonic() + quiet
        while time.monotonic() < end:
            more = self.receiver.receive(100, wait=max(0.0, min(_LOOK, end - time.monotonic())))
            if not self.subject.capabilities.leases_as_asked:  # what comes again, its lease over meanwhile, is not news
                there = {each.position for each in taken}
                more = [each for each in more if each.position not in there]
            if more:
                taken += more
                end = time.monotonic() + quiet
            assert time.monotonic() < last, f"there is no end of messages: {len(taken)} came"
        return taken

    def nothing(self, seconds: float = QUIET) -> None:
        """Assert that nothing comes for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            came = self.receiver.receive(100, wait=min(_LOOK, left))
            assert not came, f"{len(came)} messages came, of {values(came)[:5]}, where none was to come"

    def answers(self, *outcomes: tuple[Received, Outcome]) -> Sequence[LeaseLost | BrokerError | None]:
        """Settle; there is one answer each, of a kind that the contract knows."""
        answers = self.receiver.settle(outcomes)
        assert len(answers) == len(outcomes), f"{len(answers)} answers to {len(outcomes)} outcomes"
        for answer in answers:
            assert answer is None or isinstance(answer, LeaseLost | BrokerError), f"not an answer: {answer!r}"
        return answers

    def settle(self, outcome: Outcome, *received: Received) -> None:
        """Settle messages that must still be ours."""
        answers = self.answers(*((each, outcome) for each in received))
        assert not any(answers), f"a good lease was not settled: {answers}"

    def is_lost(self, received: Received, outcome: Outcome) -> None:
        """Assert that a message is no longer ours to settle."""
        (answer,) = self.answers((received, outcome))
        assert isinstance(answer, LeaseLost), f"{answer!r} in place of LeaseLost"

    def lapse(self, *received: Received) -> None:
        """Let leases end: by waiting, or by closing where they last as long as the connection."""
        ends = [each.expires for each in received if each.expires is not None]
        if len(ends) < len(received):
            self.receiver.close()
        # The broker's own count begins when it has the request: a little later than a careful plugin's.
        wait_until(max(ends) + _LATER if ends else 0.0)

    def make_way(self) -> None:
        """Let another receiver have what is not under lease here: by closing, where one owns whole partitions."""
        if not self.subject.capabilities.competing_consumers:
            self.receiver.close()

    def close(self) -> None:
        """Close the receiver."""
        self.receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until(moment: float) -> None:
    """Sleep until a monotonic time has passed."""
    while (left := moment - time.monotonic()) >= 0:
        time.sleep(left + 0.001)


def values(received: Sequence[Received]) -> list[bytes | None]:
    """The values of received messages, in order."""
    return [each.message.value for each in received]
