"""The receiver role: leases are rows of `lease_<n>`, and every step is one transaction.

Lowest number first among all that may be delivered, so messages of one key come in the order in which they were sent.
Times in the file are wall-clock, so that they outlive a process; see the README for what a jump of the clock does.
This file must not retry, and moves a message to the dead letters only where it expired or the queue's limit says so.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from redelivery.base.clock import Clock, SystemClock
from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent
from redelivery_sqlite import lease as leases
from redelivery_sqlite import moves, rows, stored
from redelivery_sqlite.address import Address
from redelivery_sqlite.errors import classified
from redelivery_sqlite.lease import Lease
from redelivery_sqlite.moves import Dead
from redelivery_sqlite.store import Store

#: Seconds between looks for a first message: doubled from the first to the last.
_LOOK_FIRST: Final = 0.001
_LOOK_LAST: Final = 0.02
#: Bytes that one call leases, at most, beyond its first message.
_BYTES: Final = 64 << 20
#: Seconds that moving expired messages may take before a call gives what it has: nothing.
_MOVING: Final = 5.0
_MILLISECOND: Final = timedelta(milliseconds=1)

#: seq, attempts, first_ms, expires_ms, and what `stored.message` takes.
_Row = tuple[int, int, int | None, int | None, bytes | None, int | None, bytes | None, bytes | None, bytes | None]


class SqliteReceiver(Receiver):
    """Leases and settles the messages of one queue.

    Args:
        store: a connection of its own.
        address: the queue.
        lease: how long a lease lasts.
        message_bytes: what a letter may have.
        clock: for tests.
    """

    def __init__(
        self, store: Store, address: Address, lease: timedelta, *, message_bytes: int, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._address = address
        self._lease = lease.total_seconds()
        self._message_bytes = message_bytes
        self._clock = clock or SystemClock()
        self._closed = threading.Event()
        self._limit = store.settings.max_deliveries

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self._check_open()
        begun = self._clock.monotonic()
        pause = _LOOK_FIRST
        while max_messages > 0:
            moved = 0
            if self._is_something_there():
                doing = self._doing("receiving from")
                received, moved = self._store.draining(doing, lambda connection: self._take(connection, max_messages))
                if received:
                    return received
            spent = self._clock.monotonic() - begun
            if moved and spent < max(wait, _MOVING):
                continue
            if spent >= wait or self._closed.wait(min(pause, wait - spent)):
                break
            pause = min(2 * pause, _LOOK_LAST)
        return []

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self._check_open()
        if not outcomes:
            return []
        return self._store.draining(
            self._doing("settling messages of"), lambda connection: self._settle(connection, outcomes)
        )

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        self._check_open()
        if not leases:
            return []
        monotonic = self._clock.monotonic()

        def work(connection: sqlite3.Connection) -> dict[int, str]:
            number = self._store.number(self._address.queue)
            if number is None:
                return {}
            valid = self._valid(connection, number, leases)
            now = self._clock.wall_ms()
            self._note_time(connection, number, now)
            connection.executemany(
                f"UPDATE lease_{number} SET visible_ms = ?, since_ms = ? WHERE seq = ?",  # noqa: S608 - a number
                [(now + _ms(seconds), now, seq) for seq in valid],
            )
            return valid

        extended = self._store.draining(self._doing("prolonging leases of"), work)
        answers: list[Received | LeaseLost] = []
        for received in leases:
            lease = received.lease
            if isinstance(lease, Lease) and extended.get(lease.seq) == lease.token:
                lease.expires = monotonic + seconds
                answers.append(replace(received, expires=lease.expires))
            else:
                answers.append(self._lost(received))
        return answers

    def close(self) -> None:
        """What is leased stays so until its lease ends: somebody may still be handling it."""
        self._closed.set()
        self._store.close()

    # --- receiving ---

    def _is_something_there(self) -> bool:
        """Whether taking the write lock is worth it: this only reads."""
        doing = self._doing("receiving from")
        number = self._store.existing(self._address, doing)
        if number is None:
            return False
        with classified(doing):
            connection = self._store.connection()
            now = self._clock.wall_ms()
            next_, head, clock_ms = connection.execute(
                "SELECT next, head, clock_ms FROM queue WHERE number = ?", (number,)
            ).fetchone()
            if next_ > head + 1 or now < clock_ms:
                return True
            (due,) = connection.execute(f"SELECT min(visible_ms) FROM lease_{number}").fetchone()  # noqa: S608 - a number
            return (due is not None and due <= now) or self._has_expired(connection, number, now)

    def _has_expired(self, connection: sqlite3.Connection, number: int, now: int) -> bool:
        return not self._address.is_dead_letters and moves.has_expired(connection, number, now)

    def _take(self, connection: sqlite3.Connection, most: int) -> tuple[list[Received], int]:
        """Lease what may be delivered; also how many messages were moved to the dead letters."""
        number = self._store.number(self._address.queue)
        if number is None:  # it was there a moment ago
            return [], 0
        monotonic, now = self._clock.monotonic(), self._clock.wall_ms()
        next_, head, clock_ms, limit = connection.execute(
            "SELECT next, head, clock_ms, max_deliveries FROM queue WHERE number = ?", (number,)
        ).fetchone()
        if now < clock_ms:
            # The clock went back. No lease or delay may last longer than it was given for, counted from now.
            connection.execute(
                f"UPDATE lease_{number} SET visible_ms = ? + visible_ms - since_ms, since_ms = ? "  # noqa: S608 - a number
                "WHERE visible_ms > 0 AND since_ms > ?",
                (now, now, now),
            )
        self._release(connection, number, monotonic, now)
        moved = 0
        if not self._address.is_dead_letters:
            place = self._address.dead_letters.queue
            moved = moves.bury_expired(connection, self._store, self._address.queue, place, now)
        if self._address.is_dead_letters:
            chosen = _Chosen(most, None, 0)
        else:
            chosen = _Chosen(most, now, self._limit if limit is None else limit)
        chosen.take(connection.execute(_DUE.format(n=number)))
        whole = chosen.take(connection.execute(_FRESH.format(n=number), (head,)))
        head = next_ - 1 if whole else max(head, chosen.last)
        connection.execute("UPDATE queue SET head = ?, clock_ms = ? WHERE number = ?", (head, now, number))
        if chosen.dead:
            place = self._address.dead_letters.queue
            moves.bury(connection, self._store, self._address.queue, place, chosen.dead, now)
            moved += len(chosen.dead)
        return self._leased(connection, number, chosen.rows, monotonic, now), moved

    @staticmethod
    def _release(connection: sqlite3.Connection, number: int, monotonic: float, now: int) -> None:
        """Make visible whose lease or delay has ended; but not what this process still holds, if the clock jumped."""
        ended = f"lease_{number} WHERE visible_ms BETWEEN 1 AND ?"
        named = connection.execute(f"SELECT seq, lease FROM {ended} AND lease IS NOT NULL", (now,)).fetchall()  # noqa: S608 - a number
        still = [(seq, mine) for seq, token in named if (mine := leases.held(token, monotonic)) is not None]
        connection.executemany(
            f"UPDATE lease_{number} SET visible_ms = ?, since_ms = ? WHERE seq = ?",  # noqa: S608 - a number
            [(now + _ms(mine.expires - monotonic), now, seq) for seq, mine in still],
        )
        connection.execute(
            f"UPDATE lease_{number} SET visible_ms = 0, lease = NULL WHERE visible_ms BETWEEN 1 AND ?",  # noqa: S608 - a number
            (now,),
        )

    def _leased(
        self, connection: sqlite3.Connection, number: int, chosen: Sequence[_Row], monotonic: float, now: int
    ) -> list[Received]:
        """Write the leases of these rows; the messages under them."""
        prefix = secrets.token_hex(8)
        expires = monotonic + self._lease
        visible = now + _ms(self._lease)
        connection.executemany(
            f"INSERT OR REPLACE INTO lease_{number} (seq, visible_ms, since_ms, attempts, first_ms, lease) "  # noqa: S608 - a number
            "VALUES (?, ?, ?, ?, ?, ?)",
            [
                (row[0], visible, now, row[1] + 1, now if row[2] is None else row[2], f"{prefix}.{row[0]}")
                for row in chosen
            ],
        )
        received = []
        for seq, attempts, first_ms, _, id_, timestamp, key, encoded, value in chosen:
            message, fault = stored.message(id_, timestamp, key, encoded, value)
            received.append(
                Received(
                    message=message,
                    attempt=attempts + 1,
                    lease=Lease(seq, f"{prefix}.{seq}", expires),
                    expires=expires,
                    position=str(seq),
                    first_ms=now if first_ms is None else first_ms,
                    undecodable=fault,
                    lasting=True,
                )
            )
        return received

    # --- settling ---

    def _settle(
        self, connection: sqlite3.Connection, outcomes: Sequence[tuple[Received, Outcome]]
    ) -> list[LeaseLost | BrokerError | None]:
        number = self._store.number(self._address.queue)
        if number is None:
            return [self._lost(received) for received, _ in outcomes]
        valid = self._valid(connection, number, [received for received, _ in outcomes])
        now = self._clock.wall_ms()
        answers: list[LeaseLost | BrokerError | None] = []
        done: list[int] = []
        dead: list[Dead] = []
        again: list[tuple[int, int, int]] = []
        back: list[int] = []
        for received, outcome in outcomes:
            lease = received.lease
            if not isinstance(lease, Lease) or valid.get(lease.seq) != lease.token:
                answers.append(self._lost(received))
                continue
            refused = self._refused(outcome)
            answers.append(refused)
            if refused is not None:
                continue
            del valid[lease.seq]
            if isinstance(outcome, Accept):
                done.append(lease.seq)
            elif isinstance(outcome, Terminate):
                dead.append(Dead(lease.seq, moves.TERMINATED, outcome.reason, outcome.description, outcome.letter))
            elif isinstance(outcome, Release):
                back.append(lease.seq)
            else:
                again.append((_due(now, outcome), now, lease.seq))
        moves.remove(connection, number, done, now, self._store.settings)
        place = self._address.dead_letters.queue
        moves.bury(connection, self._store, self._address.queue, place, dead, now)
        if again:
            self._note_time(connection, number, now)
        connection.executemany(
            f"UPDATE lease_{number} SET visible_ms = ?, since_ms = ?, lease = NULL WHERE seq = ?",  # noqa: S608 - a number
            again,
        )
        connection.executemany(
            f"UPDATE lease_{number} SET visible_ms = 0, lease = NULL, attempts = attempts - 1, "  # noqa: S608 - a number
            "first_ms = CASE WHEN attempts > 1 THEN first_ms END WHERE seq = ?",
            [(seq,) for seq in back],
        )
        return answers

    def _refused(self, outcome: Outcome) -> BrokerError | None:
        """Why an outcome cannot be stored; None where it can."""
        if not isinstance(outcome, Terminate):
            return None
        fault: Permanent | None = rows.fault(
            replace(outcome.letter, destination=None), message_bytes=self._message_bytes
        )
        return fault

    def _valid(self, connection: sqlite3.Connection, number: int, received: Sequence[Received]) -> dict[int, str]:
        """The tokens of those messages that are still leased to the caller, by number."""
        monotonic = self._clock.monotonic()
        given = [each.lease for each in received if isinstance(each.lease, Lease) and each.lease.is_valid(monotonic)]
        found: Mapping[int, str] = dict(
            connection.execute(
                f"SELECT seq, lease FROM lease_{number} WHERE seq IN (SELECT value FROM json_each(?))",  # noqa: S608 - a number
                (json.dumps([lease.seq for lease in given]),),
            ).fetchall()
        )
        return {lease.seq: lease.token for lease in given if found.get(lease.seq) == lease.token}

    @staticmethod
    def _note_time(connection: sqlite3.Connection, number: int, now: int) -> None:
        """Keep the latest time that a row holds: an earlier one, later, shows that the clock went back."""
        connection.execute("UPDATE queue SET clock_ms = max(clock_ms, ?) WHERE number = ?", (now, number))

    # --- words ---

    def _check_open(self) -> None:
        if self._closed.is_set():
            text = "this receiver is closed; open another (what it leased comes back when the leases end)"
            raise Fatal(f"sqlite: {self._doing('receiving from')}: {text}", native_code="CLOSED")

    def _lost(self, received: Received) -> LeaseLost:
        text = "its lease has run out, is another process's, or was settled before; nothing was changed"
        return LeaseLost(f"sqlite: message {received.position} of queue {self._address.queue!r}: {text}")

    def _doing(self, what: str) -> str:
        return f"{what} queue {self._address.queue!r} of {str(self._store.path)!r}"


_COLUMNS: Final = f"m.expires_ms, {stored.COLUMNS.removeprefix('m.seq, ')}"
_DUE: Final = (
    f"SELECT m.seq, l.attempts, l.first_ms, {_COLUMNS} FROM lease_{{n}} l JOIN message_{{n}} m ON m.seq = l.seq "  # noqa: S608 - our own names
    "WHERE l.visible_ms = 0 ORDER BY l.seq"
)
_FRESH: Final = f"SELECT m.seq, 0, NULL, {_COLUMNS} FROM message_{{n}} m WHERE m.seq > ? ORDER BY m.seq"  # noqa: S608 - our own names


class _Chosen:
    """The rows that one call leases, and those found to be dead on the way.

    Args:
        most: rows to lease.
        now: by when a row has expired; None: it never does.
        limit: deliveries; 0: none.
    """

    def __init__(self, most: int, now: int | None, limit: int) -> None:
        self.rows: list[_Row] = []
        self.dead: list[Dead] = []
        self.last = 0
        self._most = most
        self._now = now
        self._limit = limit
        self._bytes = 0

    def take(self, cursor: Iterator[Any]) -> bool:
        """Take from a cursor what there is room for; whether that was all of it."""
        while self._bytes < _BYTES and len(self.rows) < self._most and len(self.dead) < moves.MOST:
            row: _Row | None = next(cursor, None)
            if row is None:
                return True
            self.last, attempts, _, expires = row[:4]
            if expires is not None and self._now is not None and expires <= self._now:
                self.dead.append(moves.expired(self.last, expires))
            elif 0 < self._limit <= attempts:
                why = f"delivered {attempts} times without being settled; the queue's limit is {self._limit}"
                self.dead.append(Dead(self.last, moves.LIMIT, why))
            else:
                self.rows.append(row)
                self._bytes += sum(len(part) for part in row[4:] if isinstance(part, bytes))
        return False


def _ms(seconds: float) -> int:
    """Whole milliseconds, never too few: both ends of a span are cut to them."""
    return max(1, int(-(-seconds * 1000 // 1)) + 1)


def _due(now: int, outcome: Retry) -> int:
    """From when a message may come again; 0: at once."""
    return 0 if outcome.delay <= timedelta(0) else now - (-outcome.delay // _MILLISECOND) + 1
