"""What RabbitMQ's sender publishes, and what becomes of each row: confirms, returns, nacks, lost connections."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rabbitmq_operating import operate, raw

from redelivery.codes import Code
from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable
from redelivery_conformance.forking import in_a_fork
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client.publisher import Publisher
from redelivery_rabbitmq.client.unconfirmed import UnconfirmedBatch
from redelivery_rabbitmq.codec import decode, encode
from redelivery_rabbitmq.options import settings_of
from redelivery_rabbitmq.sender import RabbitmqSender

HEADER_NAMES = st.text(st.characters(codec="utf-8"), max_size=20).filter(
    lambda name: name not in {"CC", "BCC"} and not name.lower().startswith(("x-", "redelivery", "timestamp"))
)
MESSAGES = st.builds(
    Message,
    value=st.none() | st.binary(max_size=50),
    key=st.none() | st.binary(max_size=20),
    headers=st.lists(st.tuples(HEADER_NAMES, st.none() | st.binary(max_size=20)), unique_by=lambda each: each[0]).map(
        tuple
    ),
    id=st.none() | st.text(st.characters(codec="utf-8"), max_size=40),
    timestamp_ms=st.none() | st.integers(0, 4_000_000_000_000),
)


@given(MESSAGES)
def test_what_is_encoded_is_decoded_as_it_was(message):
    body, properties = encode(message)
    read = pika.BasicProperties().decode(b"".join(properties.encode()))
    read.headers = dict(sorted((read.headers or {}).items(), key=lambda each: each[0].encode()))  # as quorum queues do
    assert decode(read, body) == (message, None)


@given(st.integers(0, 30), st.lists(st.tuples(st.integers(0, 45), st.booleans()), max_size=60))
def test_confirms_in_any_order_leave_exactly_what_was_not_confirmed(count, confirms):
    published = UnconfirmedBatch(Batch.of([Message(value=b"")] * max(count, 1)), 10, 0.0)
    published.published(list(range(count)))
    left = set(range(10, 10 + count))
    for tag, multiple in confirms:
        published.confirm(tag, multiple=multiple)
        left -= {each for each in left if each == tag or (multiple and each <= tag)}
        assert [each for each, _ in published.unconfirmed()] == sorted(left)
        assert published.pending == len(left)


def came_back(rows: list[Message], *returned: Message, added: Mapping[str, Any]) -> dict[int, BrokerError]:
    """Return the errors of published rows of which some are returned, with added headers, before all are confirmed."""
    address = Address.parse("rabbitmq://localhost/?queue=q")
    sender = RabbitmqSender(address, settings_of({}))
    published = UnconfirmedBatch(Batch.of(rows), 1, 0.0)
    published.published(list(range(len(rows))))
    published.is_written = True
    sender._batches.append(published)
    for each in returned:
        body, encoded = encode(each)
        given = pika.BasicProperties().decode(b"".join(encoded.encode()))
        given.headers = {**(given.headers or {}), **added}
        method = pika.spec.Basic.Return(312, "NO_ROUTE", "", each.destination or "q")
        sender._returned(method, given, body)
    sender._confirmed(len(rows), True, True)
    assert published.is_settled
    return {each.index: each.error for each in published.report().failures}


@pytest.mark.parametrize("added", [{}, {"x-received-by": "node"}])
def test_a_row_that_comes_back_with_headers_of_the_brokers_own_is_found(added):
    rows = [Message(value=b"%d" % (at // 2), id=str(at), destination="nowhere" if at % 2 else None) for at in range(9)]
    told = came_back(rows, rows[3], rows[7], added=added)
    assert {at: (type(error), error.code) for at, error in told.items()} == {
        3: (Permanent, Code.NO_SUCH_DESTINATION),
        7: (Permanent, Code.NO_SUCH_DESTINATION),
    }


@pytest.mark.parametrize("back", [Message(value=b"changed"), Message(value=b"same", headers=(("n", b"1"),))])
def test_where_it_cannot_be_told_which_row_came_back_none_counts_as_stored(back):
    rows = [Message(value=b"same", headers=(("n", b"%d" % at),)) for at in range(3)]
    told = came_back([*rows, Message(value=b"same", destination="other")], back, added={"x-received-by": "node"})
    assert {at: (type(error), error.code) for at, error in told.items()} == dict.fromkeys(
        range(3), (Ambiguous, Code.UNCONFIRMED)
    )


def sent(subject: Subject, url: str, *messages: Message) -> Settled:
    with subject.connect(url) as broker, broker.sender() as sender:
        return subject.send(*messages, sender=sender)


def errors(settled: Settled) -> Mapping[int, BrokerError]:
    assert settled.error is None
    return {each.index: each.error for each in settled.failures}


def row(number: int, **extra: Any) -> Message:
    return Message(value=b"%d" % number, extra=extra)


class TestRouting(Statements):
    """Where rows go, and the errors of those that go nowhere."""

    broker = "rabbitmq"

    @pytest.fixture
    def exchange(self, subject: Subject) -> Iterator[str]:
        """A topic exchange; what begins with `in.` comes to the place's queue."""
        name = f"{subject.place.queue}-exchange"  # type: ignore[attr-defined]
        with raw(subject) as own:
            own.exchange_declare(name, "topic")
            own.queue_bind(subject.place.queue, name, "in.#")  # type: ignore[attr-defined]
            yield name
            own.exchange_delete(name)

    def test_rows_name_an_exchange_and_a_routing_key(self, subject: Subject, exchange: str) -> None:
        rows = [row(0), row(1, exchange=exchange, routing_key="in.a"), row(2, exchange=exchange, routing_key="out")]
        settled = sent(subject, subject.place.url, *rows)
        (error,) = errors(settled).values()
        assert type(error) is Permanent
        assert "out" in str(error)
        assert settled.failures[0].index == 2
        assert subject.values() == Counter([b"0", b"1"])

    def test_a_url_names_an_exchange_and_rows_the_routing_key(self, subject: Subject, exchange: str) -> None:
        url = subject.place.url.partition("?")[0] + f"?exchange={quote(exchange)}&routing_key=in.default"
        settled = sent(subject, url, row(0), row(1, routing_key="in.b"), row(2, routing_key="out"))
        assert {at: type(error) for at, error in errors(settled).items()} == {2: Permanent}
        assert subject.values() == Counter([b"0", b"1"])

    def test_a_missing_exchange_of_a_row_harms_no_neighbour(self, subject: Subject) -> None:
        settled = sent(subject, subject.place.url, row(0), row(1, exchange="no-such", routing_key="k"), row(2))
        assert {at: error.code for at, error in errors(settled).items()} == {1: Code.NO_SUCH_DESTINATION}
        assert type(errors(settled)[1]) is Permanent
        assert subject.values() == Counter([b"0", b"2"])

    @pytest.mark.parametrize("isolate", [False, True])
    def test_an_exchange_that_many_rows_name_is_looked_for_once_a_call(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch, isolate: bool
    ) -> None:
        """A look costs a channel: thousands would take all the time that their neighbours have."""
        asked = []
        look = Publisher.missing_error

        def counted(publisher: Publisher, kind: str, name: str, deadline: float) -> BaseException | None:
            asked.append(name)
            return look(publisher, kind, name, deadline)  # type: ignore[arg-type]

        monkeypatch.setattr(Publisher, "missing_error", counted)
        rows = [row(at, exchange="no-such", routing_key="k") if at % 2 else row(at) for at in range(20)]
        sender = subject.sender()
        for calls in (1, 2):
            batch = replace(subject.batch(rows), isolate=isolate)
            settled = subject.settle(sender, batch, deadline=subject.deadline(20))[batch.number]
            assert {at: error.code for at, error in errors(settled).items()} == dict.fromkeys(
                range(1, 20, 2), Code.NO_SUCH_DESTINATION
            )
            assert asked == ["no-such"] * calls, "another call looks again: it may have been made by then"
        assert subject.values() == Counter({b"%d" % at: 2 for at in range(0, 20, 2)})

    def test_a_missing_exchange_of_the_url_is_fatal_at_once(self, subject: Subject) -> None:
        with pytest.raises(Fatal, match="no-such"):
            subject.sender(subject.place.url.partition("?")[0] + "?exchange=no-such")

    def test_a_missing_queue_of_the_url_is_fatal(self, subject: Subject) -> None:
        settled = sent(subject, subject.place.url + "-no-such", row(0), row(1))
        assert {type(error) for error in errors(settled).values()} == {Fatal}
        assert len(settled.failures) == 2

    def test_an_exchange_deleted_on_the_way_blames_nobody_and_the_next_send_says_it(
        self, subject: Subject, exchange: str
    ) -> None:
        sender = subject.sender()
        there = row(0, exchange=exchange, routing_key="in.a")
        assert not subject.send(there, sender=sender).failures
        with raw(subject) as own:
            own.exchange_delete(exchange)
        first = subject.send(there, row(1), sender=sender)
        assert {type(error) for error in errors(first).values()} == {Ambiguous}
        again = subject.send(there, row(2), sender=sender)
        assert {at: type(error) for at, error in errors(again).items()} == {0: Permanent}
        assert subject.values()[b"2"] == 1

    @pytest.mark.parametrize(
        "message",
        [
            row(1, exchange="e", routing_key="k" * 256),
            row(1, exchange="x" * 256, routing_key="k"),
            Message(value=b"1", destination="q", extra={"exchange": "e"}),
            Message(value=b"1", destination="\ud800"),
            Message(value=b"1", headers=(("CC", b"somebody"),)),
            Message(value=b"1", headers=(("x-death", b"mine"),)),
            Message(value=b"1", headers=(("h", bytes(100_000)),)),
            Message(value=b"1", headers=tuple((f"{at:05}", b"") for at in range(13_000))),
            Message(value=b"1", timestamp_ms=-1),
            Message(value=b"1", id="\ud800"),
        ],
        ids=lambda message: str(message)[:60],
    )
    def test_what_amqp_cannot_carry_is_refused_alone_before_it_is_sent(
        self, subject: Subject, message: Message
    ) -> None:
        sender = subject.sender()
        settled = subject.send(row(0), message, row(2), sender=sender)
        subject.refused(settled, 1)
        assert subject.values() == Counter([b"0", b"2"])

    def test_each_of_many_unroutable_rows_is_told_and_no_other(self, subject: Subject) -> None:
        rows = [
            Message(value=b"%d" % (at // 7), id=str(at // 3), destination="nowhere" if at % 5 == 0 else None)
            for at in range(500)
        ]
        settled = subject.send(*rows)
        assert set(errors(settled)) == set(range(0, 500, 5))


class TestRefusing(Statements):
    """Rows that the broker refuses after reading them."""

    broker = "rabbitmq"

    def test_a_full_queue_is_retriable_and_holds_what_was_confirmed(self, subject: Subject) -> None:
        name = subject.place.destination("full")
        with raw(subject) as own:
            own.queue_delete(name)
            own.queue_declare(name, durable=True, arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        settled = subject.send(*(Message(value=b"%d" % at, destination=name) for at in range(20)))
        failed = errors(settled)
        assert failed
        assert {(type(error), error.code) for error in failed.values()} == {(Retriable, Code.REJECTED)}
        assert subject.values(name) == Counter(b"%d" % at for at in range(20) if at not in failed)

    def test_a_nack_of_several_queues_is_ambiguous(self, subject: Subject) -> None:
        name = subject.place.destination("full")
        with raw(subject) as own:
            own.queue_delete(name)
            own.queue_declare(name, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
            own.exchange_declare(name, "fanout")
            own.queue_bind(name, name)
            own.queue_bind(subject.place.queue, name)  # type: ignore[attr-defined]
            settled = subject.send(*(row(at, exchange=name) for at in range(10)))
            own.exchange_delete(name)
        assert {(type(error), error.code) for error in errors(settled).values()} == {(Ambiguous, Code.REJECTED)}
        assert subject.values().total() == 10

    def test_a_body_over_the_brokers_own_limit_is_blamed_exactly(self, subject: Subject) -> None:
        """Ours is set too high here. What came before may be stored; what came behind was not read."""
        _set_message_size(subject, 1000)
        try:
            sender = subject.sender()
            settled = subject.send(row(0), Message(value=bytes(2000)), row(2), sender=sender)
            failed = errors(settled)
            assert (type(failed[1]), failed[1].code) == (Permanent, Code.TOO_LARGE)
            assert type(failed[2]) is Retriable
            assert type(failed.get(0, Ambiguous(""))) is Ambiguous
            assert all("max_message_size" in str(each) for each in failed.values())
            assert not subject.send(row(3), sender=sender).failures
        finally:
            _set_message_size(subject, 16 << 20)
        found = subject.values()
        assert found[b"2"] == 0
        assert found[b"3"] == 1
        assert found[b"0"] or 0 in failed

    def test_a_refused_permission_says_which_and_leaves_neighbours_unblamed(self, subject: Subject) -> None:
        """A newer broker refuses already the question whether the exchange exists, and so no neighbour is harmed."""
        user = "may-only-publish-to-the-default-exchange"
        operate(subject, "add_user", user, "pw")
        try:
            operate(subject, "set_permissions", user, "^$", "^amq.default$", "^$")
            options = {"rabbitmq.username": user, "rabbitmq.password": "pw"}
            sender = subject.keep(subject.connect(options=options).sender())
            assert not subject.send(row(0), sender=sender).failures
            settled = subject.send(row(1, exchange="amq.fanout"), row(2), sender=sender)
            failed = errors(settled)
            assert type(failed[0]) is Permanent
            assert "amq.fanout" in str(failed[0])
            assert type(failed.pop(1, Retriable(""))) is Retriable
            assert set(failed) == {0}
            url = subject.place.url.partition("?")[0] + "?exchange=amq.fanout"
            with pytest.raises(Fatal, match="fanout") as caught, subject.connect(url, options).sender() as other:
                raise errors(subject.send(row(3), sender=other))[0]
            assert caught.value.code is Code.NOT_AUTHORIZED
        finally:
            operate(subject, "delete_user", user)
        assert subject.values() in (Counter([b"0"]), Counter([b"0", b"2"]))


class TestLosing(Statements):
    """Connections that end, and a broker that takes no more."""

    broker = "rabbitmq"

    def test_a_closed_connection_makes_ambiguous_what_was_in_flight_and_nothing_is_lost(self, subject: Subject) -> None:
        sender = subject.sender()
        batches = [subject.batch([Message(value=b"%d %d" % (at, n)) for n in range(2_000)]) for at in range(5)]
        for batch in batches:
            sender.send(batch, deadline=subject.deadline(30))
        operate(subject, "close_all_connections", "by the operator")
        told = {each.batch: each for each in subject_settled(subject, sender, batches)}
        found = subject.values()
        for batch in batches:
            failed = errors(told[batch.number])
            assert {type(error) for error in failed.values()} <= {Ambiguous, Retriable}
            for at, message in enumerate(batch.rows()):
                error = failed.get(at)
                assert found[message.value] == 1 or error is not None, "confirmed, but not there"
                assert found[message.value] == 0 or type(error) is not Retriable, "said not to be stored, but there"
        assert not subject.send(row(1), sender=sender).failures, "it did not connect again"

    def test_a_connection_closed_while_idle_costs_no_row(self, subject: Subject) -> None:
        sender = subject.sender()
        assert not subject.send(row(0), sender=sender).failures
        operate(subject, "close_all_connections", "by the operator")
        time.sleep(0.2)
        sender.collect(0)
        assert not subject.send(row(1), sender=sender).failures
        assert subject.values() == Counter([b"0", b"1"])

    def test_an_idle_sender_answers_heartbeats(self, subject: Subject) -> None:
        sender = subject.keep(subject.connect(options={"rabbitmq.heartbeat": "1"}).sender())
        assert not subject.send(row(0), sender=sender).failures
        stream = sender._publisher  # type: ignore[attr-defined]
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert not sender.collect(0)
            time.sleep(0.5)
        assert not subject.send(row(1), sender=sender).failures
        assert sender._publisher is stream, "the connection was lost"  # type: ignore[attr-defined]

    def test_an_alarm_makes_the_write_wait_and_fail_clearly_and_closing_does_not_hang(self, subject: Subject) -> None:
        sender = subject.sender()
        operate(subject, "set_vm_memory_high_watermark", "0.00001")
        try:
            batches = [subject.batch([Message(value=bytes(1000))] * 3_000) for _ in range(2)]
            told = []
            for batch in batches:
                deadline = subject.deadline(2)
                settled = subject.settle(sender, batch, deadline=deadline)[batch.number]
                assert deadline - 1 < time.monotonic() < deadline + 1
                told.append(settled)
            began = time.monotonic()
            sender.close()
            assert time.monotonic() - began < 5
        finally:
            operate(subject, "set_vm_memory_high_watermark", "0.4")
        first, second = ({type(error) for error in errors(each).values()} or {type(each.error)} for each in told)
        assert first <= {Ambiguous, Retriable}
        assert second == {Retriable}, "nothing is written to a connection that is known to be blocked"
        texts = [str(error) for error in errors(told[1]).values()]
        assert "alarm" in texts[0]
        sure = sum(type(error) is Retriable for each in told for error in errors(each).values())
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert subject.values().total() <= 6_000 - sure, "said not to be stored, but there"
        subject.deliver(row(1))

    def test_a_broker_that_does_not_say_whether_an_exchange_is_there_makes_rows_retriable(
        self, subject: Subject
    ) -> None:
        sender = subject.sender()
        assert not subject.send(row(0), sender=sender).failures
        batch = subject.batch([row(1, exchange="amq.fanout")])
        with subject.runtime.outage(), pytest.raises(Retriable, match=r"amq\.fanout"):
            sender.send(batch, deadline=subject.deadline(1))
        assert not subject.send(row(2), sender=sender).failures

    def test_a_sender_from_before_a_fork_leaves_the_parents_confirms_alone(self, subject: Subject) -> None:
        sender = subject.sender()
        batch = subject.batch([row(0)])
        sender.send(batch, deadline=subject.deadline(20))

        def child() -> None:
            with pytest.raises(Fatal, match="process"):
                sender.collect(1)

        assert in_a_fork(subject, child) == 0
        (settled,) = subject_settled(subject, sender, [batch])
        assert not errors(settled)

    def test_a_deadline_tells_what_was_not_confirmed_and_the_sender_goes_on(self, subject: Subject) -> None:
        sender = subject.sender()
        with subject.runtime.outage():
            batch = subject.batch([row(0), row(1)])
            settled = subject.settle(sender, batch, deadline=subject.deadline(1))[batch.number]
        assert {type(error) for error in errors(settled).values()} == {Ambiguous}
        assert not subject.send(row(2), sender=sender).failures
        assert subject.values() == Counter([b"0", b"1", b"2"])


def _set_message_size(subject: Subject, size: int) -> None:
    """A newer broker keeps its setting in a second place."""
    change = f"application:set_env(rabbit, max_message_size, {size}), persistent_term:put(max_message_size, {size})."
    operate(subject, "eval", change)


def subject_settled(subject: Subject, sender: Any, batches: list[Batch]) -> list[Settled]:
    told: list[Settled] = []
    end = subject.deadline(30)
    while len(told) < len(batches) and time.monotonic() < end:
        told += sender.collect(1)
    return told
