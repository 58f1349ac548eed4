"""`Outage`: whether a destination accepts anything at all, as its own answers show. Pure: the time is an argument.

While it accepts nothing, one batch at a time tries it, and its failure is that of every record that was due meanwhile:
so each record's attempts take the time that the spec gives them, however many records there are. Once this has lasted
longer than all attempts of one record may take, what comes next is refused at once; now and then one batch is let
through, to see.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Final

from redelivery.codes import Code
from redelivery.errors import Ambiguous, BrokerError, NotSent, Retriable, Throttled

#: Once an outage has outlasted all attempts, the pause after a try is this many times as long as the try was: so that
#: trying takes a small part of the time, and a destination that refuses at once is tried each time.
_PAUSE: Final = 4
#: Seconds, besides as many budgets, after which an outage that nobody has met since says nothing any more. Much longer
#: than a turn of the engine, which other destinations may hold up.
_FORGOTTEN: Final = 300.0


class Outage:
    """What one destination's answers show.

    Args:
        budget: seconds that all attempts of one record may take.
    """

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._failed = 0  # batches in a row of which nothing was accepted, each counted once
        self._since = 0.0  # when the first of them failed
        self._seen = 0.0  # when it was asked for last
        self._tried_from = self._tried_until = float("-inf")  # the last try since: begun, failed
        self._next_try = 0.0
        self._error: BrokerError | None = None
        self._targets: frozenset[Hashable] = frozenset()  # of the batches that failed; more than one are all

    @property
    def on(self) -> bool:
        """Whether nothing is accepted now."""
        return self._error is not None

    def over(self, now: float) -> float | None:
        """Seconds that it has lasted, once they are more than all attempts of one record may take; None till then."""
        lasted = now - self._since
        return lasted if self.on and lasted >= self._budget else None

    def refuses(self, now: float) -> bool:
        """Whether what comes now is refused without a try. Forgets an outage of which nothing was heard for long."""
        if self.on and now - self._seen > _PAUSE * self._budget + _FORGOTTEN:
            self._end()
        self._seen = now
        return self.over(now) is not None and now < self._next_try

    def speaks_for(self, targets: frozenset[Hashable]) -> bool:
        """Whether it is an outage of these targets too: where one alone has failed, of that one; else of all."""
        return len(self._targets) > 1 or targets <= self._targets

    def answers(self, due: float, *, last: bool) -> bool:
        """Whether the last try answers for a record that was due then; for its last attempt one begun since must."""
        return self.on and (due <= self._tried_from if last else due < self._tried_until)

    def error(self) -> BrokerError:
        """Why a record is not sent: what the destination said, and that nothing has happened."""
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
        """Take note of how a batch fared.

        Args:
            errors: of the rows that failed.
            rows: how many there were.
            targets: where the rows of a batch that failed were to go.
            sent_at: when it was sent.
            now: when it is known how it fared.
            first: nothing of it was tried before; a row that fails by itself, again and again, is not an outage.
            blocked: it was not even handed over, or that took most of its time.
        """
        if len(errors) < rows or any(isinstance(each, Throttled) for each in errors):
            self._end()
            return
        error = next((each for each in errors if _unavailable(each)), None)
        if error is None:
            return  # it says nothing of the others
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


def _unavailable(error: BrokerError) -> bool:
    return isinstance(error, Retriable | Ambiguous) and not isinstance(error, NotSent)
