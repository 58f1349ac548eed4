"""The admin role: the queue, its dead letter queue, and the redrive policy between them.

An absent redrive policy counts as missing, so provisioning sets it. Nothing that exists is altered.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import NATIVE, DeliverySpec, DeliveryStatus, Ref
from redelivery.errors import Fatal
from redelivery.kit.address import has_scheme
from redelivery.kit.errors import Code
from redelivery.kit.plans import compared, deliveries, deliveries_note, none_if_missing
from redelivery.kit.roles import Resource
from redelivery_sqs.address import API_GROUP, KIND, Address
from redelivery_sqs.client.queue import Queue
from redelivery_sqs.options import Settings

API: Final = f"{API_GROUP}/v1alpha1"
#: The largest maxReceiveCount that SQS accepts.
MAX_RECEIVES: Final = 1_000

_WAITING: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_RETENTION, _POLICY, _ALLOW = "MessageRetentionPeriod", "RedrivePolicy", "RedriveAllowPolicy"
_SSE, _KMS = "SqsManagedSseEnabled", "KmsMasterKeyId"
#: SQS returns these for every queue; a server that does not return them does not know them.
_ALWAYS_RETURNED: Final = (_RETENTION, _SSE)

log = logging.getLogger("redelivery.sqs")


class SqsAdmin(Resource, Admin):
    """Makes and checks the queue of an address and its dead letter queue."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("sqs", f"queue {address.queue!r}")
        self._address = address
        self._queue = Queue(address, settings)
        self._dead_letters = Queue(address.dead_letters, settings)
        self._settings = settings

    def plan(self, spec: DeliverySpec) -> Plan:
        self.check_open("looking at")
        letters = none_if_missing(self._dead_letters.attributes)
        objects = [self._compare_queue(self._dead_letters.address, letters)]
        warnings = _not_returned(self._dead_letters.address, letters)
        if not self._address.is_dead_letters:
            source = none_if_missing(self._queue.attributes)
            objects += [self._compare_queue(self._address, source), self._compare_policy(spec, source)]
            warnings += _not_returned(self._address, source)
            warnings += self._retention_warnings(source or {}, letters or {})
            if letters is not None and _ALLOW not in letters:
                name = self._dead_letters.address.queue
                warnings.append(f"{name} has no {_ALLOW}: any queue of the account may use it as its dead letter queue")
            warnings += self._sink_warnings(spec)
        notes = deliveries_note(spec, MAX_RECEIVES, "SQS")
        return Plan(objects=objects, status=self._status(spec), approximations=notes, warnings=warnings)

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"sqs: queue {self._address.queue!r}")
        for item in plan.objects:
            if item.action == "create" and item.kind == "queue":
                self._create(self._address.sibling(item.name), item.attributes)
        for item in plan.objects:
            if item.action == "create" and item.kind == "redrive policy":
                policy = {"deadLetterTargetArn": self._dead_letters.arn(), **item.attributes}
                self._set(self._queue, _POLICY, policy)
        if plan.objects[0].action == "create" and not self._address.is_dead_letters:
            self._allow_source()
        return plan.status

    def depth(self) -> int:
        self.check_open("counting")
        found = self._queue.attributes(*_WAITING, doing="counting")
        return sum(int(found.get(name, 0)) for name in _WAITING)

    # --- comparing ---

    def _wanted(self, address: Address) -> dict[str, str]:
        """The attributes of a queue that provisioning makes; only such as SQS returns again."""
        settings = self._settings
        retention = settings.dead_letter_retention if address == self._dead_letters.address else settings.retention
        wanted = {_RETENTION: str(retention)}
        wanted |= {_SSE: "true"} if settings.kms_key is None else {_KMS: settings.kms_key}
        return wanted | ({"FifoQueue": "true"} if address.fifo else {})

    def _compare_queue(self, address: Address, found: Mapping[str, str] | None) -> NativeObject:
        wanted = self._wanted(address)
        present = found or {}
        only = {name for name in wanted if name in present or name not in _ALWAYS_RETURNED}
        if _KMS in present:  # encrypted, with a key that its owner chose
            only.discard(_SSE)
        also = self._forbidden(present) if address == self._dead_letters.address else ()
        return compared("queue", address.queue, wanted, found, only=only, also=also)

    def _forbidden(self, found: Mapping[str, str]) -> list[Difference]:
        """Attributes that a dead letter queue must not have."""
        differences = []
        if _POLICY in found:  # browsing a letter counts as receiving it, so SQS would move it on
            differences.append(Difference(_POLICY, "none", found[_POLICY]))
        if self._address.is_dead_letters:
            return differences
        allowed = _json(found.get(_ALLOW))
        source = f"{found.get('QueueArn', '').rpartition(':')[0]}:{self._address.queue}"
        permission = allowed.get("redrivePermission", "allowAll")
        if permission == "denyAll" or (permission == "byQueue" and source not in allowed.get("sourceQueueArns", ())):
            differences.append(Difference(_ALLOW, f"one that admits {self._address.queue!r}", found[_ALLOW]))
        return differences

    def _compare_policy(self, spec: DeliverySpec, found: Mapping[str, str] | None) -> NativeObject:
        """Compare the redrive policy: the native limit above a spec's retries, and the dead letter queue."""
        limit = str(deliveries(spec, MAX_RECEIVES))
        policy = {name: str(value) for name, value in _json((found or {}).get(_POLICY)).items()}
        also = []
        target, letters = policy.get("deadLetterTargetArn", "missing"), self._dead_letters.address.queue
        if target.rpartition(":")[2] != letters:
            also.append(Difference("deadLetterTargetArn", letters, target))
        only = () if spec.retry is None else None  # any limit satisfies a spec without `retry`
        wanted = {"maxReceiveCount": limit}
        return compared("redrive policy", self._address.queue, wanted, policy or None, only=only, also=also)

    def _retention_warnings(self, source: Mapping[str, str], letters: Mapping[str, str]) -> list[str]:
        keeps = int(source.get(_RETENTION, self._settings.retention))
        kept = int(letters.get(_RETENTION, self._settings.dead_letter_retention))
        if kept >= keeps:
            return []
        text = (
            f"{self._dead_letters.address.queue} forgets earlier than its source: it keeps a letter for {kept} s, and "
            f"{self._address.queue} a message for {keeps} s; a letter that SQS itself moves keeps its age"
        )
        return [text]

    def _sink_warnings(self, spec: DeliverySpec) -> list[str]:
        """Warn of sinks that are queues of the other type: SQS itself moves no message from one type to the other."""
        names = [sink.uri for sink in spec.dead_letter_sink if sink.uri != NATIVE]
        queues = [Address.parse(each) for each in names if each.lower().startswith("sqs:")]
        queues += [self._address.sibling(each) for each in names if not has_scheme(each)]
        return [
            f"{each.queue} is {_type(each)} and {self._address.queue} is {_type(self._address)}: letters "
            + ("without a key have no message group there" if each.fifo else "lose their order there")
            for each in queues
            if each.fifo != self._address.fifo
        ]

    # --- requests ---

    def _create(self, address: Address, attributes: Mapping[str, str]) -> None:
        account = self._address.account
        made = Queue(address, self._settings).call(
            "create_queue", "making", QueueName=address.queue, Attributes=dict(attributes)
        )
        url = str(made["QueueUrl"])
        if account is not None and url.rstrip("/").split("/")[-2] != account:
            text = f"{address.queue!r} was made as {url}: queues are made in the caller's own account, not in {account}"
            raise Fatal(f"sqs: {text}; remove it, and use that account's credentials", code=Code.MISCONFIGURED)

    @staticmethod
    def _set(queue: Queue, name: str, value: Mapping[str, Any]) -> None:
        queue.request("set_queue_attributes", f"setting {name} of", Attributes={name: json.dumps(value)})

    def _allow_source(self) -> None:
        """Let only this queue dead-letter into the dead letter queue that was just made."""
        policy = {"redrivePermission": "byQueue", "sourceQueueArns": [self._queue.arn()]}
        try:
            self._set(self._dead_letters, _ALLOW, policy)
        except Fatal as error:
            if error.native_code != "InvalidAttributeName":
                raise
            name = self._dead_letters.address.queue
            log.warning("sqs: this server does not know %s; %r has none", _ALLOW, name)

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        letters = self._dead_letters.address
        return DeliveryStatus.of(spec, uri=letters.url, channel=Ref(api_version=API, kind=KIND, name=letters.queue))


def _type(address: Address) -> str:
    return "a FIFO queue" if address.fifo else "a standard queue"


def _not_returned(address: Address, found: Mapping[str, str] | None) -> list[str]:
    names = [] if found is None else [name for name in _ALWAYS_RETURNED if name not in found]
    return [f"this server does not return {' or '.join(names)} of {address.queue}: not compared"] if names else []


def _json(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
