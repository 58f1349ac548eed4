"""Letters in a stream: looked at without taking, and what is removed is remembered beside it."""

from __future__ import annotations

import itertools
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import pytest
from pika.spec import BasicProperties
from rabbitmq_operating import broker_version, queue_of, raw

from redelivery.codes import Code
from redelivery.contract.broker import Accept, DeadLetters, Terminate
from redelivery.contract.letters import Wanted
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import stream_reading
from redelivery_rabbitmq.client.field_tables import EncodedField
from redelivery_rabbitmq.client.stream_headers import unkept_header
from redelivery_rabbitmq.client.stream_letters import StreamDeadLetters
from redelivery_rabbitmq.client.stream_reading import Entry, StreamReading
from redelivery_rabbitmq.codec import decode
from redelivery_rabbitmq.options import settings_of
from redelivery_rabbitmq.testing import RabbitmqHarness


class TestStream(Statements):
    broker = RabbitmqHarness(dead_letters="stream", direct=True)

    @pytest.fixture
    def letters(self, subject: Subject) -> DeadLetters:
        return subject.dead_letters(direct=True)

    def test_many_look_at_the_same_time_and_hide_nothing(self, subject: Subject) -> None:
        put(subject, 500)
        with subject.connect() as broker:
            looks = [broker.dead_letters(direct=True) for _ in range(5)]
            browsing = [each.browse() for each in looks]
            found = [[next(each).message.value for _ in range(300)] for each in browsing]
            for each in looks:
                each.close()
        assert found == [[b"%d" % at for at in range(300)]] * 5

    def test_a_reader_that_was_away_too_long_goes_on(self, subject: Subject) -> None:
        """While it was away the broker has closed its connection, as it heard no heartbeat."""
        put(subject, 1_000)
        with (
            subject.connect(options={"rabbitmq.heartbeat": "1"}) as broker,
            broker.dead_letters(direct=True) as letters,
        ):
            browsing = letters.browse()
            first = next(browsing)
            time.sleep(4)
            assert [first.message.value, *(each.message.value for each in browsing)] == [
                b"%d" % n for n in range(1_000)
            ]

    def test_what_one_role_removes_another_does_not_show(self, subject: Subject, letters: DeadLetters) -> None:
        put(subject, 10)
        with subject.connect() as broker, broker.dead_letters(direct=True) as other:
            positions = [each.position for each in letters.browse()]
            assert other.remove(positions[:4]) == 4
            assert letters.remove(positions[2:6]) == 2
            assert [each.position for each in other.browse()] == positions[6:]
            assert letters.purge() == 4
            assert other.purge() == 0
            put(subject, 1)
            assert len(list(other.browse())) == 1

    def test_letters_since_a_time_are_read_without_the_older_ones(self, subject: Subject, letters: DeadLetters) -> None:
        put(subject, 20)
        time.sleep(1.5)
        since = int(time.time() * 1000)
        time.sleep(1.0)
        put(subject, 3, first=20)
        wanted = Wanted(since_ms=since)
        (split,) = letters.splits(wanted)
        found = [each.message.value for batch in letters.read(split, wanted) for each in batch.letters()]
        assert found == [b"20", b"21", b"22"]

    def test_marks_of_an_earlier_stream_are_refused(self, subject: Subject, letters: DeadLetters) -> None:
        put(subject, 5)
        letters.purge()
        with raw(subject) as channel:
            channel.queue_delete(queue_of(subject))
        with (
            subject.connect().admin() as admin,
            pytest.raises(Fatal, match=r"of an earlier .*: delete it first") as told,
        ):
            admin.provision(DeliverySpec())
        assert told.value.code is Code.CONFLICT
        with raw(subject) as channel:
            channel.queue_declare(queue_of(subject), durable=True, arguments={"x-queue-type": "stream"})
        put(subject, 1)
        with pytest.raises(Fatal, match="was made again: delete"):
            list(letters.browse())

    def test_a_stream_that_is_taken_for_a_queue_is_told_so(self, subject: Subject) -> None:
        put(subject, 1)
        end = time.monotonic() + 30  # the broker counts a stream late
        options = {"rabbitmq.dead_letters": "queue"}
        with pytest.raises(Fatal, match="add dead_letters=stream"):
            while time.monotonic() < end:
                with subject.connect(options=options) as broker, broker.dead_letters(direct=True) as letters:
                    list(letters.browse())


