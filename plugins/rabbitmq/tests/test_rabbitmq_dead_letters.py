"""What RabbitMQ's dead letters role tells of the broker's own letters, and how it keeps all in their order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pika
import pytest
from rabbitmq_operating import queue_of, raw

from redelivery.codes import Code
from redelivery.contract.broker import Letter
from redelivery.contract.message import Message
from redelivery.errors import ConfigurationError, Retriable
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_rabbitmq import dead_letters as role
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import broker_headers, renewal
from redelivery_rabbitmq.client.consumer import Consumer
from redelivery_rabbitmq.client.deliveries import Delivery
from redelivery_rabbitmq.options import settings_of


def positions(subject: Subject) -> list[str]:
    """Of all letters of the place's queue."""
    return [letter.position for letter in subject.browse(direct=False)]


@pytest.mark.parametrize(
    ("queue", "is_told"), [("pay-retry-eu", True), ("q-retry-8s-dead", True), ("q", True), ("q-retry-8s", False)]
)
def test_a_death_in_a_queue_of_ours_that_messages_wait_in_is_none(queue: str, is_told: bool) -> None:
    death = {"queue": queue, "reason": "expired", "count": 1}
    _, found = broker_headers.split(pika.BasicProperties(headers={"x-death": [death]}))
    context, _ = broker_headers.death_context(found, None, "url")
    assert (context is not None) is is_told


@pytest.mark.parametrize(
    ("reason", "kind", "code"),
    [
        ("expired", "expired", Code.EXPIRED),
        ("delivery_limit", "delivery-limit", Code.DELIVERY_LIMIT),
        ("rejected", "rejected", Code.REJECTED),
        ("maxlen", "full", Code.FULL),
        ("something_new", "rejected", Code.REJECTED),
    ],
)
def test_each_reason_of_the_broker_has_a_kind_and_a_code(reason: str, kind: str, code: Code) -> None:
    _, found = broker_headers.split(pika.BasicProperties(headers={"x-death": [{"queue": "q", "reason": reason}]}))
    context, _ = broker_headers.death_context(found, None, "url")
    assert context is not None
    assert (context.kind, context.code, context.native_code) == (kind, code, reason)
    assert "queue 'q'" in context.reason


def test_a_stream_that_drops_the_deaths_still_tells_the_first_one() -> None:
    """3.10 drops arrays there. In a queue such headers are what an application sent along."""
    said = (("reason", "expired"), ("queue", "q"), ("exchange", ""))
    headers = {f"x-first-death-{name}": text for name, text in said}
    properties = pika.BasicProperties(headers={**headers, "theirs": 1})
    published, found = broker_headers.split(properties, in_stream=True)
    context, dead_ms = broker_headers.death_context(found, "i", "url")
    assert context is not None
    assert (context.code, context.native_code, dead_ms) == (Code.EXPIRED, "expired", None)
    assert published.headers == {"theirs": 1}
    assert broker_headers.death_context(broker_headers.split(properties)[1], "i", "url") == (None, None)


class TestNativeLetters(Statements):
    """Messages that the broker itself dead-lettered."""

    broker = "rabbitmq"

    def test_an_expired_message_says_so_with_time_and_count(self, subject: Subject) -> None:
        subject.provision()
        before = time.time_ns() // 1_000_000
        with raw(subject) as channel:
            given = pika.BasicProperties(delivery_mode=2, message_id="id-1", expiration="20")
            channel.basic_publish("", queue_of(subject), b"v", given)
        letter = self._letter(subject)
        context = letter.context
        assert context is not None
        assert (context.kind, context.message_id, context.broker) == ("expired", "id-1", "rabbitmq")
        assert queue_of(subject) in context.reason
        assert letter.dead_lettered_ms is not None
        assert before - 2_000 <= letter.dead_lettered_ms <= before + 60_000
        assert (context.extra["x-death-count"], context.extra["x-death-original-expiration"]) == ("1", "20")
        assert letter.message == Message(value=b"v", id="id-1"), "headers that the broker adds are not part of it"

    def test_a_rejected_message_says_so(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        with raw(subject) as channel:
            method, _, _ = channel.basic_get(queue_of(subject))
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)
        context = self._letter(subject).context
        assert context is not None
        assert context.kind == "rejected"

    def test_a_message_sent_back_with_its_old_deaths_is_counted_anew_by_the_newest(self, subject: Subject) -> None:
        """3.10 continues the counts that a client sends along, one entry per queue and reason; we send none along."""
        subject.provision()
        for count in (1, 2):
            with raw(subject) as channel:
                properties = pika.BasicProperties(delivery_mode=2, expiration="10")
                channel.basic_publish("", queue_of(subject), b"%d" % count, properties)
            letter = self._letter(subject)
            assert letter.context is not None
            assert letter.context.extra["x-death-count"] == "1"
            with subject.broker.dead_letters() as letters:
                letters.purge()

    @staticmethod
    def _letter(subject: Subject) -> Letter:
        end = time.monotonic() + subject.place.patience
        while not (found := subject.browse(direct=False)):
            assert time.monotonic() < end, "no letter came"
        (letter,) = found
        return letter


