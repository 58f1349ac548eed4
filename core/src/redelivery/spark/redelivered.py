"""Which letters the rows of a write redeliver, and their removal once every row is accounted for.

Tasks only remember positions; the driver removes, when the whole write has succeeded. Spark gives a task rows of any
letters, and two processes that remove letters of one split at once may undo each other's work; only then it is also
known that no other row of a letter is missing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from redelivery import registry
from redelivery.contract.broker import DeadLetters
from redelivery.errors import Ambiguous, RedeliveryError, Retriable
from redelivery.spark.options import LettersPlace

log = logging.getLogger("redelivery.spark")

#: Positions that travel, and are removed, together.
_CHUNK: Final = 10_000
#: Seconds before each further try to remove letters.
_PAUSES: Final = (1.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivered:
    """The letters of one task's rows.

    Attributes:
        chunks: their positions, compressed.
        kept: positions of letters that stay, because a row of theirs was skipped: it is stored nowhere else.
    """

    chunks: Sequence[bytes] = ()
    kept: Sequence[str] = ()


class RedeliveredRows:
    """Remembers the letters of a task's rows, in little memory: positions of neighbours resemble each other."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._starts: list[int] = [0]
        self._open: list[str | None] = []
        self._skipped: list[int] = []
        self._lock = threading.Lock()

    def add(self, positions: Iterable[str | None]) -> None:
        """Take the letters of the next rows, in the order in which the rows are handed over; None: of no letter."""
        self._open += positions
        if len(self._open) >= _CHUNK:
            self._close()

    def skip(self, rows: Sequence[int]) -> None:
        """Take note of rows that were skipped; called on another thread."""
        with self._lock:
            self._skipped += rows

    def result(self) -> Redelivered:
        """Return all, once every row is accounted for."""
        self._close()
        kept: list[str] = []
        skipped = sorted(self._skipped)
        for (first, end), chunk in zip(pairwise(self._starts), self._chunks, strict=True):
            mine = [row - first for row in skipped if first <= row < end]
            positions = _unpacked(chunk) if mine else []
            kept += [position for row in mine if (position := positions[row]) is not None]
        return Redelivered(chunks=self._chunks, kept=kept)

    def _close(self) -> None:
        if self._open:
            self._chunks.append(zlib.compress(json.dumps(self._open).encode()))
            self._starts.append(self._starts[-1] + len(self._open))
            self._open = []


def _unpacked(chunk: bytes) -> list[str | None]:
    found: list[str | None] = json.loads(zlib.decompress(chunk))
    return found


def remove(place: LettersPlace, parts: Iterable[Redelivered]) -> int:
    """Remove the letters of all tasks of a write that has succeeded; return how many existed.

    Raises:
        RedeliveryError: some were not removed; the text says what follows.
    """
    parts = list(parts)
    kept = {position for part in parts for position in part.kept}
    removed = 0
    try:
        with registry.connect(place.url, place.client) as broker, broker.dead_letters(direct=place.direct) as letters:
            for part in parts:
                for chunk in part.chunks:
                    positions = {each for each in _unpacked(chunk) if each is not None} - kept
                    if positions:
                        removed += _removed(letters, sorted(positions))
    except RedeliveryError as error:
        raise type(error)(
            f"{error}; every row of this write is delivered, and {removed} of the letters that they came from are "
            "removed, but not the others: written again, those go under the same ids"
        ) from error
    log.info("%d redelivered letters are removed, %d stay because a row was skipped", removed, len(kept))
    return removed


def _removed(letters: DeadLetters, positions: Sequence[str]) -> int:
    """Remove letters, and try again for a while where the place cannot be reached. Raises BrokerError."""
    for pause in _PAUSES:
        try:
            return letters.remove(positions)
        except (Retriable, Ambiguous) as error:
            log.warning("redelivered letters cannot be removed now, and are tried again: %s", error)
        time.sleep(pause)
    return letters.remove(positions)
