"""The sender of `kafka:` beyond what every broker must do."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic

from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import DeliveryFailed, Fatal, NotSent, Permanent, Retriable, Unattributed
from redelivery.sending import Delivery, Origin
from redelivery.sending.engine import Flow
from redelivery_conformance.forking import in_a_fork
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject
from redelivery_kafka import codec
from redelivery_kafka.address import Address
from redelivery_kafka.client.known_settings import largest

SMALL = 2_000


def made(subject: Subject, label: str, partitions: int = 1, **config: str) -> str:
    """Another topic of the place's cluster, removed with the place."""
    address = Address.parse(subject.place.url)
    topic = f"{address.topic}-{label}"
    admin = AdminClient({"bootstrap.servers": address.bootstrap})
    config = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(15)
    return topic


def beside(subject: Subject, topic: str) -> str:
    return Address.parse(subject.place.url).at(topic).url


def send_to(subject: Subject, url: str, *messages: Message, isolate: bool = False, **options: str) -> Settled:
    """Send to a URL, as one batch."""
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    with subject.connect(url, {**subject.place.options, **named}) as broker, broker.sender() as sender:
        return subject.send(*messages, isolate=isolate, sender=sender)


def partitions(subject: Subject, topic: str, count: int) -> dict[bytes | None, int]:
    """In which partition each value lies."""
    settings = {"bootstrap.servers": Address.parse(subject.place.url).bootstrap, "group.id": "partitions"}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, at, 0) for at in range(count)])
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, at), timeout=15)[1] for at in range(count)]
        found: dict[bytes | None, int] = {}
        until = time.monotonic() + 15
        while len(found) < sum(ends):
            assert time.monotonic() < until
            found.update((each.value(), each.partition() or 0) for each in consumer.consume(100, 0.1))
        return found
    finally:
        consumer.close()


def stored(subject: Subject, value: bytes, topic: str | None = None) -> None:
    """Wait until a value is stored."""
    end = time.monotonic() + 15
    while not subject.values(topic)[value]:
        assert time.monotonic() < end, f"{value!r} was not stored"


