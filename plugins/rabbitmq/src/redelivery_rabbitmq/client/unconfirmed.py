"""A batch on its way: which of its rows are published under which delivery tags, and what became of them.

This file must not do I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

from redelivery.contract.broker import Failure, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError


class Flight:
    """One batch, published in the order of its rows on one channel.

    Attributes:
        batch: what is on its way; None when it has been told of, and only its tags are waited for.
        first: delivery tag of the first published row.
        rows: indexes of the published rows, in order of their tags.
        left: published rows that are not confirmed.
        failures: what failed, by index.
        whole: every row was published, or failed.
    """

    __slots__ = ("_done", "_low", "batch", "deadline", "failures", "first", "left", "number", "rows", "whole")

    def __init__(self, batch: Batch, first: int, deadline: float) -> None:
        self.batch: Batch | None = batch
        self.number = batch.number
        self.first = first
        self.deadline = deadline
        self.rows: list[int] = []
        self.left = 0
        self.failures: dict[int, BrokerError] = {}
        self.whole = False
        self._low = first  # all tags below are confirmed
        self._done: set[int] = set()  # further ones that are

    @property
    def landed(self) -> bool:
        """Whether nothing more will be heard of it."""
        return self.whole and not self.left

    @property
    def last(self) -> int:
        """Delivery tag of the last published row."""
        return self.first + len(self.rows) - 1

    def published(self, rows: list[int]) -> None:
        """Further rows were published."""
        self.rows += rows
        self.left += len(rows)

    def unconfirmed(self, up_to: int | None = None, start: int = 0) -> Iterator[tuple[int, int]]:
        """Delivery tag and index of each published row that is not confirmed."""
        last = self.last if up_to is None else min(up_to, self.last)
        for tag in range(max(self._low, start), last + 1):
            if tag not in self._done:
                yield tag, self.rows[tag - self.first]

    def confirm(self, tag: int, *, multiple: bool) -> None:
        """A row, or all up to it, are settled at the broker."""
        if multiple:
            tag = min(tag, self.last)
            if tag >= self._low:
                past = {each for each in self._done if each <= tag}
                self.left -= tag + 1 - self._low - len(past)
                self._done -= past
                self._low = tag + 1
        elif self._low <= tag <= self.last and tag not in self._done:
            self._done.add(tag)
            self.left -= 1
        while self._low in self._done:
            self._done.remove(self._low)
            self._low += 1

    def settled(self) -> Settled:
        """What there is to tell; nothing of the batch is kept."""
        self.batch = None
        failures = [Failure(index, error) for index, error in sorted(self.failures.items())]
        return Settled(batch=self.number, failures=failures)
