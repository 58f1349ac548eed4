"""The tasks of a redrive (`redriving.py`): they count, send, read letters to be mended, and send the mended rows."""

from __future__ import annotations

import itertools
import json
import logging
import operator
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types as t

from redelivery import registry
from redelivery.contract.letters import LetterBatch
from redelivery.contract.message import Column
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.letter_senders import RowSender
from redelivery.deadletters.mended import PART_DIGITS, Mark, MendedJournal, MendedLetters, Originals, marks_of
from redelivery.deadletters.parts import Part, PartJournal
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.deadletters.selection import NOTHING, Selection
from redelivery.deadletters.trust import Targets
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.policy.rate import RateLimit
from redelivery.spark import job as jobs
from redelivery.spark.columns import Layout
from redelivery.spark.connections import task_connections
from redelivery.telemetry.owned import traced

if TYPE_CHECKING:
    from redelivery.spark.encoding import Encoder

log = logging.getLogger("redelivery.spark")

#: Rows that are sent together, at most, and about the most bytes that they have.
_CHUNK: Final = 10_000
_CHUNK_BYTES: Final = 16 * 1024 * 1024
#: The longest time without a look whether all must stop, in seconds.
_NAP: Final = 0.2
#: Names the reports of reading tasks.
READ: Final = "-read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The arguments of `redrive`, in the form that travels to its tasks."""

    url: str
    sink: str | None
    to: str | None
    options: Mapping[str, str]
    key: str | None
    where: Sequence[str]
    spec: DeliverySpec | None
    hop_limit: int
    allow_targets: Sequence[str]
    shared_mount: bool
    settings: RedriveSettings
    new_ids: bool = False
    triage: Path | None = None

    def opened(self, **more: Any) -> DeadLetterQueue:
        """Open the letters."""
        return dead_letters(self.url, sink=self.sink, options=self.options, key=self.key, triage=self.triage, **more)

    def transfer(self, letters: DeadLetterQueue, part: Part, **more: Any) -> RedriveReport:
        """Send the letters of a part."""
        return letters.redrive(
            to=self.to,
            where=Selection.parse(*self.where),
            spec=self.spec,
            hop_limit=self.hop_limit,
            allow_targets=self.allow_targets,
            new_ids=self.new_ids,
            part=part,
            **more,
        )

    def read(self, letters: DeadLetterQueue, part: Part, report: RedriveReport) -> Iterator[LetterBatch]:
        """Return the letters of a part that are to be mended, and count them."""
        return letters.read(
            part,
            to=self.to,
            where=Selection.parse(*self.where),
            hop_limit=self.hop_limit,
            allow_targets=self.allow_targets,
            report=report,
        )

    def refuse_one_host(self, master: str | None, journal: Path | None) -> None:
        """Refuse places of one host on a cluster of several. Raises ConfigurationError."""
        for each in (self.sink or self.url, self.to or self.url):
            jobs.refuse_one_host(each, master, shared_mount=self.shared_mount)
        if journal is not None and not self.shared_mount and not (master is None or master.startswith("local")):
            raise ConfigurationError(
                f"this Spark runs on several hosts ({master}), and its tasks note what they have sent beside the "
                f"journal ({journal}): name a `journal` on a mount of all hosts, and set shared_mount"
            )


def count(work: Work, part: Part, *, mended: bool) -> tuple[RedriveReport, list[str]]:
    """Count what a part would send; `mended`: what it would give to be mended."""
    with task_connections() as connection_factory, work.opened(connection_factory=connection_factory) as letters:
        if mended:
            report = RedriveReport()
            for _ in work.read(letters, part, report):
                pass
            return report, []
        settings = RedriveSettings(dry_run=True, limit=part.limit)
        return _unstopped(work.transfer(letters, part, settings=settings)), []


def send(work: Work, part: Part) -> tuple[RedriveReport, list[str]]:
    """Send the letters of a part; return the account, and what is removed of the letters that earlier runs sent."""
    work.refuse_one_host(jobs.local_property("spark.master"), part.folder)
    with (
        traced("redrive"),
        task_connections() as connection_factory,
        work.opened(connection_factory=connection_factory) as letters,
        PartJournal(part, letters.place) as journal,
    ):
        before = _Before(journal)
        left = before.left(part.limit)
        if left == 0:
            return before.added(_resumed(work, letters, part, journal)), journal.settled
        settings = replace(work.settings, limit=left, stop=part.must_stop, on_progress=part.reporter())
        report = work.transfer(letters, part, settings=settings, journal=journal)
        return before.added(_unstopped(report)), journal.settled


