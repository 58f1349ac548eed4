"""Bad input at a real broker: a clear error each, neighbours delivered, and never later than stated."""

import time
from collections import Counter

import pytest

from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.errors import BrokerError, ConfigurationError, Fatal, Permanent, Retriable, Unattributed
from redelivery.registry import connect
from redelivery.sending import Delivery, Origin
from redelivery_conformance.containers import free_port
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import GRACE


def real(subject):
    """The cluster under test; what brokers check, the mock does not."""
    if subject.runtime.kind == "embedded":
        raise CannotShow("what a broker checks: run it in a container, or by --broker-url")
    return subject.runtime.cluster


def fails(subject, url, options=None, *, seconds=8.0, message=None):
    """What sending one row says, in whichever step; it says it in time."""
    began = time.monotonic()
    message = message or Message(value=b"v")
    try:
        with subject.connect(url, options) as broker, broker.sender() as sender:
            batch = subject.batch([message])
            settled = subject.settle(sender, batch, deadline=subject.deadline(seconds))[batch.number]
            error = settled.error or settled.failures[0].error
    except BrokerError as raised:
        error = raised
    assert time.monotonic() - began < seconds + GRACE
    return error


def deliver(subject, messages, **spec):
    """Deliver as a Spark task does, failed rows to the native dead letter topic; returns the account."""
    spec = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),), **spec)
    with subject.broker.admin() as admin:
        admin.provision(spec)
    origin = Origin(run="run", partition=0)
    with Delivery.open(subject.place.url, spec, options=subject.place.options, origin=origin) as delivery:
        delivery.write(Batch.of(messages, number=1))
        return delivery.finish()


class TestBadTargets(Statements):
    broker = "kafka"

    def test_a_topic_that_is_not_there_is_fatal_where_the_cluster_makes_none(self, subject):
        there = real(subject)
        error = fails(subject, f"kafka://{there.bootstrap}/{subject.place.topic}-missing")
        assert isinstance(error, Fatal)
        assert "no such topic exists, and the cluster creates none: provision it" in str(error)
        assert not there.names(subject.place.topic + "-missing"), "asking made it"

    def test_a_rows_own_topic_that_is_not_there_is_permanent_and_its_neighbours_are_delivered(self, subject):
        real(subject)
        rows = [Message(value=b"%d" % at) for at in range(10)]
        rows[4] = Message(value=b"lost", destination=subject.place.topic + "-missing")
        report = deliver(subject, rows)
        assert (report.delivered, report.dead_lettered) == (9, 1)
        assert b"lost" not in subject.values()
        (letter,) = subject.browse(direct=False)
        assert letter.message.value == b"lost"

    def test_a_name_that_no_topic_can_have_is_refused_where_it_is_written(self, subject):
        bootstrap = subject.runtime.cluster.bootstrap
        for name in ("no such", "a:b", "gr%C3%B6%C3%9Fe", "..", "x" * 250):
            with pytest.raises(ConfigurationError, match="topic"):
                connect(f"kafka://{bootstrap}/{name}", {})

    def test_a_rows_own_forbidden_name_is_permanent_and_its_neighbours_are_stored(self, subject):
        subject.refuses_alone(Message(value=b"v", destination="no such"))

    def test_a_partition_that_is_not_there_is_permanent_and_its_neighbours_are_stored(self, subject):
        subject.refuses_alone(Message(value=b"v", extra={"partition": 7}))

    def test_the_letter_of_a_partition_that_is_not_there_is_delivered(self, subject):
        real(subject)
        rows = [Message(value=b"%d" % at, extra={"partition": 0 if at % 5 else 99}) for at in range(20)]
        report = deliver(subject, rows)
        assert (report.delivered, report.dead_lettered) == (16, 4)
        assert len(subject.browse(direct=False)) == 4


