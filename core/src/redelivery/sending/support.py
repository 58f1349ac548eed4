"""Which fields of a delivery spec a destination refuses, and which have no effect there.

Refusals depend on capabilities alone, so they come before anything is sent, on the driver where one exists. Must not
know any broker, nor do I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from redelivery.base import durations
from redelivery.base.urls import redact
from redelivery.contract.capabilities import Capabilities
from redelivery.contract.refs import check_ref
from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.errors import ConfigurationError
from redelivery.formats.specs.fields import written
from redelivery.policy.backoff import cap_of

#: Fields that a destination honours only with the capability of the same name. They apply to provisioning alone.
PROVISIONED: Final = ("sink_partitions", "sink_replication_factor")

_WAITS: Final = (
    "backoff_policy",
    "backoff_delay",
    "backoff_max",
    "backoff_profile",
    "retry_after_max",
    "retry_delay_max",
)
_OF_LETTERS: Final = (
    "format",
    "dead_letter_dialects",
    "dead_letter_type",
    "letter_key",
    "sink_context_headers",
    "sink_include_messages",
    "sink_include_configs",
    *PROVISIONED,
)
_OF_CONTEXT: Final = ("dead_letter_dialects", "letter_key", "sink_include_messages", "sink_include_configs")
_LIMITS: Final = ("tolerance_limit", "tolerance_rate_limit", "tolerance_rate_duration")


def check(spec: DeliverySpec, can: Capabilities, broker: str) -> None:
    """Refuse fields of a spec that a destination cannot honour.

    Args:
        spec: the spec.
        can: the destination's capabilities.
        broker: the plugin's name, for the message.

    Raises:
        ConfigurationError: names the field.
    """
    for name in PROVISIONED:
        value = getattr(spec, name)
        if value is not None and not getattr(can, name):
            what = "partitions" if name == "sink_partitions" else "replicas that a job could choose"
            raise ConfigurationError(
                f"{name_of(name)}: the dead letter places of {broker} have no {what}; leave it out"
            )
    for sink in spec.dead_letter_sink:
        if sink.ref is not None:
            check_ref(sink.ref, can, broker)


def without_effect(spec: DeliverySpec) -> Iterator[str]:
    """Return the fields that a spec gives but that have no effect beside its other fields; one sentence each."""
    for name in said(spec):
        why = _idle(spec, name)
        if why is not None:
            yield f"{name_of(name)}: has no effect, for {why}"


def left_to_provisioning(spec: DeliverySpec) -> Iterator[str]:
    """Return the fields that a job or a subscription leaves to provisioning; one sentence each, field first."""
    for name in PROVISIONED:
        if getattr(spec, name) is not None:
            yield f"{name_of(name)}: is for `redelivery apply`, which makes sinks; what delivers makes none"


def said(spec: DeliverySpec) -> Iterator[str]:
    """Return the fields that a spec gives, by attribute."""
    for each in fields(DeliverySpec):
        if getattr(spec, each.name) != each.default:
            yield each.name


def understood(spec: DeliverySpec) -> Mapping[str, str]:
    """Return each field that a spec gives, and each default that applies, by written name; redacted."""
    found = dict(written(name, getattr(spec, name)) for name in said(spec))
    for name, value in _defaults(spec):
        if getattr(spec, name) is None:
            found[name_of(name)] = f"{value} (default)"
    return {name: redact(value) for name, value in found.items()}


def name_of(attribute: str) -> str:
    """Return a field's written name, as people know it."""
    return written(attribute, None)[0]


def _defaults(spec: DeliverySpec) -> Iterator[tuple[str, Any]]:
    yield "timeout", "PT30S of a send; a handler may take any time"
    if _retries(spec) and spec.retry_delay_max is None:
        yield "backoff_max", durations.write(cap_of(spec))
    if spec.backoff_delay is not None:
        yield "backoff_policy", "exponential"
    yield "tolerance", "all, as there is a sink" if spec.tolerates else "none"
    yield "log_enable", "the first failures of a task"
    if spec.dead_letter_sink:
        yield "sink_context_headers", "true"


def _retries(spec: DeliverySpec) -> bool:
    """Whether anything is ever sent again: a sink has its own retries, unless the spec says 0."""
    return spec.retry != 0 and bool(spec.retry or spec.retry_timeout or spec.dead_letter_sink)


def _idle(spec: DeliverySpec, name: str) -> str | None:  # noqa: PLR0911 - a table reads best as one return a rule
    """Return why a given field has no effect; None where it has one."""
    if name in _OF_LETTERS and not spec.dead_letter_sink:
        return "no deadLetterSink is set"
    if name in _OF_CONTEXT and spec.sink_context_headers is False:
        return "no context is written (errors.deadletterqueue.context.headers.enable=false)"
    if name in _WAITS and not _retries(spec):
        return "nothing is retried; say retry or errors.retry.timeout"
    if name in _LIMITS and not spec.tolerates:
        return "nothing is tolerated: the first failure fails the job"
    if name == "tolerance_rate_duration" and spec.tolerance_rate_limit in {None, UNLIMITED}:
        return "errors.tolerance.rate.limit is not set"
    if name in {"log_include_messages", "log_include_configs"} and not spec.log_enable:
        return "failures are not logged in full; say errors.log.enable=true"
    if name == "allow_skip" and (spec.dead_letter_sink or not spec.tolerates):
        return "there is a deadLetterSink" if spec.dead_letter_sink else "nothing is tolerated"
    return None
