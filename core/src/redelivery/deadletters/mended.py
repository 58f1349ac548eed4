"""Letters that became rows, were mended, and are sent as those rows: which letter is a row's, and when it is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from redelivery.contract.broker import LetterBatch
from redelivery.contract.message import Batch, Column, Headers, Message
from redelivery.deadletters.operations import HOP_MARK, is_marked, next_id
from redelivery.deadletters.parts import Part, PartJournal
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.redrive import RedriveReport, digests_of
from redelivery.errors import ConfigurationError
from redelivery.formats import dialects, identity
from redelivery.formats.dialects import again
from redelivery.formats.events import source_of

#: Why a row is not sent.
_LOST: Final = "it is gone, or not shown now with all that it had"
_FORM: Final = re.compile(r"(\d{6})-(\d{12})-([0-9a-f]{24})-([kr])([np])-(.+)", re.DOTALL | re.ASCII)
#: How many characters of a mark are the part's number.
PART_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Mark:
    """The part of a letter that its row keeps. As texts, marks of one part sort in the order of its letters.

    Attributes:
        part: number of the letter's part.
        ordinal: place of the letter in its part.
        digest: tells the letter from another one that is stored at its position later.
        position: of the letter.
        keeps_id: it goes back under the id that it has (`operations.next_id`); a row has the id of the next hop.
        has_native: its message has a native part, which no column holds.
    """

    part: int
    ordinal: int
    digest: str
    position: str
    keeps_id: bool = False
    has_native: bool = False

    def __str__(self) -> str:
        flags = ("k" if self.keeps_id else "r") + ("n" if self.has_native else "p")
        return f"{self.part:06}-{self.ordinal:012}-{self.digest}-{flags}-{self.position}"

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Read a mark. Raises ConfigurationError."""
        found = _FORM.fullmatch(text or "")
        if found is None:
            raise ConfigurationError(
                f"mend: a row has the `_position` {text!r}, which no letter has; keep the column as it is"
            )
        return cls(int(found[1]), int(found[2]), found[3], found[6], found[4] == "k", found[5] == "n")


def marks_of(letters: LetterBatch, part: int, first: int, *, new_ids: bool = False) -> list[str]:
    """Return the marks of letters; `first` is the ordinal of the first of them, `new_ids`: none keeps its id."""
    stored, count = letters.messages, len(letters)
    natives = [None] * count if stored.native is None else stored.native.values
    kept = [False] * count if new_ids else _keep_ids(stored)
    found = zip(digests_of(letters), letters.position.values, kept, natives, strict=True)
    return [
        str(Mark(part, first + at, said, position, keeps, native is not None))
        for at, (said, position, keeps, native) in enumerate(found)
    ]


def _keep_ids(stored: Batch) -> list[bool]:
    """Return which messages, as stored, keep their ids when they are sent back."""
    names = [None] * len(stored) if stored.id is None else stored.id.values
    headers = [()] * len(stored) if stored.headers is None else stored.headers.values
    return [name is not None and _next_id(name, each) == name for name, each in zip(names, headers, strict=True)]


def _next_id(name: str, headers: Headers) -> str:
    hops, named = again.hops(headers), dialects.named(headers)
    return next_id(name, hops + 1, named=named, unsent=dialects.unsent(headers))


class Originals:
    """Gives mended rows what their letters had and no column holds: native parts, and ids that stay.

    Letters are looked for as many at a time as are expected, in about one look at the part: a broker may show them in
    another order each time, and another process may have removed some.

    Args:
        read: returns the letters of the part. It is called where a native part is needed, and again where a letter was
            not found behind the last one.
    """

    def __init__(self, read: Callable[[], Iterator[LetterBatch]]) -> None:
        self._read = read
        self._batches: Iterator[LetterBatch] = iter(())
        #: The batch that was read last: the next letters may be in it.
        self._batch: LetterBatch | None = None
        #: The expected letters whose native part is needed: their digests, by position.
        self._expected: dict[str, str] = {}
        #: Of those, the native parts that were found, and the letters that were not.
        self._natives: dict[str, Any] = {}
        self._lost: set[str] = set()

    def expect(self, marks: Sequence[str]) -> None:
        """Say which rows come next, by their marks: their letters are looked for together, once one is needed."""
        found = map(Mark.parse, marks)
        self._expected = {mark.position: mark.digest for mark in found if mark.has_native}
        self._natives = {each: native for each, native in self._natives.items() if each in self._expected}
        self._lost.intersection_update(self._expected)

    def found(self, marks: Sequence[str]) -> list[bool]:
        """Return which of these expected rows have all that their letters had; the others must not be sent."""
        needed = [mark.position if mark.has_native else None for mark in map(Mark.parse, marks)]
        if any(each is not None and each not in self._natives and each not in self._lost for each in needed):
            self._look()
        return [each is None or each in self._natives for each in needed]

    def restored(self, batch: Batch, marks: Sequence[str], *, deduplicates: bool) -> Batch:
        """Return rows in the form in which they are sent.

        Args:
            batch: the rows.
            marks: of each row, all `found`.
            deduplicates: the destination does. It recognises rows by the ids that they had as rows: those of the hop.
        """
        found = list(map(Mark.parse, marks))
        if any(mark.keeps_id for mark in found) and batch.id is not None:
            rows = [_renamed(row, mark) for row, mark in zip(batch.rows(), found, strict=True)]
            if deduplicates:
                names = (identity.of_message(row) or row.id for row in batch.rows())
                batch = replace(batch, identity=Column.of(list(names)))
            batch = replace(batch, id=Column.of([row.id for row in rows]))
            if any(dialects.named(row.headers) < again.hops(row.headers) for row in rows):
                batch = replace(batch, headers=Column.of([row.headers for row in rows]))
        if any(mark.has_native for mark in found):
            natives = [self._natives[mark.position] if mark.has_native else None for mark in found]
            batch = replace(batch, native=Column.of(natives))
        return batch

    def _look(self) -> None:
        """Look for the expected letters: behind the last one, and then, if any is missing, from the first one on."""
        missing = self._expected.keys() - self._natives.keys() - self._lost
        self._take(missing)
        for anew in (False, True):
            if anew and missing:
                self._batches = self._read()
            while missing and (batch := next(self._batches, None)) is not None:
                self._batch = batch
                self._take(missing)
        self._lost |= missing

    def _take(self, missing: set[str]) -> None:
        """Keep the native parts of the missing letters that are in the last batch."""
        batch = self._batch
        rows = [] if batch is None else [at for at, each in enumerate(batch.position.values) if each in missing]
        if batch is None or batch.messages.native is None or not rows:
            return
        some = batch.take(rows)
        natives = [batch.messages.native.values[at] for at in rows]
        for position, said, native in zip(some.position.values, digests_of(some), natives, strict=True):
            if native is not None and said == self._expected[position]:
                self._natives[position] = native
                missing.discard(position)


