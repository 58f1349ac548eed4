"""Which records of a partition are settled, and how often the others were leased, as metadata of a committed offset.

The committed offset is the lowest one that is not settled. The metadata says what lies beyond it: which offsets are
settled already, and of those that were leased and are not settled, how often, since when, and when they are due again.
It is text of at most `METADATA_LENGTH` characters, as brokers take by default (`offset.metadata.max.bytes`).

Records that were leased together for the first time are one run, however many they are. Only those that end in another
way than their neighbours need their own.

Format: `r1:` and the runs in base85, or `z1:` where deflating makes that shorter. A run is a varint
`length * 4 + kind`: 0 untouched, 1 settled, 2 leased, 3 leased and waiting. After kinds 2 and 3 come the attempts and
the zigzag difference of the first delivery to the one before it; after 3 also the milliseconds from the first delivery
until the record is due. All of them are varints.

Where that is too long, times are rounded, first deliveries down and ends of delays up: see `_GRIDS`. Attempts and
settlements are never rounded.

Arithmetic only: no I/O, no clock.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

from redelivery.kit.offsets import Offsets

#: By default a broker keeps 4,096 characters beside a committed offset; every broker with that default takes this many.
METADATA_LENGTH: Final = 4_000
#: Characters that are kept free for one leased record, however it ends: measured with deflated random ends.
_RECORD: Final = 1.8
#: Characters beyond that: the tables of deflating, and one record more.
_RESERVE: Final = 160
#: Bytes of runs at most, before anything is encoded: a settled run (it may cut another in two), and another.
_SETTLED_BYTES: Final = 12
_RUN_BYTES: Final = 24
#: Milliseconds to which times are rounded where exact ones do not fit. Some 500 records that wait have room for theirs.
_GRIDS: Final = (1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 40)
#: First deliveries are never rounded by more: two minutes.
_FIRST_GRID: Final = 1 << 17
#: Fewer bytes are not worth deflating.
_DEFLATED_FROM: Final = 100
_PLAIN: Final = "r1:"
_DEFLATED: Final = "z1:"
#: Bytes that metadata may inflate to: this plugin never wrote more.
_INFLATED_MAX: Final = 1 << 20

_UNTOUCHED, _SETTLED, _LEASED, _WAITING = range(4)


class Attempts(NamedTuple):
    """How often a record was leased that is not settled; since when, and when it is due again, in milliseconds."""

    number: int
    first_ms: int
    due_ms: int | None = None

    def rounded(self, grid: int) -> Attempts:
        """Return it with the first delivery earlier, and the end of its wait later, by less than a grid each.

        The wait ends later by a quarter of the time since the first delivery at most.
        """
        first_ms = self.first_ms - self.first_ms % min(grid, _FIRST_GRID)
        if self.due_ms is None:
            return Attempts(self.number, first_ms)
        waits = max(0, self.due_ms - first_ms)
        step = min(grid, 1 << max(0, waits.bit_length() - 3))
        return Attempts(self.number, first_ms, first_ms + waits + -waits % step)


#: Offsets in the same state, as (start, end, attempts); None means settled.
_State = tuple[int, int, Attempts | None]


class MetadataFull(Exception):
    """The state of a partition does not fit into the metadata."""


class OffsetMap(Offsets):
    """State of the records of one partition.

    Attributes:
        base: the lowest offset that is not settled: the offset to commit. Settled offsets beyond it are in the set.
    """

    __slots__ = ("_begun", "_tried")

    def __init__(self, base: int) -> None:
        super().__init__(base)
        #: Leased together: ascending, none overlapping the next. What is settled, or in `_tried`, is not meant.
        self._begun: list[tuple[int, int, Attempts]] = []
        #: Those of which it is not what `_begun` says, or that are in none of it.
        self._tried: dict[int, Attempts] = {}

    def __repr__(self) -> str:
        return f"OffsetMap({self.base}, settled={self._runs}, begun={self._begun}, tried={self._tried})"

    def copy(self) -> OffsetMap:
        """Return an independent copy."""
        other = OffsetMap(self.base)
        other._begun = list(self._begun)
        other._tried = dict(self._tried)
        other._runs = list(self._runs)
        return other

    def is_settled(self, offset: int) -> bool:
        """Return whether a record is settled."""
        return offset in self

    @property
    def end(self) -> int:
        """The offset from which on no record is settled, or was ever leased."""
        last = [self._runs[-1][1]] if self._runs else []
        last += [self._begun[-1][1]] if self._begun else []
        return max([self.base, *last, *(offset + 1 for offset in self._tried)])

    def part(self, start: int, end: int) -> OffsetMap:
        """Return what is settled from `start` up to `end`, without attempts."""
        found = OffsetMap(start)
        found.settle(start, min(self.base, end))
        at = max(0, bisect_right(self._runs, (start, 0)) - 1)
        while at < len(self._runs) and self._runs[at][0] < end:
            found.settle(self._runs[at][0], min(self._runs[at][1], end))
            at += 1
        return found

    def settle(self, start: int, end: int | None = None) -> int:
        """Mark the offsets from `start` up to `end`, or one, as settled or missing. Return how many were not before."""
        end = start + 1 if end is None else end
        if self._tried and end - start < len(self._tried):
            for offset in range(start, end):
                self._tried.pop(offset, None)
        elif self._tried:
            for offset in [each for each in self._tried if start <= each < end]:
                del self._tried[offset]
        new = self.add(start, end)
        if self._begun and start < end:
            self._drop_begun(start)
        return new

    def _drop_begun(self, settled: int) -> None:
        """Forget the runs that were leased together and are all settled, around an offset that is."""
        low, high = 0, self.base
        if settled >= high:
            low, high = self._runs[bisect_right(self._runs, (settled + 1, 0)) - 1]
        first = last = bisect_left(self._begun, low, key=_start)
        while last < len(self._begun) and self._begun[last][1] <= high:
            last += 1
        del self._begun[first:last]

    # --- attempts ---

    def attempts(self, offset: int) -> Attempts | None:
        """Return the attempts of a record that is not settled; None: it was never leased."""
        found = self._tried.get(offset)
        if found is None and self._begun:
            at = bisect_right(self._begun, offset, key=_start) - 1
            if at >= 0 and offset < self._begun[at][1]:
                return self._begun[at][2]
        return found

    def put(self, offset: int, attempts: Attempts | None) -> None:
        """Write the attempts of a record that is not settled; None: it counts as never leased."""
        if attempts is not None:
            self._tried[offset] = attempts
            return
        self._tried.pop(offset, None)
        at = bisect_right(self._begun, offset, key=_start) - 1
        if at >= 0 and offset < self._begun[at][1]:
            start, end, begun = self._begun[at]
            parts = [(start, offset, begun), (offset + 1, end, begun)]
            self._begun[at : at + 1] = [each for each in parts if each[0] < each[1]]

    def begin(self, offsets: Sequence[int], now_ms: int) -> list[Attempts]:
        """Count one more attempt of each of these, ascending, none settled. Return what they have now."""
        found: list[Attempts] = []
        for start, end in stretches(offsets):
            at = bisect_right(self._begun, end - 1, key=_start)
            low, high, known = self._begun[at - 1] if at else (0, 0, None)
            alike = high <= start or low <= start < end <= high
            if not alike or (self._tried and not self._tried.keys().isdisjoint(range(start, end))):
                for offset in range(start, end):
                    attempts = _once_more(self.attempts(offset), now_ms)
                    self._tried[offset] = attempts
                    found.append(attempts)
                continue
            if high <= start:
                known = None
            attempts = _once_more(known, now_ms)
            parts = [(start, end, attempts)]
            if known is not None:
                at -= 1
                parts = [(low, start, known), *parts, (end, high, known)]
            self._begun[at : at + (known is not None)] = [each for each in parts if each[0] < each[1]]
            found += [attempts] * (end - start)
        return found

    # --- as metadata ---

    def room(self, leased: int) -> int:
        """How many more records can be leased beside those that are, however each of them ends."""
        return max(0, int((METADATA_LENGTH - _RESERVE - self._length()) / _RECORD) - leased)

    @property
    def full(self) -> bool:
        """Whether not even one more record can be leased."""
        return self._length() > METADATA_LENGTH - _RESERVE

    def _length(self) -> int:
        """Return how long the metadata is at most, in characters."""
        most = len(self._runs) * _SETTLED_BYTES + (len(self._begun) + len(self._tried)) * _RUN_BYTES
        if most < METADATA_LENGTH // 4:
            return most * 5 // 4
        try:
            return len(self.metadata())
        except MetadataFull:
            return METADATA_LENGTH

    def metadata(self) -> str:
        """Return the text to commit beside `base`.

        Raises:
            MetadataFull
        """
        text = ""
        for grid in _GRIDS if self._begun or self._tried else _GRIDS[:1]:
            encoded = self._encoded(grid)
            if not encoded:
                return ""
            text = _PLAIN + base64.b85encode(encoded).decode()
            if len(encoded) >= _DEFLATED_FROM:
                deflated = _DEFLATED + base64.b85encode(zlib.compress(encoded, 9)).decode()
                text = min(text, deflated, key=len)
            if len(text) <= METADATA_LENGTH:
                return text
        raise MetadataFull(f"{len(text)} characters, of {METADATA_LENGTH}")

    @staticmethod
    def is_ours(metadata: str) -> bool:
        """Return whether text is metadata that this plugin wrote."""
        return not metadata or metadata[:3] in {_PLAIN, _DEFLATED}

    @classmethod
    def read(cls, base: int, metadata: str | None) -> Self:
        """Read what was committed. Metadata of another application is ignored.

        Raises:
            ValueError: the metadata is ours, and damaged.
        """
        found = cls(base)
        if not metadata or not cls.is_ours(metadata):
            return found
        encoded = base64.b85decode(metadata[3:])
        if metadata.startswith(_DEFLATED):
            inflating = zlib.decompressobj()
            try:
                encoded = inflating.decompress(encoded, _INFLATED_MAX)
            except zlib.error as error:
                raise ValueError(f"offset metadata: {error}") from error
            if not inflating.eof:
                raise ValueError("offset metadata: cut off")
        numbers = _varints(encoded)
        at, first_ms = base, 0
        for head in numbers:
            length, kind = head >> 2, head & 3
            if not length:
                raise ValueError("offset metadata: an empty run")
            if kind == _SETTLED:
                found.settle(at, at + length)
            elif kind in {_LEASED, _WAITING}:
                number = _next(numbers)
                first_ms += _unzigzag(_next(numbers))
                due_ms = first_ms + _next(numbers) if kind == _WAITING else None
                found._begun.append((at, at + length, Attempts(number, first_ms, due_ms)))
            at += length
        return found

    def _encoded(self, grid: int) -> bytes:
        out = bytearray()
        at, first_ms = self.base, 0
        for start, end, attempts in self._states(grid):
            if start > at:
                _put(out, (start - at) << 2 | _UNTOUCHED)
            at = end
            if attempts is None:
                _put(out, (end - start) << 2 | _SETTLED)
                continue
            _put(out, (end - start) << 2 | (_LEASED if attempts.due_ms is None else _WAITING))
            _put(out, attempts.number)
            _put(out, _zigzag(attempts.first_ms - first_ms))
            first_ms = attempts.first_ms
            if attempts.due_ms is not None:
                _put(out, max(0, attempts.due_ms - first_ms))
        return bytes(out)

    def _states(self, grid: int) -> list[_State]:
        """Return runs of offsets in the same state, ascending, as long as they can be; times are rounded to a grid."""
        own: list[_State] = [(offset, offset + 1, each.rounded(grid)) for offset, each in self._tried.items()]
        own += [(start, end, None) for start, end in self._runs]
        begun: list[_State] = [(start, end, each.rounded(grid)) for start, end, each in self._begun]
        own.sort(key=_start)
        found: list[_State] = []
        for start, end, state in _over(own, begun, self.base):
            if found and found[-1][1] == start and found[-1][2] == state:
                found[-1] = (found[-1][0], end, state)
            else:
                found.append((start, end, state))
        return found


def _once_more(known: Attempts | None, now_ms: int) -> Attempts:
    return Attempts(1, now_ms) if known is None else Attempts(known.number + 1, known.first_ms)


def stretches(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending offsets as runs without a gap, as (start, end)."""
    start = end = -1
    for offset in offsets:
        if offset == end:
            end += 1
            continue
        if start >= 0:
            yield start, end
        start, end = offset, offset + 1
    if start >= 0:
        yield start, end


