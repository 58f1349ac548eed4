"""Provisioning: creates and compares the objects that a delivery spec needs at a broker, and warns the operator.

The admin role does the broker's own part. This module holds the rules of every broker: loops, sinks that the job itself
reads, and how well each part of the spec is supported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from redelivery import policy, registry
from redelivery.base import durations
from redelivery.base.urls import redact
from redelivery.contract.broker import Broker, Capabilities, Plan, Support
from redelivery.contract.spec import FOREVER, NATIVE, DeliverySpec, DeliveryStatus
from redelivery.errors import BrokerError, ConfigurationError, UnknownScheme, Unsupported
from redelivery.policy.backoff import cap_of
from redelivery.sending import support
from redelivery.sending.connector import refuse_destination, sink_options, sink_url, true_url

#: The parts of the vocabulary, and the capability that supports each.
_PARTS: Final[Mapping[str, str]] = {
    "a dead letter place of the destination's own": "dead_letter",
    "moving a received message there": "terminate",
    "a reason of the place's own": "reason",
    "retries after a delay": "delay",
    "counting attempts": "attempts",
    "a limit of deliveries behind core's own": "delivery_limit",
    "expiry into the dead letters": "expiry",
    "order by key": "order",
    "recognising a message sent twice": "deduplicate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    """The meaning of a spec at one destination.

    Attributes:
        url: the destination, redacted.
        plan: the broker's own part.
        fields: each field that the spec gives, and each default that applies, by written name.
        support: how well the destination supports each part of the vocabulary.
        warnings: what an operator should look at.
        ends_within: seconds after which a writing task has ended even if nothing is accepted any more; infinite where
            the spec asks for endless retries.
    """

    url: str
    plan: Plan
    fields: Mapping[str, str]
    support: Mapping[str, Support]
    warnings: Sequence[str]
    ends_within: float


def plan(
    url: str, spec: DeliverySpec, *, options: Mapping[str, str] | None = None, reads: Sequence[str] = ()
) -> Provisioning:
    """Compare the objects that a spec needs with those that exist. Reads only.

    Args:
        url: the destination.
        spec: how rows are delivered to it.
        options: client options, with their plugin's prefix.
        reads: URLs that the job itself reads.

    Raises:
        ConfigurationError: a sink is the destination itself, or the destination cannot do what the spec requires.
        BrokerError, Unsupported
    """
    own = registry.own_options(url, options or {})
    with registry.connect(url, own) as broker:
        support.check(spec, broker.capabilities, broker.name)
        sinks = _sinks(url, spec, broker, own)
        with broker.admin() as admin:
            native = admin.plan(_resolved(spec, sinks))
        native = replace(
            native,
            status=_status(spec, sinks, native.status),
            approximations=[*native.approximations, *support.without_effect(spec), *_cut(spec, broker.capabilities)],
        )
        place = None
        with contextlib.suppress(BrokerError, ConfigurationError, Unsupported):
            place = broker.native_sink()
        can = broker.capabilities
    of_sinks = _of_sinks(url, sinks, native.sinks, place, reads, options or {})
    warnings = [*native.warnings, *_of_spec(spec, can), *of_sinks]
    return Provisioning(
        url=redact(url),
        plan=native,
        fields=support.understood(spec),
        support=_support(can),
        warnings=warnings,
        ends_within=policy.worst_case_seconds(spec),
    )


def apply(url: str, spec: DeliverySpec, *, options: Mapping[str, str] | None = None) -> DeliveryStatus:
    """Create missing objects; existing ones are never altered. Idempotent.

    Raises:
        ConfigurationError, BrokerError, Unsupported
    """
    own = registry.own_options(url, options or {})
    with registry.connect(url, own) as broker:
        support.check(spec, broker.capabilities, broker.name)
        sinks = _sinks(url, spec, broker, own)
        with broker.admin() as admin:
            status = admin.provision(_resolved(spec, sinks))
    return _status(spec, sinks, status)


def _sinks(url: str, spec: DeliverySpec, broker: Broker, options: Mapping[str, str]) -> list[str]:
    """Return the URLs of a spec's sinks. Raises ConfigurationError where one is the destination."""
    sinks = []
    for sink in spec.dead_letter_sink:
        if sink.uri == NATIVE:  # it may not exist yet
            sinks.append(NATIVE)
            continue
        named = sink_url(sink, broker)
        try:
            registry.installed().by_url(named)
        except UnknownScheme as error:  # no job could use it either
            raise UnknownScheme(f"deadLetterSink: {error}") from None
        if sink.options:
            with registry.connect(named, sink_options(sink, broker, options)) as there:
                refuse_destination(named, there, url, broker)
                named = true_url(sink, named, there)
        elif named in (url, broker.canonical_url):
            raise ConfigurationError(f"deadLetterSink: {redact(url)} is the destination itself; name another place")
        sinks.append(named)
    return sinks


