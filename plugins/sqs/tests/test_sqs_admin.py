"""The admin of `sqs:`: the queues that it makes, the differences that it reports, and that it alters nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redelivery.contract.broker import Plan
from redelivery.contract.spec import UNLIMITED, DeliverySpec, Sink
from redelivery.errors import Fatal
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_sqs.address import Address
from redelivery_sqs.admin import SqsAdmin
from redelivery_sqs.client.connections import boto_client, queue_url
from redelivery_sqs.options import Settings
from redelivery_sqs.testing import SqsFifoHarness

KMS = "alias/ours"


class Raw:
    """A queue seen and altered through SQS's own API."""

    def __init__(self, subject: Subject, queue: str) -> None:
        options = {name.removeprefix("sqs."): value for name, value in subject.place.options.items()}
        settings = Settings.parse(options)
        address = Address.parse(subject.broker.sibling(queue))
        self.sqs = boto_client(address, settings)
        self.url = queue_url(address, settings)

    def attributes(self) -> dict[str, str]:
        found: dict[str, str] = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        return found

    def set(self, **attributes: str) -> None:
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes=attributes)


def place_of(subject: Subject) -> str:
    return Address.parse(subject.broker.native_sink()).queue


def queue_of(subject: Subject) -> str:
    return Address.parse(subject.place.url).queue


def plan(subject: Subject, spec: DeliverySpec | None = None, **options: str) -> Plan:
    extra = {f"sqs.{name}": value for name, value in options.items()}
    with subject.connect(options=extra) as broker, broker.admin() as admin:
        return admin.plan(spec or DeliverySpec())


def different(plan: Plan) -> set[str]:
    return {f"{item.name} {each.attribute}" for item in plan.objects for each in item.differences}


class Making(Statements):
    def test_the_queue_its_place_and_the_policy_between_them(self, subject: Subject) -> None:
        with subject.connect(self.fresh(subject)) as broker, broker.admin() as admin:
            spec = DeliverySpec(retry=4)
            planned = admin.plan(spec)
            assert [(item.kind, item.action) for item in planned.objects] == [
                ("queue", "create"),
                ("queue", "create"),
                ("redrive policy", "create"),
            ]
            admin.provision(spec)
            assert not admin.plan(spec).drift
            fifo = planned.objects[0].name.endswith(".fifo")
            letters, work = (Raw(subject, item.name).attributes() for item in planned.objects[:2])
        policy = json.loads(work["RedrivePolicy"])
        assert policy["deadLetterTargetArn"] == letters["QueueArn"]
        assert int(policy["maxReceiveCount"]) == 4 + 1 + 10, "core ends it first"
        assert "RedrivePolicy" not in letters, "looking at letters must not move them on"
        assert [each.get("FifoQueue") for each in (letters, work)] == (["true"] * 2 if fifo else [None] * 2)
        kept = [each["MessageRetentionPeriod"] for each in (letters, work) if "MessageRetentionPeriod" in each]
        assert kept in ([], ["1209600", "345600"])

    def test_a_queue_that_nobody_gave_a_policy_gets_one_and_keeps_its_messages(self, subject: Subject) -> None:
        name = subject.place.destination("bare")
        url = subject.broker.sibling(name)
        with subject.connect(url) as broker, broker.admin() as admin:
            planned = admin.plan(DeliverySpec(retry=0))
            assert [item.action for item in planned.objects] == ["create", "keep", "create"]
            admin.provision(DeliverySpec(retry=0))
            assert not admin.plan(DeliverySpec(retry=0)).drift
        assert int(json.loads(Raw(subject, name).attributes()["RedrivePolicy"])["maxReceiveCount"]) == 11

    @staticmethod
    def fresh(subject: Subject) -> str:
        stem, dot, suffix = queue_of(subject).partition(".")
        return subject.broker.sibling(f"{stem}-fresh{dot}{suffix}")


