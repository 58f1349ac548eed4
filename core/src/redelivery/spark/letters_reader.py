"""Dead letters as a DataFrame, read by as many tasks as the broker has splits. Reading leaves the letters in place.

The driver asks for the splits and reads no letter. Does not define `pushFilters`: in Spark 4.3 what one filter has
pushed down holds for every other use of the same DataFrame, whose rows are then missing. The options `where`, `since`,
`until` and `run` take its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, InputPartition

from redelivery import registry
from redelivery.base.urls import redact
from redelivery.codes import Code
from redelivery.contract.broker import Broker, DeadLetters, LetterBatch, Wanted
from redelivery.deadletters.queue import places_of
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.triage import Parked, Triage
from redelivery.deadletters.triage import default_path as triage_path
from redelivery.deadletters.trust import Targets, contexts_of
from redelivery.errors import MissingSecret, RedeliveryError, Retriable
from redelivery.formats import signing
from redelivery.formats.signing import Verified
from redelivery.spark import letter_schema
from redelivery.spark.connections import task_connections
from redelivery.spark.job import local_property, plain, refuse_one_host
from redelivery.spark.letter_columns import LetterColumns
from redelivery.spark.options import ReadSettings

if TYPE_CHECKING:
    from pyarrow import RecordBatch

#: What conditions look at, unless they look at a letter's size, and that is everything.
_CONDITIONS: Final = frozenset({"headers", "id", "destination", "timestamp_ms"})


@dataclass
class LetterSplit(InputPartition):
    """What one task reads.

    Attributes:
        split: as the broker named it.
        wanted: what it was asked for.
    """

    split: str
    wanted: Wanted


@dataclass(frozen=True, kw_only=True)
class LetterScan:
    """A read of letters, as it travels to its tasks.

    Attributes:
        settings: the options of the read.
        columns: the wanted columns.
        now_ms: the time to which ages are computed, so that a task that is repeated reads the same letters.
        parked: what is parked at the place, as the driver's triage knew it at first, where a condition asks for it.
    """

    settings: ReadSettings
    columns: t.StructType
    now_ms: int
    parked: Parked = field(default_factory=Parked)

    @classmethod
    def of(cls, settings: ReadSettings, columns: t.StructType) -> LetterScan:
        """Check the columns. Raises ConfigurationError."""
        letter_schema.check(columns, registry.installed().by_url(settings.url).capabilities)
        found = cls(settings=settings, columns=columns, now_ms=time.time_ns() // 1_000_000)
        if not Selection.parse(*settings.where).asks_for_parked:
            return found
        with found.on_the_driver() as (broker, _):
            place = redact(places_of(broker, settings.url, direct=settings.direct)[0])
        with Triage(triage_path(place), place) as triage:
            return replace(found, parked=triage.parked())

    @property
    def wanted(self) -> Wanted:
        """The part of the letters that the broker is asked for."""
        settings = self.settings
        sources = letter_schema.sources(self.columns)
        if settings.run is not None:
            sources |= {"headers"}
        if settings.where:
            sources |= _CONDITIONS
        selection = Selection.parse(*settings.where)
        whole = selection.asks_for_parked or any(each.strip().startswith("size") for each in settings.where)
        wanted = selection.wanted(self.now_ms)
        since = [each for each in (wanted.since_ms, settings.since_ms) if each is not None]
        until = [each for each in (wanted.until_ms, settings.until_ms) if each is not None]
        return replace(
            wanted,
            columns=None if whole else sources,
            since_ms=max(since, default=None),
            until_ms=min(until, default=None),
            readers=settings.readers,
        )

    @contextmanager
    def on_the_driver(self) -> Iterator[tuple[Broker, DeadLetters]]:
        """Open the place, to plan what tasks read."""
        settings = self.settings
        with ExitStack() as stack:
            try:
                broker = stack.enter_context(registry.connect(settings.url, settings.client))
                letters = stack.enter_context(broker.dead_letters(direct=settings.direct))
            except MissingSecret as error:
                raise MissingSecret(
                    f"{error}; the driver plans what the tasks read, so it needs the secret too"
                ) from None
            yield broker, letters

    def splits(self, letters: DeadLetters, wanted: Wanted) -> list[InputPartition]:
        """Return what the tasks read."""
        return [LetterSplit(split, wanted) for split in letters.splits(wanted)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Return the letters of a split."""
        try:
            yield from self._read(partition)
        except RedeliveryError as error:
            raise plain(error) from None  # Spark would show each step of its way through our code

    def _read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        settings = self.settings
        refuse_one_host(settings.url, local_property("spark.master"), shared_mount=settings.shared_mount)
        if not isinstance(partition, LetterSplit):
            return  # Spark gives a task to a place without letters, too
        keys = [signing.key(each) for each in settings.keys]
        with (
            task_connections() as connection_factory,
            connection_factory(settings.url, settings.client) as broker,
            broker.dead_letters(direct=settings.direct) as letters,
        ):
            if not broker.capabilities.splits:  # may show its letters in another order each time: one look must do
                partition = replace(partition, wanted=replace(partition.wanted, columns=None))
            made = LetterColumns(self.columns, Targets(allowed=settings.allow_targets), broker.capabilities)
            selected = Selected(settings, self.now_ms, self.parked)
            for batch in self._batches(Verified(letters, keys), partition, made):
                some = selected.of(batch)
                if len(some):
                    yield made.record_batch(some)

    def _batches(self, letters: DeadLetters, partition: LetterSplit, made: LetterColumns) -> Iterator[LetterBatch]:
        """Return the letters of a split, with their values once one of them is an event in its value.

        Values are left where they are otherwise: they may be most of what is stored.
        """
        split, wanted = partition.split, partition.wanted
        reads_values = made.reads_values or bool(self.settings.run or self.settings.where)
        narrow = letters.read(split, wanted)
        seen: frozenset[str] = frozenset()
        for batch in narrow:
            if reads_values and not wanted.wants("value") and made.structured(batch.messages):
                seen = frozenset(batch.position.values)
                break
            yield batch
        if seen:
            del narrow
            yield from _from(letters.read(split, replace(wanted, columns=None)), seen)