def _resolved(spec: DeliverySpec, sinks: Sequence[str]) -> DeliverySpec:
    """Return the spec with its refs resolved."""
    given = zip(spec.dead_letter_sink, sinks, strict=True)
    resolved = (sink if sink.ref is None else replace(sink, uri=url, ref=None) for sink, url in given)
    return replace(spec, dead_letter_sink=tuple(resolved))


def _status(spec: DeliverySpec, sinks: Sequence[str], told: DeliveryStatus) -> DeliveryStatus:
    """Return where the first sink leads; `told` is the admin's status of it."""
    if not sinks:
        return DeliveryStatus()
    if sinks[0] == NATIVE:
        return told
    channel = spec.dead_letter_sink[0].ref or told.dead_letter_channel
    return DeliveryStatus(dead_letter_sink_uri=redact(sinks[0]), dead_letter_channel=channel)


def _support(capabilities: Capabilities) -> dict[str, Support]:
    return {part: getattr(capabilities, name) for part, name in _PARTS.items()}


def _of_spec(spec: DeliverySpec, can: Capabilities) -> Iterator[str]:
    if not spec.dead_letter_sink and spec.tolerates:
        yield "no deadLetterSink is set, and failures are tolerated: a row that fails for good is counted and dropped"
    elif not spec.dead_letter_sink:
        yield "no deadLetterSink is set: a message that fails for good fails the job, or stays where it is"
    elif any(sink.uri == NATIVE for sink in spec.dead_letter_sink) and not can.dead_letter:
        yield "deadLetterSink: this destination has no native dead letter queue: name a URL instead of 'native'"
    window, longest = can.deduplication_window, policy.worst_case_seconds(spec)
    if window is not None and (spec.retry or spec.retry_timeout) and longest > window.total_seconds():
        yield (
            f"retries may go on for longer than ids are remembered here, {durations.write(window)}: a row that is sent "
            "again after that may be stored twice"
        )
    if spec.retry and can.receive and not can.delay:
        yield "retry: what is received here cannot be kept away for a delay, so a subscription has no retries"
    timed = spec.retry_timeout not in {None, FOREVER, timedelta(0)}
    if timed and can.receive and not can.first_delivery:
        yield (
            "errors.retry.timeout: it is not told here when a message was first delivered, so a subscription refuses it"
        )


def _cut(spec: DeliverySpec, can: Capabilities) -> Iterator[str]:
    """Return the waits of a subscription that are longer than the destination can delay a message."""
    most = can.limits.delay_max
    if can.delay and most is not None and (spec.retry or spec.retry_timeout) and cap_of(spec) > most:
        yield f"a subscription's waits are {durations.write(most)} at most: longer ones this destination does not know"


def _of_sinks(
    url: str,
    sinks: Sequence[str],
    made: Sequence[str],
    place: str | None,
    reads: Sequence[str],
    options: Mapping[str, str],
) -> Iterator[str]:
    for sink in sinks:
        there = place if sink == NATIVE else sink
        if there is not None and there in reads:
            yield f"the job reads its own dead letter sink, {redact(there)}: each letter comes back as a message"
        if sink == NATIVE:
            continue
        if sink not in made:
            shown = redact(sink)
            makes = registry.installed().by_url(sink).capabilities.provision
            how = f"make it, if it is missing: redelivery apply {shown}" if makes else "redelivery cannot make it"
            yield f"the sink {shown} is another place; {how}"
        with contextlib.suppress(BrokerError, ConfigurationError, Unsupported):
            with registry.connect(sink, registry.own_options(sink, options)) as broker:
                loop = broker.native_sink() == url
            if loop:
                yield f"a loop: letters that the sink {redact(sink)} itself gives up go to {redact(url)}"
