"""The admin role: the queue, its dead letter queue, and the redrive policy between them.

This file must not alter what exists. A redrive policy that nobody has set counts as missing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from redelivery.base.urls import has_scheme, scheme_of
from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import NATIVE, UNLIMITED, DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import Fatal
from redelivery_sqs.address import Address
from redelivery_sqs.config import Settings, client, queue_url
from redelivery_sqs.errors import classified

#: Deliveries beyond core's own limit: only handlers that never come back to core get so far.
MARGIN: Final = 10
#: What a queue is called in a `ref`: the kind of AWS's controller for Kubernetes.
KIND: Final = "Queue"
API_GROUP: Final = "sqs.services.k8s.aws"
API: Final = f"{API_GROUP}/v1alpha1"
#: The most that SQS takes as maxReceiveCount.
MOST_RECEIVES: Final = 1_000

_MISSING: Final = frozenset({"QueueDoesNotExist", "NonExistentQueue", "ResourceNotFoundException"})
_WAITING: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_RETENTION, _POLICY, _ALLOW = "MessageRetentionPeriod", "RedrivePolicy", "RedriveAllowPolicy"
_SSE, _KMS = "SqsManagedSseEnabled", "KmsMasterKeyId"
#: SQS tells these of every queue; a server that does not, does not know them.
_ALWAYS_TOLD: Final = (_RETENTION, _SSE)

log = logging.getLogger("redelivery.sqs")


class SqsAdmin(Admin):
    """Makes and checks the queue of an address and its dead letter queue."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address = address
        self._place = address.dead_letters
        self._settings = settings

    def plan(self, spec: DeliverySpec) -> Plan:
        letters = self._attributes(self._place)
        objects = [self._queue(self._place, letters)]
        notes = _untold(self._place, letters)
        if not self._address.is_dead_letters:
            source = self._attributes(self._address)
            objects += [self._queue(self._address, source), self._policy(spec, source)]
            notes += _untold(self._address, source)
            notes += self._forgetful(source or {}, letters or {}) + self._allowing(objects[0], letters)
            notes += self._mismatched(spec)
        return Plan(objects=objects, status=self._status(spec), approximations=_limits(spec), warnings=notes)

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"sqs: queue {self._address.queue!r}")
        for item in plan.objects:
            if item.action == "create" and item.kind == "queue":
                self._create(self._address.at(item.name), item.attributes)
        for item in plan.objects:
            if item.action == "create" and item.kind == "redrive policy":
                policy = {"deadLetterTargetArn": self._arn(self._place), **item.attributes}
                self._set(self._address, {_POLICY: json.dumps(policy)})
        if plan.objects[0].action == "create" and not self._address.is_dead_letters:
            self._allow()
        return plan.status

    def depth(self) -> int:
        url = queue_url(self._address, self._settings)
        with classified(f"counting queue {self._address.queue!r}"):
            found = self._client().get_queue_attributes(QueueUrl=url, AttributeNames=list(_WAITING))
        return sum(int(found.get("Attributes", {}).get(name, 0)) for name in _WAITING)

    def close(self) -> None:
        """The client is the process's."""

    # --- comparing ---

    def _wanted(self, address: Address) -> dict[str, str]:
        """What a queue of ours has: nothing that SQS could not tell again."""
        settings = self._settings
        retention = settings.dead_letter_retention if address == self._place else settings.retention
        wanted = {_RETENTION: str(retention)}
        wanted |= {_SSE: "true"} if settings.kms_key is None else {_KMS: settings.kms_key}
        return wanted | ({"FifoQueue": "true"} if address.fifo else {})

    def _queue(self, address: Address, found: Mapping[str, str] | None) -> NativeObject:
        wanted = self._wanted(address)
        if found is None:
            return NativeObject(kind="queue", name=address.queue, action="create", attributes=wanted)
        differences = [
            Difference(name, value, found.get(name, "missing"))
            for name, value in wanted.items()
            if found.get(name) != value
            and (name in found or name not in _ALWAYS_TOLD)
            and not (name == _SSE and _KMS in found)  # encrypted, with a key of somebody's choice
        ]
        if address == self._place:
            differences += self._of_place(found)
        return NativeObject.compared("queue", address.queue, wanted, differences)

    def _of_place(self, found: Mapping[str, str]) -> list[Difference]:
        """What a dead letter queue must not have."""
        differences = []
        if _POLICY in found:  # looking at a letter counts as receiving it: it would move on, out of sight
            differences.append(Difference(_POLICY, "none", found[_POLICY]))
        allowed = _json(found.get(_ALLOW))
        source = _sibling(found.get("QueueArn", ""), self._address.queue)
        permission = allowed.get("redrivePermission", "allowAll")
        if permission == "denyAll" or (permission == "byQueue" and source not in allowed.get("sourceQueueArns", ())):
            differences.append(Difference(_ALLOW, f"one that lets {self._address.queue!r} in", found[_ALLOW]))
        return differences if not self._address.is_dead_letters else differences[:1]

    def _policy(self, spec: DeliverySpec, found: Mapping[str, str] | None) -> NativeObject:
        """The redrive policy: the backstop of a spec's retries, and the way to the dead letter queue."""
        name = self._address.queue
        limit = _max_receives(spec)
        wanted = {"maxReceiveCount": str(limit)}
        policy = _json((found or {}).get(_POLICY))
        if not policy:
            return NativeObject(kind="redrive policy", name=name, action="create", attributes=wanted)
        differences = []
        target = str(policy.get("deadLetterTargetArn", "missing"))
        if target.rpartition(":")[2] != self._place.queue:
            differences.append(Difference("deadLetterTargetArn", self._place.queue, target))
        count = str(policy.get("maxReceiveCount", "missing"))
        if spec.retry is not None and count != str(limit):  # a spec that says nothing of retries is met by any limit
            differences.append(Difference("maxReceiveCount", str(limit), count))
        return NativeObject.compared("redrive policy", name, wanted, differences)

    def _forgetful(self, source: Mapping[str, str], letters: Mapping[str, str]) -> list[str]:
        keeps = int(source.get(_RETENTION, self._settings.retention))
        kept = int(letters.get(_RETENTION, self._settings.dead_letter_retention))
        if kept >= keeps:
            return []
        text = (
            f"{self._place.queue} forgets earlier than its source: it keeps a letter for {kept} s, and "
            f"{self._address.queue} a message for {keeps} s; a letter that SQS itself moves keeps the age it has"
        )
        return [text]

    def _mismatched(self, spec: DeliverySpec) -> list[str]:
        """Sinks that are queues of the other kind: SQS itself never moves a message from one kind to the other."""
        names = [sink.uri for sink in spec.dead_letter_sink if sink.uri != NATIVE]
        queues = [Address.parse(each) for each in names if has_scheme(each) and scheme_of(each) == "sqs"]
        queues += [self._address.at(each) for each in names if not has_scheme(each)]
        return [
            f"{each.queue} is {_kind(each)} and {self._address.queue} is {_kind(self._address)}: letters "
            + ("without a key have no message group there" if each.fifo else "lose their order there")
            for each in queues
            if each.fifo != self._address.fifo
        ]

    def _allowing(self, place: NativeObject, letters: Mapping[str, str] | None) -> list[str]:
        if place.action == "create" or _ALLOW in (letters or {}):
            return []
        return [f"{place.name} has no {_ALLOW}: any queue of the account may make it its dead letter queue"]

    # --- asking ---

    def _client(self) -> Any:
        return client(self._address, self._settings)

    def _attributes(self, address: Address) -> Mapping[str, str] | None:
        """What SQS tells of a queue; None where there is none."""
        try:
            url = queue_url(address, self._settings)
            with classified(f"looking at queue {address.queue!r}"):
                answer = self._client().get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        except Fatal as error:
            if error.code in _MISSING:
                return None
            raise
        found: Mapping[str, str] = answer.get("Attributes") or {}
        return found

    def _create(self, address: Address, attributes: Mapping[str, str]) -> None:
        account = self._address.account
        with classified(f"making queue {address.queue!r}"):
            url = str(self._client().create_queue(QueueName=address.queue, Attributes=dict(attributes))["QueueUrl"])
        if account is not None and url.rstrip("/").split("/")[-2] != account:
            text = f"{address.queue!r} was made as {url}: queues are made in the caller's own account, not in {account}"
            raise Fatal(f"sqs: {text}; remove it, and use that account's credentials", code="ACCOUNT")

    def _set(self, address: Address, attributes: Mapping[str, str]) -> None:
        url = queue_url(address, self._settings)
        with classified(f"setting {', '.join(attributes)} of queue {address.queue!r}"):
            self._client().set_queue_attributes(QueueUrl=url, Attributes=dict(attributes))

    def _allow(self) -> None:
        """Let nobody but this queue dead-letter into a place that we have just made."""
        policy = {"redrivePermission": "byQueue", "sourceQueueArns": [self._arn(self._address)]}
        try:
            self._set(self._place, {_ALLOW: json.dumps(policy)})
        except Fatal as error:
            if error.code != "InvalidAttributeName":
                raise
            log.warning("sqs: this server knows no %s; %r goes without one", _ALLOW, self._place.queue)

    def _arn(self, address: Address) -> str:
        return str((self._attributes(address) or {}).get("QueueArn", ""))

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        channel = Ref(api_version=API, kind=KIND, name=self._place.queue)
        return DeliveryStatus.of(spec, uri=self._place.url, channel=channel)


def _kind(address: Address) -> str:
    return "a FIFO queue" if address.fifo else "a standard queue"


def _max_receives(spec: DeliverySpec) -> int:
    if spec.retry is None or spec.retry == UNLIMITED:
        return MOST_RECEIVES
    return min(spec.retry + 1 + MARGIN, MOST_RECEIVES)


def _limits(spec: DeliverySpec) -> list[str]:
    if spec.retry is None or 0 <= spec.retry <= MOST_RECEIVES - 1 - MARGIN:
        return []
    said = "without a limit" if spec.retry == UNLIMITED else f"{spec.retry} times"
    return [f"retried {said}, but SQS itself dead-letters what it has given {MOST_RECEIVES} times"]


def _untold(address: Address, found: Mapping[str, str] | None) -> list[str]:
    names = [] if found is None else [name for name in _ALWAYS_TOLD if name not in found]
    return [f"this server does not tell {' or '.join(names)} of {address.queue}: not compared"] if names else []


def _json(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sibling(arn: str, name: str) -> str:
    return f"{arn.rpartition(':')[0]}:{name}"