def resume(work: Work, part: Part) -> tuple[RedriveReport, list[str]]:
    """Remove what earlier runs have sent of a part, and send nothing."""
    with (
        task_connections() as connection_factory,
        work.opened(connection_factory=connection_factory) as letters,
        PartJournal(part, letters.place) as journal,
    ):
        return _resumed(work, letters, part, journal), journal.settled


def _resumed(work: Work, letters: DeadLetterQueue, part: Part, journal: PartJournal) -> RedriveReport:
    settings = RedriveSettings(stop=part.must_stop)
    return letters.redrive(to=work.to, where=NOTHING, part=part, journal=journal, settings=settings)


def letters_of(work: Work, plan: Sequence[Part], batches: Iterable[Any]) -> Iterator[Any]:
    """Return the letters of a part as a DataFrame has them, to be mended."""
    try:
        for number in numbers_of(batches):
            part = plan[number]
            yield from _read(work, part)
    except RedeliveryError as error:
        raise jobs.plain(error) from None


def _read(work: Work, part: Part) -> Iterator[Any]:
    work.refuse_one_host(jobs.local_property("spark.master"), part.folder)
    report, reporter = RedriveReport(), part.reporter(READ)
    with task_connections() as connection_factory, work.opened(connection_factory=connection_factory) as letters:
        make = _LetterRows(work.to or work.url, work.allow_targets)
        ordinal = 0
        for batch in work.read(letters, part, report):
            marks = marks_of(batch, part.number, ordinal, new_ids=work.new_ids)
            ordinal += len(batch)
            yield make(replace(batch, position=Column.of(marks)))
            reporter(report)
    reporter.write(report)


def send_rows(work: Work, plan: Sequence[Part], layout: Layout, batches: Iterable[Any]) -> Iterator[Any]:
    """Send the rows of parts, one after the other, note and remove their letters, and return the accounts."""
    import pyarrow as pa  # noqa: PLC0415 - runs on the workers

    for number, rows in itertools.groupby(_by_part(batches), key=operator.itemgetter(0)):
        try:
            report, settled = _RowsOfPart(work, plan[number], layout).send(piece for _, piece in rows)
        except RedeliveryError as error:
            raise jobs.plain(error) from None
        yield pa.record_batch([pa.array([json.dumps([number, asdict(report), settled])])], names=["answer"])