class TestRows(Statements):
    """Single rows that cannot be stored, and their neighbours."""

    broker = "kafka"

    def test_one_record_over_the_topics_limit_among_a_hundred_is_found_by_sending_each_alone(
        self, subject: Subject
    ) -> None:
        topic = made(subject, "small", max_message_bytes=str(SMALL))
        rows = [Message(value=b"%d" % at) for at in range(100)]
        rows[50] = Message(value=bytes(2 * SMALL))
        whole = send_to(subject, beside(subject, topic), *rows)
        assert len(whole.failures) == 100
        assert {type(each.error) for each in whole.failures} == {Unattributed}
        assert not subject.values(topic), "Unattributed means that nothing was stored"
        subject.refused(send_to(subject, beside(subject, topic), *rows, isolate=True), 50)
        assert subject.values(topic) == Counter(row.value for at, row in enumerate(rows) if at != 50)

    def test_a_request_that_a_broker_refuses_fails_its_own_rows_and_no_others(self, subject: Subject) -> None:
        """Also rows that differ in their headers only."""
        topic = made(subject, "small", max_message_bytes=str(SMALL))
        rows = [Message(value=bytes(2 * SMALL), headers=(("n", b"%d" % at),)) for at in range(20)]
        mixed = [Message(value=row.value, headers=row.headers, destination=topic if at % 2 else None)
                 for at, row in enumerate(rows)]  # fmt: skip
        settled = subject.send(*mixed)
        assert sorted(each.index for each in settled.failures) == list(range(1, 20, 2))
        stored = [message.headers for message in subject.place.stored()]
        assert sorted(stored) == sorted(rows[at].headers for at in range(0, 20, 2))

    def test_a_message_of_exactly_the_limit_is_taken_with_headers_too(self, subject: Subject) -> None:
        limit = subject.capabilities.limits.message_bytes
        assert limit == largest(1_000_000)
        headers = tuple((f"h{at}", b"12345678") for at in range(10))
        room = limit - 10 * 10
        subject.deliver(Message(value=bytes(limit)), Message(value=bytes(room), headers=headers))
        subject.refused(
            subject.send(
                Message(value=b"good"),
                Message(value=bytes(limit + 1)),
                Message(value=bytes(room + 1), headers=headers),
                Message(value=bytes(limit - 3), key=b"four"),
            ),
            1,
            2,
            3,
        )
        assert Counter(len(message.value or b"") for message in subject.place.stored()) == Counter([limit, room, 4])

    def test_a_partition_that_is_not_there_is_the_rows_own_fault(self, subject: Subject) -> None:
        topic = made(subject, "two", 2)
        rows = [Message(value=b"%d" % at, extra={"partition": at}) for at in (0, 1, 2, -2, 1 << 40)]
        settled = send_to(subject, beside(subject, topic), *rows, Message(value=b"any", extra={"partition": None}))
        subject.refused(settled, 2, 3, 4)
        there = partitions(subject, topic, 2)
        assert there.keys() == {b"0", b"1", b"any"}
        assert (there[b"0"], there[b"1"]) == (0, 1)

    def test_keys_are_placed_as_javas_client_places_them(self, subject: Subject) -> None:
        topic = made(subject, "five", 5)
        keys = [b"k%d" % at for at in range(50)] + [b"", b"\xff\xfe", b"abc" * 9]
        send_to(subject, beside(subject, topic), *(Message(value=key, key=key) for key in keys))
        there = partitions(subject, topic, 5)
        assert there == {key: (murmur2(key) & 0x7FFFFFFF) % 5 for key in keys}

    @pytest.mark.parametrize("name", ["nul\0", "\ud800", "a\udfffb"])
    def test_a_header_name_that_the_client_would_cut_or_crash_on_is_refused(self, subject: Subject, name: str) -> None:
        subject.refuses_alone(Message(value=b"v", headers=(("good", b"1"), (name, b"2"))))

    @pytest.mark.parametrize("stamp", [0, -1, -5, 1 << 65])
    def test_a_timestamp_that_kafka_has_not_is_refused_and_not_changed(self, subject: Subject, stamp: int) -> None:
        subject.refuses_alone(Message(value=b"v", timestamp_ms=stamp))

    @pytest.mark.parametrize("name", ["", ".", "no such", "a" * 250, "nowhere-at-all"])
    def test_a_rows_topic_that_cannot_be_is_its_own_fault(self, subject: Subject, name: str) -> None:
        began = time.monotonic()
        subject.refuses_alone(Message(value=b"v", destination=name))
        assert time.monotonic() - began < 8

    def test_behind_a_refused_row_the_later_ones_of_its_key_wait(self, subject: Subject) -> None:
        """And so do those of a later batch, until the failure is collected."""
        bad = Message(value=b"bad", key=b"k", extra={"partition": 99})
        rows = [Message(value=b"1", key=b"k"), bad, Message(value=b"2", key=b"k"), Message(value=b"3", key=b"j")]
        first = Batch.of(rows, number=1, ordered=True)
        behind = Batch.of([Message(value=b"4", key=b"k"), Message(value=b"5")], number=2, ordered=True)
        settled = subject.settle(subject.sender(), first, behind)
        assert [(each.index, type(each.error)) for each in settled[1].failures] == [(1, Permanent), (2, NotSent)]
        assert [(each.index, type(each.error)) for each in settled[2].failures] == [(0, NotSent)]
        assert subject.values() == Counter([b"1", b"3", b"5"])


