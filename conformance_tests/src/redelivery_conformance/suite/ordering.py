"""Order: messages of one key are received in the order sent. A failed message holds up its key only."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from redelivery.contract.broker import Accept, Failure, Release, Support
from redelivery.contract.message import Message
from redelivery.errors import NotSent
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.taking import Taker, values


class Ordering(Statements):
    """`Capabilities.order` and `Batch.ordered`."""

    @broker_has("receive", "send", "order")
    def test_messages_of_a_key_are_received_in_the_order_sent(self, subject: Subject) -> None:
        """This holds within a batch and across batches, for single messages and many at once, with several keys."""
        sender, taker = subject.sender(), Taker(subject)
        for at in range(6):
            batch = subject.batch([self._row(subject, key, 10 * at + n) for n in range(10) for key in b"ab"])
            settled = subject.settle(sender, replace(batch, ordered=True))[batch.number]
            assert settled.error is None
            assert not settled.failures
        seen: dict[bytes | None, list[int]] = {}
        for count in [1, 1, 2, 5, 50, 61]:
            left = count
            while left:  # a broker may hold back the next messages of a key while some are leased
                received = [taker.one()]
                received += taker.receiver.receive(left - 1, wait=0.0) if left > 1 else []
                left -= len(received)
                for each in received:
                    key, number = (each.message.value or b"").split(b" ")
                    seen.setdefault(key, []).append(int(number))
                taker.settle(Accept(), *received)
        keys = seen.values() if subject.capabilities.keys else [[n for found in seen.values() for n in found]]
        for numbers in keys:
            assert numbers == sorted(numbers), f"out of order: {numbers}"

    @broker_has("receive", "send", "order")
    def test_what_is_given_back_does_not_let_its_successors_pass_again(self, subject: Subject) -> None:
        """A stop releases all messages. The next receiver begins where this one did."""
        subject.deliver(*(self._row(subject, b"a"[0], at) for at in range(5)))
        with Taker(subject) as taker:
            received = taker.take(3)
            taker.settle(Release(), *received)
        assert values(Taker(subject).take(5)) == [b"a %d" % at for at in range(5)]

    @broker_has("send", "order", "keys")
    def test_a_failed_row_keeps_back_the_later_rows_of_its_key(self, subject: Subject) -> None:
        """They fail as NotSent, and rows of other keys continue. Rows of a later batch may be stored already."""
        self._native(subject)
        rows = [
            Message(value=b"k1", key=b"k"),
            replace(subject.poison(), key=b"k"),
            Message(value=b"k2", key=b"k"),
            Message(value=b"j1", key=b"j"),
            Message(value=b"k3", key=b"k"),
            Message(value=b"none"),
        ]
        sender = subject.sender()
        batch = subject.batch(rows, isolate=True, ordered=True)
        behind = subject.batch([Message(value=b"k4", key=b"k"), Message(value=b"j2", key=b"j")], ordered=True)
        settled = subject.settle(sender, batch, behind)
        failed = {each.index: each for each in settled[batch.number].failures}
        assert settled[batch.number].error is None
        assert 1 in failed, "a row that cannot be stored was taken"
        assert not isinstance(failed[1].error, NotSent), "the failed row itself was said to be kept back"
        assert {2, 4} <= failed.keys(), "sent on their own, later rows of its key were stored although it had failed"
        self._kept_back(subject, rows, failed, {1, 2, 4}, culprit=1)
        later = settled[behind.number]
        assert later.error is None
        self._kept_back(subject, list(behind.rows()), {each.index: each for each in later.failures}, {0})

    @broker_has("send", "order", "keys")
    def test_what_was_kept_back_can_be_sent_again(self, subject: Subject) -> None:
        """It is stored in order, behind the earlier rows: the sender must not block the key forever."""
        self._native(subject)
        sender = subject.sender()
        rows = [Message(value=b"1", key=b"k"), replace(subject.poison(), key=b"k"), Message(value=b"2", key=b"k")]
        first = subject.batch(rows, isolate=True, ordered=True)
        failures = subject.settle(sender, first)[first.number].failures
        again = [rows[each.index] for each in failures if each.index != 1]
        for message in [*again, Message(value=b"3", key=b"k")]:
            batch = subject.batch([message], ordered=True)
            settled = subject.settle(sender, batch)[batch.number]
            assert settled.error is None
            assert not settled.failures
        assert [message.value for message in subject.place.stored()] == [b"1", b"2", b"3"]

    @broker_has("receive", "send")
    @broker_lacks("order")
    def test_without_order_every_message_of_a_key_still_comes(self, subject: Subject) -> None:
        subject.deliver(*(self._row(subject, b"a"[0], at) for at in range(20)))
        assert Counter(values(Taker(subject).take(20))) == Counter(b"a %d" % at for at in range(20))

    @staticmethod
    def _native(subject: Subject) -> None:
        """Continue only if the sender obeys `Batch.ordered`; else the engine keeps one unsettled row per key."""
        if subject.capabilities.order != Support.NATIVE:
            raise NotApplicable(f"capability order is {subject.capabilities.order}")

    @staticmethod
    def _row(subject: Subject, key: int, number: int) -> Message:
        name = bytes([key])
        return Message(value=b"%s %d" % (name, number), key=name if subject.capabilities.keys else None)

    @staticmethod
    def _kept_back(
        subject: Subject,
        rows: list[Message],
        failed: dict[int, Failure],
        may_fail: set[int],
        culprit: int | None = None,
    ) -> None:
        there = subject.values()
        assert failed.keys() <= may_fail, f"rows {sorted(failed.keys() - may_fail)} of another key were harmed"
        for index, row in enumerate(rows):
            assert there[row.value] == (index not in failed), f"row {index}: what is said of it does not hold"
            if index in failed and index != culprit:
                assert isinstance(failed[index].error, NotSent), f"row {index}: {failed[index].error!r} is not NotSent"
