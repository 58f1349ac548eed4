"""Publishes KIP-298's metrics of a write when it is committed, and opens URLs only to ask for their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redelivery import registry
from redelivery.errors import RedeliveryError
from redelivery.sending.report import DeliveryReport
from redelivery.telemetry import conventions
from redelivery.telemetry.counters import Counters
from redelivery.telemetry.current import current
from redelivery.telemetry.sends import attributes_of

if TYPE_CHECKING:
    from redelivery.contract.broker import Broker


def opened(url: str, options: Mapping[str, str] | None = None) -> Broker | None:
    """Return the broker of a URL, to ask for its names; None where this machine lacks what it needs. No I/O.

    An insecure connection causes no warning: whoever has sent there has given it.
    """
    try:
        with registry.connect(url, options, warn=False) as broker:
            return broker
    except RedeliveryError:
        return None


def count(report: DeliveryReport, url: str, options: Mapping[str, str] | None = None) -> None:
    """Publish the metrics of a write or a micro-batch, where this process records metrics."""
    telemetry = current()
    if telemetry is None or telemetry.meter is None:
        return
    Counters(telemetry, _attributes(url, options)).publish(report.metrics())


def _attributes(url: str, options: Mapping[str, str] | None) -> dict[str, Any]:
    broker = opened(url, options)
    return {conventions.SYSTEM: registry.installed().by_url(url).name} if broker is None else attributes_of(broker)
