"""`redrive`: dead letters go back to their destination as a Spark job, mended on their way by DataFrame code if asked.

The caller's process plans the splits and leads (`deadletters.parts`); each task takes a part: it reads, sends, waits
for the confirmation, notes it in its journal, and removes. Where letters are mended, they are read by one stage of
tasks and sent by the next: Spark brings all rows of a split together again, since a split is what one process may
remove from while others remove from theirs.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.utils import is_remote

from redelivery import registry
from redelivery.base.clock import SystemClock
from redelivery.contract.letters import LetterBatch, Wanted
from redelivery.contract.message import Column
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.journal import default_path
from redelivery.deadletters.letter_senders import RowSender
from redelivery.deadletters.mended import PART_DIGITS, Mark, MendedLetters, marks_of
from redelivery.deadletters.operations import HOP_LIMIT
from redelivery.deadletters.parts import Leader, Part, PartJournal
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import MAX_RETURNS, RedriveReport, RedriveSettings, harm
from redelivery.deadletters.returned import Returned
from redelivery.deadletters.selection import Condition, Selection
from redelivery.deadletters.trust import Targets
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.policy.rate import RateLimit
from redelivery.spark import job as jobs
from redelivery.spark.columns import POSITION, Layout, encode_rows, without_letters
from redelivery.spark.connections import task_connections
from redelivery.spark.options import WriteSettings, read_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from redelivery.spark.encoding import Encoder

log = logging.getLogger("redelivery.spark")

#: Seconds between two looks of the driver at its tasks.
_LOOK: Final = 0.5
#: Rows that are sent together, at most, and about the most bytes that they have.
_CHUNK: Final = 10_000
_CHUNK_BYTES: Final = 16 * 1024 * 1024
#: The longest time without a look whether all must stop, in seconds.
_NAP: Final = 0.2
#: Names the reports of reading tasks.
_READ: Final = "-read"


def redrive(
    spark: SparkSession,
    url: str,
    *,
    where: str | Sequence[str] = (),
    to: str | None = None,
    mend: Callable[[DataFrame], DataFrame] | None = None,
    sink: str | None = None,
    options: Mapping[str, str] | None = None,
    spec: DeliverySpec | None = None,
    limit: int | None = None,
    rate: float | None = None,
    hop_limit: int = HOP_LIMIT,
    allow_targets: Sequence[str] = (),
    max_returns: int | None = MAX_RETURNS,
    key: str | None = None,
    journal: Path | str | None = None,
    shared_mount: bool = False,
    dry_run: bool = False,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[RedriveReport], None] = lambda _: None,
) -> RedriveReport:
    """Send dead letters back to their destination, each removed once the destination has confirmed it.

    As `redelivery dead-letters redrive`, by as many tasks as the session runs at once and the broker allows
    (`DeadLetters.splits`). Killed at any moment, call it again: letters that were sent are removed and not sent again.
    A letter whose confirmation was not noted yet is sent again, under the same id.

    Args:
        spark: the session. This process plans, so it must reach the broker.
        url: the destination; its native dead letters are sent back.
        where: conditions that must all hold, as `--where` takes them: "code=TOO_LARGE", "age>PT2H".
        to: another destination than the one where they failed.
        mend: gets the letters as a DataFrame, as `spark.read` gives them, and returns the rows to be sent. It must keep
            the column `_position`. Letters whose rows it drops stay. Where it makes several rows of one letter, give
            each its own `id`; the letter is removed when all of them are confirmed. If it fails, nothing was sent.
        sink: URL of the sink that the letters went to, where that was not the native queue.
        options: client options, with their plugin's prefix; of the destinations, too.
        spec: retries, backoff and timeouts of sending. A letter that fails permanently stays in place.
        limit: the most letters that are sent. They are counted first, in one more pass over the letters.
        rate: the most letters per second, of all tasks together: each has an equal part, and a task that has ended
            leaves its part unused.
        hop_limit: letters that were sent back so often stay.
        allow_targets: targets that letters may go to, if their headers name one other than the destination.
        max_returns: stop when more letters than this, of all tasks, were refused or are dead again; None: never. Tasks
            learn of it within about a second, and then end with the letters in flight.
        key: references of the keys that letters were signed with.
        journal: a file on this machine that no other place uses; beside it, in `<journal>.parts`, tasks note what they
            have sent. Default: one per place and user. On a cluster the tasks must see the same folder: name a file on
            a mount of all hosts whose file locks work, and set `shared_mount`.
        shared_mount: `journal`, and a destination of one host, lie on a mount that all hosts share.
        dry_run: send and remove nothing; count what would be sent.
        stop: called again and again; True ends the run after the letters in flight are settled.
        on_progress: called with the report as it grows.

    Returns:
        The account of all tasks.

    Raises:
        ConfigurationError, Unsupported: nothing was sent.
        JournalError: another redrive of this place is running, or the journal cannot be used.
        BrokerError: the place or the destination cannot be used; nothing was sent.
        pyspark.errors.PythonException: a task failed; its text holds the error. Call `redrive` again to go on.
    """
    if isinstance(allow_targets, str):
        raise ConfigurationError(f"redrive: allow_targets is a list, not one text: write [{allow_targets!r}]")
    work = _Work(
        url=url,
        sink=sink,
        to=to,
        options=dict(options or {}),
        key=key,
        where=(where,) if isinstance(where, str) else tuple(where),
        spec=spec,
        hop_limit=hop_limit,
        allow_targets=tuple(allow_targets),
        shared_mount=shared_mount,
        settings=RedriveSettings(limit=limit, rate=rate, dry_run=dry_run, max_returns=max_returns),
    )
    Selection.parse(*work.where)
    if mend is not None and dry_run:
        raise ConfigurationError("redrive: a dry run counts letters, and mends none: leave out `mend`")
    _refuse_speculation(spark)
    return _Redrive(spark, work, mend, stop, on_progress).run(None if journal is None else Path(journal))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a redrive does, as it travels to its tasks; arguments of `redrive`."""

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

    def opened(self, **more: Any) -> DeadLetterQueue:
        """Open the letters."""
        return dead_letters(self.url, sink=self.sink, options=self.options, key=self.key, **more)

    def transfer(self, letters: DeadLetterQueue, part: Part, **more: Any) -> RedriveReport:
        """Send the letters of a part."""
        return letters.redrive(
            to=self.to,
            where=Selection.parse(*self.where),
            spec=self.spec,
            hop_limit=self.hop_limit,
            allow_targets=self.allow_targets,
            part=part,
            **more,
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


class _Redrive:
    """One redrive, as its driver sees it."""

    def __init__(
        self,
        spark: SparkSession,
        work: _Work,
        mend: Callable[[DataFrame], DataFrame] | None,
        stop: Callable[[], bool],
        on_progress: Callable[[RedriveReport], None],
    ) -> None:
        self._spark = spark
        self._work = work
        self._mend = mend
        self._stop = stop
        self._on_progress = on_progress
        self._run = uuid.uuid4().hex

    def run(self, journal: Path | None) -> RedriveReport:
        """Do it all, and return the account."""
        work, settings = self._work, self._work.settings
        with work.opened() as letters:
            path = None if settings.dry_run else (journal or default_path(letters.place)).absolute()
            work.refuse_one_host(_master(self._spark), path)
            # A redrive of no letters: what can never work is reported here, and not by each task.
            none = Part(run=self._run, number=0, splits=(), wanted=Wanted())
            work.transfer(letters, none, settings=RedriveSettings(dry_run=True))
            if path is None:
                return self._limited(RedriveReport.total(self._counted(self._planned(letters))))
            with Leader(path, letters.place, self._run) as leader:
                plan = [replace(each, folder=leader.folder, earlier=leader.earlier) for each in self._planned(letters)]
                return self._limited(self._sent(letters, leader, self._within_limit(plan)))

    def _planned(self, letters: DeadLetterQueue) -> list[Part]:
        """Return the parts: a split each, or under a rate as many as run at once, so that each has its share of it."""
        tasks = _tasks_at_once(self._spark)
        selection, now_ms = Selection.parse(*self._work.where), SystemClock().wall_ms()
        wanted = replace(selection.wanted(now_ms), readers=tasks, removing=not self._work.settings.dry_run)
        splits = letters.splits(wanted)
        count = min(len(splits), tasks) if self._work.settings.rate is not None else len(splits)
        return [
            Part(run=self._run, number=number, splits=splits[number::count], wanted=wanted) for number in range(count)
        ]

    def _counted(self, plan: Sequence[Part]) -> list[RedriveReport]:
        """Return what each part would send."""
        dry = [replace(each, folder=None) for each in plan]
        return [report for report, _ in _run(self._spark, dry, partial(_count, self._work))]

    def _within_limit(self, plan: list[Part]) -> list[Part]:
        """Return the parts that may send something, each with its own limit: oldest letters first."""
        left = self._work.settings.limit
        if left is None:
            return plan
        limited = []
        for part, report in zip(plan, self._counted(plan), strict=True):
            if left > 0 and report.selected:
                limited.append(replace(part, limit=min(left, report.selected)))
                left -= min(left, report.selected)
        return limited

    def _limited(self, report: RedriveReport) -> RedriveReport:
        limit = self._work.settings.limit
        if report.stopped is None and limit is not None and report.selected >= limit:
            report.selected = min(report.selected, limit)
            report.stopped = f"the limit of {limit} letters is reached"
        return report

    def _sent(self, letters: DeadLetterQueue, leader: Leader, plan: list[Part]) -> RedriveReport:
        rate = self._work.settings.rate
        share = None if rate is None or not plan else rate / len(plan)
        work = replace(self._work, settings=replace(self._work.settings, rate=share))
        returned = letters.returned()
        settings = replace(self._work.settings, stop=self._stop, on_progress=self._on_progress)
        with _Watch(leader, settings, returned):
            if self._mend is None:
                found = _run(self._spark, plan, partial(_send, work))
            else:
                found = self._mended(self._mend, leader, plan, work)
            report = RedriveReport.total(report for report, _ in found)
            if self._mend is not None:
                _account_for_dropped(report, leader.progress(_READ), stopped=leader.stopped is not None)
        leader.finish([position for _, settled in found for position in settled])
        report.stopped = leader.stopped or report.stopped
        if report.redriven:
            report.returned = returned.count()
        self._on_progress(report)
        return report

    def _mended(
        self, mend: Callable[[DataFrame], DataFrame], leader: Leader, plan: list[Part], work: _Work
    ) -> list[tuple[RedriveReport, list[str]]]:
        """Read the letters of all parts, let them be mended, and send the rows."""
        resumed: list[tuple[RedriveReport, list[str]]] = []
        if leader.earlier:
            resumed = _run(self._spark, plan, partial(_resume, work))
            gone = {position for _, settled in resumed for position in settled}
            earlier = {position: said for position, said in leader.earlier.items() if position not in gone}
            plan = [replace(each, earlier=earlier) for each in plan]
        if not plan:
            return resumed
        settings = read_write_options(
            {"url": work.to or work.url, **registry.own_options(work.to or work.url, work.options)}
        )
        letters = self._spark.range(0, len(plan), 1, len(plan)).mapInArrow(
            partial(_letters, work, plan), _letters_schema(settings.url)
        )
        rows, layout = _sendable(mend(letters), settings)
        part = f.substring(POSITION, 1, PART_DIGITS).cast("int")
        together = rows.repartitionById(len(plan), part).sortWithinPartitions(POSITION)
        done = together.mapInArrow(partial(_send_rows, work, plan, layout), "answer string").collect()
        return resumed + _answers(done)


class _Watch:
    """Watches the tasks while they run, on its own thread: reports progress, and stops them where they do harm."""

    def __init__(self, leader: Leader, settings: RedriveSettings, returned: Returned) -> None:
        self._leader = leader
        self._settings = settings
        self._returned = returned
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="redelivery-redrive", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK):
            report = self._leader.progress()
            most = self._settings.max_returns
            if most is not None and report.redriven:
                try:
                    report.returned = self._returned.look()
                except RedeliveryError as error:
                    log.warning("redrive: what came back cannot be counted now, and later again: %s", error)
            self._settings.on_progress(report)
            if self._settings.stop():
                self._leader.stop("it was interrupted")
            elif most is not None and report.failed + report.returned > most:
                self._leader.stop(harm(report))


