"""Promises of the receiver beyond the suite: killed owners, several partitions, committed offsets."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from redelivery.contract.broker import Accept, Received, Release, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, Retriable
from redelivery_conformance.forking import in_a_fork
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker, values, wait_until
from redelivery_kafka.broker import KafkaBroker
from redelivery_kafka.client import instances
from redelivery_kafka.client.offset_map import OffsetMap

#: The shortest session, in seconds: the group waits so long for a member that died.
SESSION = 6.0


def keyed(key: bytes | None, *numbers: int) -> list[Message]:
    return [Message(value=b"%d" % each, key=key) for each in numbers]


def committed(subject: Subject, partition: int = 0) -> tuple[int, OffsetMap]:
    """Return the offsets that the group has committed, read by a client that is not in it."""
    broker = subject.broker
    assert isinstance(broker, KafkaBroker)
    consumer = instances.consumer(broker.settings, broker.address)
    try:
        (found,) = consumer.committed([TopicPartition(broker.address.topic, partition)], timeout=10)
    finally:
        consumer.close()
    return found.offset, OffsetMap.read(found.offset, found.metadata)


def partitions(subject: Subject, count: int) -> None:
    broker = subject.broker
    assert isinstance(broker, KafkaBroker)
    admin: AdminClient = instances.admin(broker.settings, broker.address)
    admin.create_partitions([NewPartitions(broker.address.topic, count)])[broker.address.topic].result()
    end = time.monotonic() + 10
    while len(admin.list_topics(broker.address.topic, timeout=5).topics[broker.address.topic].partitions) < count:
        assert time.monotonic() < end


class TestKafkaReceiver(Statements):
    broker = "kafka"

    @broker_has("receive")
    def test_what_a_killed_process_had_in_hand_was_an_attempt(self, subject: Subject) -> None:
        """And what it had accepted, out of order, does not come again; its delays go on."""
        subject.deliver(*keyed(None, 0, 1, 2, 3))

        def child() -> None:
            taker = Taker(subject, lease=SESSION)
            received = taker.take(4)
            taker.settle(Accept(), received[1])
            taker.settle(Retry(timedelta(minutes=5)), received[2])
            os._exit(9)

        assert in_a_fork(subject, child) == 9
        taker = Taker(subject)
        again = taker.take(2, within=SESSION + subject.place.patience)
        assert [(each.message.value, each.attempt) for each in again] == [(b"0", 2), (b"3", 2)]
        taker.nothing()
        assert committed(subject)[0] == 0

    @broker_has("receive")
    @pytest.mark.parametrize("kind", ["CREATE_TIME", "LOG_APPEND_TIME"])
    def test_a_received_message_says_whose_time_its_timestamp_is(self, subject: Subject, kind: str) -> None:
        broker = subject.broker
        assert isinstance(broker, KafkaBroker)
        subject.provision()
        admin: AdminClient = instances.admin(broker.settings, broker.address)
        name, value = "message.timestamp.type", kind.title().replace("_", "")
        wanted = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)]
        topic = ConfigResource(ConfigResource.Type.TOPIC, broker.address.topic, incremental_configs=wanted)
        try:
            admin.incremental_alter_configs([topic])[topic].result()
        except KafkaException as error:
            raise CannotShow(f"a topic's settings: {error}") from error
        subject.deliver(Message(value=b"v", timestamp_ms=1_700_000_000_000))
        (received,) = Taker(subject).take(1)
        assert received.source is not None
        assert received.source.timestamp_type == kind
        assert (received.message.timestamp_ms == 1_700_000_000_000) is (kind == "CREATE_TIME")

    @broker_has("receive")
    def test_the_committed_offset_is_the_lowest_unsettled_one(self, subject: Subject) -> None:
        subject.deliver(*keyed(None, 0, 1, 2, 3, 4))
        taker = Taker(subject)
        received = taker.take(5)
        for settled, base, done in (
            (1, 0, {1}),
            (4, 0, {1, 4}),
            (0, 2, {4}),
            (3, 2, {3, 4}),
            (2, 5, set()),
        ):
            taker.settle(Accept(), received[settled])
            offset, offsets = committed(subject)
            assert offset == base, "committed past an unsettled record, or not as far as it may"
            assert {at for at in range(base, 5) if offsets.is_settled(at)} == done

    @broker_has("receive")
    def test_what_an_earlier_version_committed_goes_on(self, subject: Subject) -> None:
        """It wrote a run for each record: here of 7, 9, 10 (which waited, long ago) and 12; 8 is settled."""
        subject.deliver(*keyed(None, *range(14)))
        broker = subject.broker
        assert isinstance(broker, KafkaBroker)
        consumer = instances.consumer(broker.settings, broker.address)
        state = TopicPartition(broker.address.topic, 0, 7, "r1:1_6MetN!_71qK7q4+jDOh@=4o1_8wn")
        try:
            consumer.commit(offsets=[state], asynchronous=False)
        finally:
            consumer.close()
        taker = Taker(subject)
        again = taker.take(6)
        assert [(each.message.value, each.attempt) for each in again] == [
            (b"7", 2),
            (b"9", 4),
            (b"10", 3),
            (b"11", 1),
            (b"12", 2),
            (b"13", 1),
        ]
        assert again[0].first_ms == 1_700_000_000_000
        taker.settle(Accept(), *again)
        assert committed(subject)[0] == 14

    @broker_has("receive")
    def test_a_delayed_record_holds_back_its_own_key_alone(self, subject: Subject) -> None:
        subject.deliver(*keyed(b"a", 0), *keyed(b"b", 1), *keyed(b"a", 2), *keyed(None, 3), *keyed(b"b", 4))
        taker = Taker(subject)
        first = taker.one()
        before = time.monotonic()
        taker.settle(Retry(timedelta(seconds=1)), first)
        assert values(taker.take(3)) == [b"1", b"3", b"4"]
        taker.nothing()
        assert values(taker.take(2)) == [b"0", b"2"]
        assert time.monotonic() - before >= 1 - subject.capabilities.limits.delay_resolution.total_seconds()

    @broker_has("receive")
    def test_what_a_delay_held_back_is_held_back_from_the_next_owner_too(self, subject: Subject) -> None:
        subject.deliver(*keyed(b"a", 0, 1), *keyed(b"b", 2))
        with Taker(subject) as taker:
            first = taker.one()
            taker.settle(Retry(timedelta(seconds=3)), first)
            due = time.monotonic() + 3
        other = Taker(subject)
        assert values(other.take(1)) == [b"2"]
        wait_until(due)
        assert [(each.message.value, each.attempt) for each in other.take(2)] == [(b"0", 2), (b"1", 1)]

    @broker_has("receive")
    def test_a_revoked_partition_is_a_lost_lease_and_its_records_the_others(self, subject: Subject) -> None:
        """With work under lease on both partitions; what stays ours is settled as if nothing had happened."""
        partitions(subject, 2)
        subject.deliver(*(Message(value=b"%d" % at, extra={"partition": at % 2}) for at in range(10)))
        first = Taker(subject, lease=SESSION)
        received = first.take(10)
        assert {self._partition(each) for each in received} == {0, 1}
        second = Taker(subject, lease=SESSION)
        came: list[Received] = []
        end = time.monotonic() + SESSION + subject.place.patience
        while len(came) < 5:
            assert time.monotonic() < end, "the second member got no partition"
            came += second.receiver.receive(10, wait=0.1)
            first.receiver.receive(1, wait=0.0)
        moved = {self._partition(each) for each in came}
        assert len(moved) == 1
        answers = first.answers(*((each, Accept()) for each in received))
        assert {self._partition(each) for each, answer in zip(received, answers, strict=True) if answer} == moved
        assert all(answer is None or isinstance(answer, LeaseLost) for answer in answers)
        assert Counter(each.attempt for each in came) == Counter({2: 5})
        second.settle(Accept(), *came)
        assert not subject.values()

    @broker_has("receive")
    def test_a_member_without_a_partition_leaves_the_group_when_it_closes(self, subject: Subject) -> None:
        """Else the next one would wait for it until its session ends."""
        subject.deliver(Message(value=b"v"))
        first, second = Taker(subject), Taker(subject)
        received = first.one()
        second.nothing()
        second.close()
        first.settle(Release(), received)
        first.close()
        began = time.monotonic()
        assert Taker(subject).one().attempt == 1
        assert time.monotonic() - began < SESSION

    @broker_has("receive", "terminate", "browse")
    def test_a_letter_goes_to_the_partition_of_its_record(self, subject: Subject) -> None:
        partitions(subject, 2)
        subject.provision()
        subject.deliver(*(Message(value=b"%d" % at, extra={"partition": 1}) for at in range(3)))
        taker = Taker(subject)
        received = taker.take(3)
        taker.settle(Terminate(received[0].message, "no"), received[0])
        (letter,) = subject.browse(direct=False)
        assert letter.position.split("/")[1:] == ["1", "0"]

    @broker_has("receive")
    def test_no_more_is_given_than_can_be_remembered(self, subject: Subject) -> None:
        """However it is settled then, it fits; and when it is settled the rest comes."""
        count = 3_000
        subject.deliver(*keyed(None, *range(count)))
        taker = Taker(subject)
        received = taker.drain()
        assert 1_000 < len(received) < count
        odd = received[1::2]
        taker.settle(Retry(timedelta(milliseconds=1)), *received[::2])
        taker.settle(Accept(), *odd)
        seen = Counter(values(odd))
        while seen.total() < count:
            more = taker.take(1) + list(taker.receiver.receive(500, wait=0.0))
            taker.settle(Accept(), *more)
            seen.update(values(more))
        assert max(seen.values()) == 1
        assert not subject.values()

    @broker_has("receive")
    def test_a_failure_is_told_without_waiting_for_what_waits_for_us(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taker = Taker(subject)
        taker.nothing()
        member = taker.receiver._membership  # type: ignore[attr-defined]
        poll = member.poll
        ours = threading.current_thread()

        def failing(seconds: float) -> None:
            if threading.current_thread() is ours:
                member._fail(Retriable("kafka: it ends here"))
            poll(seconds)

        monkeypatch.setattr(member, "poll", failing)
        began = time.monotonic()
        with pytest.raises(Retriable, match="it ends here"):
            taker.receiver.receive(1, wait=1)
        assert time.monotonic() - began < 6
        subject.deliver(Message(value=b"v"))
        assert values(taker.take(1)) == [b"v"]

    @broker_has("receive")
    @pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError._SSL])
    def test_one_refused_connection_does_not_end_a_member(self, subject: Subject, code: int) -> None:
        """A token could not be renewed, a broker hung up in its handshake: the others still answer."""
        taker = Taker(subject)
        taker.nothing()
        member = taker.receiver._membership  # type: ignore[attr-defined]
        with member.lock:
            member._on_error(KafkaError(code, "refused for a moment"))
        taker.nothing()
        subject.deliver(Message(value=b"v"))
        assert values(taker.take(1)) == [b"v"]
        assert taker.receiver._membership is member  # type: ignore[attr-defined]

    @broker_has("receive")
    def test_a_member_that_is_refused_for_good_is_told_so(self, subject: Subject) -> None:
        taker = Taker(subject)
        taker.nothing()
        member = taker.receiver._membership  # type: ignore[attr-defined]
        with subject.runtime.outage():
            with member.lock:
                member._on_error(KafkaError(KafkaError._AUTHENTICATION, "refused"))
            with member.lock, pytest.raises(Fatal, match="refused"):
                member.check_reach()

    @staticmethod
    def _partition(received: Received) -> int:
        return int(received.position.split("/")[1])

    @broker_has("receive", "provision")  # a stand-in without provisioning has no topics that go
    def test_a_topic_deleted_under_an_idle_receiver_is_fatal(self, subject: Subject) -> None:
        """The client reports it after minutes; an existing topic is not missed while this runs."""
        subject.deliver(*keyed(None, 0))
        receiver = subject.keep(subject.broker.receiver())
        (received,) = receiver.receive(1, wait=subject.place.patience)
        assert receiver.settle([(received, Accept())]) == [None]
        quiet = time.monotonic() + 6
        while time.monotonic() < quiet:
            assert receiver.receive(1, wait=0.5) == []
        subject.place.vanish()
        end = time.monotonic() + 20
        with pytest.raises(Fatal, match="no such topic"):
            while time.monotonic() < end:
                receiver.receive(1, wait=0.5)

    @broker_has("receive", "provision")
    def test_a_dead_letter_topic_deleted_under_a_receiver_is_fatal_and_nothing_is_settled(
        self, subject: Subject
    ) -> None:
        broker = subject.broker
        assert isinstance(broker, KafkaBroker)
        subject.provision()
        subject.deliver(*keyed(None, 0, 1))
        receiver = subject.keep(broker.receiver())
        first, second = receiver.receive(2, wait=subject.place.patience)
        assert receiver.settle([(first, Terminate(first.message, "no"))]) == [None]
        subject.runtime.vanish(broker.address.dead_letters.topic)  # type: ignore[attr-defined]
        answer, end = None, time.monotonic() + 30
        while not isinstance(answer, Fatal) and time.monotonic() < end:
            (answer,) = receiver.settle([(second, Terminate(second.message, "no"))])
            assert isinstance(answer, BrokerError), "it was settled, though its letter has no place"
            assert not isinstance(answer, Permanent), "a missing topic is not the fault of a letter"
        assert isinstance(answer, Fatal), answer
        assert committed(subject)[0] == 1
