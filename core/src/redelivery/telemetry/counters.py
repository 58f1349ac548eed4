"""KIP-298's metrics and `terms` as OpenTelemetry instruments, under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from redelivery.contract.broker import Broker
from redelivery.telemetry import conventions
from redelivery.telemetry.current import Telemetry, current
from redelivery.telemetry.guard import harmless
from redelivery.telemetry.sends import attributes_of

#: How often the counters of something that goes on are published, in seconds.
EVERY: Final = 1.0


class Counters:
    """Publishes the account of a job or a subscription: what has grown since the last time.

    Args:
        telemetry: what records.
        attributes: of every measurement; few and bounded.
    """

    def __init__(self, telemetry: Telemetry, attributes: Mapping[str, Any]) -> None:
        self._attributes = dict(attributes)
        self._known: dict[str, int] = {}
        self._due = float("-inf")
        meter = telemetry.meter
        self._last: Any = None
        self._outage: Any = None
        self._counters: dict[str, Any] = {}
        if meter is not None:
            self._last = meter.create_gauge(conventions.LAST_ERROR, "ms", "When a record failed last")
            self._outage = meter.create_gauge(
                conventions.OUTAGE,
                "1",
                "Whether receiving is paused: nearly everything fails, or the broker does not answer",
            )
            self._counters = {
                name: meter.create_counter(name, "{record}", text) for name, text in conventions.KIP_298.items()
            }
            self._counters[conventions.TERMS] = meter.create_counter(
                conventions.TERMS, "{message}", "Messages that a handler gave up at once"
            )
            self._counters[conventions.OUTAGES] = meter.create_counter(
                conventions.OUTAGES, "{outage}", "How often receiving was paused"
            )

    @classmethod
    @harmless(None)
    def of(cls, broker: Broker, more: Mapping[str, Any] | None = None) -> Self | None:
        """Return the counters of a destination; None where nothing records."""
        telemetry = current()
        if telemetry is None or telemetry.meter is None:
            return None
        return cls(telemetry, {**attributes_of(broker), **(more or {})})

    def is_due(self, now: float) -> bool:
        """Whether to publish again; `now` is in monotonic seconds."""
        if now < self._due:
            return False
        self._due = now + EVERY
        return True

    @harmless(None)
    def publish(
        self,
        metrics: Mapping[str, int],
        *,
        terms: int | None = None,
        outages: int | None = None,
        is_outage: bool = False,
    ) -> None:
        """Publish an account.

        Args:
            metrics: as `DeliveryReport.metrics`.
            terms: terminal nacks; None: nothing can be given up that way.
            outages: how often an outage has paused receiving; None: nothing is received.
            is_outage: one pauses it now.
        """
        values: dict[str, int | None] = {**metrics, conventions.TERMS: terms, conventions.OUTAGES: outages}
        for name, counter in self._counters.items():
            value = values.get(name)
            if value is None:
                continue
            more = value - self._known.get(name, 0)
            if more > 0 or name not in self._known:  # a counter that exists is shown, even at 0
                counter.add(max(0, more), self._attributes)
            self._known[name] = max(value, self._known.get(name, 0))
        if outages is not None and self._outage is not None:
            self._outage.set(int(is_outage), self._attributes)
        last = values.get(conventions.LAST_ERROR)
        if last and self._last is not None:
            self._last.set(last, self._attributes)