# --- on the workers ---


def _count(work: _Work, part: Part) -> tuple[RedriveReport, list[str]]:
    """Count what a part would send."""
    with task_connections() as connection_factory, work.opened(connection_factory=connection_factory) as letters:
        settings = RedriveSettings(dry_run=True, limit=work.settings.limit)
        return _unstopped(work.transfer(letters, part, settings=settings)), []


def _send(work: _Work, part: Part) -> tuple[RedriveReport, list[str]]:
    """Send the letters of a part; return the account, and what is removed of the letters that earlier runs sent."""
    work.refuse_one_host(jobs.local_property("spark.master"), part.folder)
    with (
        task_connections() as connection_factory,
        work.opened(connection_factory=connection_factory) as letters,
        PartJournal(part, letters.place) as journal,
    ):
        before = _Before(journal)
        left = before.left(part.limit)
        if left == 0:
            return before.added(RedriveReport()), []
        settings = replace(work.settings, limit=left, stop=part.must_stop, on_progress=part.reporter())
        report = work.transfer(letters, part, settings=settings, journal=journal)
        return before.added(_unstopped(report)), journal.settled


def _resume(work: _Work, part: Part) -> tuple[RedriveReport, list[str]]:
    """Remove what earlier runs have sent of a part, and send nothing."""
    with (
        task_connections() as connection_factory,
        work.opened(connection_factory=connection_factory) as letters,
        PartJournal(part, letters.place) as journal,
    ):
        nothing = Selection((Condition("none", lambda _letter, _now: False),))
        report = letters.redrive(
            to=work.to, where=nothing, part=part, journal=journal, settings=RedriveSettings(stop=part.must_stop)
        )
        return report, journal.settled


