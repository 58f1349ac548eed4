"""Closing, and use beside other senders, other threads and other processes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from redelivery.contract.broker import Accept, Role
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, RedeliveryError
from redelivery_conformance.forking import in_a_fork
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject, confirmed
from redelivery_conformance.taking import Taker


class Closing(Statements):
    """Roles close at any time, and only themselves."""

    def test_closing_twice_does_nothing(self, subject: Subject) -> None:
        subject.provision()
        has = subject.capabilities
        broker = subject.connect()
        roles: list[Role] = []
        if has.send:
            roles.append(broker.sender())
        if has.receive:
            roles.append(broker.receiver())
        if has.provision:
            roles.append(broker.admin())
        if has.browse:
            roles.append(broker.dead_letters(direct=True))
        for role in (*roles, broker):
            role.close()
            role.close()

    @broker_has("send")
    def test_closing_with_work_in_flight_does_not_hang(self, subject: Subject) -> None:
        sender = subject.sender()
        batches = [subject.batch([Message(value=b"v")] * 100) for _ in range(5)]
        for batch in batches:
            sender.send(batch, deadline=subject.deadline())
        began = time.monotonic()
        sender.close()
        assert time.monotonic() - began < subject.place.patience
        assert subject.values().total() <= 500

    @broker_has("send")
    def test_a_closed_sender_takes_nothing(self, subject: Subject) -> None:
        """It raises or settles with one of our errors, and stores nothing."""
        sender = subject.sender()
        sender.close()
        batch = subject.batch([Message(value=b"v")])
        with suppress(RedeliveryError):
            assert not confirmed(batch, subject.settle(sender, batch)[batch.number]), "a closed sender went on"
        assert not subject.values()

    @broker_has("send")
    def test_what_was_confirmed_outlives_the_broker(self, subject: Subject) -> None:
        with subject.connect() as broker, broker.sender() as sender:
            settled = subject.send(Message(value=b"v"), sender=sender)
            assert settled.error is None
        assert subject.values() == Counter([b"v"])
        subject.returns(Message(value=b"v"))

    @broker_has("send")
    def test_a_sender_outlives_another_of_the_same_broker(self, subject: Subject) -> None:
        first, second = subject.sender(), subject.sender()
        subject.send(Message(value=b"1"), sender=first)
        first.close()
        subject.send(Message(value=b"2"), sender=second)
        assert subject.values() == Counter([b"1", b"2"])

    @broker_has("send")
    def test_two_senders_at_once_harm_neither(self, subject: Subject) -> None:
        """Each thread has its own sender. A refusal for lack of room is allowed; a loss or a duplicate is not."""
        sure: list[Counter[bytes | None]] = []
        problems: list[BaseException] = []

        def send_some(name: bytes) -> None:
            taken: Counter[bytes | None] = Counter()
            with subject.connect() as broker, broker.sender() as sender:
                for at in range(10):
                    batch = subject.batch([Message(value=b"%s %d %d" % (name, at, row)) for row in range(10)])
                    settled = subject.settle(sender, batch)[batch.number]
                    taken.update(message.value for message in confirmed(batch, settled))
            sure.append(taken)

        _in_threads(send_some, (b"a", b"b"), problems)
        assert not problems, problems[0]
        assert sum((each.total() for each in sure), 0) > 0
        assert subject.values() == sure[0] + sure[1]

    @broker_has("send")
    def test_a_fork_with_an_open_sender_harms_neither_side(self, subject: Subject) -> None:
        """Python workers are forked. The child opens its own sender from the inherited broker."""
        sender = subject.sender()
        subject.send(Message(value=b"parent 1"), sender=sender)

        def child() -> None:
            with subject.broker.sender() as own:
                settled = subject.send(Message(value=b"child"), sender=own)
            raise SystemExit(0 if settled.error is None and not settled.failures else 3)

        assert in_a_fork(subject, child) == 0, "the child could not send with its own sender"
        settled = subject.send(Message(value=b"parent 2"), sender=sender)
        assert settled.error is None, "the child's end harmed the parent's sender"
        assert subject.values() == Counter([b"parent 1", b"child", b"parent 2"])

    @broker_has("send")
    def test_closing_an_inherited_role_in_a_fork_does_not_disturb_its_owner(self, subject: Subject) -> None:
        """A child closes inherited roles when it ends or leaves a `with` block. The parent owns the connection."""
        sender = subject.sender()
        subject.send(Message(value=b"before"), sender=sender)
        taker = Taker(subject, broker=subject.broker) if subject.capabilities.receive else None
        held = taker.one() if taker else None

        def child() -> None:
            sender.close()
            if taker:
                taker.close()

        assert in_a_fork(subject, child, reaches_broker=False) == 0, "closing an inherited role failed"
        settled = subject.send(Message(value=b"after"), sender=sender)
        assert settled.error is None, "the child closed the parent's sender"
        assert not settled.failures
        if taker and held:
            taker.settle(Accept(), held)
            taker.settle(Accept(), taker.one())
            taker.nothing()
        else:
            assert subject.values() == Counter([b"before", b"after"])

    @broker_has("send")
    def test_a_broker_used_in_another_thread_serves_it(self, subject: Subject) -> None:
        """The engine opens and uses a sender in its own thread. Another thread may close it."""
        problems: list[BaseException] = []
        sender = subject.sender()
        _in_threads(lambda value: _one(subject, value, sender), (b"v",), problems)
        assert not problems, problems[0]
        with suppress(BrokerError):
            sender.close()
        assert subject.values() == Counter([b"v"])


def _one(subject: Subject, value: bytes, sender: object) -> None:
    settled = subject.send(Message(value=value), sender=sender)  # type: ignore[arg-type]
    assert settled.error is None


def _in_threads(work: Callable[[bytes], None], names: tuple[bytes, ...], problems: list[BaseException]) -> None:
    """Run the work once per name, concurrently, and wait for the end."""

    def guarded(name: bytes) -> None:
        try:
            work(name)
        except BaseException as error:  # noqa: BLE001 - the statement raises it in its own thread
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
