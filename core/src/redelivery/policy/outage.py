"""`Outage`: whether a destination accepts anything at all, judged by its own answers. Pure: the time is an argument.

While it accepts nothing, one batch at a time tries it. The failure of that batch counts for every record that became
due during the try: so each record's attempts take the time that the spec gives them, however many records wait. Once
the outage has lasted longer than all attempts of one record may take, new rows are refused at once; now and then one
batch is let through as a probe.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final

from redelivery.codes import Code
from redelivery.errors import Ambiguous, BrokerError, NotSent, Retriable, Throttled

#: Once an outage has outlasted all attempts, the pause after a try is this many times as long as the try was. So
#: trying takes a small part of the time, and a destination that refuses at once is tried each time.
_PAUSE: Final = 4
#: Seconds, added to as many budgets, after which an outage without news no longer counts. Much longer than a turn of
#: the engine, which other destinations may hold up.
_FORGOTTEN: Final = 300.0


class Outage:
    """The state of one destination, derived from its answers.

    Args:
        budget: seconds that all attempts of one record may take.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._failed = 0  # batches in a row of which nothing was accepted, each counted once
        self._since = 0.0  # when the first of them failed
        self._seen = 0.0  # when it was last asked for
        self._tried_from = self._tried_until = float("-inf")  # the last try since: begun, failed
        self._next_try = 0.0
        self._error: BrokerError | None = None
        self._targets: frozenset[Hashable] = frozenset()  # of the batches that failed; more than one stand for all

    @property
    def on(self) -> bool:
        """Whether nothing is accepted now."""
        return self._error is not None

    def over(self, now: float) -> float | None:
        """Seconds that it has lasted, once they exceed what all attempts of one record may take; None until then."""
        lasted = now - self._since
        return lasted if self.on and lasted >= self._budget else None

    def refuses(self, now: float) -> bool:
        """Whether new rows are refused without a try. Forgets an outage that had no news for long."""
        if self.on and now - self._seen > _PAUSE * self._budget + _FORGOTTEN:
            self._end()
        self._seen = now
        return self.over(now) is not None and now < self._next_try

    def speaks_for(self, targets: frozenset[Hashable]) -> bool:
        """Whether these targets are affected too: where one target alone has failed, only that one; else all."""
        return len(self._targets) > 1 or targets <= self._targets

    def answers(self, due: float, *, last: bool) -> bool:
        """Whether the last try counts for a record that was due then; its last attempt needs a try begun since."""
        return self.on and (due <= self._tried_from if last else due < self._tried_until)

    def error(self) -> BrokerError:
        """Return the error of a record that is not sent: what the destination answered, and that nothing was sent."""
        said = self._error
        text = f"not sent, as what went before it has failed: {said}"
        refusal = Retriable(text, code=Code.NOT_SENT) if said is None else said.reclassified(Retriable, text)
        refusal.__cause__ = said
        return refusal

    def heard(
        self,
        errors: Collection[BrokerError],
        rows: int,
        *,
        targets: frozenset[Hashable],
        sent_at: float,
        now: float,
        first: bool,
        blocked: bool,
    ) -> None:
        """Record the result of a batch.

        Args:
            errors: of the rows that failed.
            rows: how many there were.
            targets: the targets of a failed batch's rows.
            sent_at: when it was sent.
            now: when its result is known.
            first: its rows were never tried before; a row that fails alone, again and again, is not an outage.
            blocked: it was not even handed over, or the hand-over took most of its time.
        """
        kinds = set(map(type, errors))
        if len(errors) < rows or any(issubclass(kind, Throttled) for kind in kinds):
            self._end()
            return
        if not any(map(_unavailable, kinds)):
            return  # it says nothing of the others
        error = next(each for each in errors if _unavailable(type(each)))
        if not self._failed:
            self._since = now
        self._failed += first or blocked
        if len(self._targets) <= 1:
            self._targets |= targets
        if self.on or blocked or self._failed > 1:
            if blocked or sent_at >= self._since:
                self._tried_from, self._tried_until = sent_at, now
            self._next_try = now + _PAUSE * (now - sent_at)
            self._seen = now
            self._error = error

    def _end(self) -> None:
        self._failed = 0
        self._error = None
        self._targets = frozenset()
        self._tried_from = self._tried_until = float("-inf")


def _unavailable(kind: type[BrokerError]) -> bool:
    return issubclass(kind, Retriable | Ambiguous) and not issubclass(kind, NotSent)
