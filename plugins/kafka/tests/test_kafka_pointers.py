"""Letters of Kafka's own dead letter queue: they point to records, which are read in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from redelivery.codes import Code
from redelivery.contract.broker import Letter
from redelivery.contract.letters import Wanted
from redelivery.contract.message import Batch, Headers, Message
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Fatal, Retriable
from redelivery.formats import dialects
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject
from redelivery_kafka import codec
from redelivery_kafka.client import originals
from redelivery_kafka.client.pointers import Death, Place, death_in
from redelivery_kafka.testing.cluster import Cluster

MS = 1_700_000_000_000
HEADERS: Headers = (("mine", b"1"), ("mine", b"2"), ("__dlq.errors.topic", b"of its own"), ("none", None))
REJECTED = "Offset rejected by client."


def topic_of(subject: Subject) -> str:
    return str(subject.place.topic)  # type: ignore[attr-defined]


def dlq_of(subject: Subject) -> str:
    return f"{topic_of(subject)}-dead-letters"


def death_headers(topic: str, offset: int, *, partition: int = 0, said: str = REJECTED) -> list[tuple[str, bytes]]:
    """As Kafka 4.4.0 writes them."""
    said_by_name = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "group": "billing",
        "delivery.count": "3",
        "message": said,
    }
    return [(f"__dlq.errors.{name}", text.encode()) for name, text in said_by_name.items()]


def produced(subject: Subject, topic: str, *records: Mapping[str, Any]) -> None:
    cluster: Cluster = subject.runtime.cluster  # type: ignore[attr-defined]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "topic.metadata.propagation.max.ms": 10_000})
    for each in records:
        producer.produce(topic, **{"partition": 0, **each})
    assert producer.flush(30) == 0


def originals_of(subject: Subject, count: int, **more: Any) -> None:
    subject.provision()
    records = [
        {"key": b"k%d" % n, "value": b"v%d" % n, "headers": list(HEADERS), "timestamp": MS + n} | more
        for n in range(count)
    ]
    produced(subject, topic_of(subject), *records)


def pointed(subject: Subject, *offsets: int, topic: str | None = None, **more: Any) -> None:
    topic = topic or topic_of(subject)
    produced(subject, dlq_of(subject), *({"headers": death_headers(topic, each), **more} for each in offsets))


def read(subject: Subject, wanted: Wanted | None = None, **options: str) -> list[Letter]:
    wanted = wanted or Wanted()
    with subject.connect(options={**subject.place.options, **options}) as broker, broker.dead_letters() as letters:
        splits = letters.splits(wanted)
        return [each for split in splits for batch in letters.read(split, wanted) for each in batch.letters()]


def whole(number: int) -> Message:
    return Message(value=b"v%d" % number, key=b"k%d" % number, headers=HEADERS, timestamp_ms=MS + number)


class TestKafkaPointers(Statements):
    broker = "kafka"

    @broker_has("browse")
    def test_a_letter_that_only_points_is_read_with_the_record_that_it_points_to(self, subject: Subject) -> None:
        originals_of(subject, 5)
        pointed(subject, 3, 0, 4)
        said = "Offset delivery count exceeded the threshold."
        produced(
            subject, dlq_of(subject), {"value": b"plain"}, {"headers": death_headers(topic_of(subject), 1, said=said)}
        )
        for found in (read(subject), subject.browse(direct=False)):
            assert [each.message for each in found if each.message.key] == [whole(at) for at in (3, 0, 4, 1)]
            assert found[3].message.value == b"plain"
            assert found[3].context is None
            context, last = found[0].context, found[4].context
            assert context is not None
            assert last is not None
            assert (context.kind, context.code, context.reason) == ("rejected", Code.REJECTED, REJECTED)
            assert (last.kind, last.code, last.reason) == ("delivery-limit", Code.DELIVERY_LIMIT, said)
            assert (context.source_topic, context.source_partition, context.source_offset) == (topic_of(subject), 0, 3)
            assert (context.subscriber, context.attempts, context.target) == ("billing", 3, None)
            assert (context.last_failure_ms or 0) > MS

    @broker_has("browse")
    def test_without_headers_asked_for_the_record_is_read_all_the_same(self, subject: Subject) -> None:
        originals_of(subject, 3)
        pointed(subject, 2, 1)
        for columns, shown in (
            ({"value"}, [(b"v2",), (b"v1",)]),
            ({"key", "timestamp_ms"}, [(b"k2", MS + 2), (b"k1", MS + 1)]),
        ):
            letters = read(subject, Wanted(columns=frozenset(columns)))
            assert [tuple(getattr(each.message, name) for name in sorted(columns)) for each in letters] == shown
        assert [each.position for each in read(subject, Wanted(columns=frozenset()))] == [
            f"{dlq_of(subject)}/0/{at}" for at in range(2)
        ]
        assert [each.message.key for each in read(subject, Wanted(key=b"k1"))] in ([b"k1"], [b"k2", b"k1"])

    @broker_has("browse", "remove")
    def test_a_redrive_sends_the_record_as_it_was(self, subject: Subject) -> None:
        originals_of(subject, 4)
        pointed(subject, 2, 0)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            report = box.redrive()
        assert (report.redriven, report.removed, report.failed, report.left) == (2, 2, 0, {})
        sent = subject.place.stored()[4:]
        assert [dialects.history(each).hops for each in sent] == [1, 1]
        assert [_plain(each) for each in sent] == [whole(2), whole(0)]
        assert subject.browse(direct=False) == []

    @broker_has("browse", "remove")
    def test_a_letter_whose_record_is_gone_says_so_and_stays(self, subject: Subject) -> None:
        originals_of(subject, 1)
        pointed(subject, 9, 0)
        gone, there = read(subject)
        assert (gone.message.value, there.message) == (None, whole(0))
        assert gone.context is not None
        assert (gone.context.kind, gone.context.native_code) == ("unresolved", "original-deleted")
        assert "offset 9" in gone.context.reason
        assert "cannot be redriven" in gone.context.reason
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            report = box.redrive()
            assert report.redriven == 1
            assert report.left == {"it only points to its message, which cannot be read (original-deleted)": 1}
            (left,) = box
            assert left.context is not None
            assert left.context.code is Code.REJECTED, "it can still be selected by what happened"

    @broker_has("browse", "remove")
    def test_what_retention_has_deleted_is_gone(self, subject: Subject) -> None:
        if subject.runtime.kind == "embedded":
            raise CannotShow("deleted records: run it in a container, or by --broker-url")
        originals_of(subject, 3)
        pointed(subject, 0, 1, 2)
        admin = subject.runtime.cluster.admin  # type: ignore[attr-defined]
        place = TopicPartition(topic_of(subject), 0, 2)
        admin.delete_records([place])[place].result()
        contexts = [each.context for each in read(subject)]
        assert [each.kind for each in contexts if each] == ["unresolved", "unresolved", "rejected"]

    @broker_has("browse", "remove")
    @pytest.mark.parametrize("named", ["", "another, {own}x*", "{own}-*", "*"])
    def test_a_letter_that_points_to_a_topic_that_nobody_named_is_not_followed(
        self, subject: Subject, named: str
    ) -> None:
        """Whoever writes to the dead letter topic could have any topic's records sent to where they can read them."""
        subject.provision()
        secret = subject.place.destination("payroll")
        produced(subject, secret, {"value": b"salaries", "timestamp": MS})
        pointed(subject, 0, topic=secret)
        options = {"kafka.originals": named.format(own=topic_of(subject))} if named else {}
        (letter,) = read(subject, **options)
        assert letter.context is not None
        allowed = named in {"{own}-*", "*"}
        assert letter.message.value == (b"salaries" if allowed else None)
        assert letter.context.kind == ("rejected" if allowed else "unresolved")
        assert letter.context.target == secret
        if not allowed:
            assert "kafka.originals" in letter.context.reason
        with dead_letters(subject.place.url, options={**subject.place.options, **options}) as box:
            report = box.redrive()
            assert (report.redriven, sum(report.left.values())) == (0, 1), "nor does it go elsewhere unless allowed"
            if allowed:
                assert "is not allowed" in str(report.left)
                assert box.redrive(allow_targets=[secret]).targets == {secret: 1}
        assert subject.values() == {}
        assert len(subject.place.stored(secret)) == 1 + allowed

    @broker_has("browse")
    @pytest.mark.parametrize("topic", ["no-such-topic", "__consumer_offsets", "a/b", "\u00fc", "x" * 300, "a\nb"])
    def test_a_letter_that_points_nowhere_holds_no_other_letter_back(self, subject: Subject, topic: str) -> None:
        originals_of(subject, 1)
        pointed(subject, 0, topic=topic)
        partition = death_headers(topic_of(subject), 0, partition=2_000_000)
        beyond = death_headers(topic_of(subject), (1 << 63) - 1)
        produced(subject, dlq_of(subject), {"headers": partition}, {"headers": beyond})
        pointed(subject, 0)
        *lost, there = read(subject, **{"kafka.originals": "*"})
        assert [each.context.kind for each in lost if each.context] == ["unresolved"] * 3
        assert there.message == whole(0)

    @broker_has("browse", "remove")
    def test_a_copy_gets_the_headers_and_the_time_that_it_lacks(self, subject: Subject) -> None:
        """The broker copies key and value only. Where the record is gone, or another one, that is what is left."""
        originals_of(subject, 2)
        copy = {"key": b"k1", "value": b"v1"}
        produced(
            subject,
            dlq_of(subject),
            {**copy, "headers": death_headers(topic_of(subject), 1)},
            {**copy, "headers": death_headers(topic_of(subject), 0)},
            {**copy, "headers": death_headers(topic_of(subject), 7)},
        )
        first, another, gone = read(subject)
        assert first.message == whole(1)
        for each, why in ((another, "is another one"), (gone, "does not exist")):
            assert (each.message.key, each.message.value, each.message.headers) == (b"k1", b"v1", ())
            assert each.context is not None
            assert each.context.kind == "rejected"
            assert why in each.context.reason
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            assert box.redrive().redriven == 3

    @broker_has("browse")
    def test_a_record_that_is_younger_than_the_letter_is_not_the_one(self, subject: Subject) -> None:
        """The topic was created again: its offsets begin again."""
        originals_of(subject, 1)
        pointed(subject, 0, timestamp=MS - 7_200_000)
        (letter,) = read(subject)
        assert letter.context is not None
        assert (letter.message.value, letter.context.native_code) == (None, "original-replaced")

    @broker_has("browse")
    def test_records_with_more_headers_than_the_broker_writes_are_not_pointers(self, subject: Subject) -> None:
        originals_of(subject, 1)
        headers = [*death_headers(topic_of(subject), 0), ("mine", b"1")]
        produced(subject, dlq_of(subject), {"value": b"own", "headers": headers})
        (letter,) = read(subject)
        assert (letter.message.value, letter.message.headers) == (b"own", tuple(headers))

    @broker_has("browse")
    def test_many_are_read_in_order_and_together_in_bounded_memory(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        count, size = 600, 1000
        subject.provision()
        records = [{"value": b"%d " % n + b"x" * size, "timestamp": MS + n} for n in range(count)]
        produced(subject, topic_of(subject), *records)
        order = [(n * 7) % count for n in range(count)]
        pointed(subject, *order)
        monkeypatch.setattr(originals, "BATCH_BYTES", 50 * size)
        calls: list[int] = []
        real = originals.Originals._of_partition
        monkeypatch.setattr(
            originals.Originals, "_of_partition", lambda *args: calls.append(len(args[3])) or real(*args)
        )
        sizes: list[int] = []
        resolve = originals.Originals.resolve

        def measured(*args: Any) -> Iterator[originals.Whole]:
            for each in resolve(*args):
                sizes.append(sum(map(len, each.contents)))
                yield each

        monkeypatch.setattr(originals.Originals, "resolve", measured)
        assert [int((each.message.value or b"").split()[0]) for each in read(subject)] == order
        assert len(calls) < count / 10
        assert max(sizes) <= 51 * size

    @broker_has("browse")
    def test_why_the_record_died_counts_more_than_what_its_own_headers_say(self, subject: Subject) -> None:
        """Another program has replayed it with the headers of an earlier death."""
        originals_of(subject, 1, headers=[("kafka_dlt-exception-message", b"long ago")])
        pointed(subject, 0)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            (letter,) = box
            assert letter.context is not None
            assert (letter.context.reason, letter.context.source_topic) == (REJECTED, topic_of(subject))
            assert len(letter.message.headers) == 1

    @broker_has("browse")
    def test_a_failure_that_passes_loses_no_letter(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else a letter would be shown as lost while a broker restarts."""
        originals_of(subject, 1)
        pointed(subject, 0)

        def failing(*_: Any) -> Any:
            raise Retriable("kafka: a partition has no leader", code=Code.UNAVAILABLE)

        monkeypatch.setattr(originals.Originals, "_of_partition", failing)
        with pytest.raises(Retriable):
            read(subject)

    @broker_has("browse")
    def test_a_topic_that_this_user_may_not_read_holds_no_other_letter_back(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        originals_of(subject, 1)
        secret = subject.place.destination("payroll")
        produced(subject, secret, {"value": b"salaries", "timestamp": MS})
        pointed(subject, 0, topic=secret)
        pointed(subject, 0)
        real = originals.Originals._of_partition

        def refused(self: Any, topic: str, *rest: Any) -> Any:
            if topic == secret:
                raise Fatal("kafka: TOPIC_AUTHORIZATION_FAILED", code=Code.NOT_AUTHORIZED)
            return real(self, topic, *rest)

        monkeypatch.setattr(originals.Originals, "_of_partition", refused)
        first, second = read(subject, **{"kafka.originals": secret})
        assert first.context is not None
        assert (first.context.kind, first.context.native_code) == ("unresolved", "original-not-authorized")
        assert second.message == whole(0)


def _plain(message: Message) -> Message:
    """Without the marker that a redriven message has."""
    kept = tuple(each for each in message.headers if each[0] not in dialects.MARKERS)
    return Message(value=message.value, key=message.key, headers=kept, timestamp_ms=message.timestamp_ms)


def test_only_the_brokers_own_headers_make_a_pointer() -> None:
    headers = tuple(death_headers("orders", 17, partition=2))
    assert death_in(headers) == Death(Place("orders", 2, 17), "billing", 3, REJECTED)
    assert death_in(headers[:4]) == Death(Place("orders", 2, 17), "billing")
    others: Sequence[Headers] = [
        (),
        headers[:3],
        headers[1:],
        headers[::-1],
        (*headers, headers[0]),
        (("x", b"1"), *headers),
        (*headers[:2], ("__dlq.errors.offset", b"-1"), *headers[3:]),
        (*headers[:2], ("__dlq.errors.offset", b"9" * 19), *headers[3:]),
        (*headers[:2], ("__dlq.errors.offset", b"9" * 99_999), *headers[3:]),
        (*headers[:2], ("__dlq.errors.offset", None), *headers[3:]),
        (headers[0], ("__dlq.errors.partition", str(1 << 31).encode()), *headers[2:]),
        (("__dlq.errors.topic", b""), *headers[1:]),
    ]
    assert [death_in(each) for each in others] == [None] * len(others)


def test_a_pointer_is_never_sent_as_if_it_were_a_message() -> None:
    """A mended row of a letter whose record is gone would be a tombstone."""
    pointer = Message(value=None, headers=tuple(death_headers("orders", 17)))
    copy = Message(value=b"v", headers=pointer.headers)
    (found,) = codec.faults(Batch.of([copy, pointer, Message(value=None)]), 1_000_000, {}).items()
    assert found[0] == 1
    assert found[1].code is Code.INVALID_MESSAGE
