"""`Plan`: an order that was counted and waits to be confirmed, once."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from redelivery.ui.background import Background, Run
from redelivery.ui.orders import Count, Order, count
from redelivery.ui.source import Source

#: Plans that are kept of a place: an older one must be counted again.
_KEPT: Final = 20
#: Seconds that counting takes at most.
_COUNTING: Final = 300.0


class Plan:
    """An order, and what it would do.

    Args:
        order: what is wanted.
        source: the place.
        to: the place whose destination letters go to; None: where they failed.
        slots: shared: how much such work goes on at a time.
        mask: hides parts of what is shown.

    Attributes:
        name: cannot be guessed.
        counting: finds out what it would do.
    """

    def __init__(
        self,
        order: Order,
        source: Source,
        to: Source | None,
        slots: threading.BoundedSemaphore,
        mask: Callable[[str], str],
    ) -> None:
        self.name = secrets.token_urlsafe(12)
        self.order = order
        self.to = to
        self._source = source
        self._mask = mask
        self._lock = threading.Lock()
        self._used = False
        self.counting: Background[Count] = Background(
            f"{source.name}-plan", self._count, seconds=_COUNTING, slots=slots
        )
        self.counting.begin()

    def take(self) -> bool:
        """Use it; return False where it was used: a form was sent twice, or by two people."""
        with self._lock:
            used, self._used = self._used, True
            return not used

    def give_back(self) -> None:
        """Let it be used again: nothing was begun."""
        with self._lock:
            self._used = False

    def _count(self, run: Run) -> Count:
        opened = self._source if self.to is None else self._source.with_options_of(self.to)
        with opened.open() as dlq:
            url = None if self.to is None else self.to.destination()
            return count(self.order, dlq, url, stop=run.stop, on_progress=run.progress, mask=self._mask)


class Plans:
    """The last plans of a place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[str, Plan] = OrderedDict()

    def add(self, plan: Plan) -> Plan:
        """Keep one; the oldest one is forgotten."""
        with self._lock:
            self._plans[plan.name] = plan
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
        return plan

    def get(self, name: str) -> Plan | None:
        """Return one; None: it is not known, or was forgotten."""
        with self._lock:
            return self._plans.get(name)
