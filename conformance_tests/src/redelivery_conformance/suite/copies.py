"""Copies: several named subscribers of one destination, of which each gets every message."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest

from redelivery.contract.broker import Accept, Broker, Retry
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import BrokerError, ConfigurationError, TerminalNack
from redelivery.formats import dialects
from redelivery.receiving.subscription import Handler, Subscription
from redelivery_conformance.harness import SUBSCRIBERS
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.suite.receiving import numbered
from redelivery_conformance.taking import Taker, values

SPEC = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))


class Copies(Statements):
    """`Broker.subscription`."""

    @broker_has("subscriptions", "send")
    def test_each_name_receives_every_message(self, subject: Subject) -> None:
        url = subject.place.for_several()
        names = [_provisioned(subject, url, name) for name in SUBSCRIBERS[:2]]
        subject.deliver(*numbered(5), url=url)
        for there in names:
            with Taker(subject, broker=there) as taker:
                received = taker.take(5)
                assert Counter(values(received)) == Counter(m.value for m in numbered(5))
                taker.settle(Accept(), *received)
                taker.nothing()

    @broker_has("subscriptions", "send")
    def test_receivers_of_one_name_share_its_messages(self, subject: Subject) -> None:
        url = subject.place.for_several()
        there = _provisioned(subject, url, "billing")
        subject.deliver(*numbered(4), url=url)
        with Taker(subject, broker=there) as first:
            mine = first.take(2)
            first.settle(Accept(), *mine)
            first.make_way()
            second = Taker(subject, broker=subject.connect(subject.connect(url).subscription("billing")))
            others = second.take(2)
            second.nothing()
        assert Counter(values(mine) + values(others)) == Counter(m.value for m in numbered(4))

    @broker_has("subscriptions", "send", "dead_letter", "browse", "headers")
    def test_what_one_name_gives_up_does_not_disturb_the_other(self, subject: Subject) -> None:
        """The dead letters contain it once, with the name that gave up, and the other name still has its copy."""
        url = subject.place.for_several()
        billing, audit = (_provisioned(subject, url, name) for name in SUBSCRIBERS[:2])
        subject.deliver(Message(value=b"lost"), url=url)
        seen: list[bytes | None] = []

        def refuses(_message: Message) -> None:
            raise TerminalNack("nobody pays for a lost order")

        _run(subject, url, "billing", refuses)
        _run(subject, url, "audit", lambda message: seen.append(message.value))
        assert seen == [b"lost"]
        with billing.dead_letters() as letters:
            (letter,) = letters.browse()
        context = dialects.read(letter.message)
        assert context is not None
        assert (context.subscriber, context.reason) == ("billing", "nobody pays for a lost order")
        with Taker(subject, broker=audit) as taker:
            taker.nothing()

    @broker_has("subscriptions", "send", "delay")
    def test_what_one_name_retries_comes_again_to_it_alone(self, subject: Subject) -> None:
        """This holds however it is delayed: a copy that is sent to the destination would reach every name."""
        url = subject.place.for_several()
        billing, audit = (_provisioned(subject, url, name) for name in SUBSCRIBERS[:2])
        subject.deliver(Message(value=b"v"), url=url)
        for there, outcomes in ((billing, (Retry(timedelta(seconds=0.3)), Accept())), (audit, (Accept(),))):
            with Taker(subject, broker=there) as taker:
                for outcome in outcomes:
                    taker.settle(outcome, taker.one())
                taker.nothing()

    @broker_has("subscriptions", "provision")
    def test_receiving_makes_no_subscription(self, subject: Subject) -> None:
        """Only provisioning creates a subscription: a mistyped name would collect copies without a reader."""
        url = subject.place.for_several()
        there = subject.connect(subject.connect(url).subscription(SUBSCRIBERS[2]))
        with there.admin() as admin:
            before = admin.plan(DeliverySpec())
        with suppress(BrokerError), there.receiver() as receiver:  # it may be missing, or may need nothing
            receiver.receive(1, wait=0.2)
        with there.admin() as admin:
            assert admin.plan(DeliverySpec()) == before, "receiving made something"

    @broker_has("subscriptions")
    def test_a_name_always_means_the_same_place_and_another_name_another(self, subject: Subject) -> None:
        broker = subject.connect(subject.place.for_several())
        urls = [broker.subscription(name) for name in ("billing", "billing", "audit", "Überweisung & Co/1")]
        assert urls[0] == urls[1]
        assert len({*urls}) == 3
        for url in urls:
            subject.connect(url)

    @broker_has("subscriptions")
    @pytest.mark.parametrize("name", ["", "x" * 10_000, "\0"])
    def test_a_name_that_cannot_be_is_refused(self, subject: Subject, name: str) -> None:
        broker = subject.connect(subject.place.for_several())
        with pytest.raises(ConfigurationError):
            broker.subscription(name)

    @broker_lacks("subscriptions")
    def test_without_subscriptions_asking_for_one_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(lambda: subject.broker.subscription("billing"))


def _provisioned(subject: Subject, url: str, name: str) -> Broker:
    """Return a broker for a provisioned subscription."""
    broker = subject.connect(subject.connect(url).subscription(name))
    if subject.capabilities.provision:
        with broker.admin() as admin:
            admin.provision(DeliverySpec())
    elif not subject.runtime.absent:
        raise NotApplicable("nothing here makes what a name needs")
    return broker


def _run(subject: Subject, url: str, name: str, handler: Handler) -> None:
    options = dict(subject.place.options)
    subscription = Subscription(
        url, handler, name=name, own_copy=True, spec=SPEC, options=options, connection_factory=subject.harness.connect
    )
    subscription.run(until_empty=True)
