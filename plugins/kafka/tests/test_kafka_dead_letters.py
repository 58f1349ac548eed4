"""Promises of the dead letters role beyond the suite: letters stay in the log, and removals are remembered."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from redelivery.codes import Code
from redelivery.contract.broker import Failure, Settled, Terminate
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.queue import dead_letters as open_dead_letters
from redelivery.errors import Ambiguous, BrokerError, ConfigurationError, Fatal, Permanent, Retriable
from redelivery.formats import dialects
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject
from redelivery_kafka.address import Address
from redelivery_kafka.broker import KafkaBroker
from redelivery_kafka.client import instances, letter_producer, removed
from redelivery_kafka.client.letter_producer import LetterProducer
from redelivery_kafka.client.removed import REMOVED
from redelivery_kafka.dead_letters import KafkaDeadLetters
from redelivery_kafka.options import Settings


def opened(subject: Subject) -> KafkaBroker:
    assert isinstance(subject.broker, KafkaBroker)
    return subject.broker


def records(subject: Subject) -> int:
    """How many its dead letter topic's log holds."""
    broker = opened(subject)
    consumer = instances.consumer(broker.settings, broker.address)
    try:
        topic = broker.address.dead_letters.topic
        found = consumer.list_topics(topic, timeout=10).topics[topic]
        marks = [consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=10) for each in found.partitions]
        return sum(high - low for low, high in marks)
    finally:
        consumer.close()


def remembered(subject: Subject) -> str | None:
    """Return the metadata that is committed for removed letters; None where nothing is committed."""
    topic = opened(subject).address.dead_letters.topic
    ((_, _, offset, metadata),) = [
        each
        for each in subject.runtime.cluster.reader.committed(topic, "none")  # type: ignore[attr-defined]
        if each[0] == topic + REMOVED
    ]
    return None if offset < 0 else metadata


