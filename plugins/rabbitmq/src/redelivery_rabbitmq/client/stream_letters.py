"""The dead letters role where letters are in a stream: looking takes nothing, and may be repeated by several readers.

A stream deletes nothing but its oldest messages, by its own retention. So removed letters are remembered in a second
stream (`client.removed_offsets`) and not shown again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pika.adapters.blocking_connection import BlockingConnection
from pika.spec import BasicProperties

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.contract.letters import EVERYTHING, LetterBatch, Wanted, batches
from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery.kit.errors import Code, quoted
from redelivery.kit.letters import undecodable
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import broker_headers
from redelivery_rabbitmq.client.connection import QueueRole, open_connection
from redelivery_rabbitmq.client.removed_offsets import RemovedOffsets
from redelivery_rabbitmq.client.stream_reading import Entry, StreamReading
from redelivery_rabbitmq.client.topology import REMOVED
from redelivery_rabbitmq.codec import decode
from redelivery_rabbitmq.errors import TABLE
from redelivery_rabbitmq.options import Settings

#: Letters that a split has at least: to open a reader costs as much as to read so many.
_LEAST: Final = 5_000
_POSITION: Final = re.compile(r"[0-9]{1,19}")
_SPLIT: Final = re.compile(r"(?P<name>.+)/(?P<low>[0-9]{1,19})-(?P<high>[0-9]{1,19})", re.DOTALL)
_CURSOR: Final = re.compile(r"(?P<name>.+)/(?P<offset>[0-9]{1,19})", re.DOTALL)


class StreamDeadLetters(QueueRole, DeadLetters):
    """The messages of one stream that are not removed. No I/O until a method is called."""

    def __init__(self, address: Address, settings: Settings, *, direct: bool) -> None:
        super().__init__(address if direct else address.dead_letters, settings)
        self._url = address.url
        self._name = self._address.queue
        self._removed = RemovedOffsets()
        #: Whether the stream exists that says so.
        self._noted = False
        self._read_permission = f"read permission on {self._name!r}"

    def browse(self) -> Iterator[Letter]:
        low, high = self._bounds("browsing")
        return self._letters(low, high, EVERYTHING)

    def splits(self, wanted: Wanted) -> Sequence[str]:
        low, high = self._bounds("splitting")
        if wanted.after is not None:
            low = max(low, self._offset(wanted.after, high))
        if wanted.before is not None:
            high = min(high, self._offset(wanted.before, high))
        if wanted.positions is not None:
            offsets = self._offsets(wanted.positions)
            low, high = max(low, min(offsets, default=high)), min(high, max(offsets, default=0) + 1)
        if wanted.since_ms is not None and low < high:
            with self._reading("splitting") as reading:
                low = max(low, reading.since(wanted.since_ms, high))
        if low >= high:
            return []
        count = min(max(1, wanted.readers), -(-(high - low) // _LEAST))
        edges = [low + (high - low) * at // count for at in range(count + 1)]
        return [f"{self._name}/{start}-{end}" for start, end in itertools.pairwise(edges)]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        found = _SPLIT.fullmatch(split)
        if found is None or found["name"] != self._name:
            raise ConfigurationError(f"rabbitmq: {quoted(split)} is not a split of stream {self._name!r}")
        low, high = self._bounds("reading")
        return batches(self._letters(max(low, int(found["low"])), min(high, int(found["high"])), wanted))

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        low, high = self._bounds("reading")
        if after is not None:
            low = max(low, self._offset(after, high))
        end = high if most is None else min(high, low + max(1, most))
        return f"{self._name}/{max(low, end)}"

    def remove(self, positions: Sequence[str]) -> int:
        offsets = self._offsets(positions)
        if not offsets:
            return 0
        low, high = self._bounds("removing from")
        return self._remove([(each, each + 1) for each in sorted(offsets) if low <= each < high])

    def purge(self) -> int:
        low, high = self._bounds("purging")
        return self._remove([(low, high)]) if low < high else 0

    def _offsets(self, positions: Iterable[str]) -> set[int]:
        for each in positions:
            if not _POSITION.fullmatch(each):
                text = f"{quoted(each)} is not a position in a stream; write its offset, as in '42'"
                raise ConfigurationError(f"rabbitmq: {text}")
        return {int(each) for each in positions}

    def _offset(self, cursor: str, high: int) -> int:
        """Return the offset of a cursor. Raises ConfigurationError, Fatal."""
        found = _CURSOR.fullmatch(cursor)
        if found is None or found["name"] != self._name:
            raise ConfigurationError(f"rabbitmq: {quoted(cursor)} is not a cursor of stream {self._name!r}")
        offset = int(found["offset"])
        if offset > high:
            text = "the stream was made again since the cursor was made; begin a new stream of letters"
            raise Fatal(f"rabbitmq: {self.doing('reading')}: {text} (for Spark: a new checkpoint)", code=Code.CONFLICT)
        return offset

    def _bounds(self, what: str) -> tuple[int, int]:
        """Return the first offset that may be a letter, and the one behind the last; learn what is removed."""
        offsets = self._removed.offsets
        for _ in range(2):  # a replica may be behind
            self._update()  # first, as newer letters are removed all the time
            with self._reading(what) as reading:
                low, high = reading.bounds()
            if max([end for _, end in offsets.runs()], default=offsets.base) <= high:
                return max(low, offsets.base), high
        other = self._name + REMOVED
        text = f"the stream was made again: delete {other!r}, which says what was removed of the stream before it"
        raise Fatal(f"rabbitmq: {self.doing(what)}: {text}", code=Code.CONFLICT)

    def _letters(self, low: int, high: int, wanted: Wanted) -> Iterator[Letter]:
        only = None if wanted.positions is None else self._offsets(wanted.positions)
        removed = self._removed.offsets
        with self._reading("reading") as reading:
            for entry in reading.entries(low, high):
                if entry.offset not in removed and (only is None or entry.offset in only):
                    yield self._letter(entry)

    def _letter(self, entry: Entry) -> Letter:
        properties, added = broker_headers.split(entry.properties, in_stream=True)
        message, fault = decode(properties, entry.body)
        context, dead_ms = broker_headers.death_context(added, message.id, self._url)
        if context is None and fault is not None:
            context = undecodable("rabbitmq", fault)
        return Letter(position=str(entry.offset), message=message, context=context, dead_lettered_ms=dead_ms)

    # --- removing ---

    def _update(self) -> None:
        try:
            with self._reading("reading what is removed of", self._name + REMOVED) as reading:
                self._removed.update(reading)
                self._noted = True
        except BrokerError as error:
            if error.code is not Code.NO_SUCH_DESTINATION:  # nothing was removed yet
                raise

    def _remove(self, runs: Sequence[tuple[int, int]]) -> int:
        """Note these letters as removed; return how many were not before."""
        offsets = self._removed.offsets
        new = [run for run in runs if run[1] > offsets.base]
        if not new:
            return 0
        other = self._name + REMOVED
        needs = "write permission on 'amq.default'" + ("" if self._noted else f" and configure permission on {other!r}")
        with self.connected("removing from", needs=needs) as connection, connection.channel() as channel:
            if not self._noted:
                channel.queue_declare(other, durable=True, arguments={"x-queue-type": "stream"})
            channel.confirm_delivery()
            persistent = BasicProperties(delivery_mode=2, content_type="application/json")  # type: ignore[no-untyped-call]
            channel.basic_publish("", other, self._removed.note(_joined(new)), persistent, mandatory=True)
        return sum(offsets.add(start, end) for start, end in new)

    # --- the client ---

    @contextmanager
    def _reading(self, what: str, name: str | None = None) -> Iterator[StreamReading]:
        self.check_open(what)
        reading: StreamReading | None = None
        try:
            with TABLE.while_doing(self.doing(what), needs=self._read_permission):
                reading = StreamReading(self._connect, name or self._name, self._settings.blocked_connection_timeout)
                yield reading
        finally:
            if reading is not None and not self.is_inherited:
                reading.close()

    def _connect(self) -> BlockingConnection:
        return open_connection(self._address, self._settings)


def _joined(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending runs, with those in one that touch."""
    found: list[tuple[int, int]] = []
    for start, end in runs:
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
