"""The account of a published batch: delivery tags of its rows, which are confirmed, which failed."""

from __future__ import annotations

from collections.abc import Iterator

from redelivery.contract.broker import Failure, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError


class UnconfirmedBatch:
    """One batch, published in the order of its rows on one channel.

    Attributes:
        batch: the batch; None once it was reported, when only its late confirms are awaited.
        first_tag: delivery tag of the first published row.
        rows: indexes of the published rows, in the order of their tags.
        pending: number of published rows that are not confirmed.
        failures: errors by index.
        is_written: whether every row was published or has failed.
    """

    __slots__ = (
        "_confirmed",
        "_low",
        "batch",
        "deadline",
        "failures",
        "first_tag",
        "is_written",
        "number",
        "pending",
        "rows",
    )

    def __init__(self, batch: Batch, first_tag: int, deadline: float) -> None:
        self.batch: Batch | None = batch
        self.number = batch.number
        self.first_tag = first_tag
        self.deadline = deadline
        self.rows: list[int] = []
        self.pending = 0
        self.failures: dict[int, BrokerError] = {}
        self.is_written = False
        self._low = first_tag  # all tags below are confirmed
        self._confirmed: set[int] = set()  # confirmed tags above

    @property
    def is_settled(self) -> bool:
        """Whether no confirm is missing."""
        return self.is_written and not self.pending

    @property
    def last_tag(self) -> int:
        """Delivery tag of the last published row."""
        return self.first_tag + len(self.rows) - 1

    def published(self, rows: list[int]) -> None:
        """Add rows that were published."""
        self.rows += rows
        self.pending += len(rows)

    def unconfirmed(self, up_to: int | None = None, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield delivery tag and index of each published row that is not confirmed."""
        last = self.last_tag if up_to is None else min(up_to, self.last_tag)
        for tag in range(max(self._low, start), last + 1):
            if tag not in self._confirmed:
                yield tag, self.rows[tag - self.first_tag]

    def confirm(self, tag: int, *, multiple: bool) -> None:
        """Record a confirm of one row, or of all rows up to it."""
        if multiple:
            tag = min(tag, self.last_tag)
            if tag >= self._low:
                past = {each for each in self._confirmed if each <= tag}
                self.pending -= tag + 1 - self._low - len(past)
                self._confirmed -= past
                self._low = tag + 1
        elif self._low <= tag <= self.last_tag and tag not in self._confirmed:
            self._confirmed.add(tag)
            self.pending -= 1
        while self._low in self._confirmed:
            self._confirmed.remove(self._low)
            self._low += 1

    def fail_unconfirmed(self, error: BrokerError) -> None:
        """Fail all rows that were published and are not confirmed."""
        for _, index in self.unconfirmed():
            self.failures.setdefault(index, error)

    def fail_unwritten(self, error: BrokerError) -> None:
        """Fail all rows that were not published."""
        published = set(self.rows)
        for index in range(self.batch.length if self.batch else 0):
            if index not in published:
                self.failures.setdefault(index, error)

    def report(self) -> Settled:
        """Return the outcome and forget the batch."""
        self.batch = None
        failures = [Failure(index, error) for index, error in sorted(self.failures.items())]
        return Settled(batch=self.number, failures=failures)