class TestKafkaDeadLetters(Statements):
    broker = "kafka"

    @broker_has("browse", "remove")
    def test_a_letter_is_redriven_by_its_topic_partition_and_offset_once(self, subject: Subject) -> None:
        self._send_letters(subject, 0, 1, 2)
        wanted = subject.browse(direct=False)[1].position
        topic, partition, offset = wanted.split("/")
        assert topic.endswith("-dead-letters")
        assert partition.isdigit()
        assert offset.isdigit()
        for count in (1, 0):
            with open_dead_letters(subject.place.url, options=subject.place.options) as box:
                report = box.redrive([wanted])
                assert (report.redriven, report.removed) == (count, count)
        assert subject.values() == {b"1": 1}
        assert [each.message.value for each in subject.browse(direct=False)] == [b"0", b"2"]
        assert records(subject) == 3, "letters stay in the log"

    @broker_has("browse", "remove", "provision")
    def test_what_is_removed_is_remembered_by_a_group_of_its_own(self, subject: Subject) -> None:
        """So a receiver of the dead letter topic is not concerned, nor is its group."""
        self._send_letters(subject, 0, 1)
        with subject.broker.dead_letters() as letters:
            assert letters.purge() == 2
        broker = opened(subject)
        admin: AdminClient = instances.admin(broker.settings, broker.address)
        groups = admin.list_consumer_groups(request_timeout=10).result().valid
        assert broker.address.dead_letters.topic + REMOVED in {each.group_id for each in groups}
        self._send_letters(subject, 2)
        assert [each.message.value for each in subject.browse(direct=False)] == [b"2"]

    @broker_has("browse", "remove", "provision")
    def test_letters_of_several_partitions_come_oldest_first(self, subject: Subject) -> None:
        """More of one partition than are read ahead, before the first of another."""
        subject.provision()
        broker = opened(subject)
        topic = broker.address.dead_letters.topic
        admin: AdminClient = instances.admin(broker.settings, broker.address)
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result()
        settings = {"bootstrap.servers": broker.address.bootstrap, "topic.metadata.propagation.max.ms": 10_000}
        producer = Producer(settings)
        for at in range(2_000):
            partition = 0 if at < 1_500 else at % 4
            producer.produce(topic, b"%d" % at, partition=partition, timestamp=1_700_000_000_000 + at)
        assert producer.flush(20) == 0
        end = time.monotonic() + subject.place.patience
        values: list[int] = []
        while not values:
            with suppress(Retriable):  # a partition made just now has no leader for a moment
                values = [int(each.message.value or b"") for each in subject.browse(direct=False)]
            assert time.monotonic() < end
        assert values == list(range(2_000))

    @broker_has("browse")
    def test_letters_that_connect_wrote_are_read(self, subject: Subject) -> None:
        subject.provision()
        broker = opened(subject)
        producer = Producer({"bootstrap.servers": broker.address.bootstrap})
        said = {"topic": "orders", "partition": "2", "offset": "17", "stage": "VALUE_CONVERTER"}
        said["exception.message"] = "no"
        headers = [("__connect.errors." + name, text.encode()) for name, text in said.items()]
        producer.produce(broker.address.dead_letters.topic, b"v", key=b"k", headers=headers)
        assert producer.flush(20) == 0
        (letter,) = subject.browse(direct=False)
        context = dialects.read(letter.message)
        assert context is not None
        assert (context.source_topic, context.source_partition, context.source_offset) == ("orders", 2, 17)
        assert (context.reason, context.stage) == ("no", "VALUE_CONVERTER")

    @broker_has("browse", "remove")
    @pytest.mark.parametrize("position", ["", "1", "other/0/1", "0/1", "{topic}/0/-1", "{topic}/0/x", "{topic}/0"])
    def test_a_position_of_another_topic_is_an_error_and_removes_nothing(self, subject: Subject, position: str) -> None:
        self._send_letters(subject, 0)
        topic = opened(subject).address.dead_letters.topic
        with subject.broker.dead_letters() as letters, pytest.raises(ConfigurationError, match="position"):
            letters.remove([f"{topic}/0/0", position.format(topic=topic)])
        assert len(subject.browse(direct=False)) == 1

    @broker_has("browse", "remove")
    def test_removing_what_is_not_there_counts_nothing(self, subject: Subject) -> None:
        self._send_letters(subject, 0)
        (there,) = [each.position for each in subject.browse(direct=False)]
        with subject.broker.dead_letters() as letters:
            assert letters.remove([f"{there}7", f"{there.split('/')[0]}/99/0"]) == 0
            assert letters.remove([there, there]) == 1

    @broker_has("browse", "remove")
    def test_browsing_commits_once_a_day_again_what_is_removed(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a broker forgets it within days (`offsets.retention.minutes`), and the letters come back."""
        self._send_letters(subject, 0, 1)
        assert len(subject.browse(direct=False)) == 2
        assert remembered(subject) is None, "nothing is removed, so nothing is to be remembered"
        with subject.broker.dead_letters() as letters:
            letters.remove([f"{opened(subject).address.dead_letters.topic}/0/0"])
        days = []
        write = removed._Group.write
        monkeypatch.setattr(removed._Group, "write", lambda self, *args: days.append(day) or write(self, *args))
        for day in ("", "1", "1", "2", "2"):
            with monkeypatch.context() as patch:
                if day:
                    patch.setattr(removed, "_today", lambda: day)  # noqa: B023 - called within this turn
                assert [each.message.value for each in subject.browse(direct=False)] == [b"1"]
            assert not day or (remembered(subject) or "").endswith(f" {day}")
        assert days == ["1", "2"]

    @broker_has("receive", "terminate", "browse")
    def test_a_letter_is_stored_whatever_the_jobs_producer_is_told(self, subject: Subject) -> None:
        """And without what the client cannot carry."""
        self._send_letters(subject)
        subject.deliver(Message(value=b"v"))
        options = {"enable.idempotence": "false", "max.in.flight": "100", "retries": "0", "request.required.acks": "1"}
        broker = subject.connect(options={f"kafka.{name}": value for name, value in options.items()})
        with broker, broker.receiver() as receiver:
            end = time.monotonic() + 30
            while not (received := receiver.receive(1, wait=1)):
                assert time.monotonic() < end
            letter = Message(value=b"v", headers=(("a\0b", b"1"),), timestamp_ms=-5)
            assert receiver.settle([(received[0], Terminate(letter))]) == [None]
        (found,) = subject.browse(direct=False)
        assert [name for name, _ in found.message.headers] == ["a\\0b"]
        assert (found.message.timestamp_ms or 0) > 1_500_000_000_000

    @broker_has("browse")
    def test_closing_ends_a_browse_that_was_left_in_its_middle(self, subject: Subject) -> None:
        self._send_letters(subject, *range(20))
        letters = subject.broker.dead_letters()
        shown = letters.browse()
        next(shown)
        began = time.monotonic()
        letters.close()
        letters.close()
        assert time.monotonic() - began < 5

    @staticmethod
    def _send_letters(subject: Subject, *numbers: int) -> None:
        subject.provision()
        if numbers:
            subject.deliver(*(Message(value=b"%d" % each) for each in numbers), url=subject.broker.native_sink())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Permanent("no such partition", code=Code.NO_SUCH_DESTINATION), Retriable),
        (Fatal("no such topic", code=Code.NO_SUCH_DESTINATION), Fatal),
        (Permanent("too large", code=Code.TOO_LARGE), Permanent),
    ],
)
def test_a_partition_that_is_gone_is_not_the_fault_of_a_letter(
    error: BrokerError, kind: type[BrokerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic had the partition when its metadata was read; the next letter reads them again."""
    asked = []
    settled = Settled(batch=-1, failures=[Failure(0, error)])  # of an earlier call, that was interrupted
    producer = LetterProducer(Address.parse("kafka://localhost:1/letters"), Settings({}))
    monkeypatch.setattr(producer._sender, "partitions", lambda **_: asked.append(1) or 4)
    monkeypatch.setattr(producer._sender, "send", lambda batch, **_: asked.append(batch))
    monkeypatch.setattr(
        producer._sender, "collect", lambda _: [settled, Settled(batch=asked[-1].number, failures=[Failure(1, error)])]
    )
    letters = {at: (at, Message(value=b"v")) for at in (3, 5)}
    for _ in range(2):
        assert {at: type(each) for at, each in producer.store(letters).items()} == {5: kind}
    batches = [each for each in asked if isinstance(each, Batch)]
    assert [each.extra["partition"].values for each in batches] == [[3, None]] * 2, "it has no partition 5"
    assert len(asked) == 4


def test_letters_without_an_answer_may_be_stored_and_nothing_waits_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_producer, "_STORED", 0.1)
    monkeypatch.setattr(letter_producer, "_LATE", 0.1)
    producer = LetterProducer(Address.parse("kafka://localhost:1/letters"), Settings({}))
    monkeypatch.setattr(producer._sender, "partitions", lambda **_: 4)
    monkeypatch.setattr(producer._sender, "send", lambda *_, **__: None)
    monkeypatch.setattr(producer._sender, "collect", lambda _: [])
    errors = producer.store({3: (3, Message(value=b"v"))})
    assert {at: type(each) for at, each in errors.items()} == {3: Ambiguous}


def test_each_read_is_of_the_topic_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id may be unknown for a while, and another one after the topic was created again."""
    letters = KafkaDeadLetters(Address.parse("kafka://localhost:1/letters"), Settings({}), None)
    ids = iter(["", "first", "", "second"])
    monkeypatch.setattr(letters, "_partitions", lambda: ([], True))
    monkeypatch.setattr(letters, "_topic_id", lambda **_: next(ids))
    monkeypatch.setattr(letters, "_states", lambda **_: {})
    found = []
    for _ in range(4):
        list(letters.browse())
        found.append(letters._read_id)
    assert found == ["", "first", "first", "second"]
