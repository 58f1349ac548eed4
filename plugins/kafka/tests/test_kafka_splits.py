"""Letters read by splits and as a stream, where that is Kafka's own: partitions, gaps in the log, another topic."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from redelivery.contract.broker import DeadLetters, Letter, Wanted
from redelivery.contract.letters import EVERYTHING
from redelivery.errors import ConfigurationError, Fatal
from redelivery.kit.errors import Code
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_kafka.client import ranges
from redelivery_kafka.testing.cluster import Cluster
from redelivery_kafka.testing.damage import send_damaged


def real(subject: Subject) -> Cluster:
    if subject.runtime.kind == "embedded":
        raise CannotShow("a topic of several partitions, made again: run it in a container, or by --broker-url")
    cluster: Cluster = subject.runtime.cluster  # type: ignore[attr-defined]
    return cluster


def made(subject: Subject, partitions: int) -> str:
    """Make a dead letter topic with these partitions; return its name."""
    topic = f"{subject.place.topic}-dead-letters"  # type: ignore[attr-defined]
    real(subject).make(topic, partitions)
    return topic


def filled(subject: Subject, topic: str, numbers: Iterable[int], partitions: int, *, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": real(subject).bootstrap, "topic.metadata.propagation.max.ms": 10_000})
    for at in numbers:
        producer.produce(topic, b"%d" % at, key, partition=at % partitions, headers=[("n", b"%d" % at)])
    assert producer.flush(30) == 0


def read(letters: DeadLetters, splits: Sequence[str], wanted: Wanted = EVERYTHING) -> list[Letter]:
    return [letter for split in splits for batch in letters.read(split, wanted) for letter in batch.letters()]


def values(letters: Iterable[Letter]) -> list[int]:
    return [int(each.message.value or b"") for each in letters]


class TestKafkaSplits(Statements):
    broker = "kafka"

    def test_a_partition_is_cut_for_many_readers_and_not_where_they_remove(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ranges, "LEAST", 10)
        topic = made(subject, 2)
        filled(subject, topic, range(0, 400, 2), 2)
        filled(subject, topic, range(1, 40, 2), 2)
        with subject.broker.dead_letters() as letters:
            splits = letters.splits(Wanted(readers=8))
            assert len(splits) >= 8
            found = read(letters, splits)
            assert sorted(values(found)) == sorted([*range(0, 400, 2), *range(1, 40, 2)])
            assert {(each.message.headers, each.message.key) for each in found} == {
                ((("n", each.message.value),), None) for each in found
            }
            assert len(letters.splits(Wanted(readers=8, removing=True))) == 2
            by_position = {each.position: each.message.value for each in letters.browse()}
            assert by_position == {each.position: each.message.value for each in found}

    def test_removed_letters_and_later_ones_are_in_no_split(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Long runs of removed letters are jumped over; what is removed after the split was made is gone too."""
        monkeypatch.setattr(ranges, "_JUMP", 20)
        topic = made(subject, 1)
        filled(subject, topic, range(500), 1)
        with subject.broker.dead_letters() as letters:
            gone = {*range(3), *range(100, 200), *range(300, 310), 450, 499}
            letters.remove([f"{topic}/0/{at}" for at in gone])
            splits = letters.splits(Wanted(readers=1))
            filled(subject, topic, range(500, 510), 1)
            letters.remove([f"{topic}/0/7"])
            for _ in range(2):
                assert values(read(letters, splits)) == sorted(set(range(500)) - gone - {7})
            letters.purge()
            assert read(letters, splits) == []
            assert letters.splits(EVERYTHING) == []

    def test_only_what_is_wanted_is_read(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ranges, "_JUMP", 50)
        topic = made(subject, 2)
        filled(subject, topic, range(2_000), 2, key=b"a")
        filled(subject, topic, range(2_000, 2_010), 2, key=b"b")
        some = Wanted(positions=frozenset({f"{topic}/0/5", f"{topic}/0/900", f"{topic}/1/7", f"{topic}/1/99999"}))
        with subject.broker.dead_letters() as letters:
            assert sorted(values(read(letters, letters.splits(some), some))) == [10, 15, 1_800]
            keyed = Wanted(key=b"b")
            assert sorted(values(read(letters, letters.splits(keyed), keyed))) == list(range(2_000, 2_010))
            bare = Wanted(columns=frozenset({"value"}))
            batches = [batch for split in letters.splits(bare) for batch in letters.read(split, bare)]
            assert {batch.messages.headers for batch in batches} == {None}, "headers were decoded"

    @pytest.mark.parametrize("dated", ["LogAppendTime", "CreateTime"])
    def test_a_time_bounds_what_is_read_where_brokers_date_letters(self, subject: Subject, dated: str) -> None:
        """Elsewhere a record's time is that of the message that died: all letters are read."""
        topic = f"{subject.place.topic}-dead-letters"  # type: ignore[attr-defined]
        real(subject).make(topic, 2, **{"message.timestamp.type": dated})  # type: ignore[arg-type]
        moments = []
        for first in (0, 20, 40):
            moments.append(time.time_ns() // 1_000_000)
            filled(subject, topic, range(first, first + 20), 2)
            end = time.monotonic() + 0.02
            while time.monotonic() < end:
                pass
        with subject.broker.dead_letters() as letters:
            for wanted, expected in (
                (Wanted(since_ms=moments[1]), range(20, 60)),
                (Wanted(until_ms=moments[2]), range(40)),
                (Wanted(since_ms=moments[1], until_ms=moments[2]), range(20, 40)),
                (Wanted(since_ms=moments[2] + 3_600_000), range(0)),
                (Wanted(since_ms=-5, until_ms=1 << 65), range(60)),
            ):
                found = sorted(values(read(letters, letters.splits(wanted), wanted)))
                assert found == (list(expected) if dated == "LogAppendTime" else list(range(60)))

    def test_the_marks_of_transactions_and_what_was_aborted_end_no_split_early(self, subject: Subject) -> None:
        topic = made(subject, 1)
        producer = Producer({"bootstrap.servers": real(subject).bootstrap, "transactional.id": topic})
        producer.init_transactions(20)
        for at in range(6):
            producer.begin_transaction()
            producer.produce(topic, b"%d" % at)
            if at % 3 == 1:
                producer.flush(20)
                producer.abort_transaction(20)
            else:
                producer.commit_transaction(20)
        with subject.broker.dead_letters() as letters:
            began = time.monotonic()
            assert values(read(letters, letters.splits(EVERYTHING))) == [0, 2, 3, 5]
            assert time.monotonic() - began < 10

    def test_a_letter_whose_headers_cannot_be_decoded_is_read_among_good_ones(self, subject: Subject) -> None:
        topic = made(subject, 1)
        filled(subject, topic, range(3), 1)
        for _ in range(2):
            send_damaged(real(subject).settings, topic)
        filled(subject, topic, range(3, 5), 1)
        with subject.broker.dead_letters() as letters:
            found = read(letters, letters.splits(EVERYTHING))
            assert [each.context is None for each in found] == [True] * 3 + [False] * 2 + [True] * 2
            assert "UTF-8" in (found[3].context or found[0].context).reason  # type: ignore[union-attr]
            assert [bool(each.message.headers) for each in found] == [True] * 3 + [False] * 2 + [True] * 2

    def test_a_split_of_another_topic_is_an_error(self, subject: Subject) -> None:
        topic = made(subject, 1)
        with subject.broker.dead_letters() as letters:
            for split in ("", f"other-{topic}/0/0-1", f"{topic}/0/0", f"{topic}/0/x-1"):
                with pytest.raises(ConfigurationError, match="not a split"):
                    read(letters, [split])
            with pytest.raises(Fatal, match="partition 7") as caught:
                read(letters, [f"{topic}/7/0-1"])
            assert caught.value.code is Code.CONFLICT
            assert read(letters, [f"{topic}/0/0-1000000"]) == [], "it waited for letters that never came"


class TestKafkaCursors(Statements):
    broker = "kafka"

    def test_a_stream_gets_the_letters_of_a_new_partition_too(self, subject: Subject) -> None:
        topic = made(subject, 1)
        filled(subject, topic, range(10), 1)
        with subject.broker.dead_letters() as letters:
            first = letters.cursor()
            real(subject).admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
            filled(subject, topic, range(10, 25), 3)
            end = time.monotonic() + subject.place.patience
            wanted = Wanted(after=first, before=letters.cursor(after=first))
            while len(found := read(letters, letters.splits(wanted), wanted)) < 15:
                assert time.monotonic() < end
                wanted = Wanted(after=first, before=letters.cursor(after=first))
            assert sorted(values(found)) == list(range(10, 25))

    def test_a_cursor_goes_on_by_as_many_letters_as_it_is_told(self, subject: Subject) -> None:
        topic = made(subject, 2)
        filled(subject, topic, range(100), 2)
        with subject.broker.dead_letters() as letters:
            after, found = None, []
            for _ in range(5):
                before = letters.cursor(after=after, most=23)
                wanted = Wanted(after=after, before=before)
                some = values(read(letters, letters.splits(wanted), wanted))
                assert len(some) == min(23, 100 - len(found))
                found += some
                after = before
            assert sorted(found) == list(range(100))
            assert letters.cursor(after=after, most=23) == after

    def test_a_topic_that_was_made_again_is_one_clear_error(self, subject: Subject) -> None:
        """Even where it holds more letters than the cursor counts: they are others."""
        topic = made(subject, 1)
        filled(subject, topic, range(3), 1)
        with subject.broker.dead_letters() as letters:
            cursor = letters.cursor()
        subject.runtime.vanish(topic)  # type: ignore[attr-defined]
        made(subject, 1)
        filled(subject, topic, range(9), 1)
        with subject.broker.dead_letters() as letters:
            for ask in (
                lambda: letters.cursor(after=cursor),
                lambda: letters.splits(Wanted(after=cursor)),
                lambda: letters.splits(Wanted(before=cursor)),
            ):
                with pytest.raises(Fatal, match="created again") as caught:
                    ask()
                assert caught.value.code is Code.CONFLICT
                assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("how", ["browse", "read"])
    def test_positions_of_a_topic_that_was_made_again_remove_no_other_letter(self, subject: Subject, how: str) -> None:
        topic = made(subject, 1)
        filled(subject, topic, range(3), 1)
        with subject.broker.dead_letters() as letters:
            found = letters.browse() if how == "browse" else read(letters, letters.splits(Wanted()))
            positions = [each.position for each in found]
            assert len(positions) == 3
            subject.runtime.vanish(topic)  # type: ignore[attr-defined]
            made(subject, 1)
            filled(subject, topic, range(5), 1)
            with pytest.raises(Fatal, match="created again") as caught:
                letters.remove(positions)
            assert caught.value.code is Code.CONFLICT
        assert len(subject.browse(direct=False)) == 5

    def test_what_is_no_cursor_is_refused(self, subject: Subject) -> None:
        made(subject, 1)
        with subject.broker.dead_letters() as letters, pytest.raises(ConfigurationError, match="not a cursor"):
            letters.splits(Wanted(after="now"))
