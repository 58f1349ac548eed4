"""Publishing: a confirmed row is stored once, byte for byte, as an independent reader sees it."""

from __future__ import annotations

from collections import Counter

import pytest

from redelivery.contract.message import Batch, Column, Message
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import NotApplicable, Subject

#: Bytes that a text column, a line format or a C string would change: all byte values, and the usual traps.
ALL_BYTES = bytes(range(256))
ODD_VALUES = {
    "every-byte": ALL_BYTES,
    "nul": b"\0",
    "not-utf8": b"\xff\xfe\x80",
    "surrogate": b"\xed\xa0\x80",
    "line-ends": b"\r\n\n\r \t",
    "quotes": b"'\"\\{}[],",
    "base64-like": b"AAECAw==",
    "number-like": b"007",
    "null-like": b"null",
}
MEBI = 1 << 20


class Publishing(Statements):
    """The sender stores the rows of its batches."""

    @broker_has("send")
    def test_a_confirmed_message_is_stored_once(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"one"))
        subject.returns(Message(value=b"one"))

    @broker_has("send")
    def test_a_row_is_stored_by_the_time_it_is_confirmed(self, subject: Subject) -> None:
        """Rows are counted while the sender is open: a confirmation is not early, and needs no close."""
        sender = subject.sender()
        for count in (1, 2, 3):
            settled = subject.send(*(Message(value=b"%d" % each) for each in range(count)), sender=sender)
            assert settled.error is None
            assert not settled.failures
            assert subject.values().total() == sum(range(count + 1)), "confirmed, but not there"

    @broker_has("send")
    def test_every_row_of_a_large_batch_is_stored_once(self, subject: Subject) -> None:
        """The batch has 10,000 rows, or fewer if the place says so."""
        rows = [b"row %d" % number for number in range(subject.place.many)]
        subject.deliver(*(Message(value=row) for row in rows))
        assert subject.values() == Counter(rows)

    @broker_has("send")
    def test_equal_messages_are_all_stored(self, subject: Subject) -> None:
        subject.deliver(*[Message(value=b"same")] * 3)
        assert subject.values() == Counter({b"same": 3})

    @broker_has("send")
    def test_a_batch_of_values_alone_is_stored(self, subject: Subject) -> None:
        """Absent columns are None, not columns of nulls."""
        batch = Batch(number=1, length=2, nbytes=200, value=Column.of([b"a", b"b"]))
        with subject.broker.sender() as sender:
            settled = subject.settle(sender, batch)[1]
        assert settled.error is None
        assert not settled.failures
        subject.returns(Message(value=b"a"), Message(value=b"b"))

    @broker_has("send")
    def test_a_batch_is_left_as_it_was_given(self, subject: Subject) -> None:
        messages = [Message(value=b"%d" % number) for number in range(3)]
        batch = subject.batch(messages)
        with subject.broker.sender() as sender:
            subject.settle(sender, batch)
        assert list(batch.rows()) == messages

    @broker_has("send")
    @pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in ODD_VALUES.items()])
    def test_any_bytes_come_back_as_they_were(self, subject: Subject, value: bytes) -> None:
        subject.deliver(Message(value=value))
        subject.returns(Message(value=value))

    @broker_has("send")
    def test_an_empty_value_comes_back_or_is_refused_alone(self, subject: Subject) -> None:
        subject.kept_or_refused(Message(value=b""))

    @broker_has("send")
    @pytest.mark.parametrize("size", [pytest.param(MEBI, id="1MiB"), pytest.param(10 * MEBI, id="10MiB")])
    def test_a_large_value_comes_back_whole(self, subject: Subject, size: int) -> None:
        most = subject.capabilities.limits.message_bytes
        if most is not None and size > most:
            raise NotApplicable(f"limits.message_bytes is {most}")
        message = Message(value=(ALL_BYTES * (size // 256 + 1))[: size - 100])
        subject.deliver(message)
        subject.returns(message)

    @broker_has("send", "null_value")
    def test_a_null_value_comes_back_null_and_an_empty_one_empty(self, subject: Subject) -> None:
        subject.deliver(Message(value=None), Message(value=b""))
        subject.returns(Message(value=None), Message(value=b""))

    @broker_has("send")
    @broker_lacks("null_value")
    def test_without_null_values_a_null_is_refused_alone(self, subject: Subject) -> None:
        subject.refuses_alone(Message(value=None))

    @broker_has("send", "keys")
    def test_keys_come_back_as_they_were(self, subject: Subject) -> None:
        messages = [Message(value=b"%d" % at, key=key) for at, key in enumerate((b"k", b"\0\xff", b"k", None))]
        subject.deliver(*messages)
        subject.returns(*messages)

    @broker_has("send", "keys")
    def test_an_empty_key_is_kept_apart_from_none_or_refused(self, subject: Subject) -> None:
        subject.kept_or_refused(Message(value=b"v", key=b""))

    @broker_has("send")
    @broker_lacks("keys")
    def test_without_keys_a_row_with_one_is_refused_alone(self, subject: Subject) -> None:
        subject.refuses_alone(Message(value=b"v", key=b"k"))

    @broker_has("send", "timestamps")
    def test_timestamps_come_back_to_the_millisecond(self, subject: Subject) -> None:
        stamps = (1, 1_700_000_000_123, 1_700_000_000_124)
        messages = [Message(value=b"%d" % at, timestamp_ms=stamp) for at, stamp in enumerate(stamps)]
        subject.deliver(*messages)
        subject.returns(*messages)

    @broker_has("send", "timestamps")
    @pytest.mark.parametrize("stamp", [0, -1])
    def test_a_timestamp_at_or_before_the_epoch_comes_back_or_is_refused_alone(
        self, subject: Subject, stamp: int
    ) -> None:
        """Some clients take these for "now" or "none". A broker refuses a timestamp that it would change."""
        subject.kept_or_refused(Message(value=b"v", timestamp_ms=stamp))

    @broker_has("send")
    @broker_lacks("timestamps")
    def test_without_timestamps_a_row_with_one_is_stored(self, subject: Subject) -> None:
        """A timestamp is metadata: if it cannot travel, the row is stored without it."""
        subject.deliver(Message(value=b"v", timestamp_ms=1_700_000_000_123))
        assert subject.values() == Counter([b"v"])

    @broker_lacks("send")
    def test_without_a_sender_asking_for_one_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.broker.sender)
