"""`redrive`: dead letters go back to their destination as a Spark job, mended on their way by DataFrame code if asked.

The caller's process plans the splits and leads (`deadletters.parts`); each task takes a part: it reads, sends, waits
for the confirmation, notes it in its journal, and removes. Where letters are mended, they are read by one stage of
tasks and sent by the next: Spark brings all rows of a split together again, since a split is what one process may
remove from while others remove from theirs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.utils import is_remote

from redelivery.base.clock import SystemClock
from redelivery.contract.letters import Wanted
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.journal import default_path
from redelivery.deadletters.operations import HOP_LIMIT
from redelivery.deadletters.parts import Leader, Part, PartJournal
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import MAX_RETURNS, RedriveReport, RedriveSettings, harm
from redelivery.deadletters.selection import Selection
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.spark import job as jobs
from redelivery.spark.connections import task_connections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("redelivery.spark")

#: Seconds between two looks of the driver at its tasks.
_LOOK: Final = 0.5
#: Looking for letters that came back takes at most this part of the time.
_LOOKING: Final = 0.1


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
        self._returned = 0

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
        wanted = Wanted(readers=tasks, removing=not self._work.settings.dry_run)
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
        began_ms = SystemClock().wall_ms()
        with self._watching(letters, leader, began_ms):
            if self._mend is None:
                found = _run(self._spark, plan, partial(_send, work))
            else:
                raise NotImplementedError
        report = RedriveReport.total(report for report, _ in found)
        leader.finish([position for _, settled in found for position in settled])
        report.stopped = leader.stopped or report.stopped
        if report.redriven:
            report.returned = letters.returned(began_ms)
        self._on_progress(report)
        return report

    def _watching(self, letters: DeadLetterQueue, leader: Leader, began_ms: int) -> _Watch:
        settings = replace(self._work.settings, stop=self._stop, on_progress=self._on_progress)
        return _Watch(leader, settings, lambda: letters.returned(began_ms))


class _Watch:
    """Watches the tasks while they run, on its own thread: reports progress, and stops them where they do harm."""

    def __init__(self, leader: Leader, settings: RedriveSettings, returned: Callable[[], int]) -> None:
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
        count, next_look = 0, time.monotonic() + _LOOK
        while not self._ended.wait(_LOOK):
            report = self._leader.progress()
            most = self._settings.max_returns
            if most is not None and report.redriven and time.monotonic() >= next_look:
                began = time.monotonic()
                try:
                    count = self._returned()
                except RedeliveryError as error:
                    log.warning("redrive: what came back cannot be counted now, and later again: %s", error)
                now = time.monotonic()
                next_look = now + max(2 * _LOOK, (now - began) / _LOOKING)
            report.returned = count
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


class _Before:
    """What a task that is started again had sent before it was killed."""

    def __init__(self, journal: PartJournal) -> None:
        self._journal = journal
        self._sent = journal.tally
        self._noted = journal.noted()

    def left(self, limit: int | None) -> int | None:
        """Return how many more letters may be sent."""
        return None if limit is None else max(0, limit - self._sent)

    def added(self, report: RedriveReport) -> RedriveReport:
        """Return the account of both lives. Letters that stay are counted by the second one alone."""
        again = len(self._noted.keys() - self._journal.noted().keys())
        report.considered += self._sent
        report.selected += self._sent
        report.redriven += self._sent
        report.removed += self._sent - len(self._noted) + again
        report.resumed -= again
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

        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            try:
                report, settled = do(plan[number])
            except RedeliveryError as error:
                raise jobs.plain(error) from None
            answer = json.dumps([number, asdict(report), settled])
            yield pa.record_batch([pa.array([answer])], names=["answer"])

    rows = spark.range(0, len(plan), 1, len(plan)).mapInArrow(task, "answer string").collect()
    answers = sorted(json.loads(row[0]) for row in rows)
    return [(RedriveReport(**report), settled) for _, report, settled in answers]


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