def _from(batches: Iterator[LetterBatch], seen: frozenset[str]) -> Iterator[LetterBatch]:
    """Return letters from the first of these positions on. Raises Retriable: none of them exists any more."""
    for batch in batches:
        first = next((index for index, position in enumerate(batch.position.values) if position in seen), None)
        if first is not None:
            yield batch if first == 0 else batch.take(range(first, len(batch)))
            yield from batches
            return
    raise Retriable("these letters were removed while they were read; read them again", code=Code.CONFLICT)


class Selected:
    """The letters that the options select, of those that a broker returns.

    Args:
        settings: the options.
        now_ms: the time to which ages are computed.
        parked: what is parked at the place.
    """

    def __init__(self, settings: ReadSettings, now_ms: int, parked: Parked) -> None:
        self._settings = settings
        self._selection = Selection.parse(*settings.where).within(parked.rows)
        self._now_ms = now_ms

    def of(self, batch: LetterBatch) -> LetterBatch:
        """Return the selected letters of a batch."""
        settings = self._settings
        kept: Sequence[int] = range(len(batch))
        if batch.dead_lettered_ms is not None and (settings.since_ms is not None or settings.until_ms is not None):
            since = -(2**63) if settings.since_ms is None else settings.since_ms
            until = 2**63 if settings.until_ms is None else settings.until_ms
            times = batch.dead_lettered_ms.values
            kept = [index for index in kept if (when := times[index]) is None or since <= when < until]
        if settings.run is not None:
            runs = contexts_of(batch, ["run"])["run"]
            kept = [index for index in kept if runs[index] == settings.run]
        kept = self._selection.admitted(batch, kept, self._now_ms)
        return batch if len(kept) == len(batch) else batch.take(kept)


class DeadLetterReader(DataSourceReader):
    """Reads dead letters, each split oldest first."""

    def __init__(self, settings: ReadSettings, columns: t.StructType) -> None:
        self.scan = LetterScan.of(settings, columns)

    def partitions(self) -> list[InputPartition]:
        try:
            with self.scan.on_the_driver() as (_, letters):
                return self.scan.splits(letters, self.scan.wanted)
        except RedeliveryError as error:
            raise plain(error) from None

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return self.scan.read(partition)
