"""`Watch`: looks at each place at its interval, judges what it found, tells the webhook, and remembers.

Each place has a thread, so that one that does not answer holds up no other. Nothing that a broker or the webhook does
ends the watch.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Final

from redelivery.base.clock import Clock
from redelivery.deadletters.audit import AuditLog
from redelivery.errors import ConfigurationError, JournalError
from redelivery.watch.looking import Looker, Stopped, Watched
from redelivery.watch.memory import Memory
from redelivery.watch.metrics import PlaceFigures
from redelivery.watch.redriven import Redriven
from redelivery.watch.rules import Alerts, Change, Rules, Snapshot
from redelivery.watch.webhook import Notice, Webhook, sentence

log = logging.getLogger(__name__)

#: Looks at several places side by side.
_AT_ONCE: Final = 8
#: Seconds without any progress at a place after which the watch is not healthy, or so many intervals.
_SILENCE: Final = 600.0
_INTERVALS: Final = 5
#: Seconds that the end of the watch waits for looks and for the webhook.
_END: Final = 10.0
#: Seconds between two looks at whether the watch ends.
_NAP: Final = 0.2
#: Seconds that one look waits until the webhook has heard of its alerts.
_HEARD: Final = 60.0


class PlaceWatch:
    """Watches one place. `turn` is called by one thread at a time, `figures` by any.

    Args:
        place: which.
        rules: what is alerted.
        clock: the time.
        memory: what is remembered of the place.
        stop: whether the watch ends.
        audit: where redrives are recorded; None: they are not counted.
        looker: looks at it; None: a new one.
    """

    def __init__(
        self,
        place: Watched,
        rules: Rules,
        clock: Clock,
        memory: Memory,
        *,
        stop: Callable[[], bool] = lambda: False,
        audit: AuditLog | None = None,
        looker: Looker | None = None,
    ) -> None:
        self.place = place
        self._clock = clock
        self._memory = memory
        self._looker = looker or Looker(place, clock, stop=stop, progress=self._beat)
        self._alerts = Alerts(rules)
        self._redriven = None if audit is None else Redriven(audit, clock.wall_ms())
        self._lock = threading.Lock()
        self._looks = self._failures = 0
        self._up: bool | None = None
        self._warned = False
        self.beat = clock.monotonic()
        self._recall(rules)
        self._figures = self._now()

    def turn(self, *, whole: bool = False) -> list[Change]:
        """Look once, and return which alerts that raised and resolved. Raises Stopped."""
        self._beat()
        found = self._looker.look(whole=whole)
        if self._alerts.doubts(found):
            # That letter may be gone.
            affords = self._looker.affords
            found = _both(found, self._looker.look(whole=True)) if affords else replace(found, oldest_ms=None)
        changes = self._alerts.judge(found)
        if found.failed is not None and self._up is not False and not changes:
            log.warning("watch: %s cannot be looked at: %s", self.place.label, found.failed)
        self._account(found)
        for change in changes:
            self._log(change)
        self._beat()
        return changes

    def remember(self) -> None:
        """Write down what a restart needs."""
        self._memory.write({"looks": self._looker.to_dict(), "alerts": self._alerts.to_dict()})

    def notices(self, changes: Sequence[Change]) -> list[Notice]:
        """Return changes as the webhook tells them."""
        return [Notice(self.place.label, self.place.broker, each) for each in changes]

    def active(self) -> list[Notice]:
        """Return the active alerts as the webhook tells them."""
        return self.notices([Change(each) for each in self._alerts.active])

    def figures(self) -> PlaceFigures:
        """Return what is published."""
        with self._lock:
            return self._figures

    def _recall(self, rules: Rules) -> None:
        said = self._memory.read()
        if said is None:
            return
        try:
            self._alerts = Alerts.from_dict(rules, said["alerts"])
            self._looker.remember(said["looks"])
        except (ValueError, KeyError, AttributeError) as error:
            self._alerts = Alerts(rules)
            self._memory.forget(error)

    def _account(self, found: Snapshot) -> None:
        up = found.failed is None
        if up:
            self._looks += 1
            if self._looker.known.only_counted and not self._warned:
                self._warned = True
                text = "watch: %s: its broker cannot look at letters without hiding them from others and counting a "
                text += "delivery of each, so they are only counted: no age, codes or groups; --look allows it"
                log.warning(text, self.place.label)
        else:
            self._failures += 1
        self._up = up
        if up and self._redriven is not None and self._looker.known.place is not None:
            try:
                self._redriven.look(self._looker.known.place)
            except (JournalError, OSError) as error:
                log.warning("watch: %s: its redrives are not counted: %s", self.place.label, error)
                self._redriven = None
        now = self._now()
        with self._lock:
            self._figures = now

    def _now(self) -> PlaceFigures:
        known = copy(self._looker.known)
        known.arrived = Counter(known.arrived)
        known.by_code = None if known.by_code is None else Counter(known.by_code)
        known.groups = None if known.groups is None else Counter(known.groups)
        return PlaceFigures(
            place=self.place.label,
            broker=self.place.broker,
            up=self._up,
            known=known,
            looks=self._looks,
            failures=self._failures,
            active=Counter(each.rule for each in self._alerts.active),
            redriven={} if self._redriven is None else dict(self._redriven.counts),
        )

    def _log(self, change: Change) -> None:
        said = sentence(self.place.label, change.alert)
        if change.resolved_ms is None:
            log.warning("alert (%s): %s", change.alert.rule, said)
        else:
            log.info("resolved (%s): %s", change.alert.rule, said)

    def _beat(self, _letters: int = 0) -> None:
        self.beat = self._clock.monotonic()


class Watch:
    """Watches places.

    Args:
        places: with their rules.
        clock: the time.
        interval: seconds between the beginnings of two looks at a place.
        webhook: gets the alerts; started by the caller.
        folder: where each place is remembered; None: beside the journals of redrives.
    """

    def __init__(
        self,
        places: Sequence[tuple[Watched, Rules]],
        clock: Clock,
        *,
        interval: float,
        webhook: Webhook | None = None,
        folder: Path | None = None,
    ) -> None:
        self._clock = clock
        self._interval = interval
        self._webhook = webhook
        self._ending = False
        self._stopped = threading.Event()
        audit = None
        with contextlib.suppress(ConfigurationError):  # this user has no folder, so no redrive has recorded anything
            audit = AuditLog()
        self.places = [
            PlaceWatch(place, rules, clock, Memory(place.identity, folder), stop=self._stopped.is_set, audit=audit)
            for place, rules in places
        ]
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._threads: list[threading.Thread] = []

    def once(self) -> bool:
        """Look once at each place; return whether any alert is active. Told alerts are remembered as told."""
        heard = True
        for place in self.places:
            changes = place.turn(whole=True)
            if self._webhook is not None:
                self._webhook.tell(place.notices(changes))
                self._webhook.remind(place.active())
                heard = self._webhook.settle(_HEARD) and not self._webhook.lost
            if heard:  # else the next look raises them again
                place.remember()
        return any(place.active() for place in self.places)

    def run(self) -> None:
        """Look at each place again and again, until `stop`."""
        for place in self.places:
            thread = threading.Thread(target=self._keep, args=(place,), name="redelivery-watch", daemon=True)
            self._threads.append(thread)
            thread.start()
        while not self._ending:
            self._stopped.wait(_NAP)
        self._stopped.set()
        until = self._clock.monotonic() + _END
        for thread in self._threads:
            thread.join(max(0.0, until - self._clock.monotonic()))
        if self._webhook is not None:
            self._webhook.close(_END)

    def stop(self) -> None:
        """End `run`: looks are given up. Safe in a signal handler, which must not wait for a lock."""
        self._ending = True

    def healthy(self) -> bool:
        """Whether looks go on at each place."""
        late = self._clock.monotonic() - max(_SILENCE, _INTERVALS * self._interval)
        return all(each.is_alive() for each in self._threads) and all(each.beat >= late for each in self.places)

    def figures(self) -> list[PlaceFigures]:
        """Return what is published of each place."""
        return [each.figures() for each in self.places]

    def _keep(self, place: PlaceWatch) -> None:
        while not self._stopped.is_set():
            began = self._clock.monotonic()
            try:
                with self._room:
                    if self._stopped.is_set():
                        return
                    changes = place.turn()
                if self._webhook is not None:
                    self._webhook.tell(place.notices(changes))
                    self._webhook.remind([each for one in self.places for each in one.active()])
                place.remember()
            except Stopped:
                return
            except Exception:
                log.exception("watch: %s: a defect; it is looked at again", place.place.label)
            self._stopped.wait(max(0.0, began + self._interval - self._clock.monotonic()))


def _both(first: Snapshot, second: Snapshot) -> Snapshot:
    """Return what two looks have found together, the second at the whole place."""
    if second.failed is not None:
        return second
    return replace(
        second,
        arrived=Counter(first.arrived) + Counter(second.arrived),
        since_ms=first.since_ms if first.since_ms is not None else second.since_ms,
    )