def _letters(work: _Work, plan: Sequence[Part], batches: Iterable[Any]) -> Iterator[Any]:
    """Return the letters of a part as a DataFrame has them, to be mended."""
    try:
        for number in _numbers(batches):
            part = plan[number]
            yield from _read(work, part)
    except RedeliveryError as error:
        raise jobs.plain(error) from None


def _read(work: _Work, part: Part) -> Iterator[Any]:
    work.refuse_one_host(jobs.local_property("spark.master"), part.folder)
    report, reporter = RedriveReport(), part.reporter(_READ)
    with task_connections() as connection_factory, work.opened(connection_factory=connection_factory) as letters:
        found = letters.read(
            part,
            to=work.to,
            where=Selection.parse(*work.where) if work.where else None,
            hop_limit=work.hop_limit,
            allow_targets=work.allow_targets,
            report=report,
        )
        make = _LetterRows(work.to or work.url, work.allow_targets)
        ordinal = 0
        for batch in found:
            marks = marks_of(batch, part.number, ordinal)
            ordinal += len(batch)
            yield make(replace(batch, position=Column.of(marks)))
            reporter(report)
    reporter.write(report)


def _send_rows(work: _Work, plan: Sequence[Part], layout: Layout, batches: Iterable[Any]) -> Iterator[Any]:
    """Send the rows of a part, note and remove their letters, and return the account."""
    import pyarrow as pa  # noqa: PLC0415 - runs on the workers

    try:
        rows = iter(batches)
        first = next((each for each in rows if each.num_rows), None)
        if first is None:
            return
        number = Mark.parse(first.column(first.num_columns - 1)[0].as_py()).part
        sender = _RowsOfPart(work, plan[number], layout)
        report, settled = sender.send(itertools.chain([first], rows))
    except RedeliveryError as error:
        raise jobs.plain(error) from None
    yield pa.record_batch([pa.array([json.dumps([number, asdict(report), settled])])], names=["answer"])