@broker_has("provision")  # a stand-in without provisioning has no topics that go
class TestTopicsThatGo(Statements):
    """A topic that is deleted, or made again with other partitions, under an open sender."""

    broker = "kafka"

    @pytest.mark.parametrize("ordered", [False, True])
    def test_rows_of_a_topic_made_again_with_fewer_partitions_are_sent_again(
        self, subject: Subject, *, ordered: bool
    ) -> None:
        """But those that name a partition that it has no more are refused for good."""
        topic = made(subject, "wide", 4)
        rows = [Message(value=b"%d" % at, key=b"%d" % at) for at in range(100)]
        named = [replace(row, extra={"partition": at % 4}) for at, row in enumerate(rows)]
        with subject.connect(beside(subject, topic), subject.place.options) as broker, broker.sender() as sender:
            first = Batch.of(rows, number=1, ordered=ordered)
            assert not subject.settle(sender, first)[1].failures
            subject.runtime.vanish(topic)  # type: ignore[attr-defined]
            subject.runtime.cluster.make(topic, 2)  # type: ignore[attr-defined]
            left, number = [*rows, *named], 1
            end = time.monotonic() + 30
            while left and time.monotonic() < end:
                number += 1
                settled = subject.settle(sender, Batch.of(left, number=number, ordered=ordered))[number]
                assert settled.error is None, settled.error
                told = {each.index: each.error for each in settled.failures}
                dead = [at for at, error in told.items() if isinstance(error, Permanent)]
                assert all(left[at].extra.get("partition", 0) > 1 for at in dead)
                left = [left[at] for at in told if at not in dead]
        assert not left
        found = Counter(each.value() for each in subject.runtime.cluster.reader.left(topic, "none"))  # type: ignore[attr-defined]
        good = [row.value for row in named if row.extra["partition"] < 2]
        assert found == Counter([*(row.value for row in rows), *good])

    def test_a_partition_added_since_the_client_looked_is_found(self, subject: Subject) -> None:
        topic = made(subject, "grows")
        with subject.connect(beside(subject, topic), subject.place.options) as broker, broker.sender() as sender:
            subject.send(Message(value=b"0"), sender=sender)
            admin = AdminClient({"bootstrap.servers": Address.parse(subject.place.url).bootstrap})
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(15)
            row, answers = Message(value=b"1", extra={"partition": 1}), []
            end = time.monotonic() + 15
            while time.monotonic() < end:
                settled = subject.send(row, sender=sender)
                if not settled.failures:
                    break
                answers.append(settled.failures[0].error)
            # A broker may not know of it for a moment, and the client did not: one answer at most says so.
            assert partitions(subject, topic, 2) == {b"0": 0, b"1": 1}
            assert not isinstance(answers[-1], Permanent), answers

    def test_a_job_whose_topic_is_deleted_fails_and_dead_letters_nothing(self, subject: Subject) -> None:
        letters = made(subject, "letters")
        spec = DeliverySpec(dead_letter_sink=(Sink(uri=beside(subject, letters)),))
        origin = Origin(run="run", partition=0)
        delivery = Delivery.open(subject.place.url, spec, options=subject.place.options, origin=origin)
        with pytest.raises(Fatal, match="no such topic"), delivery:
            delivery.write(Batch.of([Message(value=b"before")], number=1))
            stored(subject, b"before")
            subject.place.vanish()
            end, number = time.monotonic() + 30, 1
            while time.monotonic() < end:
                number += 1
                delivery.write(Batch.of([Message(value=b"%d" % at) for at in range(100)], number=number))
                time.sleep(0.05)
            delivery.finish()
        assert not subject.values(letters)

    def test_a_job_whose_dead_letter_topic_is_deleted_fails_by_its_sink(self, subject: Subject) -> None:
        letters = made(subject, "letters")
        spec = DeliverySpec(dead_letter_sink=(Sink(uri=beside(subject, letters)),))
        origin = Origin(run="run", partition=0)
        bad = Message(value=b"bad", extra={"partition": 7})
        delivery = Delivery.open(subject.place.url, spec, options=subject.place.options, origin=origin)
        with pytest.raises(DeliveryFailed, match="no such topic") as caught, delivery:
            delivery.write(Batch.of([bad], number=1))
            stored(subject, b"bad", letters)
            subject.runtime.vanish(letters)  # type: ignore[attr-defined]
            delivery.write(Batch.of([bad, Message(value=b"good")], number=2))
            delivery.finish()
        assert "no such partition" in str(caught.value), "the row's own error comes first"


class TestOrder(Statements):
    """Rows of one key, where a broker refuses a request that holds one of them."""

    broker = "kafka"

    def test_nothing_behind_a_refused_request_is_stored(self, subject: Subject) -> None:
        """Neither rows in the client's queue, nor a batch that is sent before the failure is collected."""
        topic = made(subject, "small", max_message_bytes=str(20 * SMALL))
        rows = [Message(value=b"%d" % at, key=b"k") for at in range(2_000)]
        rows[500] = Message(value=bytes(40 * SMALL), key=b"k")
        first = Batch.of(rows, number=1, ordered=True)
        behind = Batch.of([Message(value=b"behind", key=b"k")], number=2, ordered=True)
        options = {**subject.place.options, "kafka.batch.num.messages": "10"}
        with subject.connect(beside(subject, topic), options) as broker, broker.sender() as sender:
            settled: dict[int, Settled] = {}
            for batch in (first, behind):
                subject.hand_over(sender, batch, settled, deadline=subject.deadline())
            subject.collect(sender, settled, first, behind, deadline=subject.deadline())
            told = {each.index: type(each.error) for each in settled[1].failures}
            refused = [at for at, kind in told.items() if kind is Unattributed]
            assert 500 in refused
            assert len(refused) <= 10
            assert {at for at, kind in told.items() if kind is NotSent} == set(range(max(refused) + 1, 2_000))
            error = settled[2].error or settled[2].failures[0].error
            assert isinstance(error, NotSent)
            stored = [row.value for row in rows[: min(refused)]]
            assert [each.value for each in subject.place.stored(topic)] == stored
            again = subject.settle(sender, Batch.of([rows[501]], number=3, ordered=True))[3]
            assert again.error is None
            assert not again.failures
        assert [each.value for each in subject.place.stored(topic)] == [*stored, b"501"]

    def test_rows_of_a_key_are_stored_in_their_order_around_those_that_are_refused(self, subject: Subject) -> None:
        topic = made(subject, "small", 2, max_message_bytes=str(20 * SMALL))
        bad, keys = {400, 1_203}, 3
        rows = [
            Message(value=b"%d" % at if at not in bad else bytes(40 * SMALL), key=b"%d" % (at % keys))
            for at in range(2_000)
        ]
        options = {**subject.place.options, "kafka.batch.num.messages": "20"}
        url, origin = beside(subject, topic), Origin(run="run", partition=0)
        spec = DeliverySpec(dead_letter_sink=(Sink(uri=subject.place.url),))
        with Delivery.open(url, spec, options=options, origin=origin, flow=Flow(ordering="key")) as delivery:
            delivery.write(Batch.of(rows[:1_000], number=1))
            delivery.write(Batch.of(rows[1_000:], number=2))
            report = delivery.finish()
        assert (report.delivered, report.dead_lettered) == (1_998, 2)
        assert report.retries == 0, "what was kept back was not tried"
        stored = [int(each.value or b"") for each in subject.place.stored(topic)]
        for key in range(keys):
            mine = [at for at in stored if at % keys == key]
            assert mine == [at for at in range(key, 2_000, keys) if at not in bad]