class TestLettersOfAnotherClient(Statements):
    broker = RabbitmqHarness(dead_letters="stream")

    @pytest.mark.parametrize("value", [{"a": 1}, [1], Decimal("1.5")], ids=["table", "array", "decimal"])
    def test_what_a_stream_would_lose_is_refused_and_stays(self, subject: Subject, value: object) -> None:
        subject.provision()
        with raw(subject) as channel:
            channel.basic_publish("", queue_of(subject), b"v", BasicProperties(headers={"odd": value}))
        taker = Taker(subject)
        received = taker.one()
        (answer,) = taker.answers((received, Terminate(received.message, "no")))
        assert isinstance(answer, Permanent)
        assert "'odd'" in str(answer)
        taker.settle(Accept(), received)

    def test_what_a_stream_keeps_is_stored(self, subject: Subject) -> None:
        subject.provision()
        headers: dict[str, object] = {"text": "t", "number": 5, "half": 0.5, "none": None}
        if broker_version(subject) >= (4, 0):
            headers["x-odd"] = {"a": [1]}
        with raw(subject) as channel:
            channel.basic_publish("", queue_of(subject), b"v", BasicProperties(headers=headers))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Terminate(received.message, "no"), received)
        (letter,) = subject.browse(direct=False)
        assert letter.message.value == b"v"
        assert set(received.message.headers) <= set(letter.message.headers)

    @pytest.mark.parametrize("value", [{"a": 1}, [1], Decimal("1.5")], ids=["table", "array", "decimal"])
    @pytest.mark.parametrize("by_row", [False, True], ids=["by the URL", "by the row"])
    def test_what_a_stream_would_lose_is_refused_by_a_sender_and_its_neighbours_are_stored(
        self, subject: Subject, value: object, *, by_row: bool
    ) -> None:
        """As of any URL: the sender asks the broker what the queue is."""
        subject.provision()
        stream = f"{queue_of(subject)}-stream"
        with raw(subject) as channel:
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
        url = replace(Address.parse(subject.place.url).at(stream), parameters={}).full_url
        rows = [Message(value=b"before"), foreign({"odd": value}), foreign({"number": 7}), Message(value=b"after")]
        try:
            if by_row:
                rows, url = [replace(each, destination=stream) for each in rows], subject.place.url
            settled = subject.send(*rows, sender=subject.keep(subject.connect(url).sender()))
            subject.refused(settled, 1)
            assert "'odd'" in str(settled.failures[0].error)
        finally:
            with raw(subject) as channel:
                channel.queue_delete(stream)

    def test_a_queue_takes_what_a_stream_would_lose(self, subject: Subject) -> None:
        settled = subject.send(foreign({"odd": {"a": [Decimal("1.5")]}}))
        assert not settled.failures

    def test_behind_an_exchange_the_row_at_which_the_broker_ends_the_connection_is_refused_alone(
        self, subject: Subject
    ) -> None:
        """Nobody can ask where an exchange leads to. The rows before and behind it are sent again."""
        exchange = f"{queue_of(subject)}-exchange"
        with raw(subject) as channel:
            channel.exchange_declare(exchange, "fanout", auto_delete=True)
            channel.queue_declare(exchange, durable=True, arguments={"x-queue-type": "stream"})
            channel.queue_bind(exchange, exchange)
        url = Address.parse(subject.place.url).through(exchange).full_url
        sender = subject.keep(subject.connect(url).sender())
        try:
            rows = [Message(value=b"before"), foreign({"odd": Decimal("1.5")}), Message(value=b"after")]
            settled = subject.send(*rows, sender=sender)
            odd = {each.index: each.error for each in settled.failures}
            assert isinstance(odd.pop(1), Permanent)
            assert all(isinstance(each, Retriable | Ambiguous) for each in odd.values())
            assert not subject.send(Message(value=b"next"), sender=sender).failures
        finally:
            with raw(subject) as channel:
                channel.queue_delete(exchange)


def foreign(headers: dict[str, object]) -> Message:
    """A message with these headers, as it was read from a queue."""
    return decode(BasicProperties(headers=headers), b"v")[0]


