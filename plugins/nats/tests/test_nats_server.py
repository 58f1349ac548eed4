"""What only a real server shows: advisories as letters, late acknowledgements, logins, limits, kill -9."""

import gc
import json
import socket
import ssl
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from redelivery.contract.broker import Accept, Broker, Received, Retry, Terminate
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Ambiguous, BrokerError, Fatal, LeaseLost, Permanent, Retriable
from redelivery.kit.errors import Code
from redelivery_nats.address import Address
from redelivery_nats.admin import NatsAdmin
from redelivery_nats.broker import connect
from redelivery_nats.client import nats_private
from redelivery_nats.client.connection import Connection, payload_of
from redelivery_nats.client.nats_private import Client, Nkey
from redelivery_nats.errors import ApiError
from redelivery_nats.receiver import NatsReceiver, delivery
from redelivery_nats.testing import HOST, NatsPlace, NatsRuntime, start_server

SEED = "SUAGMJH5XLGZKQQWAWKRZJIGMOU4HPFUYLXJMXOO5NLFEO2OOQJ5LPRDPM"
ADVISORY = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsRuntime]:
    with closing(start_server(tmp_path_factory.mktemp("nats"))) as found:
        yield found


@pytest.fixture
def place(runtime: NatsRuntime) -> Iterator[NatsPlace]:
    with runtime.place() as found:
        yield found


class Text(str):
    """A text of which a test can tell whether anything holds it."""

    __slots__ = ("__weakref__",)


def opened(place: NatsPlace, **options: str) -> Broker:
    given = {name.removeprefix("nats."): value for name, value in place.options.items()}
    return connect(place.url, {**given, **options})


def deliver(broker: Broker, *messages: Message) -> list[BrokerError | None]:
    """Send; return each row's error."""
    with broker.sender() as sender:
        deadline = time.monotonic() + 20
        sender.send(Batch.of(list(messages)), deadline=deadline)
        settled: list[Any] = []
        while not settled:
            settled += sender.collect(5)
    failed = {each.index: each.error for each in settled[0].failures}
    return [failed.get(at, settled[0].error) for at in range(len(messages))]


def received(broker: Broker, count: int = 1) -> tuple[Any, list[Received]]:
    receiver = broker.receiver()
    found: list[Received] = []
    until = time.monotonic() + 20
    while len(found) < count and time.monotonic() < until:
        found += receiver.receive(count - len(found), wait=1)
    return receiver, found


def give_up(place: NatsPlace, broker: Broker) -> None:
    """Have the server give the one message of the place up."""
    place.limiting(1)
    receiver, (message,) = received(broker)
    with receiver:
        assert receiver.settle([(message, Retry())]) == [None]
        until = time.monotonic() + 20
        while not place.stored(place.letters) and time.monotonic() < until:
            assert not receiver.receive(1, wait=0.2)


class TestAdvisories:
    def test_one_is_shown_as_its_message_and_removed_with_it(self, place: NatsPlace) -> None:
        broker = opened(place)
        deliver(broker, Message(value=b"v", key=b"k", id="i", headers=(("h", b"1"),)))
        give_up(place, broker)
        with broker.dead_letters() as letters, broker.admin() as admin:
            (letter,) = letters.browse()
            assert letter.message == Message(value=b"v", key=b"k", id="i", headers=(("h", b"1"),))
            assert letter.context is not None
            assert (letter.context.kind, letter.context.code) == ("delivery-limit", Code.DELIVERY_LIMIT)
            assert (letter.context.attempts, letter.context.subscriber) == (1, "redelivery")
            assert any("wait for nobody" in each for each in admin.plan(DeliverySpec()).warnings)
            assert letters.remove([letter.position]) == 1
            assert admin.depth() == 0, "else it would wait in its stream forever"
            assert not list(letters.browse())

    def test_purging_takes_their_messages_too_and_no_others(self, place: NatsPlace) -> None:
        broker = opened(place)
        deliver(broker, Message(value=b"dead"))
        give_up(place, broker)
        deliver(broker, Message(value=b"waiting"))
        with broker.dead_letters() as letters:
            assert letters.purge() == 1
        assert [each.value for each in place.stored()] == [b"waiting"]

    @pytest.mark.parametrize("kind", ["another-stream", "no-json", "gone", "no-number", "younger", "another-consumer"])
    def test_one_that_points_nowhere_is_unresolved_and_harms_nothing(self, place: NatsPlace, kind: str) -> None:
        """Anyone who may publish there may have written it."""
        broker = opened(place)
        told: dict[str, Any] = {
            "type": "io.nats.jetstream.advisory.v1.max_deliver",
            "stream": "payroll" if kind == "another-stream" else place.stream,
            "consumer": "\ud800" if kind == "another-consumer" else "redelivery",
            "stream_seq": {"gone": 99, "no-number": "1"}.get(kind, 1),
            "deliveries": 3,
        }
        if kind != "younger":
            deliver(broker, Message(value=b"secret"))
        data = b"{oops" if kind == "no-json" else json.dumps(told).encode()
        place.independent.publish(f"{ADVISORY}.{place.stream}.redelivery", data, b"NATS/1.0\r\n\r\n")
        if kind == "younger":
            deliver(broker, Message(value=b"secret"))
        with broker.dead_letters() as letters:
            (letter,) = letters.browse()
            assert letter.message.value == data
            assert letter.context is not None
            assert letter.context.kind == "unresolved"
            assert letters.remove([letter.position]) == 1
        assert [each.value for each in place.stored()] == [b"secret"]

    def test_a_stream_that_keeps_its_messages_keeps_the_one_that_died(self, place: NatsPlace) -> None:
        place.independent.remove(place.stream)
        place.independent.make(place.stream)
        broker = opened(place)
        with broker.admin() as admin:
            admin.provision(DeliverySpec())
            assert any("keeps what was handled" in each for each in admin.plan(DeliverySpec()).warnings)
        deliver(broker, Message(value=b"v"))
        give_up(place, broker)
        with broker.dead_letters() as letters:
            (letter,) = letters.browse()
            letters.remove([letter.position])
        assert [each.value for each in place.stored()] == [b"v"]


