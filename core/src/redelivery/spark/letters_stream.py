"""Dead letters as a stream: a micro-batch has the letters between two cursors of the place.

An offset is `{"cursor": ...}`, or `{}` before the oldest letter. It is all that a checkpoint holds of the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from redelivery import registry
from redelivery.contract.broker import Capabilities, DeadLetters, Support, Wanted
from redelivery.errors import BrokerError, ConfigurationError, RedeliveryError
from redelivery.spark.features import (
    ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from redelivery.spark.job import plain
from redelivery.spark.letters_reader import LetterScan
from redelivery.spark.options import ReadSettings

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")

_CURSOR: Final = "cursor"
#: Marks the first offset of a stream that starts behind the letters that existed. Spark asks for the first offset again
#: if it was killed in the first micro-batch, so that batch's end says where it began.
_INITIAL: Final = "initial"
_BEGAN: Final = "began"


class DeadLetterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads dead letters as they arrive. Where letters are removed between two micro-batches, they are gone."""

    def __init__(self, settings: ReadSettings, columns: t.StructType) -> None:
        plugin = registry.installed().by_url(settings.url)
        _refuse_without_cursors(plugin.capabilities, plugin.name)
        self.scan = LetterScan.of(settings, columns)
        self._opened = ExitStack()
        self._letters: DeadLetters | None = None
        self._target: str | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if not self.scan.settings.from_latest:
            return {}
        return {_CURSOR: self._asked(lambda letters: letters.cursor()), _INITIAL: True}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self.scan.settings.per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._asked(lambda letters: letters.cursor())

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        start = start or {}  # Spark before 4.2 gives neither
        after = start.get(_CURSOR)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._asked(lambda letters: self._end(letters, after, most))
        if end is None or end == after:
            return start
        return {_CURSOR: end, _BEGAN: after} if start.get(_INITIAL) else {_CURSOR: end}

    def _end(self, letters: DeadLetters, after: str | None, most: int | None) -> str | None:
        """Return the cursor of the next micro-batch's end; None where nothing is left of what the query is to read."""
        end = letters.cursor(after=after, most=most)  # it also finds out whether this is still the same place
        if self._target is None:
            return end
        left = letters.splits(replace(self.scan.wanted, after=after, before=self._target))
        if not left:
            return None
        # Cursors have no order that we know, so the last of several batches may have letters that have just arrived.
        return self._target if most is None else end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before = end.get(_CURSOR)
        after = end.get(_BEGAN, before) if start.get(_INITIAL) else start.get(_CURSOR)
        if before is None or after == before:
            return []
        wanted = replace(self.scan.wanted, after=after, before=before)
        return self._asked(lambda letters: self._splits(letters, wanted))

    def _splits(self, letters: DeadLetters, wanted: Wanted) -> list[InputPartition]:
        if not ADMISSION_CONTROL and wanted.after is not None:
            letters.cursor(after=wanted.after)  # is this still the same place? `latestOffset` had no start to ask by
        return self.scan.splits(letters, wanted)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return self.scan.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: reading leaves letters in place."""

    def stop(self) -> None:
        self._letters = None
        self._opened.close()

    def _asked(self, question: Callable[[DeadLetters], T]) -> T:
        """Ask the place, over a connection that lasts: Spark asks many times a second. A lost one is replaced once."""
        try:
            if self._letters is not None:
                try:
                    return question(self._letters)
                except BrokerError:
                    self.stop()
            broker, letters = self._opened.enter_context(self.scan.on_the_driver())
            _refuse_without_cursors(broker.capabilities, broker.name)
            answer = question(letters)
            self._letters = letters
        except RedeliveryError as error:
            self.stop()
            raise plain(error) from None
        return answer


def _refuse_without_cursors(there: Capabilities, name: str) -> None:
    if there.cursors is Support.NONE:
        raise ConfigurationError(
            f"the letters of {name!r} places have no rising positions (capability `cursors`), so they are not read as "
            "a stream; read them as a batch, by spark.read"
        )