def _letters_schema(url: str) -> t.StructType:
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
        self._columns = LetterColumns(_letters_schema(url), Targets(allowed=tuple(allow_targets)), there)

    def __call__(self, batch: LetterBatch) -> Any:
        """Return letters as a record batch."""
        return self._columns.record_batch(batch)


class _RowsOfPart:
    """The rows of one part, on the worker that sends them."""

    def __init__(self, work: _Work, part: Part, layout: Layout) -> None:
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
            PartJournal(part, letters.place) as journal,
            letters.row_sender(work.to, spec=work.spec) as sender,
        ):
            before = _Before(journal)
            # A process was killed after it had sent some: what it has removed must not be sent again.
            mended = MendedLetters(letters, journal, report, letters.positions(part) if journal.tally else None)
            mended.remove_noted()
            encoder = Encoder(
                self._layout, sender.capabilities, prefix=f"{part.run}-{part.number}", source=f"redelivery:{part.run}"
            )
            for piece in jobs.pieces(batches, most_bytes=_CHUNK_BYTES, most_rows=self._rate.piece or _CHUNK):
                if not self._may_send():  # the last letter may have further rows
                    break
                self._send_piece(piece, mended, sender, encoder)
                reporter(report)
            else:
                mended.end()
            for _ in batches:  # Spark's worker must have read its input
                pass
            return before.added(report, again=False), journal.settled

    def _may_send(self) -> bool:
        """Wait for the rate limit; return False where the run is stopped."""
        while not self._part.must_stop():
            left = self._rate.next(time.monotonic()) - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, _NAP))
        return False

    def _send_piece(self, piece: Any, mended: MendedLetters, sender: RowSender, encoder: Encoder) -> None:
        marks = piece.column(piece.num_columns - 1).to_pylist()
        must = mended.must_send(marks)
        self._count(marks)
        if not all(must):
            piece = piece.take([index for index, each in enumerate(must) if each])
            marks = list(itertools.compress(marks, must))
        if not marks:
            return
        confirmed = [False] * len(marks)
        batch, rejected = encoder.encode(piece.select(range(piece.num_columns - 1)))
        first = encoder.position - len(marks)
        bad = {each.position - first: each.error for each in rejected}
        good = [index for index in range(len(marks)) if index not in bad]

        def confirm(rows: list[int]) -> None:
            for row in rows:
                confirmed[good[row]] = True

        for error in bad.values():
            log.warning("redrive: a mended row cannot be sent: %s", error)
        self._rate.take(len(marks), time.monotonic())
        try:
            if batch is not None:
                sender.send(batch, confirm)
        except BaseException as error:  # letters that are done are removed, even if others fail
            try:
                mended.account(marks, confirmed)
            except RedeliveryError as second:
                error.add_note(f"and then: {second}")
            raise
        mended.account(marks, confirmed)

    def _count(self, marks: Sequence[str]) -> None:
        """Count the letters that still have rows: rows of one letter are neighbours."""
        new = sum(one != other for one, other in itertools.pairwise([self._seen, *marks]))
        self._seen = marks[-1]
        self._report.considered += new
        self._report.selected += new


