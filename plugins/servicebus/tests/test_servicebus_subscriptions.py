"""A subscription as it is at Service Bus: received from, with its own dead letters, and never sent to."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redelivery.contract.broker import Accept, Broker, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import RedriveSettings
from redelivery.errors import ConfigurationError, Fatal, TerminalNack, Unsupported
from redelivery.receiving.subscription import Subscription
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.testing import DEAD
from servicebus_standin import StandIn

SPEC = DeliverySpec(retry=3, dead_letter_sink=(Sink(uri="native"),))
NAMES = ("billing", "audit")


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def topic(subject: Subject, *names: str) -> str:
    """A topic with subscriptions, which are as an administrator makes them; its URL."""
    url = subject.place.for_several()
    for name in names or NAMES:
        namespace(subject).create_subscription(url.rpartition("/")[2], name, max_delivery_count=1)
    return url


def bodies(subject: Subject, url: str, suffix: str = "") -> list[bytes | None]:
    return [each.body for each in namespace(subject).messages(url.partition("://")[2].partition("/")[2] + suffix)]


def letters_of(subject: Subject, url: str) -> DeadLetterQueue:
    return dead_letters(url, options=subject.place.options)


def given_up(subject: Subject, url: str, *values: bytes, name: str = "billing") -> str:
    """Letters of one subscription; the others have handled the messages. Return its URL."""
    subject.deliver(*(Message(value=value, id=value.decode()) for value in values), url=url)
    for each in NAMES:
        with Taker(subject, broker=subject.connect(f"{url}/subscriptions/{each}")) as taker:
            for _ in values:
                taker.settle(Retry() if each == name else Accept(), taker.one())
    return f"{url}/subscriptions/{name}"


class TestSubscriptions(Statements):
    broker = "servicebus"

    def test_each_has_its_own_messages_and_dead_letters(self, subject: Subject) -> None:
        url = topic(subject)
        subject.deliver(Message(value=b"a", id="a"), url=url)
        with Taker(subject, broker=subject.connect(f"{url}/Subscriptions/billing")) as taker:
            received = taker.one()
            taker.settle(Terminate(received.message, "no such airport", "in line 7"), received)
        assert bodies(subject, f"{url}/subscriptions/audit") == [b"a"]
        with letters_of(subject, f"{url}/subscriptions/billing") as letters:
            assert letters.place == f"{url}/subscriptions/billing{DEAD}"
            (letter,) = letters
            assert letter.context is not None
            assert letter.context.reason == "no such airport: in line 7"
            assert letters.remove(["a"]) == 1
        with letters_of(subject, f"{url}/subscriptions/audit") as letters:
            assert list(letters) == []

    def test_its_letters_go_nowhere_unless_one_says_where(self, subject: Subject, tmp_path: Path) -> None:
        """Back to the topic would give every other subscription the message a second time."""
        url = topic(subject)
        mine = given_up(subject, url, b"a")
        with letters_of(subject, mine) as letters:
            for settings in (RedriveSettings(), RedriveSettings(dry_run=True)):
                with pytest.raises(Unsupported, match=f"each of its subscriptions a copy: say where to, {url}"):
                    letters.redrive(settings=settings, journal=tmp_path / "journal.db")
        assert bodies(subject, mine, DEAD) == [b"a"]
        assert bodies(subject, f"{url}/subscriptions/audit") == []

    def test_named_the_topic_gives_every_subscription_a_copy_and_a_queue_has_the_only_one(
        self, subject: Subject
    ) -> None:
        url = topic(subject)
        queue = subject.broker.sibling(subject.place.destination("alone"))
        mine = given_up(subject, url, b"a", b"b")
        with letters_of(subject, mine) as letters:
            assert letters.redrive(["a"], to=url).removed == 1
            assert letters.redrive(["b"], to=queue).removed == 1
        assert [bodies(subject, f"{url}/subscriptions/{name}") for name in NAMES] == [[b"a"], [b"a"]]
        assert bodies(subject, queue) == [b"b"]
        assert bodies(subject, mine, DEAD) == []

    def test_its_letters_are_forwarded_to_a_sink_and_purged(self, subject: Subject) -> None:
        url = topic(subject)
        sink = subject.broker.sibling(subject.place.destination("kept"))
        mine = given_up(subject, url, b"a")
        with letters_of(subject, mine) as letters:
            assert letters.forward(sink).removed == 1
        assert bodies(subject, sink) == [b"a"]
        given_up(subject, url, b"b", b"c")
        with letters_of(subject, mine) as letters:
            assert letters.purge() == 2

    def test_a_handler_that_gives_up_dead_letters_in_place(self, subject: Subject) -> None:
        url = topic(subject)
        subject.deliver(Message(value=b"a"), url=url)

        def refuses(_: Message) -> None:
            raise TerminalNack("closed in 1969")

        mine = f"{url}/subscriptions/billing"
        spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
        subscription = Subscription(mine, refuses, name="native", spec=spec, options=subject.place.options)
        assert subscription.run(until_empty=True).dead_lettered == 1
        assert bodies(subject, mine, DEAD) == [b"a"]

    def test_it_is_not_sent_to_and_keeps_nothing_for_later(self, subject: Subject) -> None:
        url = topic(subject)
        broker = subject.connect(f"{url}/subscriptions/billing")
        subject.is_unsupported(broker.sender)
        subject.deliver(Message(value=b"a"), url=url)
        with Taker(subject, broker=broker) as taker:
            received = taker.one()
            subject.is_unsupported(lambda: taker.receiver.settle([(received, Retry(timedelta(seconds=1)))]))
            taker.settle(Accept(), received)
        with pytest.raises(Unsupported, match="cannot keep a message away for a delay"):
            spec = DeliverySpec(retry=1)
            Subscription(
                broker.canonical_url or "", print, name="later", spec=spec, options=subject.place.options
            ).run()

    def test_it_is_planned_and_made_once(self, subject: Subject) -> None:
        url = topic(subject, "audit")
        name = url.rpartition("/")[2]
        broker = subject.connect(f"{url}/subscriptions/billing")
        with broker.admin() as admin:
            assert [(item.kind, item.name, item.action) for item in admin.plan(SPEC).objects] == [
                ("queue", f"{name}.billing-dead-letters", "create"),
                ("subscription", f"{name}/subscriptions/billing", "create"),
            ]
            admin.provision(SPEC)
            plan = admin.plan(SPEC)
            assert ({item.action for item in plan.objects}, plan.warnings) == ({"keep"}, [])
            admin.provision(SPEC)
            subject.deliver(Message(value=b"a"), Message(value=b"b"), url=url)
            assert admin.depth() == 2
        made = namespace(subject).store.queue(f"{name}/subscriptions/billing").settings
        assert (made.max_delivery_count, made.forward_dead_lettered_messages_to) == (14, f"{name}.billing-dead-letters")
        assert broker.native_sink() == f"{url}.billing-dead-letters"

    def test_its_letters_are_seen_where_they_are_forwarded_to_as_well(self, subject: Subject) -> None:
        url = topic(subject, "audit")
        broker = subject.connect(f"{url}/subscriptions/billing")
        with broker.admin() as admin:
            admin.provision(SPEC)
        given_up(subject, url, b"a", name="audit")  # and billing has accepted it
        subject.deliver(Message(value=b"b"), url=url)
        with Taker(subject, broker=broker) as taker:
            received = taker.one()
            taker.settle(Terminate(received.message, "no"), received)
        assert bodies(subject, f"{url}.billing-dead-letters") == [b"b"]
        with letters_of(subject, f"{url}/subscriptions/billing") as letters:
            assert [letter.message.value for letter in letters] == [b"b"]
            assert letters.remove([letter.position for letter in letters]) == 1

    def test_what_differs_is_drift(self, subject: Subject) -> None:
        url = topic(subject, "audit")
        name = url.rpartition("/")[2]
        namespace(subject).create_queue(f"{name}-elsewhere")
        namespace(subject).create_subscription(name, "billing", forward_to=f"{name}-elsewhere")
        with subject.connect(f"{url}/subscriptions/billing").admin() as admin:
            found = {each.attribute for item in admin.plan(SPEC).objects for each in item.differences}
            assert found == {"ForwardTo", "ForwardDeadLetteredMessagesTo", "MaxDeliveryCount"}
            with pytest.raises(Fatal, match="ForwardTo"):
                admin.provision(SPEC)

    def test_what_is_missing_is_told(self, subject: Subject) -> None:
        def at(url: str) -> Broker:
            return subject.connect(f"{url}/subscriptions/billing")

        url = topic(subject, "audit")
        with pytest.raises(ConfigurationError, match="redelivery apply"):
            subject.connect(f"{url}/subscriptions/audit").native_sink()
        with at(f"{url}-nowhere").admin() as admin:
            assert any("does not exist: create it" in each for each in admin.plan(SPEC).warnings)
            with pytest.raises(Fatal, match="does not exist: create it"):
                admin.provision(SPEC)
        with pytest.raises(Fatal, match="does not exist"):
            at(url).receiver()
        with pytest.raises(ConfigurationError, match="already the subscription 'billing'"):
            at(url).subscription("other")