class TestBadRecords(Statements):
    broker = "kafka"

    def test_a_record_over_the_topics_limit_is_permanent_alone(self, subject):
        real(subject).alter(subject.place.topic, **{"max.message.bytes": "10000"})
        error = fails(subject, subject.place.url, message=Message(value=bytes(20_000)))
        assert isinstance(error, Permanent | Unattributed)
        assert "max.message.bytes" in str(error)
        subject.refuses_alone(Message(value=bytes(20_000)))

    def test_a_record_over_the_topics_limit_among_a_hundred_is_the_only_letter(self, subject):
        real(subject).alter(subject.place.topic, **{"max.message.bytes": "10000"})
        good = [Message(value=b"%d" % at) for at in range(100)]
        report = deliver(subject, [*good[:50], Message(value=bytes(20_000)), *good[50:]])
        assert (report.delivered, report.dead_lettered) == (100, 1)
        assert subject.values() == Counter(each.value for each in good)
        (letter,) = subject.browse(direct=False)
        assert letter.message.value == bytes(20_000)

    def test_a_row_without_a_key_in_a_compacted_topic_is_the_only_letter(self, subject):
        """A broker refuses the whole request, and names the rows that it is for."""
        real(subject).alter(subject.place.topic, **{"cleanup.policy": "compact"})
        rows = [Message(value=b"%d" % at, key=None if at in {3, 5} else b"%d" % at) for at in range(10)]
        report = deliver(subject, rows)
        assert (report.delivered, report.dead_lettered) == (8, 2)
        assert subject.values() == Counter(row.value for row in rows if row.key)
        assert sorted(each.message.value for each in subject.browse(direct=False)) == [b"3", b"5"]

    @pytest.mark.parametrize(
        "bad",
        [
            Message(value=b"bad", timestamp_ms=0),
            Message(value=b"bad", timestamp_ms=-5),
            Message(value=b"bad", timestamp_ms=1 << 65),
            Message(value=b"bad", headers=(("a\0b", b"1"), ("\ud800", b"2"))),
        ],
    )
    def test_a_row_whose_letter_would_be_refused_for_the_same_is_a_letter_without_it(self, subject, bad):
        real(subject)
        report = deliver(subject, [Message(value=b"good"), bad])
        assert (report.delivered, report.dead_lettered) == (1, 1)
        (letter,) = subject.browse(direct=False)
        assert letter.message.value == b"bad"
        names = [name for name, _ in letter.message.headers]
        assert not bad.headers or {"a\\0b", "\\ud800"} < set(names)
        assert letter.message.timestamp_ms > 1_500_000_000_000

    def test_header_values_that_are_not_text_come_back_as_they_were(self, subject):
        sent = Message(value=b"v", headers=(("a", b"\xff\xfe\0"), ("a", b""), ("b", None), ("größe", b"\x80")))
        subject.deliver(sent)
        (found,) = subject.place.stored()
        assert found.headers == sent.headers

    def test_a_header_name_with_a_nul_is_never_cut(self, subject):
        subject.refuses_alone(Message(value=b"v", headers=(("a\0b", b"1"),)))


class TestBadConnections(Statements):
    broker = "kafka"

    def test_an_unreachable_bootstrap_fails_within_its_stated_time(self, subject):
        for seconds in (1.0, 4.0):
            error = fails(subject, f"kafka://127.0.0.1:{free_port()}/orders", seconds=seconds)
            assert isinstance(error, Retriable)
            assert "no broker answered by the deadline, so nothing was sent" in str(error)

    def test_all_bootstrap_servers_that_were_not_reached_are_counted(self, subject):
        error = fails(subject, f"kafka://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/orders", seconds=4.0)
        assert "none of 2 bootstrap servers was reached: " in str(error)
        assert "brokers are down" not in str(error)

    def test_a_host_that_no_name_server_knows_fails_within_its_stated_time(self, subject):
        error = fails(subject, "kafka://nowhere.invalid:9092/orders", seconds=4.0)
        assert isinstance(error, Retriable)
        assert "nowhere.invalid" in str(error)

    def test_an_admin_of_an_unreachable_cluster_fails_within_its_stated_time(self, subject):
        began = time.monotonic()
        broker = subject.connect(f"kafka://127.0.0.1:{free_port()}/orders")
        with broker.admin() as admin, pytest.raises(Retriable, match="reading the settings of topic 'orders'"):
            admin.plan(DeliverySpec())
        assert time.monotonic() - began < 30

    def test_one_host_of_three_is_enough(self, subject):
        up = subject.runtime.cluster.bootstrap
        for at in range(3):
            hosts = [f"127.0.0.1:{free_port()}" for _ in range(2)]
            hosts.insert(at, up)
            subject.deliver(Message(value=b"%d" % at), url=f"kafka://{','.join(hosts)}/{subject.place.topic}")
        assert subject.values() == Counter([b"0", b"1", b"2"])

    def test_credentials_at_a_listener_that_asks_for_none_are_fatal(self, subject):
        real(subject)
        options = {
            "kafka.security.protocol": "sasl_plaintext",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "alice",
            "kafka.sasl.password": "hunter2-S3cr3t",
        }
        error = fails(subject, subject.place.url, options)
        assert isinstance(error, Fatal)
        assert "check kafka.security.protocol, kafka.sasl.*" in str(error)
        assert "hunter2" not in repr(error)

    def test_tls_to_a_listener_without_it_fails_in_time_and_says_so(self, subject):
        real(subject)
        error = fails(subject, subject.place.url, {"kafka.security.protocol": "ssl"})
        assert isinstance(error, BrokerError)
        assert "ssl" in str(error).lower()
