"""Sending: batches filled to the link's limit, rows blamed for what is theirs, and no wait beyond a deadline."""

import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Sender
from redelivery.contract.message import Batch, Column, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled
from redelivery.sending.delivery import Delivery
from redelivery.sending.group import Origin
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.admin import ServicebusAdmin
from redelivery_servicebus.client.limits import SCHEDULED
from redelivery_servicebus.testing import ServicebusPlace
from servicebus_standin import StandIn


def namespace(subject: Subject) -> StandIn:
    found: Any = subject.place
    assert isinstance(found, ServicebusPlace)
    server: Any = subject.runtime
    return server.namespace  # type: ignore[no-any-return]


def queue(subject: Subject) -> str:
    found: Any = subject.place
    return str(found.queue)


def errors(sender: Sender, *messages: Message, seconds: float = 10.0) -> dict[int, BrokerError]:
    """What became of each that failed."""
    return failures(sender, Batch.of(messages), seconds=seconds)


def failures(sender: Sender, batch: Batch, *, seconds: float = 10.0) -> dict[int, BrokerError]:
    """`errors`, of a batch."""
    try:
        sender.send(batch, deadline=time.monotonic() + seconds)
    except BrokerError as error:
        return dict.fromkeys(range(len(batch)), error)
    (settled,) = sender.collect(0.0)
    assert settled.error is None
    return {each.index: each.error for each in settled.failures}