def _renamed(row: Message, mark: Mark) -> Message:
    """Return a row under the id of its letter, where it keeps that id and is not mended.

    An event that is mended is another event: its id is within it, too.
    """
    if row.id is None or not mark.keeps_id or source_of(row) is not None:
        return row
    hop = again.hops(row.headers)
    row = replace(row, id=row.id.removesuffix(f"{HOP_MARK}{hop}"))
    return dialects.with_own_id(row) if is_marked(row.id or "", hop) else row


class MendedJournal(PartJournal):
    """The journal of a part whose letters are mended. It also keeps what is removed: Spark may give rows again."""

    def __init__(self, part: Part, source: str) -> None:
        super().__init__(part, source)
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS done (position TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID"
        )
        self._is_first = not self.tally

    def is_done(self, mark: Mark) -> bool:
        """Return whether a process that had this part before has sent this letter."""
        if self._is_first:
            return False
        found = self._file.execute("SELECT digest FROM done WHERE position = ?", (mark.position,)).fetchone()
        return found is not None and found[0] == mark.digest

    def _change(self, removed: Sequence[str], sent: Mapping[str, str], count: int) -> None:
        super()._change(removed, sent, count)
        self._file.executemany("INSERT OR REPLACE INTO done VALUES (?, ?)", list(sent.items()))


class MendedLetters:
    """Notes and removes the letters of a part whose rows are confirmed.

    Rows come in the order of their marks, so that the rows of one letter are neighbours. A letter with several rows is
    done when all of them are confirmed; otherwise it stays, and is sent again with all its rows.

    Args:
        letters: the queue.
        part: whose letters they are.
        journal: of the part.
        report: the account of the part; `considered` and `selected` count the letters that still had rows.
        limit: the most letters that are sent; None: any number.
    """

    def __init__(
        self,
        letters: DeadLetterQueue,
        part: Part,
        journal: MendedJournal,
        report: RedriveReport,
        limit: int | None = None,
    ) -> None:
        self._letters = letters
        self._part = part
        self._journal = journal
        self._report = report
        self._left = limit
        #: The last letter that was asked about, and whether it is sent.
        self._asked: tuple[str, bool] | None = None
        self._mark: str | None = None
        self._good = True
        self._lost = False
        self._done: dict[str, str] = {}

    def must_send(self, marks: Sequence[str]) -> list[bool]:
        """Return which of the next rows must be sent. Raises ConfigurationError: a mark is not one of ours."""
        found = []
        for each in marks:
            if self._asked is None or self._asked[0] != each:
                self._asked = each, self._is_sent(Mark.parse(each))
            found.append(self._asked[1])
        return found

    def _is_sent(self, mark: Mark) -> bool:
        """Return whether a letter is sent, and count it."""
        if self._journal.is_done(mark) or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def account(self, marks: Sequence[str], confirmed: Sequence[bool], found: Sequence[bool]) -> None:
        """Account for the next rows: the rows of a letter whose last row was seen are complete.

        Args:
            marks: of each row.
            confirmed: by its destination.
            found: as of `Originals.found`.
        """
        for mark, good, whole in zip(marks, confirmed, found, strict=True):
            if mark != self._mark:
                self._complete()
                self._mark, self._good, self._lost = mark, True, False
            self._good = self._good and good
            self._lost = self._lost or not whole
        self._settle()

    def end(self) -> None:
        """Account for the last letter, and remove what is done."""
        self._complete()
        self._mark = None
        self._settle()

    def remove_noted(self) -> None:
        """Remove what this part had sent before its process was killed."""
        noted = self._journal.noted()
        again = self._letters.still(self._part, noted) if noted else []
        if again:
            self._report.resumed += self._remove(again)

    def _complete(self) -> None:
        if self._mark is None:
            return
        if self._good:
            mark = Mark.parse(self._mark)
            self._done[mark.position] = mark.digest
        elif self._lost:
            self._report.leave(_LOST)
        else:
            self._report.failed += 1

    def _settle(self) -> None:
        """Note and remove the letters that are done."""
        done, self._done = self._done, {}
        if not done:
            return
        self._report.redriven += len(done)
        try:
            self._journal.sent(done)
        finally:  # without a note they must be removed all the more
            self._report.removed += self._remove(list(done))

    def _remove(self, positions: Sequence[str]) -> int:
        removed = self._letters.remove_at(positions, made=self._part.made)  # another process has read them
        if removed == len(positions):
            self._journal.removed(positions)
        return removed
