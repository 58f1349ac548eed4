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
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as f
from pyspark.sql.utils import is_remote

from redelivery import registry
from redelivery.base.clock import SystemClock
from redelivery.contract.letters import Wanted
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.journal import default_path
from redelivery.deadletters.mended import PART_DIGITS
from redelivery.deadletters.operations import HOP_LIMIT
from redelivery.deadletters.parts import Leader, Part
from redelivery.deadletters.queue import DeadLetterQueue
from redelivery.deadletters.redrive import (
    INTERRUPTED,
    MAX_RETURNS,
    RedriveReport,
    RedriveSettings,
    harm,
    limit_reached,
)
from redelivery.deadletters.returned import Returned
from redelivery.deadletters.selection import Selection
from redelivery.errors import ConfigurationError, RedeliveryError
from redelivery.spark import job as jobs
from redelivery.spark.columns import POSITION, Layout, encode_rows, without_letters
from redelivery.spark.features import placed
from redelivery.spark.options import WriteSettings, read_write_options
from redelivery.spark.redrive_tasks import (
    READ,
    Work,
    count,
    letters_of,
    letters_schema,
    numbers_of,
    resume,
    send,
    send_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger("redelivery.spark")

#: Seconds between two looks of the driver at its tasks.
_LOOK: Final = 0.5


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
    new_ids: bool = False,
    max_returns: int | None = MAX_RETURNS,
    key: str | None = None,
    journal: Path | str | None = None,
    shared_mount: bool = False,
    dry_run: bool = False,
    triage: Path | str | None = None,
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
        to: another destination than the one where they failed. Of a `sink`, letters go back to `url`, those that failed
            there and those of which nothing says where.
        mend: gets the letters as a DataFrame, as `spark.read` gives them, and returns the rows to be sent. It must keep
            the column `_position`. Letters whose rows it drops stay. Where it makes several rows of one letter, give
            each its own `id`; the letter is removed when all of them are confirmed. If it fails, nothing was sent.
        sink: URL of the sink that the letters went to, where that was not the native queue.
        options: client options, with their plugin's prefix; of the destinations, too.
        spec: retries, backoff and timeouts of sending. A letter that fails permanently stays in place.
        limit: the most letters that are sent, by a call that was killed, interrupted or has failed and the next one
            together. They are counted first, in one more pass over the letters.
        rate: the most letters per second, of all tasks together: each has an equal part, and a task that has ended
            leaves its part unused.
        hop_limit: letters that were sent back so often stay.
        allow_targets: targets that letters may go to, if their headers name one other than the destination.
        new_ids: give every message the id of its hop; else only those that a writer of ours could not send.
        max_returns: stop when more letters than this, of all tasks, were refused or are dead again; None: never. Tasks
            learn of it within about a second, and then end with the letters in flight.
        key: references of the keys that letters were signed with.
        journal: a file on this machine that no other place uses; beside it, in `<journal>.parts`, tasks note what they
            have sent. Default: one per place and user. On a cluster the tasks must see the same folder: name a file on
            a mount of all hosts whose file locks work, and set `shared_mount`.
        shared_mount: `journal`, and a destination of one host, lie on a mount that all hosts share.
        dry_run: send and remove nothing; count what would be sent.
        triage: the file on this machine that says which letters are parked, and so stay; None: that of the place. It is
            read once, before the tasks begin.
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
    work = Work(
        url=url,
        sink=sink,
        to=to,
        options=dict(options or {}),
        key=key,
        where=(where,) if isinstance(where, str) else tuple(where),
        spec=spec,
        hop_limit=hop_limit,
        allow_targets=tuple(allow_targets),
        new_ids=new_ids,
        triage=None if triage is None else Path(triage),
        shared_mount=shared_mount,
        settings=RedriveSettings(limit=limit, rate=rate, dry_run=dry_run, max_returns=max_returns),
    )
    Selection.parse(*work.where)
    if mend is not None and dry_run:
        raise ConfigurationError("redrive: a dry run counts letters, and mends none: leave out `mend`")
    _refuse_speculation(spark)
    return _Redrive(spark, work, mend, stop, on_progress).run(None if journal is None else Path(journal))


class _Redrive:
    """One redrive, as its driver sees it."""

    def __init__(
        self,
        spark: SparkSession,
        work: Work,
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
        self._now_ms = SystemClock().wall_ms()

    def run(self, journal: Path | None) -> RedriveReport:
        """Do it all, and return the account."""
        work, settings = self._work, self._work.settings
        with work.opened() as letters:
            path = None if settings.dry_run else (journal or default_path(letters.place)).absolute()
            work.refuse_one_host(_master(self._spark), path)
            # A redrive of no letters: what can never work is reported here, and not by each task.
            none = Part(run=self._run, number=0, splits=(), wanted=Wanted(), now_ms=self._now_ms)
            work.transfer(letters, none, settings=RedriveSettings(dry_run=True))
            if path is None:
                report = RedriveReport.total(self._counted(self._planned(letters), settings.limit))
                self._limited(report, report.selected, 0)
                return report
            with Leader(path, letters.place, self._run) as leader:
                plan = [
                    replace(each, folder=leader.folder, earlier=leader.earlier, unsure=leader.unsure)
                    for each in self._planned(letters)
                ]
                return self._sent(letters, leader, plan)

    def _planned(self, letters: DeadLetterQueue) -> list[Part]:
        """Return the parts: a split each, or under a rate as many as run at once, so that each has its share of it."""
        tasks = _tasks_at_once(self._spark)
        selection = Selection.parse(*self._work.where)
        wanted = replace(selection.wanted(self._now_ms), readers=tasks, removing=not self._work.settings.dry_run)
        made = None if self._mend is None else letters.made()
        parked = letters.parked()
        splits = letters.splits(wanted)
        count = min(len(splits), tasks) if self._work.settings.rate is not None else len(splits)
        return [
            Part(
                run=self._run,
                number=number,
                splits=splits[number::count],
                wanted=wanted,
                made=made,
                now_ms=self._now_ms,
                parked=parked,
            )
            for number in range(count)
        ]

    def _counted(self, plan: Sequence[Part], limit: int | None) -> list[RedriveReport]:
        """Return what each part would send, up to a limit."""
        dry = [replace(each, folder=None, limit=limit) for each in plan]
        counting = partial(count, self._work, mended=self._mend is not None)
        return [report for report, _ in _run(self._spark, dry, counting)]

    def _within_limit(self, plan: list[Part], left: int | None) -> list[Part]:
        """Return the parts that may send something, each with its own limit: oldest letters first."""
        if left is None:
            return plan
        if left == 0:
            return []
        limited = []
        for part, report in zip(plan, self._counted(plan, left), strict=True):
            if left > 0 and report.selected:
                limited.append(replace(part, limit=min(left, report.selected)))
                left -= min(left, report.selected)
        return limited

    def _limited(self, report: RedriveReport, selected: int, before: int) -> None:
        """Say whether a redrive ended by its limit.

        Args:
            report: its account.
            selected: letters that were selected, also those that the mend has dropped.
            before: letters that the run has sent which this one continues.
        """
        limit = self._work.settings.limit
        if report.stopped is None and limit is not None and selected >= limit - before:
            report.selected = min(report.selected, max(0, limit - before))
            report.stopped = limit_reached(limit, before)

    def _sent(self, letters: DeadLetterQueue, leader: Leader, plan: list[Part]) -> RedriveReport:
        work = self._work
        before = leader.began(letters.name_of(work.to, Selection.parse(*work.where), work.settings.limit))
        left = None if work.settings.limit is None else max(0, work.settings.limit - before)
        resumed = _Resumed([], plan)
        if leader.earlier and (left is not None or self._mend is not None):
            resumed = self._resumed(leader.earlier, plan)
        plan = self._within_limit(resumed.plan, left)
        rate = self._work.settings.rate
        share = None if rate is None or not plan else rate / len(plan)
        work = replace(self._work, settings=replace(self._work.settings, rate=share))
        returned = letters.returned()
        settings = replace(self._work.settings, stop=self._stop, on_progress=self._on_progress)
        with _Watch(leader, settings, returned):
            if self._mend is None:
                found = _run(self._spark, plan, partial(send, work))
            else:
                found = self._mended(self._mend, plan, work)
            found += resumed.found
            report = RedriveReport.total(report for report, _ in found)
            selected = report.selected
            if self._mend is not None:
                read = leader.progress(READ)
                selected = read.selected
                _account_for_dropped(report, read, stopped=leader.stopped is not None)
        leader.finish([position for _, settled in found for position in settled])
        report.stopped = leader.stopped or report.stopped
        self._limited(report, selected, before)
        if report.redriven:
            report.returned = returned.count()
        self._on_progress(report)
        return report

    def _resumed(self, earlier: Mapping[str, str], plan: Sequence[Part]) -> _Resumed:
        """Remove what earlier runs have sent, before letters are counted or read."""
        found = _run(self._spark, plan, partial(resume, self._work))
        gone = {position for _, settled in found for position in settled}
        left = {position: said for position, said in earlier.items() if position not in gone}
        return _Resumed(found, [replace(each, earlier=left) for each in plan])

    def _mended(
        self, mend: Callable[[DataFrame], DataFrame], plan: list[Part], work: Work
    ) -> list[tuple[RedriveReport, list[str]]]:
        """Read the letters of all parts, let them be mended, and send the rows."""
        if not plan:
            return []
        settings = read_write_options(
            {"url": work.to or work.url, **registry.own_options(work.to or work.url, work.options)}
        )
        letters = self._spark.range(0, len(plan), 1, len(plan)).mapInArrow(
            partial(letters_of, work, plan), letters_schema(settings.url)
        )
        mended = mend(letters)
        if not hasattr(mended, "schema"):
            raise ConfigurationError(f"redrive: mend must return a DataFrame, not {type(mended).__name__}")
        rows, layout = _sendable(mended, settings)
        part = f.substring(POSITION, 1, PART_DIGITS).cast("int")
        together = placed(rows, len(plan), part).sortWithinPartitions(POSITION)
        done = together.mapInArrow(partial(send_rows, work, plan, layout), "answer string").collect()
        return _answers(done)


class _Resumed(NamedTuple):
    """Letters of earlier runs that the parts have removed: their accounts, and the parts without it."""

    found: list[tuple[RedriveReport, list[str]]]
    plan: list[Part]


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
            report, read = self._leader.progress(), self._leader.progress(READ)
            if read.considered:  # letters to be mended are counted when they are read
                report.considered, report.selected, report.left = read.considered, read.selected, read.left
            most = self._settings.max_returns
            if most is not None and report.redriven:
                try:
                    report.returned = self._returned.look()
                except RedeliveryError as error:
                    log.warning("redrive: what came back cannot be counted now, and later again: %s", error)
            self._settings.on_progress(report)
            if self._settings.stop():
                self._leader.stop(INTERRUPTED)
            elif most is not None and report.failed + report.returned > most:
                self._leader.stop(harm(report))


def _run(
    spark: SparkSession, plan: Sequence[Part], do: Callable[[Part], tuple[RedriveReport, list[str]]]
) -> list[tuple[RedriveReport, list[str]]]:
    """Run each part as a task; return what they return, in order."""
    if not plan:
        return []

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # noqa: PLC0415 - runs on the workers

        for number in numbers_of(batches):
            try:
                report, settled = do(plan[number])
            except RedeliveryError as error:
                raise jobs.plain(error) from None
            answer = json.dumps([number, asdict(report), settled])
            yield pa.record_batch([pa.array([answer])], names=["answer"])

    return _answers(spark.range(0, len(plan), 1, len(plan)).mapInArrow(task, "answer string").collect())


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
    report.left = dict(Counter(read.left) + Counter(report.left))
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
