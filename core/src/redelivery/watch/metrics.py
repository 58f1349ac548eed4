"""`Metrics`: what the watch knows, as Prometheus reads it. The number of its series is bounded, whatever letters say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redelivery.base.clock import Clock
from redelivery.watch.looking import Known
from redelivery.watch.rules import Rule
from redelivery.watch.webhook import Result

#: Groups of a place that have their own series; the others are counted as one.
GROUPS: Final = 20
OTHER: Final = "other"
_PLACE: Final = ("place", "broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFigures:
    """What is published of a place.

    Attributes:
        place, broker: its labels.
        up: whether the last look succeeded; None: there was none.
        known: from all looks.
        looks, failures: how many looks succeeded, and failed.
        active: how many alerts are active, by rule.
        redriven: letters that redrives have sent back, by what became of them.
    """

    place: str
    broker: str
    up: bool | None
    known: Known
    looks: int
    failures: int
    active: Mapping[Rule, int]
    redriven: Mapping[str, int]


class Metrics(Collector):
    """Collects what is known at the time of each scrape.

    Args:
        figures: returns what is known of each place; called by the threads that serve.
        results: returns what became of the webhook's requests; None: there is no webhook.
        clock: the time.
    """

    def __init__(
        self,
        figures: Callable[[], Sequence[PlaceFigures]],
        results: Callable[[], Mapping[Result, int]] | None,
        clock: Clock,
    ) -> None:
        self._figures = figures
        self._results = results
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Return the metrics, empty: their names are known before the first look."""
        return self._collected([])

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._collected(self._figures())

    def _collected(self, places: Sequence[PlaceFigures]) -> Iterable[Metric]:
        gauge, count = _gauge, _counter
        now_ms = self._clock.wall_ms()
        up = gauge("up", "Whether the last look at the place succeeded.")
        letters = gauge("dead_letters", "Dead letters in the place.")
        oldest = gauge("oldest_dead_letter_age_seconds", "Age of the oldest dead letter; 0 without letters.")
        by_code = gauge("dead_letters_by_code", "Dead letters, by why they failed.", "code")
        by_group = gauge(
            "dead_letters_by_group", f"Dead letters of the {GROUPS} largest groups, and of all others.", "group"
        )
        arrived = count("dead_letters_arrived", "Dead letters that came while the watch looked, by code.", "code")
        redriven = count("redriven", "Dead letters that redrives of this host sent back, by outcome.", "outcome")
        alerts = gauge("watch_alerts", "Active alerts of the watch.", "alert")
        looks = count("watch_looks", "Looks at the place.", "result")
        took = gauge("watch_look_duration_seconds", "Time that the last look took.")
        looked = gauge("watch_last_look_timestamp_seconds", "When the last look that succeeded was.")
        whole = gauge("watch_last_whole_look_timestamp_seconds", "When the whole place was last looked at.")
        for each in places:
            name, known = (each.place, each.broker), each.known
            for rule in Rule:
                alerts.add_metric([*name, rule.value], each.active.get(rule, 0))
            looks.add_metric([*name, "success"], each.looks)
            looks.add_metric([*name, "failure"], each.failures)
            for code, number in sorted(known.arrived.items()):
                arrived.add_metric([*name, code], number)
            for outcome, number in sorted(each.redriven.items()):
                redriven.add_metric([*name, outcome], number)
            if each.up is not None:
                up.add_metric(name, each.up)
            if known.looked_ms is not None:
                looked.add_metric(name, known.looked_ms / 1000)
                took.add_metric(name, known.took)
            if known.whole_ms is not None:
                whole.add_metric(name, known.whole_ms / 1000)
            if not each.up:
                continue  # what was known before the place failed may be long past
            if known.count is not None:
                letters.add_metric(name, known.count)
            if known.count == 0 or known.oldest_ms is not None:
                age = 0 if known.oldest_ms is None or known.count == 0 else max(0, now_ms - known.oldest_ms) / 1000
                oldest.add_metric(name, age)
            for code, number in sorted((known.by_code or {}).items()):
                by_code.add_metric([*name, code], number)
            if known.groups is not None:
                for group, number in _largest(known.groups, known.others):
                    by_group.add_metric([*name, group], number)
        yield from (up, letters, oldest, by_code, by_group, arrived, redriven, alerts, looks, took, looked, whole)
        if self._results is not None:
            results = self._results()
            webhook = CounterMetricFamily(
                "redelivery_watch_webhook", "Requests of the webhook; notices given up or dropped.", labels=["result"]
            )
            for result in Result:
                webhook.add_metric([result.value], results.get(result, 0))
            yield webhook


def _largest(groups: Counter[str], others: int) -> Iterable[tuple[str, int]]:
    kept = groups.most_common(GROUPS)
    rest = sum(groups.values()) - sum(number for _, number in kept) + others
    yield from sorted(kept)
    if rest:
        yield OTHER, rest


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"redelivery_{name}", text, labels=[*_PLACE, *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"redelivery_{name}", text, labels=[*_PLACE, *labels])
