"""Reads many letters: splits side by side, by threads with a role each; what each batch gives comes in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from redelivery.contract.broker import DeadLetters
from redelivery.contract.letters import LetterBatch, Wanted

T = TypeVar("T")

#: Batches of one split that wait for those of earlier splits.
_AHEAD: Final = 2
#: Seconds between two looks at whether anybody still wants what is read.
_NAP: Final = 0.1


def scan(
    place: DeadLetters, look: Callable[[], DeadLetters], wanted: Wanted, each: Callable[[LetterBatch], T]
) -> Iterator[T]:
    """Return what `each` makes of every batch, in the order of splits and batches.

    Args:
        place: plans the splits, and reads them where one thread is enough.
        look: opens the place again, for each thread.
        wanted: what is asked for; `readers` threads read.
        each: called by the thread that reads.

    Raises:
        BrokerError: what a reader raised.
    """
    splits = place.splits(wanted)
    if wanted.readers <= 1 or len(splits) <= 1:
        for split in splits:
            yield from map(each, place.read(split, wanted))
        return
    readers = _Readers(look, wanted, each, splits)
    try:
        yield from readers.results()
    finally:
        readers.stop()


class _Readers(Generic[T]):
    """Threads that take one split after the other."""

    def __init__(
        self, look: Callable[[], DeadLetters], wanted: Wanted, each: Callable[[LetterBatch], T], splits: Sequence[str]
    ) -> None:
        self._look = look
        self._wanted = wanted
        self._each = each
        self._found: list[queue.Queue[T | BaseException | None]] = [queue.Queue(_AHEAD) for _ in splits]
        self._left = iter(enumerate(splits))
        self._next = threading.Lock()
        self._stopped = threading.Event()
        count = min(wanted.readers, len(splits))
        self._threads = [threading.Thread(target=self._read, name="redelivery-letters") for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[T]:
        """Return what was made of each batch. A split is always being read when it is waited for."""
        for found in self._found:
            while (result := found.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result

    def stop(self) -> None:
        """End the threads, each after the batch that it reads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        index = None
        try:
            with self._look() as place:
                while (index := self._taken()) is not None:
                    number, split = index
                    for batch in place.read(split, self._wanted):
                        if not self._put(number, self._each(batch)):
                            return
                    self._put(number, None)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for it
            taken = index or self._taken()
            if taken is not None:
                self._put(taken[0], error)

    def _taken(self) -> tuple[int, str] | None:
        with self._next:
            return next(self._left, None)

    def _put(self, number: int, result: T | BaseException | None) -> bool:
        """Hand a result over; return False where nobody wants it any more."""
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._found[number].put(result, timeout=_NAP)
                return True
        return False
