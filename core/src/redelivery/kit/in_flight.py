"""Batches that a sender has taken and not settled: each batch is settled once, by its deadline.

For a client that confirms later, from its own thread::

    def __init__(self):
        self._in_flight = InFlight("carrier", "queue 'orders'", window=1000)

    def send(self, batch, *, deadline):
        sent = self._in_flight.add(batch, deadline)
        for index in range(batch.length):
            if not self._in_flight.wait_for_room(deadline):
                break                                 # rows that were not sent fail at the deadline
            self._in_flight.sent(sent, index)
            self._client.publish(..., on_answer=partial(self._answered, sent, index))

    def _answered(self, sent, index, error):          # in the client's thread
        if error is None:
            self._in_flight.stored(sent, index)
        else:
            self._in_flight.failed(sent, index, TABLE.error(error, "sending", rows=1))

    def collect(self, wait):
        return self._in_flight.collect(wait)

A client that stores within `send` needs `SettledBatches` alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final, TypeVar, overload

from redelivery.codes import Code
from redelivery.contract.broker import Failure, Settled
from redelivery.contract.message import Batch
from redelivery.errors import Ambiguous, BrokerError, NotSent, Retriable

__all__ = ["FailedKeys", "InFlight", "SentBatch", "SettledBatches", "time_left"]

_WAITING: Final = 0
_SENT: Final = 1
_DONE: Final = 2


def time_left(deadline: float, doing: str, now: float | None = None) -> float:
    """Return the seconds until a deadline, before something is sent.

    Args:
        deadline: monotonic seconds.
        doing: the next action, for the error's text: "carrier: sending to queue 'orders'".
        now: monotonic seconds; None: the current time.

    Raises:
        Retriable: the deadline has passed.
    """
    left = deadline - (time.monotonic() if now is None else now)
    if left <= 0:
        raise Retriable(
            f"{doing}: the deadline had passed before it was sent; nothing was stored", code=Code.DEADLINE_EXCEEDED
        )
    return left


class SettledBatches:
    """The settled batches that `collect` has yet to report."""

    def __init__(self) -> None:
        self._settled: list[Settled] = []

    def add(self, batch: Batch, failures: Mapping[int, BrokerError], *, duplicates: int = 0) -> None:
        """Add a batch whose rows are all stored, except those that failed."""
        told = [Failure(index, error) for index, error in sorted(failures.items())]
        self._settled.append(Settled(batch=batch.number, failures=told, duplicates=duplicates))

    def __bool__(self) -> bool:
        return bool(self._settled)

    def take(self) -> list[Settled]:
        """Return them, once."""
        settled, self._settled = self._settled, []
        return settled


class FailedKeys:
    """The keys of failed rows, until `collect` has reported them: no later row of such a key may be stored before."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._batches: dict[Hashable, set[int]] = {}
        self._keys: dict[int, set[Hashable]] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __contains__(self, key: object) -> bool:
        return key in self._batches

    def add(self, key: Hashable, batch: int) -> None:
        """Remember that a row of this key failed in the batch of this number. A row without a key holds no row back."""
        if key is not None:
            self._batches.setdefault(key, set()).add(batch)
            self._keys.setdefault(batch, set()).add(key)

    def told(self, batch: int) -> None:
        """Forget what failed in this batch: the engine knows of it, and sends in order again."""
        for key in self._keys.pop(batch, ()):
            self._batches[key].discard(batch)
            if not self._batches[key]:
                del self._batches[key]

    def clear(self) -> None:
        """Forget all keys: `collect` has reported every failure."""
        self._batches.clear()
        self._keys.clear()

    def not_sent(self) -> NotSent:
        """Return the error of a row that is held back."""
        return NotSent(f"{self._broker}: this row was not sent, because an earlier one of its key has failed")

    def keep_back(self, batch: Batch, failures: Mapping[int, BrokerError]) -> dict[int, BrokerError]:
        """Return these failures and, in an ordered batch, those of the rows that must not overtake them."""
        if not batch.ordered or batch.key is None:
            return dict(failures)
        failed: set[bytes] = set()
        found: dict[int, BrokerError] = {}
        for index, key in enumerate(batch.key.values):
            if index in failures:
                found[index] = failures[index]
                if isinstance(key, bytes):
                    failed.add(key)
            elif key is not None and (key in failed or key in self._batches):
                found[index] = self.not_sent()
        return found

    def remember(self, batch: Batch, failures: Mapping[int, BrokerError]) -> None:
        """Remember the keys of a batch's failures, where it is ordered."""
        if batch.ordered and batch.key is not None:
            for index in failures:
                self.add(batch.key.values[index], batch.number)


class SentBatch:
    """A batch that is handed over and not settled.

    Attributes:
        batch: what was handed over.
        deadline: monotonic seconds by which it must be settled.
        failures: errors by row.
        duplicates: rows that the broker recognised and did not store again.
        is_settled: nothing can change any more; later answers come too late.
        states, left: kept by `InFlight`.
    """

    def __init__(self, batch: Batch, deadline: float) -> None:
        self.batch = batch
        self.deadline = deadline
        self.failures: dict[int, BrokerError] = {}
        self.duplicates = 0
        self.is_settled = False
        self.states = bytearray(batch.length)
        self.left = batch.length

    def open_rows(self) -> Iterator[int]:
        """The rows that are neither stored nor failed at the moment each is looked at."""
        return (index for index in range(self.batch.length) if self.states[index] != _DONE)

    def was_sent(self, index: int) -> bool:
        """Whether a row has left, or may have."""
        return self.states[index] != _WAITING


