"""What each operation needs of a user's permissions, as the README's table says; and what a refusal says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from rabbitmq_operating import as_user, broker_version, queue_of, raw

from redelivery.codes import Code
from redelivery.contract.broker import Accept, Release, Retry, Terminate
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import Fatal, Permanent
from redelivery.sending import preflight
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_rabbitmq.address import Address

#: From this version on (and 4.2.6).
LOOKING_TAKES_A_PERMISSION = (4, 3)


class TestPermissions(Statements):
    """A user without the configure permission, and one with fewer still."""

    broker = "rabbitmq"

    def test_without_configure_all_goes_on_as_long_as_nothing_need_be_made(self, subject: Subject) -> None:
        spec = DeliverySpec(retry_timeout=timedelta(seconds=1))
        with subject.broker.admin() as admin:
            admin.provision(DeliverySpec())
            names = [item.name for item in admin.plan(spec).objects if item.action == "create"]
        subject.deliver(*(Message(value=b"%d" % at) for at in range(4)))
        url = as_user(subject, "^$", r"^amq\.default$", f"^{queue_of(subject)}(-.*)?$")
        with subject.connect(url).admin() as admin:
            plan = admin.plan(DeliverySpec())
            assert admin.provision(DeliverySpec()) == plan.status
            assert not plan.drift
            assert any("not configure it" in each for each in plan.approximations), "it says what it could not check"
            with pytest.raises(Fatal, match="configure permission on"):
                admin.provision(spec)
        taker = Taker(subject, broker=subject.connect(url))
        accepted, retried, terminated, delayed = taker.take(4)
        answers = taker.answers(
            (accepted, Accept()),
            (retried, Retry()),
            (terminated, Terminate(terminated.message, "why")),
            (delayed, Retry(timedelta(seconds=1))),
        )
        assert answers[:3] == [None, None, None]
        assert isinstance(answers[3], Fatal)
        assert "provision" in str(answers[3])
        with subject.broker.admin() as admin:
            assert names
            admin.provision(spec)
        taker.settle(Retry(timedelta(seconds=0.1)), delayed)
        assert {each.message.value for each in taker.take(2)} == {retried.message.value, delayed.message.value}

    def test_to_look_at_a_queue_takes_any_permission_on_it_on_newer_brokers(self, subject: Subject) -> None:
        """Older ones let every user look."""
        subject.provision()
        queue = queue_of(subject)
        for rights in (
            ("^$", "^$", "^$"),
            *(tuple(f"^{queue}" if at == right else "^$" for at in range(3)) for right in range(3)),
        ):
            with subject.connect(as_user(subject, *rights)).admin() as admin:
                for ask in (admin.depth, lambda: admin.plan(DeliverySpec())):
                    if broker_version(subject) >= LOOKING_TAKES_A_PERMISSION and rights == ("^$", "^$", "^$"):
                        with pytest.raises(Fatal, match=f"any permission on '{queue}"):
                            ask()
                    else:
                        ask()

    def test_rows_for_an_exchange_that_their_user_may_not_write_to_are_undeliverable_alone(
        self, subject: Subject
    ) -> None:
        """On 4.3 the broker refuses already the question whether it exists; nothing tells a missing one apart."""
        url = as_user(subject, "^$", r"^amq\.default$", "^$")
        rows = [Message(value=b"%d" % at, extra={"exchange": "amq.fanout"} if at % 2 else {}) for at in range(6)]
        with subject.connect(url).sender() as sender:
            settled = subject.send(*rows, sender=sender, isolate=True)
        assert settled.error is None
        found = {each.index: (type(each.error), each.error.code) for each in settled.failures}
        assert found == dict.fromkeys((1, 3, 5), (Permanent, Code.NOT_AUTHORIZED))
        assert subject.values() == {b"0": 1, b"2": 1, b"4": 1}

    def test_a_permission_that_is_missing_is_named(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        read = as_user(subject, "^$", "^$", "^$")
        with pytest.raises(Fatal, match=f"read permission on '{queue_of(subject)}'"):
            subject.connect(read).receiver().receive(1, wait=0.0)
        with subject.connect(read).dead_letters() as letters, pytest.raises(Fatal, match="read permission on"):
            letters.purge()
        write = as_user(subject, "^$", "^$", ".*")
        taker = Taker(subject, broker=subject.connect(write))
        received = taker.one()
        (answer,) = taker.answers((received, Terminate(received.message, "why")))
        assert "write permission on 'amq.default'" in str(answer)
        taker.settle(Accept(), received)

    def test_the_right_to_write_to_the_default_exchange_is_enough_to_send(self, subject: Subject) -> None:
        url = as_user(subject, "^$", r"^amq\.default$", "^$")
        assert confirmed(subject, url, Message(value=b"v"))
        assert subject.values() == {b"v": 1}

    def test_a_wrong_password_and_a_missing_queue_are_told_before_any_row(self, subject: Subject) -> None:
        address = Address.parse(subject.place.url)
        wrong = replace(address, username="nobody", password="wrong-S3cr3t")  # noqa: S106 - it is wrong
        with pytest.raises(Fatal, match="refuse") as caught:
            preflight(wrong.full_url, DeliverySpec(), options=subject.place.options)
        assert "wrong-S3cr3t" not in str(caught.value)
        sinks = (Sink(uri=address.at("never-made").full_url),)
        with pytest.raises(Fatal, match=r"no queue 'never-made'.*provision it, or correct the URL"):
            preflight(address.full_url, DeliverySpec(dead_letter_sink=sinks), options=subject.place.options)

    def test_a_check_without_the_right_to_look_passes(self, subject: Subject) -> None:
        subject.provision()
        with subject.connect(as_user(subject, "^$", r"^amq\.default$", "^$")).sender() as sender:
            sender.check(deadline=subject.deadline())

    def test_the_right_to_write_to_an_exchange_is_enough_to_send_to_it(self, subject: Subject) -> None:
        exchange = f"{queue_of(subject)}-shop"
        with raw(subject) as channel:
            channel.exchange_declare(exchange, "fanout")
            channel.queue_bind(queue_of(subject), exchange)
        url = as_user(subject, "^$", f"^{exchange}$", "^$")
        assert confirmed(subject, url, Message(value=b"v", extra={"exchange": exchange}))
        assert subject.values() == {b"v": 1}
        with raw(subject) as channel:
            channel.exchange_delete(exchange)

    def test_the_right_to_read_is_enough_to_receive_accept_retry_and_give_back(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(*(Message(value=b"%d" % at) for at in range(3)))
        taker = Taker(subject, broker=subject.connect(as_user(subject, "^$", "^$", f"^{queue_of(subject)}$")))
        first, second, third = taker.take(3)
        assert taker.answers((first, Accept()), (second, Retry()), (third, Release())) == [None] * 3
        for each in taker.take(2):
            taker.settle(Accept(), each)

    def test_the_right_to_make_retry_queues_is_enough_for_a_delay_that_has_none(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"v"))
        queue = queue_of(subject)
        url = as_user(subject, f"^{queue}-retry-", r"^amq\.default$", rf"^{queue}(-retry-.*)?$")
        taker = Taker(subject, broker=subject.connect(url))
        taker.settle(Retry(timedelta(seconds=1)), taker.one())
        taker.settle(Accept(), taker.one())

    def test_the_right_to_read_dead_letters_is_enough_to_browse_remove_and_purge(self, subject: Subject) -> None:
        subject.provision()
        with raw(subject) as channel:
            for at in range(3):
                channel.basic_publish("", f"{queue_of(subject)}-dead-letters", b"%d" % at)
        url = as_user(subject, "^$", "^$", f"^{queue_of(subject)}-dead-letters$")
        with subject.connect(url).dead_letters() as letters:
            first, _, _ = letters.browse()
            assert letters.remove([first.position]) == 1
            assert letters.purge() == 2

    def test_the_rights_to_provision_are_enough_to_make_all_that_is_missing(self, subject: Subject) -> None:
        queue, spec = queue_of(subject), DeliverySpec(retry=1)
        subject.place.cluster.remove(queue)  # type: ignore[attr-defined]
        with subject.connect(
            as_user(subject, f"^{queue}(-.*)?$", r"^amq\.default$", f"^{queue}(-.*)?$")
        ).admin() as admin:
            admin.provision(spec)
            assert {item.action for item in admin.plan(spec).objects} == {"keep"}

    def test_a_subscription_is_provisioned_by_who_may_read_its_exchange_and_write_to_its_queue(
        self, subject: Subject
    ) -> None:
        url = subject.place.for_several()
        exchange = Address.parse(url).exchange
        queue = f"{exchange}:billing"
        rights = (f"^{queue}(-.*)?$", rf"^(amq\.default|{queue})$", f"^({queue}(-.*)?|{exchange})$")
        query = url.partition("?")[2]
        for read, why in ((f"^{queue}(-.*)?$", "read permission on"), (rights[2], "")):
            user = as_user(subject, *rights[:2], read).partition("?")[0]
            with subject.connect(subject.connect(f"{user}?{query}").subscription("billing")).admin() as admin:
                if why:
                    with pytest.raises(Fatal, match=why):
                        admin.provision(DeliverySpec())
                else:
                    admin.provision(DeliverySpec())
        subject.deliver(Message(value=b"v"), url=url)
        there = subject.connect(subject.connect(url).subscription("billing"))
        assert Taker(subject, broker=there).one().message.value == b"v"


def confirmed(subject: Subject, url: str, message: Message) -> bool:
    """Whether this was sent by the user of that URL."""
    with subject.connect(url).sender() as sender:
        settled = subject.send(message, sender=sender)
    return settled.error is None and not settled.failures