class TestLetters:
    def test_letters_that_the_stream_keeps_are_not_reported_as_removed(self, place: NatsPlace) -> None:
        """Else each redrive would send them again."""
        place.independent.remove(place.letters)
        place.independent.make(place.letters, deny_delete=True)
        letters_at = connect(opened(place).native_sink(), {})
        deliver(letters_at, Message(value=b"v"))
        with letters_at.dead_letters() as letters:
            (letter,) = letters.browse()
            with pytest.raises(BrokerError, match="not permitted"):
                letters.remove([letter.position])

    def test_an_advisory_stays_where_its_message_cannot_be_removed(self, tmp_path: Path) -> None:
        allowed = 'publish: {deny: ["$JS.API.STREAM.INFO.orders"]}'
        users = f"{{user: tests, password: tests}}, {{user: l, password: l, permissions: {{{allowed}}}}}"
        configuration = f"authorization {{ users: [{users}] }}"
        login = {"user": "tests", "password": "tests"}
        with closing(start_server(tmp_path, configuration, **login)) as runtime:
            broker = connect(runtime.url("orders"), login)
            with broker.admin() as admin:
                admin.provision(DeliverySpec())
            deliver(broker, Message(value=b"v"))
            told = {"type": "io.nats.jetstream.advisory.v1.max_deliver", "stream": "orders", "consumer": "redelivery"}
            data = json.dumps({**told, "stream_seq": 1, "deliveries": 3}).encode()
            runtime.independent.publish(f"{ADVISORY}.orders.redelivery", data, b"NATS/1.0\r\n\r\n")
            with connect(runtime.url("orders"), {"user": "l", "password": "l"}).dead_letters() as letters:
                (letter,) = letters.browse()
                with pytest.raises(Fatal, match=r"STREAM.INFO.orders"):
                    letters.remove([letter.position])
                assert len(list(letters.browse())) == 1

    def test_positions_and_cursors_of_a_stream_that_was_created_again_name_nothing(self, place: NatsPlace) -> None:
        broker = opened(place)
        letters_at = connect(broker.native_sink(), {})
        deliver(letters_at, Message(value=b"old"))
        with broker.dead_letters() as letters:
            (old,) = letters.browse()
            cursor = letters.cursor()
            place.independent.remove(place.letters)
            with broker.admin() as admin:
                admin.provision(DeliverySpec())
            deliver(letters_at, Message(value=b"new"))
            assert letters.remove([old.position]) == 0
            with pytest.raises(Fatal) as caught:
                letters.cursor(after=cursor)
            assert caught.value.code is Code.CONFLICT
            assert [each.message.value for each in letters.browse()] == [b"new"]

    def test_a_long_gap_is_jumped_over(self, place: NatsPlace) -> None:
        letters_at = connect(opened(place).native_sink(), {})
        deliver(letters_at, *(Message(value=b"%d" % at) for at in range(1500)))
        with letters_at.dead_letters() as letters:
            every = [each.position for each in letters.browse()]
            assert letters.remove(every[1:-1]) == 1498
            assert [each.message.value for each in letters.browse()] == [b"0", b"1499"]
            assert letters.cursor(after=letters.cursor(most=1), most=1) == every[-1]

    def test_large_letters_are_read_and_removed_without_being_cut_off(self, place: NatsPlace) -> None:
        """A server closes the connection of a client that it holds 64 MiB for."""
        letters_at = connect(opened(place).native_sink(), {})
        large = Message(value=bytes(1_000_000))
        assert deliver(letters_at, *[large] * 300) == [None] * 300
        with letters_at.dead_letters() as letters:
            positions = [each.position for each in letters.browse()]
            assert len(positions) == 300
            assert letters.remove(positions) == 300

    def test_two_letters_of_one_id_are_both_kept(self, place: NatsPlace) -> None:
        letters_at = connect(opened(place).native_sink(), {})
        assert deliver(letters_at, Message(value=b"a", id="i"), Message(value=b"b", id="i")) == [None, None]
        assert [each.value for each in place.stored(place.letters)] == [b"a", b"b"]


