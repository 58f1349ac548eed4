"""What is removed of one partition, as metadata of the committed offsets of several groups: a slot each.

One metadata holds some thousand scattered letters. When a slot is full, it is cut in two: another slot takes its upper
half. Slot 0 is the root, and names the others. Each slot has a region: from its start up to the next slot's start. Its
committed offset is the first letter of the region that is not removed, and the metadata are `client.offset_map`'s, a
blank, the day of the commit, and after a blank, for slot 0 the other slots (a bit each, hexadecimal; left out where
none is), for any other its start.

Removals are only ever added, and what slots say is united: so a slot may say more than it has to, and slots written in
the order of `steps` lose nothing wherever the writing ends.

Arithmetic only: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from redelivery_kafka.client.offset_map import MetadataFull, OffsetMap

#: Slots that a partition has at most. Their bits, the day and the blanks fit in with `METADATA_LENGTH` into the 4,096
#: characters that a broker takes.
SLOTS: Final = 256
#: Above every offset.
_END: Final = 1 << 64


class Stored(NamedTuple):
    """What is committed in a slot's group: the offset, below 0 if nothing is, and the metadata."""

    offset: int
    metadata: str

    @property
    def day(self) -> str:
        """The day of the commit."""
        return [*self.metadata.split(" "), ""][1]

    def on(self, day: str) -> Stored:
        """Return the same, committed on another day."""
        text, _, rest = self.metadata.partition(" ")
        last = rest.partition(" ")[2]
        return Stored(self.offset, f"{text} {day} {last}".rstrip())

    @property
    def others(self) -> int:
        """Of slot 0: the other slots, a bit each. Raises ValueError."""
        fields = self.metadata.split(" ")
        ours = len(fields) > 2 and OffsetMap.is_ours(fields[0])  # noqa: PLR2004 - the third
        return int(fields[2], 16) if ours else 0

    @property
    def start(self) -> int:
        """Of any other slot: the start of its region. Raises ValueError."""
        fields = self.metadata.split(" ")
        if len(fields) < 3:  # noqa: PLR2004 - the third
            raise ValueError("a slot without its start")
        return int(fields[2])


EMPTY: Final = Stored(-1, "")


def slots_of(others: int) -> list[int]:
    """Return the slots that these bits name."""
    return [slot for slot in range(1, SLOTS) if others >> slot & 1]


class RemovalSlots:
    """What is removed of one partition.

    Attributes:
        removed: the removed letters, as far as was ever read here or added.
        stored: what each slot held when it was last read or written.
    """

    def __init__(self) -> None:
        self.removed = OffsetMap(0)
        self.stored: dict[int, Stored] = {0: EMPTY}
        self._changed: set[int] = set()  # slots whose text may not say all of their region
        self._regions: dict[int, tuple[int, int]] = {0: (0, _END)}

    @property
    def others(self) -> list[int]:
        """The slots that slot 0 names."""
        return slots_of(self.stored[0].others)

    def slots_for(self, offsets: Iterable[int]) -> set[int]:
        """Return the slots in whose regions offsets lie."""
        starts = sorted((start, slot) for slot, (start, _) in self._regions.items())
        return {starts[bisect_right(starts, (each, SLOTS)) - 1][1] for each in offsets}

    def differs(self, found: Mapping[int, Stored]) -> bool:
        """Return whether a slot holds something else now than when it was last read or written."""
        return any(self.stored.get(slot) != stored for slot, stored in found.items())

    def take(self, found: Mapping[int, Stored]) -> None:
        """Take over what slots hold now. Raises ValueError: it is damaged."""
        for slot, stored in found.items():
            if stored == self.stored.get(slot):
                continue
            self.stored[slot] = stored
            self._changed.add(slot)
            if stored.offset >= 0:
                # The offset of slot 0 says that all before it is removed; another's, from its start only.
                low = 0 if slot == 0 else stored.start
                self.removed.settle(low, stored.offset)
                for run in OffsetMap.read(stored.offset, stored.metadata.partition(" ")[0]).runs():
                    self.removed.settle(*run)
        named = self.others
        for slot in [each for each in self.stored if each and each not in named]:
            del self.stored[slot]
        self._lay_out({slot: self.stored[slot].start for slot in named if self.stored.get(slot, EMPTY).offset >= 0})

    def _lay_out(self, starts: Mapping[int, int]) -> None:
        order = sorted((start, slot) for slot, start in {**starts, 0: 0}.items())
        ends = [start for start, _ in order[1:]] + [_END]
        regions = {slot: (start, end) for (start, slot), end in zip(order, ends, strict=True)}
        self._changed |= {slot for slot, region in regions.items() if self._regions.get(slot) != region}
        self._changed &= set(regions)
        self._regions = regions

    def add(self, start: int, end: int) -> int:
        """Add the letters from `start` up to `end`; return how many were not removed before."""
        for slot, (low, high) in self._regions.items():
            if start < high and low < end:
                self._changed.add(slot)
        return self.removed.settle(start, end)

    def steps(self, day: str) -> list[dict[int, Stored]]:
        """Return what to write, by slot, in steps: a step is written when the one before it is confirmed.

        A slot that is to lose letters to a new one is in the last step, alone with its kind.

        Raises:
            MetadataFull: no slot is free.
        """
        base = self.removed.base
        starts = {slot: start for slot, (start, _) in self._regions.items() if slot and start > base}
        self._lay_out(starts)  # slot 0 takes over regions that are removed altogether, and the rest of one that is not
        bits, new = self._bits, set[int]()
        texts: dict[int, tuple[int, str]] = {}
        todo = set(self._changed)
        while todo:
            slot = todo.pop()
            part = self.removed.part(*self._regions[slot])
            try:
                texts[slot] = (part.base, part.metadata())
            except MetadataFull:
                other = next((each for each in range(1, SLOTS) if each not in self._regions), None)
                if other is None:
                    raise
                runs = part.runs()  # letters are mostly removed in their order: the lower part changes no more
                starts[other] = runs[len(runs) * 3 // 4][0]
                self._lay_out(starts)
                new.add(other)
                todo |= {slot, other}
        if bits != self._bits and 0 not in texts:
            part = self.removed.part(*self._regions[0])
            texts[0] = (part.base, part.metadata())
        found = {slot: each for slot, text in texts.items() if (each := self._text(slot, *text, day)) is not None}
        self._changed -= set(texts) - set(found)
        rest = {slot: each for slot, each in found.items() if not new or (slot and slot not in new)}
        first = [{slot: found[slot] for slot in new}, {0: found[0]}] if new else []
        return [each for each in (*first, rest) if each]

    @property
    def _bits(self) -> int:
        return sum(1 << slot for slot in self._regions if slot)

    def _text(self, slot: int, offset: int, text: str, day: str) -> Stored | None:
        """Return what to write into a slot; None if it holds that."""
        last = (f" {self._bits:x}" if self._bits else "") if slot == 0 else f" {self._regions[slot][0]}"
        old = self.stored.get(slot, EMPTY)
        same = old.offset == offset and old.metadata == f"{text} {old.day}{last}"
        return None if same else Stored(offset, f"{text} {day}{last}")

    def written(self, found: Mapping[int, Stored]) -> None:
        """Note what was written."""
        self.stored.update(found)
        self._changed -= set(found)
