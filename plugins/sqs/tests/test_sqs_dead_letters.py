"""The dead letters of `sqs:`: browsed letters are hidden for a while, and never lost, counted twice or taken."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import boto3
import pytest

from redelivery.contract.broker import Accept, Letter
from redelivery.contract.message import Message
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Ambiguous, ConfigurationError, Fatal, Unsupported
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_sqs import dead_letters as module
from redelivery_sqs.address import Address
from redelivery_sqs.client import batch_requests
from redelivery_sqs.testing import SqsFifoHarness, SqsPlace
from redelivery_sqs.testing.faults import Answer, Faults, Rule, refusal

#: For readers that die: their letters are hidden for three seconds.
BRIEFLY = {"sqs.dead_letter_visibility_timeout": "3"}


def dead_letter(subject: Subject, count: int, key: bytes | None = None) -> None:
    messages = [Message(value=b"%d" % at, key=key, id=f"n{at}") for at in range(count)]
    subject.deliver(*messages, url=subject.broker.native_sink())


def shown(role: Any) -> list[bytes | None]:
    return [letter.message.value for letter in role.browse()]


def put(subject: Subject, body: str, attributes: Mapping[str, str], **more: str) -> None:
    """Put a letter of another make into the native place."""
    with boto(subject) as sqs:
        url = sqs.get_queue_url(QueueName=Address.parse(subject.broker.native_sink()).queue)["QueueUrl"]
        given = {name: {"DataType": "String", "StringValue": text} for name, text in attributes.items()}
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=given, **more)


@contextmanager
def boto(subject: Subject) -> Iterator[Any]:
    """A client that is not the plugin's."""
    option = {name.removeprefix("sqs."): value for name, value in subject.place.options.items()}
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    made = boto3.client("sqs", endpoint_url=option["endpoint_url"], region_name=option["region"], **keys)
    yield made
    made.close()


@contextmanager
def faulty(subject: Subject, rule: Rule) -> Iterator[dict[str, str]]:
    """Options by which the place is reached through a server that answers by a rule."""
    with Faults(subject.place.options["sqs.endpoint_url"], rule) as faults:
        yield {**subject.place.options, "sqs.endpoint_url": faults.url}


class Together:
    """A rule by which each request of an operation waits a while for another beside it."""

    def __init__(self, asked: str) -> None:
        self.most = self._now = 0
        self._asked = asked
        self._two = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, asked: str, given: Mapping[str, Any], go_on: Any) -> Answer | None:
        if asked != self._asked:
            return None
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            if self.most > 1:
                self._two.set()
        self._two.wait(3)
        answer: Answer = go_on(given)
        with self._lock:
            self._now -= 1
        return answer