class TestLeases:
    def test_the_servers_word_on_a_late_acknowledgement_is_not_believed(self, place: NatsPlace) -> None:
        """It takes one, and confirms it, while another receiver has the message."""
        broker = opened(place)
        deliver(broker, Message(value=b"v"))
        first, (early,) = received(broker)
        second, (late,) = received(broker)  # waits until the lease has run out
        with first, second:
            assert late.attempt == 2
            assert isinstance(first.settle([(early, Accept())])[0], LeaseLost)
            assert len(place.stored()) == 1
            assert second.settle([(late, Accept())]) == [None]
            assert not place.stored()

    def test_a_lease_is_as_long_as_the_consumer_says_and_is_counted_from_the_request(self, place: NatsPlace) -> None:
        broker = opened(place)
        deliver(broker, Message(value=b"v"))
        asked = time.monotonic()
        with broker.receiver(lease=timedelta(hours=1)) as receiver:
            (message,) = receiver.receive(1, wait=1)
            assert message.expires is not None
            assert asked < message.expires < time.monotonic() + 1.0

    def test_a_lease_that_an_operator_changes_is_noticed(self, place: NatsPlace) -> None:
        """A lease that is longer here than on the server would be handled beside another receiver."""
        broker = opened(place)
        with broker.receiver() as receiver:
            assert not receiver.receive(1, wait=0)
            place.independent.configure_consumer(place.stream, "redelivery", ack_wait=0.5)
            assert not receiver.receive(1, wait=0.6)
            deliver(broker, Message(value=b"v"))
            asked = time.monotonic()
            (message,) = receiver.receive(1, wait=1)
            assert message.expires is not None
            assert asked < message.expires < time.monotonic() + 0.5
            place.independent.configure_consumer(place.stream, "redelivery", ack_wait=0.3)
            while time.monotonic() < message.expires - 0.1:
                (extended,) = receiver.extend([message], 0.5)
                assert isinstance(extended, Received)
                message = extended
                if (message.expires or 0) - time.monotonic() <= 0.3:
                    break
            else:
                raise AssertionError("the leases stay as long as they were")

    def test_a_message_terminated_twice_is_one_letter(self, place: NatsPlace) -> None:
        broker = opened(place)
        deliver(broker, Message(value=b"v", id="i"))
        receiver, (message,) = received(broker)
        letter = Terminate(Message(value=b"v", id="i"))
        with receiver:
            assert receiver.settle([(message, letter)]) == [None]
            again = replace(message, lease=type(message.lease)(time.monotonic() + 5, message.lease.reply, 1))
            assert receiver.settle([(again, letter)]) == [None]
        assert len(place.stored(place.letters)) == 1

    @pytest.mark.parametrize("change", ["deleted", "push", "no bodies", "small batches"])
    def test_a_consumer_that_cannot_be_pulled_from_is_an_error(self, place: NatsPlace, change: str) -> None:
        """One that leaves the bodies out would have letters without them, and the messages removed."""
        more = {
            "push": {"deliver_subject": "there"},
            "no bodies": {"headers_only": True},
            "small batches": {"max_batch": 2},
        }

        async def break_it(client: Any, jetstream: Any) -> None:
            await jetstream.delete_consumer(place.stream, "redelivery")
            if change in more:
                config = {"durable_name": "redelivery", "ack_policy": "explicit", **more[change]}
                asked = json.dumps({"stream_name": place.stream, "config": config}).encode()
                await client.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{place.stream}.redelivery", asked)

        place.independent.run(break_it)
        with opened(place).receiver() as receiver, pytest.raises(Fatal) as caught:
            receiver.receive(3, wait=1)
        assert caught.value.code is (Code.MISCONFIGURED if change in more else Code.NO_SUCH_DESTINATION)

    def test_a_letter_that_another_stream_takes_is_no_letter(self, place: NatsPlace) -> None:
        """Nobody would find it, and the message would be removed."""
        broker = opened(place)
        deliver(broker, Message(value=b"v"))
        receiver, (message,) = received(broker)
        place.independent.remove(place.letters)
        place.independent.make(f"{place.stream}-archive", subjects=[place.letters])
        with receiver:
            (error,) = receiver.settle([(message, Terminate(Message(value=b"v")))])
        place.independent.remove(f"{place.stream}-archive")
        assert isinstance(error, Fatal)
        assert error.code is Code.MISCONFIGURED
        assert len(place.stored()) == 1

    def test_a_consumer_that_is_deleted_under_a_receiver_is_an_error(self, place: NatsPlace) -> None:
        async def delete(_: Any, jetstream: Any) -> None:
            await jetstream.delete_consumer(place.stream, "redelivery")

        with opened(place).receiver() as receiver:
            assert not receiver.receive(1, wait=0)
            place.independent.run(delete)
            with suppress(Retriable, Fatal):  # 2.9 does not answer, so the next call finds out
                receiver.receive(1, wait=0)
            with pytest.raises(Fatal) as caught:
                receiver.receive(1, wait=0)
        assert caught.value.code is Code.NO_SUCH_DESTINATION

    def test_a_consumer_that_exists_and_does_not_answer_is_waited_for(
        self, place: NatsPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As while its leader moves: the API knows it, and nobody listens."""

        async def delete(_: Any, jetstream: Any) -> None:
            await jetstream.delete_consumer(place.stream, "redelivery")

        config = {"ack_policy": "explicit", "ack_wait": 1_000_000_000}
        monkeypatch.setattr(NatsReceiver, "_api", lambda *_: {"config": config})
        place.independent.run(delete)
        with opened(place).receiver() as receiver, pytest.raises(Retriable) as caught:
            receiver.receive(1, wait=0)
        assert caught.value.code in {Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED}  # 2.9 does not answer

    def test_a_letter_that_the_server_finds_too_large_fails_alone(self, tmp_path: Path) -> None:
        """The server closes the connection at such a message, and no other letter would be stored, ever."""
        with closing(start_server(tmp_path, "max_payload: 4096")) as runtime, runtime.place() as place:
            broker = opened(place)
            deliver(broker, Message(value=b"a"), Message(value=b"b"))
            receiver, messages = received(broker, 2)
            letters = [Terminate(Message(value=bytes(5000))), Terminate(Message(value=b"b"))]
            with receiver:
                error, other = receiver.settle(list(zip(messages, letters, strict=True)))
            assert isinstance(error, Permanent)
            assert error.code is Code.TOO_LARGE
            assert other is None
            assert [each.value for each in place.stored(place.letters)] == [b"b"]

    @pytest.mark.parametrize("told", ["it exists", "nothing", "none"])
    def test_a_letter_waits_for_a_stream_that_exists_and_does_not_answer(
        self, place: NatsPlace, monkeypatch: pytest.MonkeyPatch, told: str
    ) -> None:
        """As while its leader moves; the servers' own leader may move too, and then they tell nothing."""
        broker = opened(place)
        deliver(broker, Message(value=b"v"))
        receiver, (message,) = received(broker)
        place.independent.remove(place.letters)
        answer = {"it exists": {"streams": [place.letters]}, "nothing": Retriable("later", code=Code.UNAVAILABLE)}
        if told in answer:
            monkeypatch.setattr(NatsReceiver, "_api_all", lambda *_, **__: [answer[told]])
        with receiver:
            (error,) = receiver.settle([(message, Terminate(Message(value=b"v")))])
        assert isinstance(error, Fatal if told == "none" else Retriable)
        assert error.code is (Code.NO_SUCH_DESTINATION if told == "none" else Code.UNAVAILABLE)
        assert [each.value for each in place.stored()] == [b"v"]

    @pytest.mark.parametrize(
        "reply",
        [
            "$JS.ACK.orders.7.2.41.5.1700000000.0",
            "$JS.ACK.hub.acct.orders.7.2.41.5.1700000000.0",
            "$JS.ACK._.acct.orders.7.2.41.5.1700000000.0.rand",
            "$JS.ACK._.acct.orders.7.2.41.5.1700000000.0.rand.later",
        ],
    )
    def test_each_form_of_an_acknowledgements_subject_is_read(self, reply: str) -> None:
        """ADR-15 of NATS: a domain and an account may stand in front, and tokens may follow."""
        assert delivery(reply) == (2, 41, "1700000000")


class TestSending:
    def test_one_row_that_the_server_finds_too_large_fails_alone(self, tmp_path: Path) -> None:
        """The server closes the connection at such a message, and every row in flight would be in doubt."""
        with closing(start_server(tmp_path, "max_payload: 4096")) as runtime, runtime.place() as place:
            errors = deliver(opened(place), Message(value=b"a"), Message(value=bytes(5000)), Message(value=b"b"))
            assert [errors[0], errors[2]] == [None, None]
            assert isinstance(errors[1], Permanent)
            assert errors[1].code is Code.TOO_LARGE

    def test_one_id_under_two_subjects_is_two_messages(self, place: NatsPlace) -> None:
        """A stream recognises an id under whatever subject it comes."""
        place.independent.configure_stream(place.stream, subjects=[place.stream, f"{place.stream}.*"])
        rows = [Message(value=b"v", id="i", destination=to) for to in (None, f"{place.stream}.a", f"{place.stream}.b")]
        assert deliver(opened(place), *rows, *rows) == [None] * 6
        assert [(each.message.destination, each.message.id) for each in received(opened(place), 3)[1]] == [
            (None, "i"),
            (f"{place.stream}.a", "i"),
            (f"{place.stream}.b", "i"),
        ]
        assert len(place.stored()) == 3

    def test_a_full_stream_is_retriable_and_loses_nothing(self, place: NatsPlace) -> None:
        place.independent.configure_stream(place.stream, max_msgs=2)
        errors = deliver(opened(place), *(Message(value=b"%d" % at) for at in range(4)))
        assert errors[:2] == [None, None]
        assert all(isinstance(each, Retriable) and each.code is Code.FULL for each in errors[2:])
        assert len(place.stored()) == 2

    def test_a_subject_of_another_stream_is_noticed_before_a_row_is_sent(self, place: NatsPlace) -> None:
        other = place.destination("other")
        broker = connect(f"{place.url}?subject={other}", {})
        with broker.sender() as sender, pytest.raises(Fatal) as caught:
            sender.check(deadline=time.monotonic() + 5)
        assert caught.value.code is Code.MISCONFIGURED
        assert not place.stored(other)

    @pytest.mark.parametrize("told", ["it exists", "nothing", "none"])
    @pytest.mark.parametrize("own", [True, False])
    def test_a_row_waits_for_a_stream_that_exists_and_does_not_answer(
        self, place: NatsPlace, monkeypatch: pytest.MonkeyPatch, told: str, *, own: bool
    ) -> None:
        def look(_: object) -> dict[str, Any]:
            if told == "nothing":
                raise ApiError(
                    {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}
                )
            return {"streams": [place.stream]}

        if told != "none":
            monkeypatch.setattr("redelivery_nats.sender.answered", look)
        if own:
            place.independent.remove(place.stream)
        (error,) = deliver(opened(place), Message(value=b"v", destination=None if own else f"{place.stream}-nowhere"))
        assert isinstance(error, Retriable if told != "none" else Fatal if own else Permanent)
        assert error.code is (Code.NO_SUCH_DESTINATION if told == "none" else Code.UNAVAILABLE)

    def test_checking_stores_nothing(self, place: NatsPlace) -> None:
        with opened(place).sender() as sender:
            sender.check(deadline=time.monotonic() + 5)
        assert not place.stored()

    def test_a_row_is_no_command_to_the_server(self, place: NatsPlace) -> None:
        command = Message(value=b"", destination=f"$JS.API.STREAM.DELETE.{place.stream}")
        (error,) = deliver(opened(place), command)
        assert isinstance(error, Permanent)
        assert error.code is Code.INVALID_DESTINATION
        assert deliver(opened(place), Message(value=b"v")) == [None]

    def test_a_frozen_server_is_given_up_though_it_reads_nothing_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """nats-py would wait until the rest is written, and nobody would open another connection."""
        monkeypatch.setattr("redelivery_nats.client.connection._PING", 0.3)
        with closing(start_server(tmp_path)) as runtime, runtime.place() as place, opened(place).sender() as sender:
            sender.check(deadline=time.monotonic() + 5)
            assert runtime.process is not None
            with runtime.process.paused():
                began = time.monotonic()
                sender.send(Batch.of([Message(value=bytes(500_000))] * 40), deadline=began + 60)
                settled: list[Any] = []
                while not settled and time.monotonic() < began + 20:
                    settled += sender.collect(1)
                assert {each.error.code for each in settled[0].failures} == {Code.CONNECTION_LOST}

    def test_rows_that_nobody_answers_are_kept_no_longer_than_to_their_deadline(self, place: NatsPlace) -> None:
        """A subscriber of plain NATS may never reply, and answers are lost with a server of a cluster."""

        async def nothing(_: Any) -> None: ...

        async def listen(client: Any, _: Any) -> None:
            await client.subscribe("silent", cb=nothing)
            await client.flush()

        place.independent.run(listen)
        with opened(place).sender() as sender:
            id_ = Text("i")
            kept = weakref.ref(id_)
            rows = [Message(value=b"v", destination="silent", id=id_), Message(value=b"v")]
            sender.send(Batch.of(rows), deadline=time.monotonic() + 1)
            del id_, rows
            while not (settled := sender.collect(2)):
                pass
            assert [(each.index, type(each.error)) for each in settled[0].failures] == [(0, Ambiguous)]
            gc.collect()
            assert kept() is None

    @pytest.mark.parametrize("answer", [b"OK", b'{"error":"no"}', b'{"seq": 1}', b"[]", b'{"stream":1,"seq":"x"}'])
    def test_what_no_stream_says_confirms_nothing_and_harms_one_row(self, place: NatsPlace, answer: bytes) -> None:
        """An application may listen on a row's own subject."""

        async def listen(client: Any, _: Any) -> None:
            async def say(message: Any) -> None:
                await client.publish(message.reply, answer)

            await client.subscribe(f"{place.stream}-service", cb=say)
            await client.flush()

        place.independent.run(listen)
        rows = [Message(value=b"v", destination=f"{place.stream}-service"), Message(value=b"v")]
        error, none = deliver(opened(place), *rows)
        assert none is None
        assert isinstance(error, Ambiguous)
        assert error.code is Code.UNCONFIRMED

    def test_what_another_writes_to_our_inbox_harms_nothing(self, place: NatsPlace) -> None:
        """nats-py would read nothing more, and nobody would be told for a minute."""
        with opened(place).admin() as admin:
            admin.depth()
            inbox = admin._connection.inbox

            async def write(client: Any, _: Any) -> None:
                for each in ("oops", "9" * 5000, "\u00b2"):
                    await client.publish(f"{inbox}{each}", b"x", headers={"h": "x"})
                await client.flush()

            place.independent.run(write)
            assert admin.depth() == 0

    def test_no_name_of_a_stream_passes_for_a_duplicate(self, place: NatsPlace) -> None:
        for name in ("duplicate", "error", "seq"):
            place.independent.make(name)
            with connect(place.runtime.url(name), {}).sender() as sender:
                sender.send(Batch.of([Message(value=b"v", id="i")] * 2), deadline=time.monotonic() + 5)
                while not (settled := sender.collect(5)):
                    pass
            place.independent.remove(name)
            assert (settled[0].failures, settled[0].duplicates) == ([], 1)

    def test_what_was_confirmed_is_there_after_kill_9(self, tmp_path: Path) -> None:
        with closing(start_server(tmp_path)) as runtime, runtime.place() as place:
            assert deliver(opened(place), *(Message(value=b"%d" % at) for at in range(500))) == [None] * 500
            with runtime.killed():
                pass
            assert len(place.stored()) == 500


class TestLogins:
    def attempt(self, runtime: NatsRuntime, **options: str) -> BrokerError | None:
        """Return the error of asking for a stream that is not there; None: it is only that."""
        with connect(runtime.url("none"), options).admin() as admin:
            try:
                admin.depth()
            except BrokerError as error:
                return None if error.code is Code.NO_SUCH_DESTINATION else error
        raise AssertionError("it is there")

    @pytest.mark.parametrize(
        ("configuration", "right", "wrong"),
        [
            (
                "users: [{user: u, password: pass1}]",
                {"user": "u", "password": "pass1"},
                {"user": "u", "password": "x1"},
            ),
            ("token: token1", {"token": "token1"}, {"token": "x1"}),
            (f"users: [{{nkey: {Nkey(SEED).public}}}]", {"nkey_secret": SEED}, {"token": "x1"}),
        ],
        ids=["password", "token", "nkey"],
    )
    def test_each_login_is_taken_and_a_wrong_one_refused(
        self, tmp_path: Path, configuration: str, right: dict[str, str], wrong: dict[str, str]
    ) -> None:
        given: dict[str, Any] = {name: value for name, value in right.items() if name != "nkey_secret"}
        if not given:
            given = {"signature_cb": Nkey(SEED).signed}
            configuration = configuration.replace("users: [", "users: [{user: tests, password: tests}, ")
            given = {"user": "tests", "password": "tests"}
        with closing(start_server(tmp_path, f"authorization {{ {configuration} }}", **given)) as runtime:
            assert self.attempt(runtime, **right) is None
            error = self.attempt(runtime, **wrong)
            assert isinstance(error, Fatal)
            assert error.code is Code.NOT_AUTHENTICATED
            assert "x1" not in str(error)

    def test_a_refused_login_is_said_although_closing_fails_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server closes at once: on a busy machine the client meets a reset when it closes its own side."""
        close = Client._close

        async def fails(client: Client, *arguments: Any, **named: Any) -> None:
            await client._error_cb(ConnectionResetError("reset"))
            await close(client, *arguments, **named)

        users = "authorization { users: [{user: tests, password: tests}] }"
        right, wrong = {"user": "tests", "password": "tests"}, {"token": "x1"}
        with closing(start_server(tmp_path, users, **right)) as runtime:
            monkeypatch.setattr(Client, "_close", fails)
            error = self.attempt(runtime, **wrong)
        assert isinstance(error, Fatal)
        assert error.code is Code.NOT_AUTHENTICATED

    def test_a_missing_permission_is_told_at_once_with_its_subject(self, tmp_path: Path) -> None:
        allowed = 'publish: {deny: ["Orders", "$JS.API.STREAM.INFO.*"]}'
        configuration = (
            f"no_auth_user: u\nauthorization {{ users: [{{user: u, password: p, permissions: {{{allowed}}}}}] }}"
        )
        with closing(start_server(tmp_path, configuration)) as runtime:
            runtime.independent.make("Orders")
            broker, began = connect(runtime.url("Orders"), {}), time.monotonic()
            with broker.sender() as sender, pytest.raises(Fatal) as caught:
                sender.check(deadline=time.monotonic() + 10)
            assert caught.value.code is Code.NOT_AUTHORIZED
            assert "Orders" in str(caught.value)
            (error,) = deliver(broker, Message(value=b"v"))
            assert isinstance(error, Fatal)
            assert error.code is Code.NOT_AUTHORIZED
            with broker.admin() as admin, pytest.raises(Fatal) as caught:
                admin.depth()
            assert "STREAM.INFO" in str(caught.value)
            assert time.monotonic() - began < 8

    @pytest.mark.parametrize("denied", ["orders.new", 'orders."quoted\\"', "orders.größe"])
    def test_a_denied_subject_is_that_one_only(self, tmp_path: Path, denied: str) -> None:
        """Subjects differ by case. nats-py makes what the server says small."""
        quoted = denied.replace("\\", "\\\\").replace('"', '\\"')
        users = f'{{user: u, password: p, permissions: {{publish: {{deny: ["{quoted}"]}}}}}}'
        with closing(start_server(tmp_path, f"no_auth_user: u\nauthorization {{ users: [{users}] }}")) as runtime:
            runtime.independent.make("orders", subjects=["orders", "orders.*"])
            rows = [Message(value=b"v", destination=to) for to in (denied, denied, denied[:8] + denied[8:].upper())]
            began = time.monotonic()
            errors = deliver(connect(runtime.url("orders"), {}), *rows * 20)
            assert time.monotonic() - began < 8
            assert [each if each is None else (type(each), each.code) for each in errors] == [
                (Permanent, Code.NOT_AUTHORIZED),
                (Permanent, Code.NOT_AUTHORIZED),
                None,
            ] * 20

    def test_a_user_who_may_have_no_answers_is_told_so(self, tmp_path: Path) -> None:
        denied = 'subscribe: {deny: ["_INBOX.>"]}'
        users = f"{{user: u, password: p, permissions: {{{denied}}}}}"
        configuration = f"no_auth_user: u\nauthorization {{ users: [{users}] }}"
        with closing(start_server(tmp_path, configuration)) as runtime:
            for _ in range(3):
                began, error = time.monotonic(), self.attempt(runtime)
                assert isinstance(error, Fatal)
                assert error.code is Code.NOT_AUTHORIZED
                assert time.monotonic() - began < 5

    def test_a_denial_that_came_before_the_request_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server denies the subscription to answers while nothing is asked yet."""
        expect = Connection.expect

        def late(connection: Connection, *args: Any) -> str:
            assert connection._client is not None
            connection.run("pinging", connection._client.flush, 5.0)
            return expect(connection, *args)

        monkeypatch.setattr(Connection, "expect", late)
        users = '{user: u, password: p, permissions: {subscribe: {deny: ["_INBOX.>"]}}}'
        configuration = f"no_auth_user: u\nauthorization {{ users: [{users}] }}"
        with closing(start_server(tmp_path, configuration)) as runtime:
            error = self.attempt(runtime)
        assert isinstance(error, Fatal)
        assert error.code is Code.NOT_AUTHORIZED

    def test_tls_is_used_where_it_is_asked_for_and_no_login_goes_without(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        paths = [tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem")]
        own = authority.issue_cert("localhost", HOST)
        authority.cert_pem.write_to_path(str(paths[0]))
        own.cert_chain_pems[0].write_to_path(str(paths[1]))
        own.private_key_pem.write_to_path(str(paths[2]))
        context = ssl.create_default_context(cafile=str(paths[0]))
        configuration = f'tls {{ cert_file: "{paths[1]}", key_file: "{paths[2]}" }}'
        with closing(start_server(tmp_path, configuration, tls=context)) as runtime:
            assert self.attempt(runtime, tls_ca=str(paths[0])) is None
            for options in ({}, {"tls": "true"}):
                error = self.attempt(runtime, **options)
                assert isinstance(error, Fatal)
                assert error.code is Code.TLS_FAILED

    def test_a_server_without_tls_gets_no_login(self, runtime: NatsRuntime) -> None:
        options = {"tls": "true", "token": "c4nary"}
        error = self.attempt(runtime, **options)
        assert isinstance(error, Fatal)
        assert error.code is Code.TLS_FAILED

    def test_the_next_host_of_a_url_is_tried(self, runtime: NatsRuntime) -> None:
        (host, port), *_ = Address.parse(runtime.url("none")).hosts
        with connect(f"nats://{HOST}:1,{host}:{port}/none", {}).admin() as admin, pytest.raises(Fatal) as caught:
            admin.depth()
        assert caught.value.code is Code.NO_SUCH_DESTINATION

    def test_a_server_that_takes_the_connection_and_says_nothing_is_passed_over(self, runtime: NatsRuntime) -> None:
        (host, port), *_ = Address.parse(runtime.url("none")).hosts
        with socket.create_server((HOST, 0)) as frozen:
            url = f"nats://{HOST}:{frozen.getsockname()[1]},{host}:{port}/none"
            for _ in range(8):  # servers are tried in any order
                with connect(url, {"connect_timeout": "0.5"}).admin() as admin, pytest.raises(Fatal) as caught:
                    admin.depth()
                assert caught.value.code is Code.NO_SUCH_DESTINATION

    def test_a_server_without_jetstream_is_told_as_such(self, tmp_path: Path) -> None:
        """And not as one that misses a stream, which `apply` could make."""
        with closing(start_server(tmp_path, "jetstream: disabled")) as runtime:
            broker = connect(runtime.url("orders"), {})
            deadline = time.monotonic() + 5
            with broker.admin() as admin, broker.sender() as sender, broker.receiver() as receiver:
                for ask in (
                    lambda: admin.plan(DeliverySpec()),
                    lambda: sender.check(deadline=deadline),
                    lambda: receiver.receive(1, wait=1),
                ):
                    with pytest.raises(Fatal) as caught:
                        ask()
                    assert caught.value.code is Code.UNSUPPORTED
            for error in deliver(broker, Message(value=b"v"), Message(value=b"v", destination="other")):
                assert isinstance(error, Fatal)
                assert error.code is Code.UNSUPPORTED


class TestPlanning:
    def test_what_would_lose_messages_is_told(self, place: NatsPlace) -> None:
        place.independent.configure_stream(place.stream, max_msgs=10, discard="old", max_age=300)
        with opened(place).admin() as admin:
            plan = admin.plan(DeliverySpec())
        assert any("sync_interval" in each for each in plan.warnings)
        assert any("older than 300 s" in each for each in plan.warnings)
        assert [str(each) for item in plan.objects for each in item.differences] == [
            "discard is 'old', not 'new, as it has limits'"
        ]

    def test_letters_that_nobody_would_keep_are_told(self, place: NatsPlace) -> None:
        """A stream with the retention `interest` confirms a letter, and keeps none without a consumer."""
        place.independent.remove(place.letters)
        place.independent.make(
            place.letters, retention="interest", subjects=[place.letters, f"{ADVISORY}.{place.stream}.*"]
        )
        with opened(place).admin() as admin:
            plan = admin.plan(DeliverySpec())
        assert [str(each) for item in plan.objects for each in item.differences] == [
            "retention is 'interest', not 'limits'"
        ]

    def test_messages_that_move_while_it_counts_are_not_taken_for_dead_ones(
        self, place: NatsPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broker = opened(place)
        deliver(broker, *(Message(value=b"%d" % at) for at in range(20)))
        receiver, messages = received(broker, 20)
        look, busy = NatsAdmin._consumer, iter([True])

        def looked(admin: NatsAdmin) -> dict[str, Any]:
            if next(busy, False):
                assert receiver.settle([(each, Accept()) for each in messages[:10]]) == [None] * 10
            found = look(admin)
            deliver(broker, *(Message(value=b"more") for _ in range(5)))
            return found

        monkeypatch.setattr(NatsAdmin, "_consumer", looked)
        with receiver, broker.admin() as admin:
            for _ in range(2):
                assert not any("wait for nobody" in each for each in admin.plan(DeliverySpec()).warnings)

    def test_a_letter_is_recognised_for_longer_than_a_lease_lasts(self, place: NatsPlace) -> None:
        """Else a message whose receiver dies before it acknowledges would have two letters."""
        broker = connect(f"{place.url}-long", {"ack_wait": "600"})
        with broker.admin() as admin:
            admin.provision(DeliverySpec())
            windows = {
                item.name: item.attributes["duplicate_window"]
                for item in admin.plan(DeliverySpec()).objects
                if item.kind == "stream"
            }
            assert not admin.plan(DeliverySpec()).drift
        assert windows == {
            f"{place.stream}-long": str(120 * 10**9),
            f"{place.stream}-long-dead-letters": str(720 * 10**9),
        }
        for name in windows:
            place.independent.remove(name)

    def test_a_spec_with_retries_sets_the_servers_own_limit_above_them(self, place: NatsPlace) -> None:
        broker = connect(f"{place.url}-more", {})
        with broker.admin() as admin:
            admin.provision(DeliverySpec(retry=3))
            assert not admin.plan(DeliverySpec(retry=3)).drift
            assert not admin.plan(DeliverySpec()).drift
            (differs,) = [each for item in admin.plan(DeliverySpec(retry=5)).objects for each in item.differences]
            assert str(differs) == "max_deliver is '14', not '16'"
        place.independent.remove(f"{place.stream}-more")
        place.independent.remove(f"{place.stream}-more-dead-letters")


def test_one_error_of_many_requests_has_a_short_traceback() -> None:
    lost = ConnectionResetError("lost")
    for _ in range(100):
        with pytest.raises(ConnectionResetError) as caught:
            payload_of(lost)
    assert len(caught.traceback) < 5


def test_each_private_name_of_the_client_exists() -> None:
    client = Client(lambda *_: None, needs_tls=False)
    assert [name for name in nats_private.NAMES if not hasattr(client, name)] == []