def _over(upper: list[_State], lower: list[_State], low: int) -> Iterator[_State]:
    """Yield the runs of `upper`, and what they do not cover of the runs of `lower`, from `low` on, all ascending."""
    at, done = 0, low
    for start, end, state in lower:
        done = max(done, start)
        while at < len(upper) and upper[at][0] < end:
            if upper[at][0] > done:
                yield done, upper[at][0], state
            yield upper[at]
            done = max(done, upper[at][1])
            at += 1
        if done < end:
            yield done, end, state
    yield from upper[at:]


def _start(state: _State) -> int:
    return state[0]


def lag(committed: int | None, metadata: str | None, low: int, high: int) -> int:
    """Return how many records of a partition a group has not settled.

    Args:
        committed: the group's offset; None or negative where it has committed nothing.
        metadata: the text beside it.
        low: the partition's low watermark.
        high: its high watermark.
    """
    known = committed is not None and committed >= 0
    found = OffsetMap.read(committed or 0, metadata) if known else OffsetMap(low)
    found.settle(0, low)
    return found.missing(high)


#: Set in each byte of a varint except its last.
_MORE: Final = 0x80


def _put(out: bytearray, number: int) -> None:
    while number >= _MORE:
        out.append(number % _MORE | _MORE)
        number >>= 7
    out.append(number)


def _varints(encoded: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in encoded:
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
