"""`Taker`: a receiver under test, as the statements use it.

It keeps the bookkeeping of leasing, waiting and settling out of the statements. It asserts only what receiving relies
on: as many messages as requested, and one answer per outcome.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from redelivery.contract.broker import Broker, Outcome, Received, Receiver, Support
from redelivery.errors import BrokerError, LeaseLost
from redelivery_conformance.subject import Subject

#: A lease that does not run out within a test.
LONG = 30.0
#: How long to watch that no message arrives, in seconds.
QUIET = 0.15
#: How much later than reported a lease may end, in seconds.
_LATER = 0.4
#: How long one call to receive waits, in seconds.
_LOOK = 0.1


class Taker:
    """A receiver, with its own broker, at the subject's place.

    Args:
        lease: duration in seconds; long by default.
        options: client options in addition to the place's.
        broker: the broker to use; by default the taker opens its own.
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
        """Lease exactly this many messages within a patient time. One call must not return more."""
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
        """Lease messages until none has arrived for a while. That must happen within a patient time."""
        taken: list[Received] = []
        last = time.monotonic() + quiet + self.patience
        end = time.monotonic() + quiet
        while time.monotonic() < end:
            more = self.receiver.receive(100, wait=max(0.0, min(_LOOK, end - time.monotonic())))
            if not self.subject.capabilities.leases_as_asked:  # a message whose lease ended may come again
                there = {each.position for each in taken}
                more = [each for each in more if each.position not in there]
            if more:
                taken += more
                end = time.monotonic() + quiet
            assert time.monotonic() < last, f"there is no end of messages: {len(taken)} came"
        return taken

    def nothing(self, seconds: float = QUIET) -> None:
        """Assert that no message arrives for this long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            came = self.receiver.receive(100, wait=min(_LOOK, left))
            assert not came, f"{len(came)} messages came, of {values(came)[:5]}, where none was to come"

    def answers(self, *outcomes: tuple[Received, Outcome]) -> Sequence[LeaseLost | BrokerError | None]:
        """Settle, and assert one answer per outcome, of a kind that the contract allows."""
        answers = self.receiver.settle(outcomes)
        assert len(answers) == len(outcomes), f"{len(answers)} answers to {len(outcomes)} outcomes"
        for answer in answers:
            assert answer is None or isinstance(answer, LeaseLost | BrokerError), f"not an answer: {answer!r}"
        return answers

    def settle(self, outcome: Outcome, *received: Received) -> None:
        """Settle messages whose leases must still be valid."""
        answers = self.answers(*((each, outcome) for each in received))
        assert not any(answers), f"a good lease was not settled: {answers}"

    def is_lost(self, received: Received, outcome: Outcome) -> None:
        """Assert that the lease of a message is lost."""
        (answer,) = self.answers((received, outcome))
        assert isinstance(answer, LeaseLost), f"{answer!r} in place of LeaseLost"

    def lapse(self, *received: Received) -> None:
        """Let leases end: wait, or close the receiver if leases last as long as the connection."""
        ends = [each.expires for each in received if each.expires is not None]
        if len(ends) < len(received):
            self.receiver.close()
        # The broker starts to count when it has the request: a little later than a careful plugin.
        wait_until(max(ends) + _LATER if ends else 0.0)

    def make_way(self) -> None:
        """Let another receiver get the messages not leased here. Close, if a receiver takes more than it gives."""
        if self.subject.capabilities.competing_consumers is not Support.NATIVE:
            self.receiver.close()

    def close(self) -> None:
        """Close the receiver."""
        self.receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until(moment: float) -> None:
    """Sleep until a monotonic time."""
    while (left := moment - time.monotonic()) >= 0:
        time.sleep(left + 0.001)


def values(received: Sequence[Received]) -> list[bytes | None]:
    """Return the values of received messages, in order."""
    return [each.message.value for each in received]