class TestKeepingOrder(Statements):
    """AMQP looks by taking: all goes back to where it was."""

    broker = "rabbitmq"

    def test_hundreds_of_letters_keep_their_order_however_they_are_looked_at(self, subject: Subject) -> None:
        """In more pages than a quorum queue gives back in order by itself."""
        values = [b"%d" % at for at in range(1_500)]
        subject.deliver(*(Message(value=value) for value in values))
        with subject.broker.dead_letters(direct=True) as letters:
            list(islice(letters.browse(), 250))
        for _ in range(2):
            found = subject.browse(direct=True)
            assert [letter.message.value for letter in found] == values
        with subject.broker.dead_letters(direct=True) as letters:
            list(islice(letters.browse(), 450))
        gone = {letter.position for letter in found[::7]}
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove(list(gone)) == len(gone)
        left = [letter.message.value for letter in found if letter.position not in gone]
        assert [letter.message.value for letter in subject.browse(direct=True)] == left

    def test_what_is_shown_is_removed_while_it_is_shown(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"%d" % at) for at in range(10)))
        with subject.broker.dead_letters(direct=True) as letters:
            for letter in letters.browse():
                if letter.message.value in {b"2", b"5", b"9"}:
                    assert letters.remove([letter.position]) == 1
                    assert letters.remove([letter.position]) == 0
        left = [b"0", b"1", b"3", b"4", b"6", b"7", b"8"]
        assert [letter.message.value for letter in subject.browse(direct=True)] == left

    def test_letters_that_are_equal_in_all_are_told_apart(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"same", id="same") for _ in range(3)))
        positions = [letter.position for letter in subject.browse(direct=True)]
        assert len(set(positions)) == 3
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove(positions[1:]) == 2
        assert len(subject.browse(direct=True)) == 1

    @pytest.mark.parametrize(
        "headers", [{}, {"z": "1", "a": "2", "m": {"y": 1, "b": [{"q": 1, "c": None}]}}], ids=["none", "not sorted"]
    )
    def test_a_letter_has_one_position_however_often_it_is_looked_at(
        self, subject: Subject, headers: dict[str, Any]
    ) -> None:
        """A quorum queue sorts the headers of what it gives again, and of what it gives to a `basic.get`."""
        subject.provision()
        with raw(subject) as channel:
            channel.confirm_delivery()
            given = pika.BasicProperties(headers=headers, delivery_mode=2)
            for name in ("", "-dead-letters", "-dead-letters", "-dead-letters"):
                channel.basic_publish("", queue_of(subject) + name, b"v", given, mandatory=True)
            method, _, _ = channel.basic_get(queue_of(subject))
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)  # one letter with `x-death`
        end = time.monotonic() + subject.place.patience
        cluster = subject.place.runtime.cluster  # type: ignore[attr-defined]
        while cluster.count(f"{queue_of(subject)}-dead-letters") < 4:
            assert time.monotonic() < end, "no letter came"
        first = positions(subject)
        for _ in range(2):
            assert positions(subject) == first
        with subject.broker.dead_letters() as letters:
            assert letters.remove(first) == 4

    def test_what_comes_while_letters_are_given_back_is_not_taken_too(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a place that is being filled would never be left."""
        subject.deliver(*(Message(value=b"%d" % at) for at in range(300)))
        pages = []
        fetch = Consumer.fetch

        def flooded(consumer: Consumer, limit: int, wait: float) -> list[Delivery]:
            pages.append(limit)
            if len(pages) < 20:
                subject.deliver(*(Message(value=b"new") for _ in range(100)))
            return fetch(consumer, limit, wait)

        with subject.broker.dead_letters(direct=True) as letters:
            browsing = letters.browse()
            next(browsing)
            monkeypatch.setattr(Consumer, "fetch", flooded)
            browsing.close()  # type: ignore[attr-defined]
        monkeypatch.undo()
        assert len(pages) < 10
        assert len(subject.browse(direct=True)) == 300 + 100 * len(pages)

    def test_when_giving_back_in_order_takes_too_long_the_letters_are_there_all_the_same(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(role, "_RETURN_TIMEOUT", 0.0)
        pages = []
        fetch = Consumer.fetch
        monkeypatch.setattr(Consumer, "fetch", lambda self, *args: pages.append(0) or fetch(self, *args))
        values = [b"%d" % at for at in range(400)]
        subject.deliver(*(Message(value=value) for value in values))
        with subject.broker.dead_letters(direct=True) as letters:
            list(islice(letters.browse(), 150))
        assert len(pages) == 2, "what was shown, and no more"
        end = time.monotonic() + subject.place.patience
        while Counter(letter.message.value for letter in subject.browse(direct=True)) != Counter(values):
            assert time.monotonic() < end, "letters are missing"

    def test_a_position_that_is_none_is_refused(self, subject: Subject) -> None:
        with subject.broker.dead_letters(direct=True) as letters, pytest.raises(ConfigurationError, match="'12'"):
            letters.remove(["12"])

    def test_a_letter_that_cannot_be_read_is_shown_with_its_fault(self, subject: Subject) -> None:
        subject.provision()
        subject.place.damage()
        (letter,) = subject.browse(direct=True)
        assert letter.context is not None
        assert letter.context.kind == "invalid"
        assert letter.context.reason


# --- writing letters again, without a broker ---

FRAME = 131_072


class HalfConfirmed:
    """A publisher whose broker takes half of the messages and refuses the others."""

    error = None
    frame_max = FRAME

    def __init__(self, *_: object, on_confirm: Callable[[int, bool, bool], None], on_return: object) -> None:
        self.channel = self
        self._confirm = on_confirm
        self._published = 0

    def basic_publish(self, *_: object, **__: object) -> None:
        self._published += 1

    def until(self, done: Callable[[], object], deadline: float) -> bool:
        self._confirm(self._published // 2, True, True)
        self._confirm(self._published, True, False)
        return bool(done())

    def close(self) -> None:
        pass


def test_a_page_that_is_copied_in_part_is_not_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "Publisher", HalfConfirmed)
    page = [Delivery(None, tag, False, None, b"", pika.BasicProperties(), b"") for tag in range(11, 21)]
    removed: list[int] = []
    consumer = SimpleNamespace(pages=lambda: iter([page]), ack=removed.extend, sync=lambda: None)
    address = Address.parse("rabbitmq://localhost/?queue=q")
    with pytest.raises(Retriable):
        renewal.renew(consumer, address, settings_of({}, address.parameters))  # type: ignore[arg-type]
    assert removed == list(range(11, 16))


@pytest.mark.parametrize("user", [None, "orders-app", "another"])
def test_a_letter_that_is_written_again_keeps_its_position(user: str | None) -> None:
    headers = {"x-delivery-count": 10, "CC": ["q"], "mine": 1}
    before = pika.BasicProperties(message_id="1", user_id="orders-app", headers=headers)
    after = broker_headers.uncounted(before, user, FRAME)
    assert after.user_id == ("orders-app" if user == "orders-app" else None)
    found = {
        role._shown(Delivery(None, 1, False, None, b"", each, b"x"), Counter()).position for each in (before, after)
    }
    assert len(found) == 1


def test_a_letter_that_is_written_again_loses_neither_who_got_copies_nor_who_published_it() -> None:
    """It sends no copies, the broker takes it, and a second time changes nothing."""
    headers = {"x-delivery-count": 10, "CC": ["q", "r"], "mine": 1}
    letter = pika.BasicProperties(user_id="orders-app", headers=headers)
    for _ in range(2):
        letter = broker_headers.uncounted(letter, "operator", FRAME)
        assert letter.headers == {"mine": 1, "x-redelivery-cc": ["q", "r"], "x-redelivery-user-id": "orders-app"}
        assert letter.user_id is None
    assert broker_headers.split(letter)[0].headers == {"mine": 1}, "the message that is redriven has none of it"


def test_what_no_longer_fits_does_not_stop_the_other_letters_from_being_written_again() -> None:
    headers = {"CC": ["q"], "mine": "x" * 4_000}
    letter = broker_headers.uncounted(pika.BasicProperties(user_id="orders-app", headers=headers), None, 4_080)
    assert letter.headers == {"mine": headers["mine"]}