class TestSending(Statements):
    broker = "servicebus"

    def test_a_batch_larger_than_the_link_takes_is_split_and_stored_in_order(self, subject: Subject) -> None:
        values = [b"%04d" % at + bytes(5_000) for at in range(200)]
        with subject.connect().sender() as sender:
            assert not errors(sender, *(Message(value=value) for value in values))
        assert [each.body for each in namespace(subject).messages(queue(subject))] == values

    def test_a_full_batch_is_not_larger_than_the_link_takes(self, subject: Subject) -> None:
        """The SDK counts some bytes less than it sends."""
        with subject.connect().sender() as sender:
            for size in range(1_020, 1_028):
                assert not errors(sender, *(Message(value=bytes(size), id=f"id-{at}") for at in range(260)))

    def test_a_message_over_the_queues_own_limit_is_refused_alone(self, subject: Subject) -> None:
        """Also where an option claims that the queue takes more."""
        options = {"servicebus.max_message_bytes": "1048576"}
        with subject.connect(options=options).sender() as sender:
            found = errors(sender, Message(value=b"a"), Message(value=bytes(300_000)), Message(value=b"b"))
            assert list(found) == [1]
            assert type(found[1]) is Permanent
            assert found[1].code is Code.TOO_LARGE
            assert not errors(sender, Message(value=b"c"))
        assert subject.values() == Counter([b"a", b"b", b"c"])

    def test_a_rows_missing_queue_is_its_own_fault_and_the_urls_is_everybodys(self, subject: Subject) -> None:
        with subject.connect().sender() as sender:
            found = errors(sender, Message(value=b"a", destination="nobody"), Message(value=b"b"))
        assert {at: type(error) for at, error in found.items()} == {0: Permanent}
        with subject.connect(subject.place.url + "-nobody").sender() as sender:
            found = errors(sender, Message(value=b"a"), Message(value=b"b"))
        assert {at: type(error) for at, error in found.items()} == {0: Fatal, 1: Fatal}
        assert found[0].code is Code.NO_SUCH_DESTINATION

    def test_a_full_queue_is_worth_a_retry(self, subject: Subject) -> None:
        namespace(subject).alter_queue(queue(subject), max_size_in_megabytes=0)
        with subject.connect().sender() as sender:
            found = errors(sender, Message(value=b"a"))
        assert type(found[0]) is Retriable
        assert "full" in str(found[0])

    def test_a_row_is_there_from_its_scheduled_time_on(self, subject: Subject) -> None:
        now = int(time.time() * 1000)
        due = now + 6_000
        times = {b"later": due, b"past": now - 60_000, b"unsaid": None, b"never": 10**18}
        with subject.connect().sender() as sender:
            found = errors(sender, *(Message(value=v, extra={SCHEDULED: at}) for v, at in times.items()))
        assert [(index, type(error), SCHEDULED in str(error)) for index, error in found.items()] == [
            (3, Permanent, True)
        ]
        taker = Taker(subject)
        early = [taker.one(), taker.one()]
        assert time.time() * 1000 < due
        taker.settle(Accept(), *early)  # leases are short here
        assert {each.message.value for each in early} == {b"past", b"unsaid"}
        assert taker.one().message.value == b"later"
        assert time.time() * 1000 >= due

    def test_a_throttled_server_slows_a_delivery_and_loses_nothing(self, subject: Subject) -> None:
        """It is reported as such, nothing is stored, and the same link goes on."""
        with subject.connect().sender() as sender:
            namespace(subject).throttle(1)
            found = errors(sender, Message(value=b"a"), Message(value=b"b"))
            assert {type(error) for error in found.values()} == {Throttled}
            assert not subject.values()
            assert not errors(sender, Message(value=b"a"), Message(value=b"b"))
        namespace(subject).throttle(3)
        rows = [Message(value=b"%d" % at) for at in range(500)]
        spec = DeliverySpec(retry=5, backoff_policy="linear", backoff_delay=timedelta(milliseconds=50))
        with Delivery.open(subject.place.url, spec, options=subject.place.options, origin=Origin(run="r")) as delivery:
            delivery.write(Batch.of(rows, number=1))
            report = delivery.finish()
        assert (report.destinations[report.primary].delivered, report.retried > 0) == (500, True)
        assert subject.values() == Counter([b"a", b"b", *(row.value for row in rows)])

    def test_a_link_that_was_idle_too_long_is_opened_anew(self, subject: Subject) -> None:
        """The rows of the failed request are sent again by the engine."""
        with subject.connect().sender() as sender:
            assert not errors(sender, Message(value=b"a"))
            namespace(subject).detach_links()
            found = errors(sender, Message(value=b"b"))
            assert all(isinstance(error, Retriable | Ambiguous) for error in found.values()), found
            if found:
                assert not errors(sender, Message(value=b"b"))
        assert set(subject.values()) == {b"a", b"b"}

    def test_a_server_that_says_nothing_is_waited_for_until_the_deadline(self, subject: Subject) -> None:
        """Open or not; the SDK itself would wait forever for one that accepts a connection and is silent."""
        with subject.connect().sender() as warm, subject.connect().sender() as cold:
            assert not errors(warm, Message(value=b"before"))
            with namespace(subject).paused():
                for sender, kind in ((warm, Ambiguous), (cold, Retriable)):
                    began = time.monotonic()
                    found = errors(sender, Message(value=b"meanwhile"), seconds=1.5)
                    assert time.monotonic() - began < 3.0
                    assert type(found[0]) is kind
            for sender in (warm, cold):
                assert not errors(sender, Message(value=b"after"))
        stored = subject.values()
        assert (stored[b"before"], stored[b"after"]) == (1, 2)

    def test_a_lost_connection_is_ambiguous_for_what_was_sent_and_not_for_the_rest(self, subject: Subject) -> None:
        with subject.connect().sender() as sender:
            assert not errors(sender, Message(value=b"before"))
            with subject.runtime.outage():
                found = errors(sender, *(Message(value=bytes(100_000)) for _ in range(6)))
                kinds = [type(found[at]) for at in range(6)]
            assert kinds == [Ambiguous, Ambiguous, Retriable, Retriable, Retriable, Retriable]
            assert not errors(sender, Message(value=b"after"))

    def test_what_was_sent_twice_is_stored_once_where_the_queue_detects_duplicates(self, subject: Subject) -> None:
        name = f"{queue(subject)}-once"
        namespace(subject).create_queue(name, requires_duplicate_detection=True)
        url = subject.broker.sibling(name)
        options = {"servicebus.duplicate_detection": "true"}
        for _ in range(2):
            with subject.connect(url, options=options).sender() as sender:
                assert not errors(sender, Message(value=b"a", id="1"), Message(value=b"b", id="2"))
        assert [each.body for each in namespace(subject).messages(name)] == [b"a", b"b"]
        namespace(subject).delete_queue(name)

    def test_letters_of_another_broker_that_keep_their_ids_are_not_dropped_as_duplicates(
        self, subject: Subject
    ) -> None:
        """They have no native part. A redrive gives all other rows an identity, and a job gives none."""
        name = f"{queue(subject)}-knows"
        namespace(subject).create_queue(name, requires_duplicate_detection=True)
        job = Batch.of([Message(value=b"a", id="known")])
        with subject.connect(subject.broker.sibling(name)).sender() as sender:
            assert not failures(sender, job)
            found = failures(sender, replace(job, identity=Column.of([None])))
            assert type(found[0]) is Fatal
            assert "has duplicate detection" in str(found[0])
        assert [each.body for each in namespace(subject).messages(name)] == [b"a"]

    def test_a_queue_that_cannot_be_asked_about_duplicates_is_asked_once(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An error that passes is told as such, and nothing is asked behind the deadline."""
        asked: list[str] = []

        def busy(admin: ServicebusAdmin) -> bool:
            asked.append(str(admin))
            raise Throttled("servicebus: busy", code=Code.THROTTLED)

        monkeypatch.setattr(ServicebusAdmin, "remembers_ids", busy)
        rows = replace(
            Batch.of([Message(value=b"a", id="1"), Message(value=b"b", id="2")]), identity=Column.of([None] * 2)
        )
        with subject.connect().sender() as sender:
            assert [type(error) for error in failures(sender, rows).values()] == [Throttled, Throttled]
            assert len(asked) == 1
            monkeypatch.undo()
            assert not failures(sender, rows)

    @pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:"])
    def test_cloudevents_attributes_are_properties_and_time_is_text(self, subject: Subject, prefix: str) -> None:
        headers = ((f"{prefix}time", b"2026-01-01T00:00:00Z"), ("content-type", b"application/json"))
        with subject.connect().sender() as sender:
            assert not errors(sender, Message(value=b"{}", headers=headers))
        (seen,) = namespace(subject).messages(queue(subject))
        assert seen.application_properties[f"{prefix}time"] == "2026-01-01T00:00:00Z"
        assert seen.content_type == "application/json"
