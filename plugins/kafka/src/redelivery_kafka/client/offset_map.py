"""What is remembered of a partition's records: `Ledger`, and how it is written into a committed offset's metadata.

The committed offset is the lowest unsettled one; never past an unsettled record. The metadata says what lies beyond:
which offsets are settled already, and of those that were given and are not settled, how often, since when, and when
they are due again. It is text of at most `ROOM` characters, as a broker takes by default (`offset.metadata.max.bytes`).

Written as `r1:` and the runs in base85, or `z1:` where deflating them is shorter. A run is a varint `length * 4 +
kind`: 0 untouched, 1 settled, 2 given, 3 given and waiting. 2 and 3 go on with the attempts, the zigzag difference of
the first delivery to the one before it, and 3 with the milliseconds from the first delivery to when it is due, all
varints.

This file is arithmetic alone: no I/O, no clock.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

#: Characters that a broker keeps beside a committed offset by default are 4,096; a little less is always taken.
ROOM: Final = 4_000
#: What one more given record can add at most, in ordinary life: its run, its outcome, and the run before it.
COST: Final = 16
#: Characters that one more given record can add at most, deflated; generously, for nobody knows what deflating makes.
_SPARE: Final = 4 * COST
_PLAIN: Final = "r1:"
_DEFLATED: Final = "z1:"
#: Bytes that base85 turns into `ROOM` characters.
_BYTES: Final = (ROOM - len(_PLAIN)) // 5 * 4
#: What is inflated at most: more was not written by us.
_INFLATED: Final = 1 << 20

_UNTOUCHED, _SETTLED, _GIVEN, _WAITING = range(4)


class Tries(NamedTuple):
    """What is known of a record that was given and is not settled."""

    attempts: int
    first_ms: int
    due_ms: int | None = None


class TooMuch(Exception):
    """What is to be remembered does not fit into the metadata."""


class Ledger:
    """What became of the records of one partition.

    Attributes:
        base: the lowest offset that is not settled: what is committed.
        tries: those at or beyond it that were given and are not settled.
    """

    __slots__ = ("_done", "base", "tries")

    def __init__(self, base: int) -> None:
        self.base = base
        self.tries: dict[int, Tries] = {}
        #: Settled beyond `base`: ascending, apart from each other, as (start, end).
        self._done: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        return f"Ledger({self.base}, done={self._done}, tries={self.tries})"

    def copy(self) -> Ledger:
        """One that can be altered apart."""
        other = Ledger(self.base)
        other.tries = dict(self.tries)
        other._done = list(self._done)
        return other

    def is_done(self, offset: int) -> bool:
        """Whether a record is settled."""
        if offset < self.base:
            return True
        at = bisect_right(self._done, (offset, _FAR)) - 1
        return at >= 0 and offset < self._done[at][1]

    def settle(self, start: int, end: int | None = None) -> int:
        """These offsets are settled, or are not there: from `start` up to `end`, or one. Returns how many were not."""
        start, end = max(start, self.base), start + 1 if end is None else end
        if start >= end:
            return 0
        for offset in [each for each in self.tries if start <= each < end] if self.tries else ():
            del self.tries[offset]
        first = bisect_right(self._done, (start, _FAR)) - 1
        if first < 0 or self._done[first][1] < start:
            first += 1
        last, new, low, high = first, end - start, start, end
        while last < len(self._done) and self._done[last][0] <= end:
            a, b = self._done[last]
            new -= max(0, min(b, end) - max(a, start))
            low, high = min(low, a), max(high, b)
            last += 1
        self._done[first:last] = [(low, high)]
        if self._done[0][0] <= self.base:
            self.base = self._done.pop(0)[1]
        return new

    def unsettled(self, end: int) -> int:
        """How many offsets below `end` are not settled."""
        done = sum(min(b, end) - a for a, b in self._done if a < end)
        return max(0, end - self.base - done)

    # --- as metadata ---

    @property
    def cost(self) -> int:
        """Bytes that the metadata has, before it is deflated."""
        return len(self._raw())

    @property
    def room(self) -> int:
        """How many more records can be given, however each of them ends."""
        given = sum(each.due_ms is None for each in self.tries.values())
        return max(0, (_BYTES - self.cost - given * COST) // COST)

    @property
    def full(self) -> bool:
        """Whether not even one more record can be given, deflated too."""
        try:
            return len(self.metadata()) > ROOM - _SPARE
        except TooMuch:
            return True

    def metadata(self) -> str:
        """What is committed beside `base`.

        Raises:
            TooMuch: it would not fit.
        """
        raw = self._raw()
        if not raw:
            return ""
        text = _PLAIN + base64.b85encode(raw).decode()
        deflated = _DEFLATED + base64.b85encode(zlib.compress(raw, 9)).decode()
        text = min(text, deflated, key=len)
        if len(text) > ROOM:
            raise TooMuch(f"{len(text)} characters, of {ROOM}")
        return text

    @classmethod
    def read(cls, base: int, metadata: str | None) -> Self:
        """The ledger that was committed. Metadata that is not ours says nothing.

        Raises:
            ValueError: it is ours, and damaged.
        """
        ledger = cls(base)
        if metadata is None or metadata[:3] not in {_PLAIN, _DEFLATED}:
            return ledger
        raw = base64.b85decode(metadata[3:])
        if metadata.startswith(_DEFLATED):
            inflating = zlib.decompressobj()
            try:
                raw = inflating.decompress(raw, _INFLATED)
            except zlib.error as error:
                raise ValueError(f"offset metadata: {error}") from error
            if not inflating.eof:
                raise ValueError("offset metadata: cut off")
        numbers = _numbers(raw)
        at, first_ms = base, 0
        for head in numbers:
            length, kind = head >> 2, head & 3
            if not length:
                raise ValueError("offset metadata: an empty run")
            if kind == _SETTLED:
                ledger.settle(at, at + length)
            elif kind in {_GIVEN, _WAITING}:
                if length > len(raw) * 1_000:
                    raise ValueError("offset metadata: an impossible run")
                attempts = _next(numbers)
                first_ms += _unzigzag(_next(numbers))
                due_ms = first_ms + _next(numbers) if kind == _WAITING else None
                ledger.tries |= dict.fromkeys(range(at, at + length), Tries(attempts, first_ms, due_ms))
            at += length
        return ledger

    def _raw(self) -> bytes:
        out = bytearray()
        at, first_ms = self.base, 0
        for start, end, tries in self._runs():
            if start > at:
                _put(out, (start - at) << 2 | _UNTOUCHED)
            at = end
            if tries is None:
                _put(out, (end - start) << 2 | _SETTLED)
                continue
            _put(out, (end - start) << 2 | (_GIVEN if tries.due_ms is None else _WAITING))
            _put(out, tries.attempts)
            _put(out, _zigzag(tries.first_ms - first_ms))
            first_ms = tries.first_ms
            if tries.due_ms is not None:
                _put(out, max(0, tries.due_ms - first_ms))
        return bytes(out)

    def _runs(self) -> Iterator[tuple[int, int, Tries | None]]:
        """What was touched, ascending, in runs of the same: None is settled."""
        runs: list[tuple[int, int, Tries | None]] = [(start, end, None) for start, end in self._done]
        for offset in sorted(self.tries):
            tries = self.tries[offset]
            if runs and runs[-1][1] == offset and runs[-1][2] == tries:
                runs[-1] = (runs[-1][0], offset + 1, tries)
            else:
                runs.append((offset, offset + 1, tries))
        return iter(sorted(runs, key=lambda run: run[0]))


def waiting(committed: int | None, metadata: str | None, low: int, high: int) -> int:
    """Records of a partition that a group has not settled.

    `committed` and `metadata` are the group's, None or a negative offset where it has committed nothing; `low` and
    `high` are the partition's watermarks.
    """
    known = committed is not None and committed >= 0
    ledger = Ledger.read(committed or 0, metadata) if known else Ledger(low)
    ledger.settle(0, low)
    return ledger.unsettled(high)


#: Beyond every offset.
_FAR: Final = 1 << 64
#: Set in each byte of a varint but its last.
_MORE: Final = 0x80


def _put(out: bytearray, number: int) -> None:
    while number >= _MORE:
        out.append(number % _MORE | _MORE)
        number >>= 7
    out.append(number)


def _numbers(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= byte % _MORE << shift
        shift += 7
        if byte < _MORE:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("offset metadata: cut off")


def _next(numbers: Iterator[int]) -> int:
    found = next(numbers, None)
    if found is None:
        raise ValueError("offset metadata: cut off")
    return found


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return number >> 1 if not number & 1 else -((number + 1) >> 1)
