"""Splits and cursors of a topic's letters: ranges of offsets, and the offset to read next in each partition.

Arithmetic and text only: no I/O.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

#: Letters that a split has at least, where partitions are cut: to open a reader costs as much as to read so many.
LEAST: Final = 5_000
#: Unwanted offsets that are read and thrown away rather than jumped over.
_JUMP: Final = 10_000

_SPLIT: Final = re.compile(r"(?P<topic>[^/]+)/(?P<number>[0-9]{1,9})/(?P<low>[0-9]{1,19})-(?P<high>[0-9]{1,19})")


class Range(NamedTuple):
    """The offsets of one partition from `low` up to `high`."""

    number: int
    low: int
    high: int


def split_text(topic: str, part: Range) -> str:
    """Return a range as the text of a split."""
    return f"{topic}/{part.number}/{part.low}-{part.high}"


def parse_split(text: str, topic: str) -> Range | None:
    """Return the range that a split is; None if it is none of this topic."""
    found = _SPLIT.fullmatch(text)
    if found is None or found["topic"] != topic:
        return None
    return Range(int(found["number"]), int(found["low"]), int(found["high"]))


def cut(ranges: Sequence[Range], readers: int) -> list[Range]:
    """Cut ranges into about as many pieces of about the same size, as far as that is worth it; the oldest first."""
    share = max(LEAST, -(-sum(each.high - each.low for each in ranges) // max(1, readers)))
    found: list[tuple[int, Range]] = []
    for each in ranges:
        size = each.high - each.low
        pieces = -(-size // share)
        edges = [each.low + size * at // pieces for at in range(pieces)] + [each.high]
        found += [(at, Range(each.number, *edges[at : at + 2])) for at in range(pieces)]
    return [each for _, each in sorted(found)]


def worth_reading(
    low: int, high: int, runs: Iterable[tuple[int, int]], only: Sequence[int] | None, *, jump: int = _JUMP
) -> list[Range]:
    """Return the stretches of a partition to read: without long runs that are removed, and for offsets that are wanted.

    Args:
        low: the first offset to read.
        high: the offset at which to stop.
        runs: what is removed, ascending, as (start, end).
        only: the offsets that are wanted, ascending; None: all.
        jump: so many unwanted offsets are jumped over; fewer are read and thrown away.
    """
    kept: list[tuple[int, int]] = []
    at = low
    for start, end in runs:
        kept.append((at, min(start, high)))
        at = max(at, end)
    kept.append((at, high))
    if only is not None:
        wanted = only[bisect_left(only, low) : bisect_left(only, high)]
        kept = [(each, each + 1) for each in wanted]
    found: list[tuple[int, int]] = []
    for start, end in kept:
        if start >= end:
            continue
        if found and start - found[-1][1] < jump:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return [Range(0, *each) for each in found]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A point in a topic's letters: the offset to read next, by partition, and the id of the topic, "" if unknown."""

    topic_id: str
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        offsets = {str(number): offset for number, offset in sorted(self.offsets.items())}
        return json.dumps({"topic_id": self.topic_id, "offsets": offsets}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor. Raises ValueError."""
        found = json.loads(text)
        if not isinstance(found, dict) or set(found) != {"topic_id", "offsets"}:
            raise ValueError("it has not the fields of a cursor")
        topic_id, offsets = found["topic_id"], found["offsets"]
        sound = isinstance(topic_id, str) and isinstance(offsets, dict)
        if not sound or not all(type(each) is int and each >= 0 for each in offsets.values()):
            raise ValueError("a field has a wrong type")
        return cls(topic_id, {int(number): offset for number, offset in offsets.items()})


def advance(ranges: Sequence[Range], most: int | None) -> dict[int, int]:
    """Return by partition where to stop after `most` letters of these ranges, shared out by their sizes."""
    total = sum(each.high - each.low for each in ranges)
    if most is None or most >= total:
        return {each.number: each.high for each in ranges}
    found, left = {}, max(1, most)
    for each in ranges:  # what is left is shared by what is left, so that the sum is exact
        size = each.high - each.low
        some = -(-left * size // total) if total else 0
        found[each.number] = each.low + min(some, size, left)
        left, total = left - min(some, size, left), total - size
    return found