class TestSender(Statements):
    """The producer behind the sender."""

    broker = "kafka"

    def test_the_urls_own_missing_topic_is_fatal_and_soon_told(self, subject: Subject) -> None:
        began = time.monotonic()
        settled = send_to(subject, beside(subject, "nowhere-at-all"), Message(value=b"v"))
        assert isinstance(settled.error, Fatal)
        assert "provision" in str(settled.error)
        assert time.monotonic() - began < 8

    def test_a_full_queue_is_back_pressure_and_no_failure(self, subject: Subject) -> None:
        rows = [Message(value=b"%d" % at, key=b"k") for at in range(2_000)]
        settled = send_to(subject, subject.place.url, *rows, queue_buffering_max_messages="10")
        assert settled.error is None
        assert not settled.failures
        assert subject.values() == Counter(row.value for row in rows)

    def test_many_batches_in_flight_are_each_settled_once(self, subject: Subject) -> None:
        sender = subject.sender()
        for _ in range(3):
            batches = [subject.batch([Message(value=b"%d" % at) for at in range(500)]) for _ in range(20)]
            settled = subject.settle(sender, *batches)
            assert all(each.error is None and not each.failures for each in settled.values())
        assert subject.values().total() == 30_000

    def test_without_idempotence_and_with_one_ack_rows_are_stored_too(self, subject: Subject) -> None:
        settled = send_to(subject, subject.place.url, Message(value=b"v"), acks="1", enable_idempotence="false")
        assert settled.error is None
        assert subject.values() == Counter([b"v"])

    def test_with_one_host_of_three_that_answers_rows_are_delivered(self, subject: Subject) -> None:
        address = Address.parse(subject.place.url)
        url = f"kafka://localhost:1,{address.bootstrap},localhost:2/{address.topic}"
        settled = send_to(subject, url, Message(value=b"v"))
        assert settled.error is None
        assert subject.values() == Counter([b"v"])

    def test_an_unreachable_bootstrap_is_told_by_the_deadline_with_its_cause(self, subject: Subject) -> None:
        sender = subject.keep(subject.connect("kafka://localhost:1/t")).sender()
        began = time.monotonic()
        with sender, pytest.raises(Retriable, match="refused"):
            sender.send(Batch.of([Message(value=b"v")]), deadline=time.monotonic() + 2)
        assert time.monotonic() - began < 3

    def test_a_token_endpoint_that_is_not_reached_is_waited_for_and_its_password_not_shown(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(0)
        options = {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "hunter3",
            "sasl.oauthbearer.token.endpoint.url": "http://me:hunter2@127.0.0.1:1/token",
            "debug": "security",
        }
        url = beside(subject, "any")
        sender = subject.keep(
            subject.connect(url, {f"kafka.{name}": value for name, value in options.items()})
        ).sender()
        began = time.monotonic()
        with sender, pytest.raises(Retriable, match="connect") as caught:
            sender.send(Batch.of([Message(value=b"v")]), deadline=began + 4)
        assert time.monotonic() - began > 2, "an endpoint may be back soon"
        assert "127.0.0.1:1/token" in caplog.text
        assert "hunter" not in f"{caplog.text} {caught.value!r} {caught.value.__cause__!r}"

    def test_a_wrong_sasl_mechanism_is_fatal_and_shows_no_password(self, subject: Subject) -> None:
        began = time.monotonic()
        settled = send_to(
            subject,
            subject.place.url,
            Message(value=b"v"),
            security_protocol="sasl_plaintext",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="me",
            sasl_password="hunter2",  # noqa: S106 - made up, to see that it is not shown
        )
        assert isinstance(settled.error, Fatal), settled.error
        assert "kafka.sasl" in str(settled.error)
        assert "hunter2" not in repr(settled.error)
        assert time.monotonic() - began < 5

    def test_a_connection_refused_long_ago_is_no_reason_to_refuse_a_new_topic(self, subject: Subject) -> None:
        topic = made(subject, "new")
        sender = subject.sender()
        subject.send(Message(value=b"before"), sender=sender)
        sender._producer.on_error(KafkaError(KafkaError._AUTHENTICATION, "the token was not renewed"))  # type: ignore[attr-defined]
        with subject.runtime.outage(), pytest.raises(Retriable):
            batch = Batch.of([Message(value=b"v", destination=topic)])
            settled = subject.settle(sender, batch, deadline=time.monotonic() + 2)[batch.number]
            raise settled.error or settled.failures[0].error
        settled = subject.send(Message(value=b"after", destination=topic), sender=sender)
        assert not settled.error
        assert not settled.failures

    @pytest.mark.parametrize("isolate", [False, True])
    def test_a_client_that_fails_as_it_is_waited_for_is_no_bare_exception(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch, *, isolate: bool
    ) -> None:
        sender = subject.sender()
        subject.send(Message(value=b"before"), sender=sender)
        real = sender._producer.client  # type: ignore[attr-defined]

        class Ends:
            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

            def __len__(self) -> int:
                return len(real)

            def flush(self, _: float) -> int:
                raise KafkaException(KafkaError(KafkaError._FATAL, "it is over", True))

        monkeypatch.setattr(sender._producer, "client", Ends())  # type: ignore[attr-defined]
        rows = [Message(value=b"1"), Message(value=b"2")]
        settled = subject.send(*rows, isolate=isolate, sender=sender)
        told = {each.index for each in settled.failures}
        assert settled.error is None
        found = subject.values()
        assert all(found[row.value] or at in told for at, row in enumerate(rows))
        assert not subject.send(Message(value=b"after"), sender=sender).failures
        sender.close()

    def test_a_sender_from_before_a_fork_is_of_no_use_in_the_child_and_harms_nothing(self, subject: Subject) -> None:
        sender = subject.sender()
        subject.send(Message(value=b"before"), sender=sender)

        def child() -> None:
            for use in (lambda: sender.collect(0), lambda: sender.send(Batch.of([Message(value=b"x")]), deadline=1e9)):
                with pytest.raises(Fatal, match="process"):
                    use()
            sender.close()
            subject.deliver(Message(value=b"child"))

        assert in_a_fork(subject, child) == 0
        subject.send(Message(value=b"after"), sender=sender)
        assert subject.values() == Counter([b"before", b"child", b"after"])


def murmur2(data: bytes) -> int:
    """The hash of Java's client, written from its definition (seed 0x9747b28c, 32 bits)."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    found = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * multiplier & mask
        part = (part ^ part >> 24) * multiplier & mask
        found = (found * multiplier & mask) ^ part
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    found = (found ^ found >> 13) * multiplier & mask
    return found ^ found >> 15


def test_rows_that_fail_for_one_reason_share_an_error() -> None:
    """A batch of which all rows are refused costs an error, not one a row."""
    rows = [Message(value=b"v" * (200 if at % 2 else 300), headers=(("a\0", b"1"),)) for at in range(50)]
    for limit, errors in ((100, 2), (10_000, 1)):
        found = codec.faults(Batch.of(rows if limit > 1_000 else [replace(r, headers=()) for r in rows]), limit, {})
        assert len(found) == 50
        assert len({id(each) for each in found.values()}) == errors


def test_a_letters_header_names_are_written_so_that_kafka_can_store_them() -> None:
    """Those of its neighbours stay, in the list that the client takes."""
    said = ("__connect.errors.stage", b"TASK_PUT")
    letters = [Message(value=b"v", headers=(said, (name, b"1"))) for name in ("good", "a\0b", "\udcff")]
    for some in (letters, letters[:1]):
        found = [row[6] for row in codec.rows(Batch.of(some), range(len(some)), "t")]
        names = ["good", "a\\0b", "\\udcff"][: len(some)]
        assert found == [[said, (name, b"1")] for name in names]
