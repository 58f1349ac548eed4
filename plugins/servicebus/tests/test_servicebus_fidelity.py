"""Messages of other applications, beyond the suite's one message: bodies, ids, names, and what must be refused."""

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Fatal
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.testing import CONNECTION_STRING, DEAD, Embedded
from servicebus_standin.codec import APPLICATION, DATA, VALUE, Content, Raw, kind, read, section, write

LONG = {"TYPE": "LONG", "VALUE": 1 << 40}


def namespace(subject: Subject) -> Embedded:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def queue(subject: Subject) -> str:
    place: Any = subject.place
    return str(place.queue)


def bury(subject: Subject, *messages: Any, into: str | None = None) -> list[Content]:
    """Send messages and dead-letter them, as another application does; return them as they are stored."""
    name = into or queue(subject)
    with namespace(subject).client() as client, client.get_queue_sender(name) as sender:
        for message in messages:
            sender.send_messages(message)
        with client.get_queue_receiver(name) as receiver:
            for _ in messages:
                (message,) = receiver.receive_messages(1, max_wait_time=10)
                receiver.dead_letter_message(message, reason="refused")
    return [content for path in (name + DEAD, f"{name}-dead-letters") for content in contents(subject, path)]


def contents(subject: Subject, path: str) -> list[Content]:
    try:
        return namespace(subject).contents(path)
    except Exception:  # noqa: BLE001 - an ordinary queue has no queue for letters
        return []


def properties(content: Content) -> dict[str, Any]:
    return {str(read(name)): kind(value) for name, value in content.application.items()}