class TestLooking(Statements):
    broker = "sqs"

    def test_what_is_looked_at_is_seen_by_others_as_soon_as_the_reader_ends_or_gives_up(self, subject: Subject) -> None:
        """Not only when its two minutes are over; and not before, though it has seen all: it may be removing."""
        dead_letter(subject, 25)
        first = subject.dead_letters(direct=False)
        assert len(shown(first)) == 25
        assert not subject.browse(direct=False), "under lease"
        assert len(list(islice(first.browse(), 3))) == 3
        assert len(subject.browse(direct=False)) == 25
        look = first.browse()
        next(look)
        assert not subject.browse(direct=False), "under lease"
        first.close()
        assert len(subject.browse(direct=False)) == 25

    def test_what_a_redrive_is_sending_is_shown_to_nobody_else(self, subject: Subject) -> None:
        """Two at once would double every letter."""
        dead_letter(subject, 30)
        seen: list[int] = []

        def look(asked: str, _given: object, _go_on: object) -> None:
            if asked == "SendMessageBatch":
                seen.append(len(subject.browse(direct=False)))

        with faulty(subject, look) as options, dead_letters(subject.place.url, options=options) as box:
            report = box.redrive()
        assert (report.redriven, report.removed, set(seen)) == (30, 30, {0})

    def test_letters_are_shown_again_and_removed_by_several_requests_at_a_time(self, subject: Subject) -> None:
        if subject.runtime.kind == "embedded":
            raise CannotShow("requests side by side: moto gives one message to two requests of the same moment")
        dead_letter(subject, 45)
        for asked, use in (
            ("ChangeMessageVisibilityBatch", lambda role: None),  # the role's end
            ("DeleteMessageBatch", lambda role: role.purge()),
        ):
            together = Together(asked)
            with faulty(subject, together) as options, subject.connect(options=options).dead_letters() as role:
                assert len(shown(role)) == 45
                use(role)
            assert together.most > 1
        assert not subject.browse(direct=False)

    def test_a_purge_that_takes_long_goes_on(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each piece of it is bounded, it is not."""
        dead_letter(subject, 35)
        monkeypatch.setattr(module, "_CALL_SECONDS", 0.0)
        monkeypatch.setattr(batch_requests, "PATIENCE", 0.2)

        def slow(asked: str, _given: object, _go_on: object) -> None:
            if asked == "DeleteMessageBatch":
                time.sleep(0.3)

        with faulty(subject, slow) as options:
            broker = subject.connect(options={**options, "sqs.concurrency": "1"})
            with broker.dead_letters() as role:
                assert len(shown(role)) == 35
                assert role.purge() == 35
        assert not subject.browse(direct=False)

    def test_letters_that_cannot_be_shown_again_are_told_of_and_shown_when_they_can(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        dead_letter(subject, 12)
        broken = threading.Event()

        def refuse(asked: str, _given: object, _go_on: object) -> Answer | None:
            return refusal("InternalError", status=500) if broken.is_set() and "Visibility" in asked else None

        with faulty(subject, refuse) as options:
            role = subject.keep(subject.connect(options=options).dead_letters())
            assert len(shown(role)) == 12
            broken.set()
            with pytest.raises(Ambiguous):
                shown(role)
            broken.clear()
            assert len(shown(role)) == 12
            broken.set()
            with caplog.at_level(logging.WARNING, "redelivery.sqs"):
                role.close()
        assert "12 letters" in caplog.text

    def test_letters_that_others_have_in_hand_are_told_of_and_ones_own_are_not(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without a word, what is shown passes for all that there is."""
        dead_letter(subject, 3)
        with caplog.at_level(logging.WARNING, "redelivery.sqs"), subject.broker.dead_letters() as mine:
            assert len(shown(mine)) == 3
            assert not subject.browse(direct=False)
        assert "not shown" not in caplog.text
        Taker(subject, broker=subject.connect(subject.broker.native_sink())).one()
        for use in (shown, lambda role: role.purge()):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "redelivery.sqs"), subject.broker.dead_letters() as role:
                use(role)
            assert "about 1 letters" in caplog.text

    def test_a_letter_that_nobody_can_decode_keeps_back_no_other(self, subject: Subject) -> None:
        dead_letter(subject, 3)
        put(subject, "odd", {"redelivery": '{"id": ' * 5000})
        found = {letter.message.value: letter.context for letter in subject.browse(direct=False)}
        assert found.keys() == {b"0", b"1", b"2", b"odd"}
        assert (odd := found[b"odd"]) is not None
        assert odd.kind == "invalid"

    def test_the_place_itself_is_no_destination_however_it_is_spelled(self, subject: Subject) -> None:
        dead_letter(subject, 1)
        queue = Address.parse(subject.broker.native_sink()).queue
        endpoint, region = (subject.place.options[f"sqs.{name}"] for name in ("endpoint_url", "region"))
        for to in (f"sqs:{queue}", f"sqs:{queue}?region={region}", f"sqs:{queue}?endpoint_url={endpoint}/"):
            for sink in (None, f"sqs:{queue}"):
                box = dead_letters(subject.place.url, sink=sink, options=subject.place.options)
                with box, pytest.raises(ConfigurationError, match="the place that the letters are in"):
                    box.redrive(to=to)

    def test_a_second_look_of_the_same_reader_sees_all(self, subject: Subject) -> None:
        """After a whole one, after one that was given up, and while one is still open."""
        dead_letter(subject, 12)
        with subject.broker.dead_letters() as role:
            self._sees_all(role.browse)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            self._sees_all(lambda: iter(box))

    @staticmethod
    def _sees_all(look: Callable[[], Iterator[Letter]]) -> None:
        assert len(list(look())) == 12
        assert len(list(islice(look(), 1))) == 1
        open_one = look()
        next(open_one)
        assert len(list(look())) == 12
        del open_one
        assert len(list(look())) == 12

    def test_what_a_crashed_reader_looked_at_comes_into_sight_by_itself(self, subject: Subject) -> None:
        dead_letter(subject, 3)
        crashed = subject.keep(subject.connect(options=BRIEFLY).dead_letters()).browse()
        next(crashed)
        with subject.broker.dead_letters() as other:
            end = time.monotonic() + subject.place.patience
            while len(found := shown(other)) < 3:
                assert time.monotonic() < end, f"only {found} came into sight"

    def test_a_letter_is_removed_also_when_it_was_looked_at_long_ago(self, subject: Subject) -> None:
        dead_letter(subject, 12)
        with subject.connect(options=BRIEFLY).dead_letters() as role:
            look = role.browse()
            positions = [next(look).position for _ in range(12)]
            time.sleep(3.2)
            assert role.remove(positions[:5]) == 5
            assert role.remove(positions[:7]) == 2
        assert len(subject.browse(direct=False)) == 5

    def test_what_another_has_in_hand_is_neither_removed_nor_purged(self, subject: Subject) -> None:
        dead_letter(subject, 3)
        by_itself = subject.connect(subject.broker.native_sink())
        held = Taker(subject, broker=by_itself).one()
        with subject.broker.dead_letters() as role:
            assert role.remove([held.position]) == 0
            assert role.purge() == 2
        with by_itself.admin() as admin:
            assert admin.depth() == 1

    def test_many_letters_are_shown_page_by_page_each_once(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_PAGE", 20)
        dead_letter(subject, 65)
        assert sorted(shown(subject.dead_letters(direct=False)), key=repr) == sorted(
            (b"%d" % at for at in range(65)), key=repr
        )

    def test_positions_that_are_no_letters_are_none(self, subject: Subject) -> None:
        dead_letter(subject, 1)
        with subject.broker.dead_letters() as role:
            assert role.remove(["", "no-such-letter"]) == 0
        assert len(subject.browse(direct=False)) == 1

    def test_a_closed_role_says_so(self, subject: Subject) -> None:
        role = subject.dead_letters(direct=False)
        role.close()
        role.close()
        for use in (lambda: list(role.browse()), role.purge, lambda: role.remove(["x"])):
            with pytest.raises(Fatal, match="closed"):
                use()

    def test_whose_letters_a_queue_holds_that_is_named_by_itself_is_not_guessed(self, subject: Subject) -> None:
        with pytest.raises(Unsupported, match="by its own URL"):
            subject.dead_letters(direct=True).move_back(wait=1.0)
        box = dead_letters(subject.place.url, sink=subject.broker.native_sink(), options=subject.place.options)
        with box, pytest.raises(ConfigurationError, match="named by its URL"):
            box.move_back()


class TestSharing(Statements):
    """A dead letter queue into which SQS itself moves the messages of two queues."""

    broker = "sqs"

    def shared(self, subject: Subject) -> str:
        """Let SQS move one message of the place and one of another queue; return the other's name."""
        if subject.runtime.kind == "embedded":
            raise CannotShow("letters of several queues: moto does not say from which one it has moved a message")
        assert isinstance(subject.place, SqsPlace)
        other = subject.place.sharing("billing")
        with boto(subject) as sqs:
            own = sqs.get_queue_url(QueueName=Address.parse(subject.place.url).queue)["QueueUrl"]
            there = sqs.get_queue_url(QueueName=other)["QueueUrl"]
            given = sqs.get_queue_attributes(QueueUrl=own, AttributeNames=["RedrivePolicy"])["Attributes"]
            once = {"RedrivePolicy": json.dumps({**json.loads(given["RedrivePolicy"]), "maxReceiveCount": 1})}
            for url in (own, there):
                sqs.set_queue_attributes(QueueUrl=url, Attributes=once)
                sqs.send_message(QueueUrl=url, MessageBody=url.rpartition("/")[2])
                for _ in range(2):
                    sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
        return other

    def test_a_letter_of_another_queue_stays_and_is_told(self, subject: Subject) -> None:
        other = self.shared(subject)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            report = box.redrive()
        assert report.redriven == 1
        assert report.left == {f"its target {other!r} is not allowed (--allow-targets)": 1}
        assert [each.value for each in subject.place.stored()] == [Address.parse(subject.place.url).queue.encode()]
        assert not subject.place.stored(other)

    def test_each_letter_goes_to_its_own_queue_where_that_is_allowed(self, subject: Subject) -> None:
        other = self.shared(subject)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            report = box.redrive(allow_targets=["*-billing"])
        assert (report.redriven, report.removed, report.targets) == (2, 2, {other: 1})
        assert [each.value for each in subject.place.stored()] == [Address.parse(subject.place.url).queue.encode()]
        assert [each.value for each in subject.place.stored(other)] == [other.encode()]

    def test_of_a_sink_each_queue_gets_its_own(self, subject: Subject) -> None:
        other, options = self.shared(subject), subject.place.options
        sink = subject.broker.native_sink()
        with dead_letters(subject.broker.sibling(other), sink=sink, options=options) as box:
            assert box.redrive().removed == 1
        assert [each.value for each in subject.place.stored(other)] == [other.encode()]
        assert not subject.place.stored()

    def test_it_is_not_moved_as_a_whole(self, subject: Subject) -> None:
        other = self.shared(subject)
        with (
            dead_letters(subject.place.url, options=subject.place.options) as box,
            pytest.raises(Fatal, match=f"'{other}'.*nothing was moved"),
        ):
            box.move_back()
        assert len(subject.browse(direct=False)) == 2


class TestLookingIntoGroups(Statements):
    broker = SqsFifoHarness()

    def test_letters_behind_others_of_their_group_are_told_of(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        """SQS shows no more than ten of a group, until those are gone."""
        dead_letter(subject, 25, key=b"k")
        with caplog.at_level(logging.WARNING, "redelivery.sqs"):
            assert shown(subject.dead_letters(direct=False)) == [b"%d" % at for at in range(10)]
        assert "15 letters" in caplog.text

    def test_all_letters_of_a_group_are_redriven_in_their_order(self, subject: Subject) -> None:
        dead_letter(subject, 25, key=b"k")
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            report = box.redrive()
        assert (report.considered, report.removed) == (25, 25)
        taker, came = Taker(subject), []
        while len(came) < 25:
            received = taker.one()
            came.append(received.message.value)
            taker.receiver.settle([(received, Accept())])
        assert came == [b"%d" % at for at in range(25)]

    def test_a_letter_of_another_make_goes_back_to_its_own_group(self, subject: Subject) -> None:
        """It has no key; what keeps its order is the group alone."""
        for at in range(3):
            more = {"MessageGroupId": "customer-7", "MessageDeduplicationId": f"d{at}"}
            put(subject, f"e{at}", {}, **more)
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            assert box.redrive().removed == 3
        with boto(subject) as sqs:
            url = sqs.get_queue_url(QueueName=Address.parse(subject.place.url).queue)["QueueUrl"]
            told = sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=2, MessageSystemAttributeNames=["All"]
            )
        found = [(each["Body"], each["Attributes"]["MessageGroupId"]) for each in told["Messages"]]
        assert found == [(f"e{at}", "customer-7") for at in range(3)]

    def test_a_purge_takes_the_letters_behind_too(self, subject: Subject) -> None:
        dead_letter(subject, 25, key=b"k")
        with subject.broker.dead_letters() as role:
            assert role.purge() == 25
            assert role.purge() == 0


# --- without a broker ------------------------------------------------------------------------------------------------
