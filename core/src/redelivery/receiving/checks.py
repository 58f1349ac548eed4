"""Compares a subscription's spec with its broker's capabilities, before any message is received."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta

from redelivery.base.urls import redact
from redelivery.contract.broker import Broker
from redelivery.contract.spec import FOREVER, DeliverySpec
from redelivery.errors import ConfigurationError, RedeliveryError, Unsupported
from redelivery.kit.plans import longest_wait


def refuse_own_letters(broker: Broker, url: str) -> None:
    """Refuse a dead letter queue that is its own native one: messages that die here would be received again, endlessly.

    Raises:
        ConfigurationError
    """
    places: Sequence[str] = ()
    with contextlib.suppress(RedeliveryError):  # not provisioned
        places = broker.dead_letter_places()
    if not {url, broker.canonical_url}.isdisjoint(places):
        raise ConfigurationError(
            f"deadLetterSink: {redact(url)} is a dead letter place, and its own native one: letters that die "
            "there would come back forever; name another place"
        )


def check_retries(broker: Broker, spec: DeliverySpec) -> None:
    """Refuse retries after a delay where the broker cannot delay, and a timeout where it reports no first delivery.

    Raises:
        Unsupported
    """
    can = broker.capabilities
    if longest_wait(spec) and not can.delay:
        text = "cannot keep a message away for a delay (capability `delay`); retry at once, with backoffDelay=PT0S"
        raise Unsupported(f"{broker.name}: {text}")
    timed = spec.retry_timeout not in {None, FOREVER, timedelta(0)}
    if timed and not can.first_delivery:
        raise Unsupported(
            f"{broker.name}: does not tell when a message was first delivered, so errors.retry.timeout cannot be "
            "kept here; give a number of retries"
        )