@pytest.mark.parametrize(
    ("headers", "unkept"),
    [
        (None, (None, None)),
        ({"a": "b", "n": 1, "f": 0.5}, (None, None)),
        ({"x-a": [{"b": 1}]}, ("x-a", None)),
        ({"a": {}}, ("a", "a")),
        ({b"x-\xff": []}, ("b'x-\\xff'", "b'x-\\xff'")),
        ({"x-a": [{"b": Decimal(1)}]}, ("x-a", "x-a")),
        ({"a": float("inf")}, ("a", "a")),
        ({"x-a": EncodedField(b"F")}, ("x-a", "x-a")),
    ],
)
def test_tables_are_kept_by_name_and_version_and_what_is_refused_by_none(
    headers: dict[object, object] | None, unkept: tuple[str | None, str | None]
) -> None:
    assert tuple(unkept_header(headers, version) for version in ((3, 13), (4, 0))) == unkept


def put(subject: Subject, count: int, *, first: int = 0) -> None:
    """Send messages with numbers as values."""
    with subject.connect() as broker, broker.sender() as sender:
        sender.send(Batch.of([Message(value=b"%d" % at) for at in range(first, first + count)]), deadline=1e12)
        (settled,) = sender.collect(20)
        assert settled.error is None
        assert not settled.failures


# --- what changes while it is looked at, without a broker ---


class FakeReading:
    """A stream to which letters are added, and of which one is removed, at each look."""

    def __init__(self, letters: StreamDeadLetters, behind: int) -> None:
        self._removed = letters._removed
        self._behind = behind
        self._high = 100

    def bounds(self) -> tuple[int, int]:
        found = self._high - self._behind
        self._behind = 0
        return 0, found

    def update(self) -> None:
        """Another process notes the newest letter, which came after the last look."""
        self._high += 1
        self._removed.offsets.add(self._high - 1, self._high)


@pytest.mark.parametrize("behind", [0, 50])
def test_a_newer_letter_that_another_process_removes_is_no_sign_of_another_stream(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    address = Address.parse("rabbitmq://localhost/?queue=orders&dead_letters=stream")
    letters = StreamDeadLetters(address, settings_of({}, address.parameters), direct=False)
    fake = FakeReading(letters, behind)
    monkeypatch.setattr(letters, "_reading", lambda *_: nullcontext(fake))
    monkeypatch.setattr(letters, "_update", fake.update)
    assert letters._bounds("reading")[0] == 0


def test_the_newest_letter_is_found_while_more_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reading, "_LAST_CHUNK", 0.0)
    reading = StreamReading(lambda: None, "letters", 1.0)  # type: ignore[arg-type, return-value]
    chunks = iter([10, 10, 5_000])
    monkeypatch.setattr(reading, "_peek", lambda where: [Entry(next(chunks), BasicProperties(), b"")])
    endless = (Entry(at, BasicProperties(), b"") for at in itertools.count(10))
    monkeypatch.setattr(reading, "entries", lambda low, high: endless)
    newest = reading.newest()
    assert newest is not None
    assert newest.offset == 5_000


class LateConnection:
    """A broker that answers a later question before it sends a consumer its first message."""

    def __init__(self, taken: deque[tuple[int, Entry]], late: float) -> None:
        self._taken = taken
        self._due = time.monotonic() + late

    def process_data_events(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.01))
        if time.monotonic() > self._due and not self._taken:
            self._taken.append((1, Entry(7, BasicProperties(), b"")))


@pytest.mark.parametrize(("late", "found"), [(0.0, [7]), (0.05, [7]), (600.0, [])])
def test_a_first_message_that_comes_behind_a_later_answer_is_seen(
    monkeypatch: pytest.MonkeyPatch, late: float, found: list[int]
) -> None:
    taken: deque[tuple[int, Entry]] = deque()
    channel = SimpleNamespace(queue_declare=lambda *_, **__: None)
    reading = StreamReading(lambda: LateConnection(taken, late), "letters", 1.0)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(stream_reading, "dropped_when_silent", lambda *_: nullcontext())
    monkeypatch.setattr(reading, "_consume", lambda *_: (channel, taken))
    monkeypatch.setattr(reading, "_end", lambda _: None)
    assert [each.offset for each in reading._peek("last")] == found