class TestFidelity(Statements):
    broker = "servicebus"

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param({"data_body": [b"first", b"", b"second"]}, id="several-data-sections"),
            pytest.param({"value_body": "text"}, id="a-text"),
            pytest.param({"value_body": b"\xff"}, id="bytes"),
            pytest.param({"value_body": {"a": LONG, "b": [1, LONG], "c": {"d": "e"}}}, id="a-map"),
            pytest.param({"value_body": [LONG, "x", None]}, id="a-list"),
            pytest.param({"value_body": None}, id="nothing"),
            pytest.param({"sequence_body": [[1, LONG], ["x"]]}, id="sequences"),
        ],
    )
    def test_a_body_of_another_kind_is_sent_again_byte_for_byte(self, subject: Subject, body: Any) -> None:
        (letter,) = bury(subject, AmqpAnnotatedMessage(**body))
        with dead_letters(subject.place.url, options=subject.place.options) as found:
            assert found.redrive().removed == 1
        (back,) = contents(subject, queue(subject))
        assert back.body == letter.body

    @pytest.mark.parametrize("value", [Raw(b"\x54\x00"), False, "", 7, None, Raw(b"\x00\xa3\x01x\xa1\x01y")])
    def test_a_value_that_the_client_does_not_write_again_stays_where_it_is(self, subject: Subject, value: Any) -> None:
        """It leaves out what is false, and knows no long outside a list."""
        name = queue(subject)
        namespace(subject).put(name, section(VALUE, write(value)))
        with namespace(subject).client() as client, client.get_queue_receiver(name) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.dead_letter_message(message, reason="refused")
        with dead_letters(subject.place.url, options=subject.place.options) as found:
            report = found.redrive()
        assert (report.redriven, report.failed) == (0, 1)
        assert len(contents(subject, f"{name}-dead-letters")) == 1

    @pytest.mark.parametrize("odd", [{"c": Raw(b"\x73\0\0\0A")}, {"d": Raw(b"\x84" + bytes(8)), "long": "x" * 150_000}])
    def test_a_message_that_the_client_cannot_decode_does_not_hold_up_the_others(
        self, subject: Subject, odd: dict[str, Any]
    ) -> None:
        """A char or a decimal. It is shown as such, stays in a redrive, and can be removed."""
        name, data = queue(subject), section(DATA, write(b"odd"))
        namespace(subject).put(name, section(APPLICATION, write(odd)) + data)
        subject.deliver(Message(value=b"plain"))
        with Taker(subject) as taker:
            found = sorted(taker.take(2), key=lambda each: each.undecodable is None)
            assert "cannot decode" in (found[0].undecodable or "")
            assert (found[1].undecodable, found[1].message.value) == (None, b"plain")
            letter = Message(value=b"{}", headers=(("a", b"1"),))
            taker.settle(Terminate(letter, "refused", "by a test"), found[0])
            taker.settle(Accept(), found[1])
        bury(subject, ServiceBusMessage(b"other"))
        with dead_letters(subject.place.url, options=subject.place.options) as letters:
            shown = {each.context.code: each for each in letters if each.context is not None}
            assert b"odd" in (shown[Code.UNDECODABLE].message.value or b"")
            report = letters.redrive()
            assert (report.redriven, len([*letters])) == (1, 1)
            assert letters.purge() == 1

    def test_a_reason_that_is_not_text_is_shown(self, subject: Subject) -> None:
        name = f"{queue(subject)}-dead-letters"
        subject.provision()
        namespace(subject).put(name, section(APPLICATION, write({"DeadLetterReason": b"\xff"})))
        with dead_letters(subject.place.url, options=subject.place.options) as found:
            (letter,) = found
        assert letter.context is not None
        assert letter.context.reason == "\ufffd"

    @pytest.mark.parametrize("id_", [UUID(int=7), 1 << 40, b"\xff\x00", "a text", None])
    def test_an_id_keeps_its_type(self, subject: Subject, id_: Any) -> None:
        message = ServiceBusMessage(b"{}")
        message.raw_amqp_message.properties.message_id = id_  # type: ignore[union-attr]
        message.raw_amqp_message.properties.correlation_id = id_  # type: ignore[union-attr]
        (letter,) = bury(subject, message)
        with dead_letters(subject.place.url, options=subject.place.options) as found:
            assert found.redrive().removed == 1
        (back,) = contents(subject, queue(subject))
        assert [back.property(at) for at in range(6)] == [letter.property(at) for at in range(6)]
        assert [kind(each) for each in back.properties[:1]] == [kind(each) for each in letter.properties[:1]]

    def test_names_and_content_types_are_where_they_were(self, subject: Subject) -> None:
        """A name of ours in another's message, a long name, and a content type that is a property as well."""
        given = {"redelivery": "{not json", "n" * 100: "long", "content-type": "text/plain", "empty": ""}
        messages = [
            ServiceBusMessage(b"{}", content_type="application/json", application_properties=dict(given.items())),
            ServiceBusMessage(b"{}", content_type="application/json"),
            ServiceBusMessage(b"{}", application_properties={"content-type": "text/plain"}),
        ]
        letters = bury(subject, *messages)
        with dead_letters(subject.place.url, options=subject.place.options) as found:
            assert found.redrive().removed == 3
        for back, letter in zip(contents(subject, queue(subject)), letters, strict=True):
            were = {name: value for name, value in properties(letter).items() if not name.startswith("DeadLetter")}
            there = properties(back)
            assert any(name.startswith("redelivery-letter") for name in there)
            assert {name: value for name, value in there.items() if not name.startswith("redelivery-")} == were
            assert back.property(6) == letter.property(6)

    def test_a_message_of_several_frames_keeps_its_types_when_it_is_retried(self, subject: Subject) -> None:
        subject.provision()
        sent: Any = {"long": {"TYPE": "LONG", "VALUE": 3}, "float": {"TYPE": "FLOAT", "VALUE": 0.5}}
        with namespace(subject).client() as client, client.get_queue_sender(queue(subject)) as sender:
            sender.send_messages(ServiceBusMessage(b"x" * 200_000, application_properties=sent, message_id="a"))
        with Taker(subject) as taker:
            taker.settle(Retry(timedelta(milliseconds=50)), taker.one())
            again = taker.one()
            (copy,) = contents(subject, queue(subject))
            there = {name: value for name, value in properties(copy).items() if name != "redelivery"}
            assert there == {"long": ("long", 3), "float": ("float", 0.5)}
            taker.settle(Accept(), again)

    def test_a_queue_that_would_drop_a_known_id_is_found_out_before_any_letter_is_lost(self, subject: Subject) -> None:
        """Service Bus confirms a duplicate that it drops. Then the letter would be removed."""
        name = f"{queue(subject)}-remembers"
        namespace(subject).create_queue(name, requires_duplicate_detection=True)
        url = subject.broker.sibling(name)
        bury(subject, ServiceBusMessage(b"{}", message_id="known"), into=name)
        limited = {**subject.place.options, CONNECTION_STRING: namespace(subject).add_key("two", "Send", "Listen")}
        for options, told in ((subject.place.options, "has duplicate detection"), (limited, "without Manage")):
            with dead_letters(url, options=options) as found, pytest.raises(Fatal, match=told):
                found.redrive()
            assert len(contents(subject, name + DEAD)) == 1
        for options in (subject.place.options, limited):
            said = {**options, "servicebus.duplicate_detection": "true"}
            if contents(subject, name + DEAD):
                with dead_letters(url, options=said) as found:
                    assert found.redrive().removed == 1
        assert len(contents(subject, name)) == 1

    def test_letters_of_a_queue_that_requires_sessions_go_back_into_theirs(self, subject: Subject) -> None:
        """Dead letters have no sessions, and keep their session id."""
        name = f"{queue(subject)}-sessions"
        namespace(subject).create_queue(
            name, requires_session=True, default_message_time_to_live=0.2, dead_lettering_on_message_expiration=True
        )
        with namespace(subject).client() as client, client.get_queue_sender(name) as sender:
            sender.send_messages(ServiceBusMessage(b"{}", session_id="airport-7", message_id="a"))
        deadline = time.monotonic() + 10
        while not contents(subject, name + DEAD):
            assert time.monotonic() < deadline
        namespace(subject).alter_queue(name, default_message_time_to_live=None)
        with dead_letters(subject.broker.sibling(name), options=subject.place.options) as found:
            assert found.redrive().removed == 1
        (back,) = contents(subject, name)
        assert (back.property(0), back.property(10)) == ("a", "airport-7")