class TestMaking(Making):
    broker = "sqs"

    def test_a_dead_letter_queue_named_by_itself_needs_no_other(self, subject: Subject) -> None:
        with subject.connect(subject.broker.sibling("alone-dead-letters")) as broker, broker.admin() as admin:
            assert [item.name for item in admin.plan(DeliverySpec()).objects] == ["alone-dead-letters"]
            spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
            assert admin.provision(spec).dead_letter_sink_uri == broker.canonical_url
            assert admin.depth() == 0

    def test_a_queue_of_another_account_is_not_silently_made_in_ours(self, subject: Subject) -> None:
        url = "sqs:arn:aws:sqs:eu-west-1:999999999999:theirs"
        with subject.connect(url) as broker, broker.admin() as admin, pytest.raises(Fatal, match="not in 999999999999"):
            admin.provision(DeliverySpec())

    def test_the_depth_of_a_queue_that_is_not_there_is_no_number(self, subject: Subject) -> None:
        with (
            subject.connect(subject.broker.sibling("is-not-there")) as broker,
            broker.admin() as admin,
            pytest.raises(Fatal, match="provision it"),
        ):
            admin.depth()


class TestMakingFifo(Making):
    broker = SqsFifoHarness()


class TestDrift(Statements):
    broker = "sqs"

    def test_each_difference_of_the_policy_is_told(self, subject: Subject) -> None:
        queue, elsewhere = queue_of(subject), subject.place.destination("elsewhere")
        arn = Raw(subject, elsewhere).attributes()["QueueArn"]
        raw = Raw(subject, queue)
        raw.set(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))
        before = raw.attributes()
        wanted = {f"{queue} deadLetterTargetArn", f"{queue} maxReceiveCount"}
        assert different(plan(subject, DeliverySpec(retry=4))) == wanted
        assert different(plan(subject)) == {f"{queue} deadLetterTargetArn"}, "a spec without retries wants no limit"
        with subject.broker.admin() as admin, pytest.raises(Fatal, match=f"not altered.*{elsewhere}"):
            admin.provision(DeliverySpec(retry=4))
        assert raw.attributes() == before

    def test_a_place_that_would_move_its_letters_on_is_told(self, subject: Subject) -> None:
        place, further = place_of(subject), subject.place.destination("further")
        arn = Raw(subject, further).attributes()["QueueArn"]
        Raw(subject, place).set(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))
        assert different(plan(subject)) == {f"{place} RedrivePolicy"}

    def test_a_place_that_forgets_earlier_than_its_source_is_told(self, subject: Subject) -> None:
        """As a difference, and as a warning with both times; or that this server does not tell."""
        place, queue = place_of(subject), queue_of(subject)
        raw = Raw(subject, place)
        raw.set(MessageRetentionPeriod="3600")
        found = plan(subject)
        text = " ".join(found.warnings)
        if "MessageRetentionPeriod" in raw.attributes():
            assert different(found) == {f"{place} MessageRetentionPeriod"}
            assert f"{place} forgets earlier than its source" in text
            assert "3600 s" in text
            assert "345600 s" in text
        else:
            assert not different(found)
            assert f"does not return MessageRetentionPeriod or SqsManagedSseEnabled of {place}" in text
            assert f"does not return MessageRetentionPeriod or SqsManagedSseEnabled of {queue}" in text

    def test_what_was_provisioned_otherwise_is_told_by_the_options_that_ask_for_more(self, subject: Subject) -> None:
        place, queue = place_of(subject), queue_of(subject)
        wanted = {f"{place} KmsMasterKeyId", f"{queue} KmsMasterKeyId"}
        assert different(plan(subject, kms_key=KMS)) == wanted


# --- without a broker ------------------------------------------------------------------------------------------------


