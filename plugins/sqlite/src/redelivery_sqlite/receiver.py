"""The receiver role: leases are rows of `lease_<n>`, and every step is one transaction.

The visible message with the lowest number is delivered first, so messages of one key arrive in the order sent. Times in
the file are wall-clock times, so that they survive a process; the README describes the effects of a clock that jumps.
The receiver dead-letters a message by itself only if it has expired or has reached the queue's limit of deliveries.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from redelivery.contract.broker import Accept, Outcome, Received, Receiver, Release, Retry, Terminate
from redelivery.errors import BrokerError, LeaseLost
from redelivery.kit.errors import Code
from redelivery.kit.leases import Clock, Settlement, SystemClock, answer_extend, lost
from redelivery.kit.roles import Resource
from redelivery_sqlite import codec
from redelivery_sqlite.address import Address
from redelivery_sqlite.client import removal
from redelivery_sqlite.client.leases import Lease, held
from redelivery_sqlite.client.removal import DeadMessage
from redelivery_sqlite.client.store import Store
from redelivery_sqlite.errors import TABLE

#: Seconds between two looks for a first message: the first value, doubled up to the last.
_LOOK_FIRST: Final = 0.001
_LOOK_LAST: Final = 0.02
#: Maximum number of bytes that one call leases after its first message.
_BYTES: Final = 64 << 20
#: Seconds that a call may move expired messages before it returns without messages.
_MOVING: Final = 5.0
_MILLISECOND: Final = timedelta(milliseconds=1)

#: seq, attempts, first_ms, expires_ms, and the columns for `codec.decode`.
_Row = tuple[int, int, int | None, int | None, bytes | None, int | None, bytes | None, bytes | None, bytes | None]


class SqliteReceiver(Resource, Receiver):
    """Leases and settles the messages of one queue.

    Args:
        store: the receiver's own connection.
        address: the queue.
        lease: how long a lease lasts.
        message_bytes: maximum size of a letter.
        clock: replaces the clock in tests.
    """

    def __init__(
        self, store: Store, address: Address, lease: timedelta, *, message_bytes: int, clock: Clock | None = None
    ) -> None:
        super().__init__("sqlite", f"queue {address.queue!r} of {str(store.path)!r}")
        self._store = store
        self._address = address
        self._lease = lease.total_seconds()
        self._message_bytes = message_bytes
        self._clock = clock or SystemClock()
        self._limit = store.settings.max_deliveries

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        self.check_open("receiving from")
        try:
            return self._receive(max_messages, wait)
        except BrokerError:
            if self.is_closed:  # by another thread, while the file was in use: leases end by themselves
                return []
            raise

    def _receive(self, max_messages: int, wait: float) -> Sequence[Received]:
        begun = self._clock.monotonic()
        pause = _LOOK_FIRST
        while max_messages > 0:
            moved = 0
            if self._is_something_there():
                doing = self.doing("receiving from")
                received, moved = self._store.draining(doing, lambda connection: self._take(connection, max_messages))
                if received:
                    return received
            spent = self._clock.monotonic() - begun
            if moved and spent < max(wait, _MOVING):
                continue
            if spent >= wait or self.sleep_unless_closed(min(pause, wait - spent)):
                break
            pause = min(2 * pause, _LOOK_LAST)
        return []

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        self.check_open("settling messages of")
        if not outcomes:
            return []
        return self._store.draining(
            self.doing("settling messages of"), lambda connection: self._settle(connection, outcomes)
        )

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        self.check_open("prolonging leases of")
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

        extended = self._store.draining(self.doing("prolonging leases of"), work)
        ends = {at: monotonic + seconds for at, each in enumerate(leases) if _is_among(each.lease, extended)}
        return answer_extend(leases, ends, self._lost)

    def _release(self) -> None:
        """Keep leases until they end: a handler may still be working."""
        self._store.end()

    # --- receiving ---

    def _is_something_there(self) -> bool:
        """Return whether a message may be visible. This only reads, to avoid needless write locks."""
        doing = self.doing("receiving from")
        number = self._store.existing(self._address, doing)
        if number is None:
            return False
        with TABLE.while_doing(doing):
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
        return not self._address.is_dead_letters and removal.has_expired(connection, number, now)

    def _take(self, connection: sqlite3.Connection, most: int) -> tuple[list[Received], int]:
        """Lease visible messages; return them, and how many were moved to the dead letters."""
        number = self._store.number(self._address.queue)
        if number is None:  # the queue existed a moment ago
            return [], 0
        monotonic, now = self._clock.monotonic(), self._clock.wall_ms()
        next_, head, clock_ms, limit = connection.execute(
            "SELECT next, head, clock_ms, max_deliveries FROM queue WHERE number = ?", (number,)
        ).fetchone()
        if now < clock_ms:
            # The clock went back. No lease or delay may last longer than its full length, counted from now.
            connection.execute(
                f"UPDATE lease_{number} SET visible_ms = ? + visible_ms - since_ms, since_ms = ? "  # noqa: S608 - a number
                "WHERE visible_ms > 0 AND since_ms > ?",
                (now, now, now),
            )
        self._end_leases(connection, number, monotonic, now)
        moved = 0
        if not self._address.is_dead_letters:
            place = self._address.dead_letters.queue
            moved = removal.dead_letter_expired(connection, self._store, self._address.queue, place, now)
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
            removal.dead_letter(connection, self._store, self._address.queue, place, chosen.dead, now)
            moved += len(chosen.dead)
        return self._leased(connection, number, chosen.rows, monotonic, now), moved

    @staticmethod
    def _end_leases(connection: sqlite3.Connection, number: int, monotonic: float, now: int) -> None:
        """Make messages visible whose lease or delay has ended, except those that this process still holds."""
        ended = f"lease_{number} WHERE visible_ms BETWEEN 1 AND ?"
        named = connection.execute(f"SELECT seq, lease FROM {ended} AND lease IS NOT NULL", (now,)).fetchall()  # noqa: S608 - a number
        still = [(seq, mine) for seq, token in named if (mine := held(token, monotonic)) is not None]
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
        """Write the leases of these rows; return the leased messages."""
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
            message, fault = codec.decode(id_, timestamp, key, encoded, value)
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
        call = Settlement(outcomes, lambda received: _is_among(received.lease, valid), self._lost)
        now = self._clock.wall_ms()
        dead: list[DeadMessage] = []
        for at, (received, outcome) in call.waiting(Terminate):
            letter = replace(outcome.letter, destination=None)
            refused = codec.unstorable(letter, message_bytes=self._message_bytes)
            if refused is None:
                why = (outcome.reason, outcome.description, outcome.letter)
                dead.append(DeadMessage(received.lease.seq, Code.TERMINATED, *why))
            else:
                call.answer(at, refused)
        done = [received.lease.seq for _, (received, _) in call.waiting(Accept)]
        back = [received.lease.seq for _, (received, _) in call.waiting(Release)]
        again = [(_due(now, outcome), now, received.lease.seq) for _, (received, outcome) in call.waiting(Retry)]
        removal.remove(connection, number, done, now, self._store.settings)
        place = self._address.dead_letters.queue
        removal.dead_letter(connection, self._store, self._address.queue, place, dead, now)
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
        return call.answers

    def _valid(self, connection: sqlite3.Connection, number: int, received: Sequence[Received]) -> dict[int, str]:
        """Return the tokens of the messages that the caller still leases, by number."""
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
        """Store the latest time that any row uses. If the clock is earlier later on, it went back."""
        connection.execute("UPDATE queue SET clock_ms = max(clock_ms, ?) WHERE number = ?", (now, number))

    def _lost(self, received: Received) -> LeaseLost:
        return lost("sqlite", f"queue {self._address.queue!r}", received)


_COLUMNS: Final = f"m.expires_ms, {codec.COLUMNS.removeprefix('m.seq, ')}"
_DUE: Final = (
    f"SELECT m.seq, l.attempts, l.first_ms, {_COLUMNS} FROM lease_{{n}} l JOIN message_{{n}} m ON m.seq = l.seq "  # noqa: S608 - our own names
    "WHERE l.visible_ms = 0 ORDER BY l.seq"
)
_FRESH: Final = f"SELECT m.seq, 0, NULL, {_COLUMNS} FROM message_{{n}} m WHERE m.seq > ? ORDER BY m.seq"  # noqa: S608 - our own names


class _Chosen:
    """The rows that one call leases, and dead rows found while choosing.

    Args:
        most: maximum number of rows to lease.
        now: rows that expire before this time are dead; None: rows do not expire.
        limit: limit of deliveries; 0: no limit.
    """

    def __init__(self, most: int, now: int | None, limit: int) -> None:
        self.rows: list[_Row] = []
        self.dead: list[DeadMessage] = []
        self.last = 0
        self._most = most
        self._now = now
        self._limit = limit
        self._bytes = 0

    def take(self, cursor: Iterator[Any]) -> bool:
        """Take rows from a cursor up to the limits; return whether the cursor is exhausted."""
        while self._bytes < _BYTES and len(self.rows) < self._most and len(self.dead) < removal.MOST:
            row: _Row | None = next(cursor, None)
            if row is None:
                return True
            self.last, attempts, _, expires = row[:4]
            if expires is not None and self._now is not None and expires <= self._now:
                self.dead.append(removal.expired(self.last, expires))
            elif 0 < self._limit <= attempts:
                why = f"delivered {attempts} times without being settled; the queue's limit is {self._limit}"
                self.dead.append(DeadMessage(self.last, Code.DELIVERY_LIMIT, why))
            else:
                self.rows.append(row)
                self._bytes += sum(len(part) for part in row[4:] if isinstance(part, bytes))
        return False


def _is_among(lease: object, valid: Mapping[int, str]) -> bool:
    """Return whether a lease is among these, by number and token."""
    return isinstance(lease, Lease) and valid.get(lease.seq) == lease.token


def _ms(seconds: float) -> int:
    """Return whole milliseconds, rounded so that a span is never too short: both of its ends are truncated."""
    return max(1, int(-(-seconds * 1000 // 1)) + 1)


def _due(now: int, outcome: Retry) -> int:
    """Return the time from which a message may be delivered again; 0: at once."""
    return 0 if outcome.delay <= timedelta(0) else now - (-outcome.delay // _MILLISECOND) + 1