def _by_part(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Return rows with the number of their part, which they are sorted by."""
    for batch in batches:
        marks, start = _marks(batch), 0
        while start < len(marks):
            number = Mark.parse(marks[start]).part
            end = bisect_right(marks, marks[start][:PART_DIGITS], lo=start, key=lambda mark: mark[:PART_DIGITS])
            yield number, batch.slice(start, end - start)
            start = end


def letters_schema(url: str) -> t.StructType:
    """Return the columns of letters that go to a destination: those of a read, without those that it cannot take."""
    from redelivery.spark.letter_schema import all_columns  # noqa: PLC0415 - only where letters are mended

    there = registry.installed().by_url(url).capabilities
    fields = [each for each in all_columns(there).fields if there.destinations or each.name != "destination"]
    return t.StructType(fields)


class _LetterRows:
    """Makes record batches of letters for a destination."""

    def __init__(self, url: str, allow_targets: Sequence[str]) -> None:
        from redelivery.spark.letter_columns import LetterColumns  # noqa: PLC0415 - imports an Arrow library

        there = registry.installed().by_url(url).capabilities
        self._columns = LetterColumns(letters_schema(url), Targets(allowed=tuple(allow_targets)), there)

    def __call__(self, batch: LetterBatch) -> Any:
        """Return letters as a record batch."""
        return self._columns.record_batch(batch)


class _RowsOfPart:
    """The rows of one part, on the worker that sends them."""

    def __init__(self, work: Work, part: Part, layout: Layout) -> None:
        self._work = work
        self._part = part
        self._layout = layout
        self._rate = RateLimit(work.settings.rate)
        self._report = RedriveReport()
        self._seen = ""

    def send(self, batches: Iterator[Any]) -> tuple[RedriveReport, list[str]]:
        """Send them all."""
        from redelivery.spark.encoding import Encoder  # noqa: PLC0415 - imports an Arrow library

        work, part, report = self._work, self._part, self._report
        reporter = part.reporter()
        with (
            task_connections() as connection_factory,
            work.opened(connection_factory=connection_factory) as letters,
            MendedJournal(part, letters.place) as journal,
            letters.row_sender(work.to, spec=work.spec) as sender,
        ):
            before = _Before(journal)
            mended = MendedLetters(letters, part, journal, report, before.left(part.limit))
            mended.remove_noted()
            originals = Originals(lambda: letters.stored(part))
            encoder = Encoder(
                self._layout, sender.capabilities, prefix=f"{part.run}-{part.number}", source=f"redelivery:{part.run}"
            )
            for piece in self._pieces(batches, originals):
                if not self._may_send():  # the last letter may have further rows
                    break
                self._send_piece(piece, mended, originals, sender, encoder)
                reporter(report)
            else:
                mended.end()
            for _ in batches:  # Spark's worker must have read its input
                pass
            return before.added(report, again=False), journal.settled

    def _pieces(self, batches: Iterator[Any], originals: Originals) -> Iterator[Any]:
        """Return rows that are sent together. Under a rate they are few, and letters are looked for by the chunk."""
        for chunk in jobs.pieces(batches, most_bytes=_CHUNK_BYTES, most_rows=_CHUNK):
            originals.expect(_marks(chunk))
            most = self._rate.piece or _CHUNK
            yield from (chunk.slice(start, most) for start in range(0, chunk.num_rows, most))

    def _may_send(self) -> bool:
        """Wait for the rate limit; return False where the run is stopped."""
        while not self._part.must_stop():
            left = self._rate.next(time.monotonic()) - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, _NAP))
        return False

    def _send_piece(
        self, piece: Any, mended: MendedLetters, originals: Originals, sender: RowSender, encoder: Encoder
    ) -> None:
        marks = _marks(piece)
        must = mended.must_send(marks)
        self._count(marks)
        if not any(must):
            return
        if not all(must):
            piece = piece.take([index for index, each in enumerate(must) if each])
            marks = list(itertools.compress(marks, must))
        found = originals.found(marks)
        confirmed = [False] * len(marks)
        if not any(found):
            mended.account(marks, confirmed, found)
            return
        rows = [index for index, each in enumerate(found) if each]
        batch, rejected = encoder.encode(_body(piece if all(found) else piece.take(rows)))
        first = encoder.position - len(rows)
        bad = {
            at - first: error
            for each in rejected
            for at, error in zip(each.positions, itertools.cycle(each.errors), strict=False)
        }
        good = [row for index, row in enumerate(rows) if index not in bad]

        def confirm(sent: list[int]) -> None:
            for index in sent:
                confirmed[good[index]] = True

        for error in bad.values():
            log.warning("redrive: a mended row cannot be sent: %s", error)
        self._rate.take(len(rows), time.monotonic())
        try:
            if batch is not None:
                deduplicates = bool(sender.capabilities.deduplicate)
                batch = originals.restored(batch, [marks[at] for at in good], deduplicates=deduplicates)
                sender.send(batch, confirm)
        except BaseException as error:  # letters that are done are removed, even if others fail
            try:
                mended.account(marks, confirmed, found)
            except RedeliveryError as second:
                error.add_note(f"and then: {second}")
            raise
        mended.account(marks, confirmed, found)

    def _count(self, marks: Sequence[str]) -> None:
        """Count the letters that still have rows: rows of one letter are neighbours."""
        new = sum(one != other for one, other in itertools.pairwise([self._seen, *marks]))
        self._seen = marks[-1]
        self._report.considered += new
        self._report.selected += new


def _body(rows: Any) -> Any:
    """Return rows without their marks."""
    return rows.select(range(rows.num_columns - 1))


def _marks(rows: Any) -> list[str]:
    """Return the marks of rows: their last column."""
    marks: list[str] = rows.column(rows.num_columns - 1).to_pylist()
    return marks


class _Before:
    """The letters that a task had sent before it was killed and started again."""

    def __init__(self, journal: PartJournal) -> None:
        self._journal = journal
        self._sent = journal.tally
        self._noted = journal.noted()

    def left(self, limit: int | None) -> int | None:
        """Return how many more letters may be sent."""
        return None if limit is None else max(0, limit - self._sent)

    def added(self, report: RedriveReport, *, again: bool = True) -> RedriveReport:
        """Return the account of both lives.

        Args:
            report: of the second. It alone has counted the letters that stay.
            again: it has not considered the letters that the first has sent.
        """
        removed = len(self._noted.keys() - self._journal.noted().keys())
        if again:
            report.considered += self._sent
            report.selected += self._sent
        report.redriven += self._sent
        report.removed += self._sent - len(self._noted) + removed
        report.resumed -= removed
        return report


def _unstopped(report: RedriveReport) -> RedriveReport:
    """Return the report without the end by a limit: the limit of a part is not that of the redrive."""
    if report.is_limited:
        report.stopped = None
    return report


def numbers_of(batches: Iterable[Any]) -> list[int]:
    """Return the numbers of the parts that a task is given."""
    return [number for batch in batches for number in batch.column(0).to_pylist()]
