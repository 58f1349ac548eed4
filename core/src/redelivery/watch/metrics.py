"""`Metrics`: what the watch knows, for Prometheus. The number of its series is bounded, whatever letters say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redelivery.base.clock import Clock
from redelivery.codes import Code
from redelivery.watch.looking import Known
from redelivery.watch.redriven import OUTCOMES
from redelivery.watch.rules import Rule
from redelivery.watch.webhook import Result

#: Groups of a place that have their own series; the others are counted as one.
GROUPS: Final = 20
OTHER: Final = "other"
_PLACE: Final = ("place", "broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFigures:
    """The published figures of a place.

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
        results: returns the webhook's requests by result; None: without a webhook.
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
        now_ms = self._clock.wall_ms()
        families = {
            name: kind(f"redelivery_{name}", text, labels=[*_PLACE, *more]) for kind, name, text, *more in _TABLE
        }
        for each in places:
            for name, labels, value in _values(each, now_ms):
                families[name].add_metric([each.place, each.broker, *labels], value)
        yield from families.values()
        if self._results is not None:
            results = self._results()
            webhook = CounterMetricFamily(
                "redelivery_watch_webhook", "Requests of the webhook; notices given up or dropped.", labels=["result"]
            )
            for result in Result:
                webhook.add_metric([result.value], results.get(result, 0))
            yield webhook


#: Kind, name, text, and labels besides those of the place.
_TABLE: Final = (
    (GaugeMetricFamily, "up", "Whether the last look at the place succeeded."),
    (GaugeMetricFamily, "dead_letters", "Dead letters in the place."),
    (GaugeMetricFamily, "parked_dead_letters", "Dead letters that are parked."),
    (
        GaugeMetricFamily,
        "oldest_dead_letter_age_seconds",
        "Age of the oldest dead letter that is not parked; 0 without such letters.",
    ),
    (GaugeMetricFamily, "dead_letters_by_code", "Dead letters, by why they failed.", "code"),
    (
        GaugeMetricFamily,
        "dead_letters_by_group",
        f"Dead letters of the {GROUPS} largest groups, and of all others.",
        "group",
    ),
    (CounterMetricFamily, "dead_letters_arrived", "Dead letters that came since the watch began, by code.", "code"),
    (CounterMetricFamily, "redriven", "Dead letters in redrives of this user on this host, by outcome.", "outcome"),
    (GaugeMetricFamily, "watch_alerts", "Active alerts of the watch.", "alert"),
    (CounterMetricFamily, "watch_looks", "Looks at the place.", "result"),
    (GaugeMetricFamily, "watch_look_duration_seconds", "Time that the last look took."),
    (GaugeMetricFamily, "watch_last_look_timestamp_seconds", "When the last look that succeeded was."),
    (GaugeMetricFamily, "watch_last_whole_look_timestamp_seconds", "When the whole place was last looked at."),
)


def _values(each: PlaceFigures, now_ms: int) -> Iterator[tuple[str, Sequence[str], float]]:
    """Return the values of a place: of which metric, with which further labels."""
    known = each.known
    yield from (("watch_alerts", [rule.value], each.active.get(rule, 0)) for rule in Rule)
    yield "watch_looks", ["success"], each.looks
    yield "watch_looks", ["failure"], each.failures
    # A counter begins at 0, or its first rise would be no rise.
    yield from (("dead_letters_arrived", [code.value], known.arrived[code.value]) for code in Code)
    yield from (("redriven", [outcome], each.redriven.get(outcome, 0)) for outcome in OUTCOMES)
    if each.up is not None:
        yield "up", [], each.up
    if known.looked_ms is not None:
        yield "watch_last_look_timestamp_seconds", [], known.looked_ms / 1000
        yield "watch_look_duration_seconds", [], known.took
    if known.whole_ms is not None:
        yield "watch_last_whole_look_timestamp_seconds", [], known.whole_ms / 1000
    if each.up:  # else what was known before the place failed may be long past
        yield from _of_letters(known, now_ms)


def _of_letters(known: Known, now_ms: int) -> Iterator[tuple[str, Sequence[str], float]]:
    if known.count is not None:
        yield "dead_letters", [], known.count
    if known.whole_ms is not None:
        yield "parked_dead_letters", [], known.parked
    if known.count is not None and known.count <= known.parked:
        yield "oldest_dead_letter_age_seconds", [], 0
    elif known.oldest_ms is not None:
        yield "oldest_dead_letter_age_seconds", [], max(0, now_ms - known.oldest_ms) / 1000
    yield from (("dead_letters_by_code", [code], count) for code, count in sorted((known.by_code or {}).items()))
    if known.groups is not None:
        yield from (("dead_letters_by_group", [name], count) for name, count in _largest(known.groups, known.others))


def _largest(groups: Counter[str], others: int) -> Iterable[tuple[str, int]]:
    kept = groups.most_common(GROUPS)
    rest = sum(groups.values()) - sum(number for _, number in kept) + others
    yield from sorted(kept)
    if rest:
        yield OTHER, rest
