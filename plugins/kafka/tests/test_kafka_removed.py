"""Removing many letters: from several processes at once, more than one offset's metadata holds, and often."""

from __future__ import annotations

import random
import threading
import time

import pytest
from confluent_kafka import Producer

from redelivery.contract.letters import EVERYTHING
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_kafka.client import instances, removed
from redelivery_kafka.client.removed import REMOVED
from redelivery_kafka.testing.cluster import Cluster


def filled(subject: Subject, count: int, partitions: int = 1) -> str:
    """Make a dead letter topic of so many letters; return its name."""
    if subject.runtime.kind == "embedded":
        raise CannotShow("thousands of commits: run it in a container, or by --broker-url")
    cluster: Cluster = subject.runtime.cluster  # type: ignore[attr-defined]
    topic = f"{subject.place.topic}-dead-letters"  # type: ignore[attr-defined]
    cluster.make(topic, partitions)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "queue.buffering.max.messages": 1_000_000})
    for at in range(count):
        producer.produce(topic, b"%d" % at, partition=at % partitions)
    assert producer.flush(30) == 0
    return topic


def left(subject: Subject) -> set[int]:
    with subject.broker.dead_letters() as letters:
        splits = letters.splits(EVERYTHING)
        batches = [batch for split in splits for batch in letters.read(split, EVERYTHING)]
        return {int(value or b"") for batch in batches for value in batch.messages.value.values}


class TestKafkaRemoved(Statements):
    broker = "kafka"

    def test_what_several_remove_at_once_is_removed(self, subject: Subject) -> None:
        """Each reads what is removed and writes it again, so that they write over each other all the time."""
        topic = filled(subject, 400)
        counts: list[int] = []

        def some(first: int) -> None:
            with subject.connect() as broker, broker.dead_letters() as letters:
                for at in range(first, 400, 8):
                    counts.append(letters.remove([f"{topic}/0/{at}"]))  # noqa: PERF401 - each is a call

        threads = [threading.Thread(target=some, args=(first,)) for first in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert counts == [1] * 300
        assert left(subject) == {at for at in range(400) if at % 8 > 5}

    def test_many_scattered_letters_are_removed_and_stay_so(self, subject: Subject) -> None:
        """More than one metadata holds: another role reads them, removes more, and purges the rest."""
        topic = filled(subject, 40_000)
        gone = random.Random(7).sample(range(40_000), 12_000)  # noqa: S311 - the same each time
        with subject.broker.dead_letters() as letters:
            for at in range(0, 10_000, 1_000):
                assert letters.remove([f"{topic}/0/{each}" for each in gone[at : at + 1_000]]) == 1_000
            assert letters.remove([f"{topic}/0/{each}" for each in gone[:3]]) == 0
        assert left(subject) == set(range(40_000)) - set(gone[:10_000])
        with subject.broker.dead_letters() as letters:
            assert letters.remove([f"{topic}/0/{each}" for each in gone]) == 2_000
        assert left(subject) == set(range(40_000)) - set(gone)
        groups = subject.runtime.cluster.admin.list_consumer_groups(request_timeout=10).result().valid  # type: ignore[attr-defined]
        assert f"{topic}{REMOVED}.1" in {each.group_id for each in groups}, "it fitted into one"
        with subject.broker.dead_letters() as letters:
            assert letters.purge() == 28_000
        assert left(subject) == set()

    def test_removing_again_and_again_opens_no_client_again(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = filled(subject, 100, 4)
        opened = []
        consumer, admin = instances.consumer, instances.admin
        monkeypatch.setattr(instances, "consumer", lambda *args, **kw: opened.append(1) or consumer(*args, **kw))
        monkeypatch.setattr(instances, "admin", lambda *args, **kw: opened.append(1) or admin(*args, **kw))
        with subject.connect() as broker, broker.dead_letters() as letters:
            for at in range(25):
                assert letters.remove([f"{topic}/{number}/{at}" for number in range(4)]) == 4
            assert len(opened) == 2
        assert len(opened) == 2

    def test_a_topic_that_was_made_again_shows_its_letters_to_who_removed_those_before(self, subject: Subject) -> None:
        topic = filled(subject, 10)
        with subject.connect() as broker, broker.dead_letters() as letters:
            assert letters.remove([f"{topic}/0/{at}" for at in range(1, 10)]) == 9
            subject.runtime.vanish(topic)  # type: ignore[attr-defined]
            filled(subject, 12)
            assert letters.remove([f"{topic}/0/11"]) == 1
            assert sum(1 for _ in letters.browse()) == 11
        assert left(subject) == set(range(11))

    def test_a_role_that_removed_closes_soon_where_the_broker_is_gone(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = filled(subject, 3)
        url = subject.place.outage_url
        with subject.connect(url) as broker:
            letters = broker.dead_letters()
            assert letters.remove([f"{topic}/0/1"]) == 1
            monkeypatch.setattr(removed, "_OVERWRITTEN", 1.0)
            with subject.place.outage("silent"):
                began = time.monotonic()
                letters.close()
                assert time.monotonic() - began < 10
        assert left(subject) == {0, 2}