class ScriptedSqs:
    """An SQS with two queues and scripted attributes: no stand-in keeps these."""

    def __init__(self, **queues: dict[str, str]) -> None:
        self.queues = queues

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:  # noqa: N803 - SQS's own words
        assert AttributeNames == ["All"]
        return {"Attributes": self.queues[QueueUrl.replace("-", "_")]}


SOURCE_ARN = "arn:aws:sqs:eu-west-1:123456789012:orders"
PLACE_ARN = f"{SOURCE_ARN}-dead-letters"
GOOD = {"MessageRetentionPeriod": "345600", "SqsManagedSseEnabled": "true"}


def told(monkeypatch: pytest.MonkeyPatch, spec: DeliverySpec | None = None, **place: str) -> Plan:
    policy = json.dumps({"deadLetterTargetArn": PLACE_ARN, "maxReceiveCount": 1000})
    work = {**GOOD, "QueueArn": SOURCE_ARN, "RedrivePolicy": policy}
    letters = {**GOOD, "MessageRetentionPeriod": "1209600", "QueueArn": PLACE_ARN, **place}
    sqs = ScriptedSqs(orders=work, orders_dead_letters=letters)
    monkeypatch.setattr("redelivery_sqs.client.connections.boto_client", lambda *_: sqs)
    monkeypatch.setattr("redelivery_sqs.client.connections.queue_url", lambda address, *_, **__: address.queue)
    return SqsAdmin(Address("orders"), Settings()).plan(spec or DeliverySpec())


def allow(permission: str, *sources: str) -> str:
    more = {"sourceQueueArns": list(sources)} if sources else {}
    return json.dumps({"redrivePermission": permission, **more})


@pytest.mark.parametrize(
    ("policy", "differs"),
    [
        (allow("allowAll"), False),
        (allow("byQueue", SOURCE_ARN), False),
        (allow("byQueue", f"{SOURCE_ARN}-other"), True),
        (allow("denyAll"), True),
    ],
)
def test_a_place_that_does_not_let_its_source_in_is_told(
    monkeypatch: pytest.MonkeyPatch, policy: str, differs: bool
) -> None:
    found = told(monkeypatch, RedriveAllowPolicy=policy)
    assert different(found) == ({"orders-dead-letters RedriveAllowPolicy"} if differs else set())
    assert not found.warnings


def test_a_place_that_lets_everybody_in_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ["has no RedriveAllowPolicy" in each for each in told(monkeypatch).warnings] == [True]


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        ("letters.fifo", "have no message group there"),
        ("sqs:letters.fifo", "have no message group there"),
        ("letters", ""),
        ("file:/tmp/letters.fifo", ""),
    ],
)
def test_a_sink_of_the_other_kind_is_warned_of(monkeypatch: pytest.MonkeyPatch, sink: str, says: str) -> None:
    found = told(monkeypatch, DeliverySpec(dead_letter_sink=(Sink(uri=sink),)), RedriveAllowPolicy=allow("allowAll"))
    assert bool(found.warnings) is bool(says)
    assert says in " ".join(found.warnings)


def test_a_place_that_is_not_encrypted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = allow("byQueue", SOURCE_ARN)
    bare = told(monkeypatch, SqsManagedSseEnabled="false", RedriveAllowPolicy=allowed)
    assert different(bare) == {"orders-dead-letters SqsManagedSseEnabled"}
    keyed = told(monkeypatch, SqsManagedSseEnabled="false", KmsMasterKeyId=KMS, RedriveAllowPolicy=allowed)
    assert not keyed.drift, "encrypted by a key of its owner's choice"


@pytest.mark.parametrize(("retry", "approximated"), [(None, False), (989, False), (990, True), (UNLIMITED, True)])
def test_a_limit_that_sqs_ends_earlier_is_said(
    monkeypatch: pytest.MonkeyPatch, retry: int | None, approximated: bool
) -> None:
    found = told(monkeypatch, DeliverySpec(retry=retry), RedriveAllowPolicy=allow("allowAll"))
    assert not found.drift
    assert bool(found.approximations) is approximated
