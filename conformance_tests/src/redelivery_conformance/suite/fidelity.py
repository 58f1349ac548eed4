"""Other applications' messages: dead-lettering, looking and redriving leave them as they were written.

A redrive must add one header, the marker of its hops: without it a letter could go back and die forever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from redelivery.contract.broker import Accept, Release, Retry
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import TerminalNack
from redelivery.formats import dialects
from redelivery.receiving.subscription import Subscription
from redelivery_conformance.harness import Foreign
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject
from redelivery_conformance.suite.redriving import NEEDS
from redelivery_conformance.taking import Taker


class Fidelity(Statements):
    """A message written by an independent client, with everything that the broker has."""

    @broker_has(*NEEDS)
    def test_a_foreign_letter_is_redriven_as_it_was(self, subject: Subject) -> None:
        """With its id, its properties, its headers and their types."""
        subject.provision()
        written = subject.place.put_foreign(dead=True)
        self._redrive(subject)
        assert not subject.place.foreign(dead=True)
        self._is_back(subject, written)

    @broker_has(*NEEDS, "receive")
    def test_a_foreign_letter_that_dies_again_is_redriven_as_it_was(self, subject: Subject) -> None:
        """Its marker is the one thing of ours that it has on its second way."""
        subject.provision()
        first = subject.place.put_foreign(dead=True)
        self._redrive(subject)
        self._dies(subject)
        self._redrive(subject)
        self._is_back(subject, first)

    @broker_has(*NEEDS, "receive")
    def test_a_foreign_message_that_dies_here_is_redriven_as_it_was(self, subject: Subject) -> None:
        """A subscription retries it, and dead-letters it with its reason; the reason goes again with the redrive.

        A broker that de-duplicates still remembers its id, and must not take it for a duplicate.
        """
        subject.provision()
        written = subject.place.put_foreign(dead=False)
        self._dies(subject)
        (letter,) = subject.browse(direct=False)
        context = dialects.read(letter.message) or letter.context
        assert context is not None
        assert "closed in 1969" in context.reason
        self._redrive(subject)
        self._is_back(subject, written)

    @broker_has("browse", "dead_letter")
    def test_looking_at_a_foreign_letter_changes_nothing(self, subject: Subject) -> None:
        subject.provision()
        written = subject.place.put_foreign(dead=True)
        for _ in range(3):
            assert len(subject.browse(direct=False)) == 1
        _same(subject.place.foreign(dead=True), written)

    @broker_has("receive")
    def test_a_foreign_message_that_is_given_back_is_as_it_was(self, subject: Subject) -> None:
        subject.provision()
        written = subject.place.put_foreign(dead=False)
        with Taker(subject) as taker:
            taker.settle(Release(), taker.one())
        _same(subject.place.foreign(dead=False), written)

    @broker_has("receive", "delay")
    def test_a_foreign_message_is_redelivered_as_it_was(self, subject: Subject) -> None:
        """Also where a delay is a copy that the plugin makes."""
        subject.provision()
        subject.place.put_foreign(dead=False)
        with Taker(subject) as taker:
            first = taker.one()
            taker.settle(Retry(timedelta(milliseconds=50)), first)
            again = taker.one()
            assert _content(again.message) == _content(first.message)
            taker.settle(Accept(), again)

    @staticmethod
    def _redrive(subject: Subject) -> None:
        options = subject.place.options
        with dead_letters(subject.place.url, options=options, connection_factory=subject.connected) as dlq:
            report = dlq.redrive(to=subject.place.feed)
        assert (report.redriven, report.removed) == (1, 1), report

    @staticmethod
    def _dies(subject: Subject) -> None:
        """A subscription gives up what is at the destination, after a retry where the broker has delays."""
        handled: list[Message] = []
        retries = 1 if subject.capabilities.delay and subject.capabilities.attempts else 0

        def handler(message: Message) -> None:
            handled.append(message)
            if len(handled) <= retries:
                raise ValueError("not yet")
            raise TerminalNack("closed in 1969")

        spec = DeliverySpec(
            dead_letter_sink=(Sink(uri="native"),),
            retry=1,
            backoff_policy="linear",
            backoff_delay=timedelta(milliseconds=50),
        )
        subscription = Subscription(
            subject.place.url,
            handler,
            name="fidelity",
            spec=spec if retries else replace(spec, retry=None, backoff_policy=None, backoff_delay=None),
            options=subject.place.options,
            connection_factory=subject.connected,
        )
        report = subscription.run(until_empty=True)
        assert report.dead_lettered == 1, report
        assert len({_content(each) for each in handled}) == 1, "it changed from one delivery to the next"

    @staticmethod
    def _is_back(subject: Subject, written: Foreign) -> None:
        _same([_unmarked(each) for each in subject.place.foreign(dead=False)], written)


def _same(found: Sequence[Foreign], written: Foreign) -> None:
    """Assert that exactly one message exists and equals the one written, in its values and their types."""
    assert len(found) == 1, f"{len(found)} messages in place of one"
    for part in ("headers", "rest"):
        was, there = (_exact(getattr(each, part)) for each in (written, found[0]))
        assert there == was, f"its {part} were {was}, and are {there}"


def _unmarked(message: Foreign) -> Foreign:
    headers = {name: value for name, value in message.headers.items() if name not in dialects.MARKERS}
    return replace(message, headers=headers)


def _exact(value: object) -> object:
    """Return a value with its type, so that values of different types differ; the order of a mapping is left out."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return kind, sorted((repr(name), _exact(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return kind, [_exact(each) for each in value]
    return kind, value


def _content(message: Message) -> tuple[object, ...]:
    """Return what must be the same at each delivery; a broker's headers may be a table, which has no order."""
    return message.value, message.key, tuple(sorted(message.headers, key=repr)), message.id, message.timestamp_ms
