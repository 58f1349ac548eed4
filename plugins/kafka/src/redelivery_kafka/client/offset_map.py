"""Which records of a partition are settled, and how often the others were leased, as metadata of a committed offset.

The committed offset is the lowest one that is not settled. The metadata says what lies beyond it: which offsets are
settled already, and of those that were leased and are not settled, how often, since when, and when they are due again.
It is text of at most `METADATA_LENGTH` characters, as brokers take by default (`offset.metadata.max.bytes`).

Format: `r1:` and the runs in base85, or `z1:` where deflating makes that shorter. A run is a varint
`length * 4 + kind`: 0 untouched, 1 settled, 2 leased, 3 leased and waiting. After kinds 2 and 3 come the attempts and
the zigzag difference of the first delivery to the one before it; after 3 also the milliseconds from the first delivery
until the record is due. All of them are varints.

Arithmetic only: no I/O, no clock.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from redelivery.kit.offsets import Offsets

#: By default a broker keeps 4,096 characters beside a committed offset; every broker with that default takes this many.
METADATA_LENGTH: Final = 4_000
#: Bytes that one more leased record adds at most, as a rule: its run, its outcome, and the run before it.
RECORD_BYTES: Final = 16
#: Characters that one more leased record adds at most after deflating; generous, as nothing bounds what deflating does.
_DEFLATED_RECORD: Final = 4 * RECORD_BYTES
_PLAIN: Final = "r1:"
_DEFLATED: Final = "z1:"
#: Bytes that base85 turns into `METADATA_LENGTH` characters.
_METADATA_BYTES: Final = (METADATA_LENGTH - len(_PLAIN)) // 5 * 4
#: Bytes that metadata may inflate to: this plugin never wrote more.
_INFLATED_MAX: Final = 1 << 20

_UNTOUCHED, _SETTLED, _LEASED, _WAITING = range(4)


class Attempts(NamedTuple):
    """How often a record was leased that is not settled; since when, and when it is due again, in milliseconds."""

    number: int
    first_ms: int
    due_ms: int | None = None


class MetadataFull(Exception):
    """The state of a partition does not fit into the metadata."""


class OffsetMap(Offsets):
    """State of the records of one partition.

    Attributes:
        base: the lowest offset that is not settled: the offset to commit. Settled offsets beyond it are in the set.
        attempts: records at or beyond it that were leased and are not settled.
    """

    __slots__ = ("attempts",)

    def __init__(self, base: int) -> None:
        super().__init__(base)
        self.attempts: dict[int, Attempts] = {}

    def __repr__(self) -> str:
        return f"OffsetMap({self.base}, settled={self._runs}, attempts={self.attempts})"

    def copy(self) -> OffsetMap:
        """Return an independent copy."""
        other = OffsetMap(self.base)
        other.attempts = dict(self.attempts)
        other._runs = list(self._runs)
        return other

    def is_settled(self, offset: int) -> bool:
        """Return whether a record is settled."""
        return offset in self

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
        if end == start + 1:
            self.attempts.pop(start, None)
        elif self.attempts:
            for offset in [each for each in self.attempts if start <= each < end]:
                del self.attempts[offset]
        return self.add(start, end)

    # --- as metadata ---

    @property
    def room(self) -> int:
        """How many more records can be leased, however each of them ends."""
        leased = sum(each.due_ms is None for each in self.attempts.values())
        return max(0, (_METADATA_BYTES - len(self._encoded()) - leased * RECORD_BYTES) // RECORD_BYTES)

    @property
    def full(self) -> bool:
        """Whether not even one more record can be leased, after deflating too."""
        try:
            return len(self.metadata()) > METADATA_LENGTH - _DEFLATED_RECORD
        except MetadataFull:
            return True

    def metadata(self) -> str:
        """Return the text to commit beside `base`.

        Raises:
            MetadataFull
        """
        encoded = self._encoded()
        if not encoded:
            return ""
        text = _PLAIN + base64.b85encode(encoded).decode()
        deflated = _DEFLATED + base64.b85encode(zlib.compress(encoded, 9)).decode()
        text = min(text, deflated, key=len)
        if len(text) > METADATA_LENGTH:
            raise MetadataFull(f"{len(text)} characters, of {METADATA_LENGTH}")
        return text

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
                if length > len(encoded) * 1_000:
                    raise ValueError("offset metadata: an impossible run")
                number = _next(numbers)
                first_ms += _unzigzag(_next(numbers))
                due_ms = first_ms + _next(numbers) if kind == _WAITING else None
                found.attempts |= dict.fromkeys(range(at, at + length), Attempts(number, first_ms, due_ms))
            at += length
        return found

    def _encoded(self) -> bytes:
        out = bytearray()
        at, first_ms = self.base, 0
        for start, end, attempts in self._states():
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

    def _states(self) -> Iterator[tuple[int, int, Attempts | None]]:
        """Yield runs of offsets in the same state, ascending; None means settled."""
        runs: list[tuple[int, int, Attempts | None]] = [(start, end, None) for start, end in self._runs]
        for offset in sorted(self.attempts):
            attempts = self.attempts[offset]
            if runs and runs[-1][1] == offset and runs[-1][2] == attempts:
                runs[-1] = (runs[-1][0], offset + 1, attempts)
            else:
                runs.append((offset, offset + 1, attempts))
        return iter(sorted(runs, key=lambda run: run[0]))


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
