"""Dead letters as they are stored: one (`Letter`), many as columns (`LetterBatch`), and what a reader asks for.

`DeadLetters` in `broker.py` is the role that reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from redelivery.contract.context import ErrorContext, moment_ms, sound
from redelivery.contract.message import Batch, Column, Message

#: The split that is the whole place.
WHOLE: Final = ""
#: A batch of letters has at most so many, or fewer once they have so many bytes.
BATCH_LETTERS: Final = 10_000
BATCH_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter as it is stored.

    Attributes:
        position: names it within its place, for `remove`; opaque text, never used again for another letter.
        message: as stored, its context headers included.
        context: what only the broker itself knows of the reason; None where it reports nothing. Core reads what headers
            hold, in any dialect. A letter that cannot be decoded is returned as far as it can be read, with kind
            "invalid" and a reason here. A message that the broker itself gave up has one of the kinds of
            `context.GIVEN_UP`: "delivery-limit" or "expired".
        dead_lettered_ms: when it was dead-lettered, milliseconds since the epoch; None where unknown.
        signed: whether one of the reader's keys has signed it; None where the reader has no keys. Plugins do not set
            it.
    """

    position: str
    message: Message
    context: ErrorContext | None = None
    dead_lettered_ms: int | None = None
    signed: bool | None = None

    def __post_init__(self) -> None:
        """Check what the broker reports: anyone may have written it. A date that no clock shows becomes unknown."""
        if self.context is not None:
            object.__setattr__(self, "context", sound(self.context))
        object.__setattr__(self, "dead_lettered_ms", moment_ms(self.dead_lettered_ms))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LetterBatch:
    """Letters as columns, in their order. Each column is as long as `messages`.

    Attributes:
        messages: the letters' messages as stored. Columns that the reader does not want may be absent or empty.
        position: as in `Letter`.
        dead_lettered_ms: as in `Letter`; None: unknown for all.
        contexts: what only the broker knows of a letter, by its index; letters without such a context are left out.
        signed: as in `Letter`; None: the reader has no keys. Plugins do not set it.
    """

    messages: Batch
    position: Column[str]
    dead_lettered_ms: Column[int | None] | None = None
    contexts: Mapping[int, ErrorContext] = field(default_factory=dict)
    signed: Column[bool | None] | None = None

    def __len__(self) -> int:
        return self.messages.length

    def letter(self, index: int) -> Letter:
        """Return letter `index`, for people. A column of the broker's own that is null there is not in its `extra`."""
        message = self.messages.row(index)
        if message.extra:
            known = {name: value for name, value in message.extra.items() if value is not None}
            message = replace(message, extra=known)
        return Letter(
            position=self.position.values[index],
            message=message,
            context=self.contexts.get(index),
            dead_lettered_ms=None if self.dead_lettered_ms is None else self.dead_lettered_ms.values[index],
            signed=None if self.signed is None else self.signed.values[index],
        )

    def letters(self) -> Iterator[Letter]:
        """Return the letters one by one, for people."""
        return map(self.letter, range(len(self)))

    def take(self, indices: Sequence[int]) -> LetterBatch:
        """Return the letters at these indices, in the order of the indices."""
        return replace(
            self,
            messages=self.messages.take(indices),
            position=self.position.take(indices),
            dead_lettered_ms=None if self.dead_lettered_ms is None else self.dead_lettered_ms.take(indices),
            contexts={new: self.contexts[old] for new, old in enumerate(indices) if old in self.contexts}
            if self.contexts
            else {},
            signed=None if self.signed is None else self.signed.take(indices),
        )

    @classmethod
    def of(cls, letters: Sequence[Letter]) -> LetterBatch:
        """Return letters as columns, in their order; at least one."""
        return cls(
            messages=Batch.of([letter.message for letter in letters]),
            position=Column.of([letter.position for letter in letters]),
            dead_lettered_ms=Column.of([letter.dead_lettered_ms for letter in letters]),
            contexts={index: each.context for index, each in enumerate(letters) if each.context is not None},
            signed=Column.of([each.signed for each in letters])
            if any(each.signed is not None for each in letters)
            else None,
        )


def batches(letters: Iterable[Letter]) -> Iterator[LetterBatch]:
    """Return letters in batches of at most `BATCH_LETTERS`, or of `BATCH_BYTES`."""
    some: list[Letter] = []
    weight = 0
    for letter in letters:
        some.append(letter)
        weight += letter.message.nbytes
        if len(some) >= BATCH_LETTERS or weight >= BATCH_BYTES:
            yield LetterBatch.of(some)
            some, weight = [], 0
    if some:
        yield LetterBatch.of(some)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a reader of letters asks for. Picklable.

    A plugin that cannot use a hint ignores it, and returns more: core selects again.

    Attributes:
        columns: hint: columns of `Batch` that the reader looks at ("value", "headers", ...); None: all.
        since_ms, until_ms: hint: letters dead-lettered at this time or later, and before that time, milliseconds since
            the epoch. A letter whose time is unknown is wanted.
        key: hint: letters whose message has this key.
        positions: hint: letters at these positions.
        readers: hint: how many readers will read side by side, at least 1.
        removing: each reader removes letters of its own split while others do so too, so that a split must hold
            everything that its removals touch.
        after, before: cursors (`DeadLetters.cursor`): only letters behind the first, and up to the second.
    """

    columns: frozenset[str] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: bytes | None = None
    positions: frozenset[str] | None = None
    readers: int = 1
    removing: bool = False
    after: str | None = None
    before: str | None = None

    def wants(self, column: str) -> bool:
        """Whether the reader looks at a column of `Batch`."""
        return self.columns is None or column in self.columns


#: A reader that wants all letters, whole.
EVERYTHING: Final = Wanted()
