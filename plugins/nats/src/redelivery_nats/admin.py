"""The admin role: the stream, its dead letter stream, and the consumer that receivers share.

The dead letter stream also takes the server's advisories of messages that were delivered too often. Nothing that exists
is altered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import NATIVE, DeliverySpec, DeliveryStatus, Ref
from redelivery.kit.address import has_scheme
from redelivery.kit.plans import MARGIN, compared, deliveries, none_if_missing
from redelivery_nats.address import API_GROUP, KIND, Address
from redelivery_nats.client.asking import Asking

API: Final = f"{API_GROUP}/v1beta2"
#: Subject of the advisories of a stream's messages that were delivered too often.
MAX_DELIVERIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
_NANO: Final = 1_000_000_000
_NO_LIMIT: Final = -1
#: Above any number of retries; the server's own word for it is -1.
_MOST: Final = 1 << 31
_LIMITS: Final = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
#: What a stream of ours must not be: one that takes nothing, keeps what is removed, or confirms nothing.
_FORBIDDEN: Final = ("sealed", "deny_delete", "no_ack")
#: Members of a consumer's configuration that are counted in nanoseconds or numbers.
_NUMBERS: Final = ("ack_wait", "max_deliver", "max_ack_pending", "num_replicas", "duplicate_window")


class NatsAdmin(Asking, Admin):
    """Creates and checks the streams of an address, and its consumer."""

    def plan(self, spec: DeliverySpec) -> Plan:
        self.check_open("looking at")
        address, letters = self._address, self._address.dead_letters
        objects, warnings = [], []
        found = self._found(letters)
        objects.append(self._compare_stream(letters, found))
        warnings += self._warnings(letters, found, is_letters=True)
        if not address.is_dead_letters:
            source = self._found(address)
            objects.append(self._compare_stream(address, source))
            consumer = None if source is None else none_if_missing(self._consumer)
            objects.append(self._compare_consumer(spec, consumer))
            warnings += self._warnings(address, source, is_letters=False)
            warnings += self._consumer_warnings(source, consumer)
        sinks = []
        for sink in spec.dead_letter_sink:
            if sink.uri and sink.uri != NATIVE and not has_scheme(sink.uri):
                sibling = address.sibling(sink.uri).checked()
                if sibling not in (address, letters):
                    objects.append(self._compare_stream(sibling, self._found(sibling)))
                    sinks.append(sibling.url)
        most = self._connected().server.get("max_payload")
        if most != self._settings.max_payload:
            warnings.append(f"nats.max_payload is {self._settings.max_payload}, and the server's max_payload is {most}")
        status = DeliveryStatus.of(spec, uri=letters.url, channel=Ref(api_version=API, kind=KIND, name=letters.stream))
        return Plan(objects=objects, status=status, warnings=warnings, sinks=sinks)

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        plan = self.plan(spec)
        plan.refuse_differences(f"nats: stream {self._address.stream!r}")
        for item in plan.objects:
            if item.action == "create" and item.kind == "stream":
                self._create_stream(self._named(item.name), item.attributes)
        for item in plan.objects:
            if item.action == "create" and item.kind == "consumer":
                self._create_consumer(item.attributes)
        return plan.status

    def depth(self) -> int:
        self.check_open("counting")
        return int(self._stream(self._address, doing="counting")["state"]["messages"])

    # --- comparing ---

    def _stream(self, address: Address, doing: str = "looking at") -> dict[str, Any]:
        return self._api(doing, f"STREAM.INFO.{address.stream}")

    def _found(self, address: Address) -> dict[str, Any] | None:
        return none_if_missing(lambda: self._stream(address))

    def _consumer(self) -> dict[str, Any]:
        return self._api("looking at", f"CONSUMER.INFO.{self._address.stream}.{self._address.consumer}")

    def _named(self, stream: str) -> Address:
        return self._address if stream == self._address.stream else self._address.sibling(stream)

    def _subjects(self, address: Address) -> list[str]:
        source = address.source
        return [address.subject] if source is None else [address.subject, f"{MAX_DELIVERIES}.{source.stream}.*"]

    def _wanted(self, address: Address) -> dict[str, str]:
        settings = self._settings
        # A message that was handled leaves a work queue; a letter stays until somebody removes it.
        is_source = address == self._address and not address.is_dead_letters
        # A message whose receiver died before it acknowledged comes again after its lease, and has one letter.
        window = settings.duplicate_window + (0 if is_source else settings.ack_wait)
        return {
            "retention": "workqueue" if is_source else "limits",
            "subjects": " ".join(self._subjects(address)),
            "storage": settings.storage,
            "discard": "new",
            "num_replicas": str(settings.replicas),
            "duplicate_window": str(int(window * _NANO)),
        }

    def _compare_stream(self, address: Address, found: Mapping[str, Any] | None) -> NativeObject:
        wanted = self._wanted(address)
        if found is None:
            return compared("stream", address.stream, wanted, None)
        config = found["config"]
        only = {"duplicate_window", "num_replicas"} if address == self._address else {"num_replicas"}
        taken = config.get("subjects") or []
        also = [
            Difference("subjects", subject, " ".join(taken) or "none")
            for subject in self._subjects(address)
            if not any(_matches(each, subject) for each in taken)
        ]
        if any(int(config.get(name) or 0) > 0 for name in _LIMITS) and config.get("discard") != "new":
            also.append(Difference("discard", "new, as it has limits", str(config.get("discard"))))
        also += [Difference(name, "false", "true") for name in _FORBIDDEN if config.get(name)]
        if (
            wanted["retention"] == "limits" and config.get("retention") == "interest"
        ):  # without a consumer it keeps none
            also.append(Difference("retention", "limits", "interest"))
        present = {name: str(config[name]) for name in wanted if name in config}
        return compared("stream", address.stream, wanted, present, only=only, also=also)

    def _compare_consumer(self, spec: DeliverySpec, found: Mapping[str, Any] | None) -> NativeObject:
        limit = deliveries(spec, _MOST)
        wanted = {
            "ack_policy": "explicit",
            "ack_wait": str(int(self._settings.ack_wait * _NANO)),
            "max_deliver": str(_NO_LIMIT if limit == _MOST else limit),
            "max_ack_pending": str(self._settings.max_ack_pending),
        }
        name = self._address.consumer
        if found is None:
            return compared("consumer", name, wanted, None)
        config = {each: str(found["config"].get(each)) for each in wanted}
        only = {"ack_policy"} | ({"max_deliver"} if spec.retry is not None else set())
        also = []
        if found["config"].get("deliver_subject"):
            also.append(Difference("deliver_subject", "none", found["config"]["deliver_subject"]))
        if found["config"].get("headers_only"):
            also.append(Difference("headers_only", "false", "true"))
        return compared("consumer", name, wanted, config, only=only, also=also)

    def _warnings(self, address: Address, found: Mapping[str, Any] | None, *, is_letters: bool) -> list[str]:
        config: Mapping[str, Any] = self._wanted(address) if found is None else found["config"]
        name, warnings = address.stream, []
        if config["storage"] == "memory":
            warnings.append(f"{name} is kept in memory: it is lost when its servers stop")
        elif int(config["num_replicas"]) == 1:
            text = "has one copy, which the server writes to the disk every sync_interval (2 minutes by default)"
            after = "a host that fails may lose what was confirmed since; set sync_interval: always, or nats.replicas"
            warnings.append(f"{name} {text}: {after}")
        if found is None:
            return warnings
        if config.get("max_age"):
            text = f"removes messages that are older than {config['max_age'] / _NANO:g} s"
            warnings.append(f"{name} {text}, without a trace" + (", letters too" if is_letters else ""))
        if not is_letters and config["retention"] != "workqueue":
            kept = f"{name} has the retention {config['retention']!r}: it keeps what was handled"
            warnings.append(f"{kept}, and its depth counts that too")
        if config.get("republish"):
            warnings.append(f"{name} publishes each message again, under {config['republish'].get('dest')!r}")
        if config.get("allow_rollup_hdrs"):
            warnings.append(f"{name} takes Nats-Rollup: a publisher may remove all messages of a subject")
        return warnings

    def _consumer_warnings(self, source: Mapping[str, Any] | None, consumer: Mapping[str, Any] | None) -> list[str]:
        if source is None or consumer is None:
            return []
        config, name, warnings = consumer["config"], self._address.consumer, []
        pending = int(config.get("max_ack_pending") or 0)
        if 0 < pending < self._settings.max_ack_pending:
            text = f"leases and delays {pending} messages at once, at most: so many retries hold all others back"
            warnings.append(f"{name} {text} (max_ack_pending)")
        if config.get("filter_subject") or config.get("filter_subjects"):
            warnings.append(f"{name} receives some subjects only: nobody receives the others by it")
        if 0 < int(config.get("max_deliver") or 0) < MARGIN:
            text = f"gives messages up after {config['max_deliver']} deliveries"
            warnings.append(f"{name} {text}, whatever the spec of a subscription says")
        if source["config"]["retention"] == "workqueue" and not config.get("filter_subject"):
            held = int(consumer.get("num_pending", 0)) + int(consumer.get("num_ack_pending", 0))
            before, now = source["state"], self._stream(self._address)["state"]
            # Messages come and go meanwhile: so many at least, and exactly so many if none has come.
            stuck = int(now["messages"]) - (int(now["last_seq"]) - int(before["last_seq"])) - held
            if stuck > 0:
                text = f"{stuck} messages of {self._address.stream} were delivered too often, and wait for nobody"
                warnings.append(f"{text}: see its dead letters")
        return warnings

    # --- creating ---

    def _create_stream(self, address: Address, attributes: Mapping[str, str]) -> None:
        body = {**_configured(attributes), "name": address.stream, "subjects": self._subjects(address)}
        self._api("creating", f"STREAM.CREATE.{address.stream}", {**body, "allow_direct": True}, safe=False)

    def _create_consumer(self, attributes: Mapping[str, str]) -> None:
        stream, name = self._address.stream, self._address.consumer
        config = {**_configured(attributes), "durable_name": name, "deliver_policy": "all"}
        body = {"stream_name": stream, "config": config}
        self._api("creating the consumer of", f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body, safe=False)


def _configured(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return attributes as the API takes them."""
    return {name: int(value) if name in _NUMBERS else value for name, value in attributes.items()}


def _matches(pattern: str, subject: str) -> bool:
    """Whether a stream's subject, which may have wildcards, takes in another one."""
    taken, wanted = pattern.split("."), subject.split(".")
    for at, part in enumerate(taken):
        if part == ">":
            return len(wanted) > at
        if at >= len(wanted) or part not in {"*", wanted[at]}:
            return False
    return len(taken) == len(wanted)
