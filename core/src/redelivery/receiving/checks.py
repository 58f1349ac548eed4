"""What a subscription's spec asks and its broker cannot do, said before any message is taken."""

from __future__ import annotations

import contextlib
from datetime import timedelta

from redelivery.base.urls import redact
from redelivery.contract.broker import Broker
from redelivery.contract.spec import FOREVER, DeliverySpec
from redelivery.errors import ConfigurationError, RedeliveryError, Unsupported


def refuse_own_letters(broker: Broker, url: str) -> None:
    """A dead letter place is its own native one: what dies here would be received again, without an end.

    Raises:
        ConfigurationError
    """
    place = None
    with contextlib.suppress(RedeliveryError):  # not provisioned, or nothing that a sender could name
        place = broker.native_sink()
    if place is not None and place in {url, broker.canonical_url}:
        raise ConfigurationError(
            f"deadLetterSink: {redact(url)} is a dead letter place, and its own native one: letters that die "
            "there would come back forever; name another place"
        )


def check_retries(broker: Broker, spec: DeliverySpec) -> None:
    """Retries need a broker that keeps a message away for a while; a timeout, one that tells when it first came.

    Raises:
        Unsupported
    """
    can = broker.capabilities
    if (spec.retry or spec.retry_timeout) and not can.delay:
        raise Unsupported(f"{broker.name}: cannot keep a message away for a delay, so it has no retries")
    timed = spec.retry_timeout not in {None, FOREVER, timedelta(0)}
    if timed and not can.first_delivery:
        raise Unsupported(
            f"{broker.name}: does not tell when a message was first delivered, so errors.retry.timeout cannot be "
            "kept here; give a number of retries"
        )