class _Before:
    """What a task that is started again had sent before it was killed."""

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
    if report.stopped is not None and report.stopped.startswith("the limit"):
        report.stopped = None
    return report


# --- Spark ---


def _run(
    spark: SparkSession, plan: Sequence[Part], do: Callable[[Part], tuple[RedriveReport, list[str]]]
) -> list[tuple[RedriveReport, list[str]]]:
    """Run each part as a task; return what they return, in order."""
    if not plan:
        return []

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - runs on the workers

        for number in _numbers(batches):
            try:
                report, settled = do(plan[number])
            except RedeliveryError as error:
                raise jobs.plain(error) from None
            answer = json.dumps([number, asdict(report), settled])
            yield pa.record_batch([pa.array([answer])], names=["answer"])

    return _answers(spark.range(0, len(plan), 1, len(plan)).mapInArrow(task, "answer string").collect())


def _numbers(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in batch.column(0).to_pylist()]


def _answers(rows: Iterable[Any]) -> list[tuple[RedriveReport, list[str]]]:
    answers = sorted((json.loads(row[0]) for row in rows), key=lambda each: int(each[0]))
    return [(RedriveReport(**report), settled) for _, report, settled in answers]


def _sendable(mended: DataFrame, settings: WriteSettings) -> tuple[DataFrame, Layout]:
    """Return the mended rows with their mark as last column, and the meaning of the others. Raises as a write."""
    schema, _ = without_letters(mended.schema)
    job = jobs.Job.plan(settings, schema)
    return encode_rows(mended, job.layout, POSITION)


def _account_for_dropped(report: RedriveReport, read: RedriveReport, *, stopped: bool) -> None:
    """Complete the account of mended letters by what was read of them."""
    dropped = read.selected - report.selected
    report.left = dict(read.left)
    if not stopped and dropped > 0:
        report.left["the mend dropped it"] = dropped
    report.considered = report.redriven + report.failed + sum(report.left.values())


def _tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks the session runs at once, as far as it knows."""
    if is_remote():
        return max(1, spark.range(1_000).selectExpr("spark_partition_id()").distinct().count())
    return max(1, spark.sparkContext.defaultParallelism)


def _master(spark: SparkSession) -> str | None:
    return _setting(spark, "spark.master")


def _refuse_speculation(spark: SparkSession) -> None:
    if _setting(spark, "spark.speculation") == "true":
        raise ConfigurationError(
            "spark.speculation is on, and a part of a redrive can be in one task only: switch it off for this job"
        )


def _setting(spark: SparkSession, name: str) -> str | None:
    try:
        value: str | None = spark.conf.get(name, None)
    except Exception:  # noqa: BLE001 - Connect keeps some settings to itself; the tasks check again
        return None
    return value