B = TypeVar("B", bound=SentBatch)


class InFlight:
    """The account of what is in flight. Any thread may use it.

    Args:
        broker: the plugin's name; errors begin with it.
        place: where rows are sent, for errors: "queue 'orders'".
        window: rows that may be sent and not answered; None: any number.
        on_failure: called with each row that fails, while the account is locked; it may fail others.
        late: returns what the rows of a batch that were not sent by its deadline fail with; None: as retriable.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        broker: str,
        place: str,
        *,
        window: int | None = None,
        on_failure: Callable[[SentBatch, int, BrokerError], None] | None = None,
        late: Callable[[SentBatch], BrokerError | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.RLock()
        self._doing = f"{broker}: sending to {place}"
        self._window = window
        self._on_failure = on_failure
        self._late = late
        self._clock = clock
        self._changed = threading.Condition(self.lock)
        self._batches: dict[int, SentBatch] = {}
        self._unanswered = 0
        self._settled = SettledBatches()

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def add(self, batch: Batch, deadline: float) -> SentBatch: ...

    @overload
    def add(self, batch: Batch, deadline: float, *, kind: type[B]) -> B: ...

    def add(self, batch: Batch, deadline: float, *, kind: type[SentBatch] = SentBatch) -> SentBatch:
        """Account for a batch from now on; none of its rows is sent yet.

        Raises:
            Retriable: its deadline has passed.
        """
        if self._clock() >= deadline:
            raise Retriable(
                f"{self._doing}: the deadline had passed before it was sent; nothing was stored",
                code=Code.DEADLINE_EXCEEDED,
            )
        with self.lock:
            sent = self._batches[batch.number] = kind(batch, deadline)
            self._settle_if_done(sent)  # one without rows is
        return sent

    def wait_for_room(self, deadline: float) -> bool:
        """Wait until a further row may be sent; return whether one may, by the deadline."""
        with self.lock:
            while self._window is not None and self._unanswered >= self._window:
                left = deadline - self._clock()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return self._clock() < deadline

    def sent(self, sent: SentBatch, index: int) -> bool:
        """Note that a row is about to leave; return whether it may: not if the batch has been settled since."""
        with self.lock:
            if sent.is_settled or sent.states[index] == _DONE:
                return False
            if sent.states[index] == _WAITING:
                sent.states[index] = _SENT
                self._unanswered += 1
            return True

    def stored(self, sent: SentBatch, index: int, *, duplicate: bool = False) -> None:
        """Note that the broker has confirmed a row."""
        with self.lock:
            if self._done(sent, index):
                sent.duplicates += duplicate
                self._settle_if_done(sent)

    def failed(self, sent: SentBatch, index: int, error: BrokerError) -> None:
        """Note that a row failed."""
        with self.lock:
            if self._done(sent, index):
                sent.failures[index] = error
                if self._on_failure is not None:
                    self._on_failure(sent, index, error)
                self._settle_if_done(sent)

    def lost(self, error: BrokerError) -> None:
        """Settle everything, as the connection is lost: sent rows are in doubt, unsent rows can be sent again."""
        with self.lock:
            doubtful = error.reclassified(Ambiguous)
            untouched = error.reclassified(Retriable, f"{error}; this row was not sent")
            doubtful.__cause__ = untouched.__cause__ = error
            for sent in list(self._batches.values()):
                self._fail_rest(sent, doubtful, untouched)

    def collect(self, wait: float) -> list[Settled]:
        """Return what has been settled since the last call, as `Sender.collect` does.

        Args:
            wait: seconds to wait for the first of them, while anything is in flight.
        """
        end = self._clock() + wait
        with self.lock:
            while True:
                now = self._clock()
                self._expire(now)
                if self._settled or not self._batches or now >= end:
                    break
                self._changed.wait(min(end, *(sent.deadline for sent in self._batches.values())) - now)
            return self._settled.take()

    def _expire(self, now: float) -> None:
        doubtful = Ambiguous(
            f"{self._doing}: no answer by the deadline; it may have been stored or not", code=Code.DEADLINE_EXCEEDED
        )
        untouched = Retriable(f"{self._doing}: this row was not sent by the deadline", code=Code.DEADLINE_EXCEEDED)
        for sent in [each for each in self._batches.values() if each.deadline <= now]:
            self._fail_rest(sent, doubtful, self._late(sent) or untouched)

    def _fail_rest(self, sent: SentBatch, doubtful: BrokerError, untouched: BrokerError) -> None:
        for index in sent.open_rows():
            self.failed(sent, index, doubtful if sent.was_sent(index) else untouched)

    def _done(self, sent: SentBatch, index: int) -> bool:
        """Count a row as done; return whether it was not done before."""
        state = sent.states[index]
        if state == _DONE:
            return False
        self._unanswered -= state == _SENT
        sent.states[index] = _DONE
        sent.left -= 1
        return True

    def _settle_if_done(self, sent: SentBatch) -> None:
        if not sent.left and not sent.is_settled:
            sent.is_settled = True
            self._batches.pop(sent.batch.number, None)
            self._settled.add(sent.batch, sent.failures, duplicates=sent.duplicates)
        self._changed.notify_all()
