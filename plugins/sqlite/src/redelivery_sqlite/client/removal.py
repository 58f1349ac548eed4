"""Remove messages from a queue and remember their ids, or move them to a dead letter queue with the reason.

Every function works within the caller's transaction.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from redelivery.contract.message import Message
from redelivery.errors import Fatal
from redelivery.kit.errors import Code
from redelivery.kit.letters import KINDS
from redelivery_sqlite.client.schema import KNOWN_BY
from redelivery_sqlite.client.store import Store
from redelivery_sqlite.codec import encode_headers
from redelivery_sqlite.options import Settings

#: Maximum number of messages that one transaction moves: other writers wait for it.
MOST = 1000

#: A unique identity.
_UNKNOWN = "lower(hex(randomblob(16)))"


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """One message to move.

    Attributes:
        seq: its number in its queue.
        code, reason, description: kept in `reason_<n>`.
        letter: stored instead of the message; None: the message itself, unchanged.
    """

    seq: int
    code: Code
    reason: str
    description: str = ""
    letter: Message | None = None


def remove(
    connection: sqlite3.Connection,
    number: int,
    seqs: Sequence[int],
    now: int,
    settings: Settings,
    *,
    dead: bool = False,
) -> int:
    """Remove messages and remember their identities; return how many existed.

    Args:
        connection: in a transaction.
        number: of the queue's tables.
        seqs: the messages.
        now: milliseconds since the epoch.
        settings: how long to remember.
        dead: they are letters, whose identities are not remembered: one that is sent again is stored again.
    """
    if not seqs:
        return 0
    ranges = _ranges(seqs)
    these = "WHERE seq BETWEEN ? AND ?"
    if not dead:
        # REPLACE gives a repeated name a new number, so numbers ascend with time and find the oldest entries.
        connection.executemany(
            f"INSERT OR REPLACE INTO taken_{number} (id, removed_ms) SELECT {KNOWN_BY}, {now} FROM message_{number} "  # noqa: S608 - our own names
            f"{these} AND {KNOWN_BY} IS NOT NULL",
            ranges,
        )
        _forget(connection, number, now - settings.window_ms, 2 * len(seqs) + 100)
    for table in ("lease", "reason"):
        connection.executemany(f"DELETE FROM {table}_{number} {these}", ranges)  # noqa: S608 - a number
    return connection.executemany(f"DELETE FROM message_{number} {these}", ranges).rowcount  # noqa: S608 - a number


def dead_letter(
    connection: sqlite3.Connection, store: Store, source: str, place: str, dead: Sequence[DeadMessage], now: int
) -> None:
    """Move messages of the queue `source` to `place`, which may be the same.

    If a letter with the same identity exists there, it is the same letter and is not changed.

    Raises:
        Fatal: `place` does not exist, and must not be created.
    """
    if not dead:
        return
    there = store.number(place, create=store.settings.create)
    number = store.number(source)
    if there is None or number is None:
        text = f"sqlite: the dead letter queue {place!r} does not exist, and sqlite.create is false; provision it"
        raise Fatal(text, code=Code.NO_SUCH_DESTINATION)
    (first,) = connection.execute("SELECT next FROM queue WHERE number = ?", (there,)).fetchone()
    connection.execute("UPDATE queue SET next = next + ? WHERE number = ?", (len(dead), there))
    seqs = [each.seq for each in dead]
    known = _known(connection, number, seqs)
    raw = [(first + at, now, each.seq) for at, each in enumerate(dead) if each.letter is None]
    into = f"INSERT INTO message_{there} (seq, id, identity, enqueued_ms, timestamp_ms, key, headers, value)"
    connection.executemany(
        f"{into} SELECT ?, m.id, {_UNKNOWN}, ?, m.timestamp_ms, m.key, m.headers, m.value "  # noqa: S608 - our own names
        f"FROM message_{number} m WHERE m.seq = ?",
        raw,
    )
    remove(connection, number, seqs, now, store.settings)
    connection.executemany(
        f"{into} VALUES (:seq, :id, coalesce(:identity, {_UNKNOWN}), :now, :timestamp, :key, :headers, :value) "
        f"ON CONFLICT ({KNOWN_BY}) WHERE {KNOWN_BY} IS NOT NULL DO NOTHING",
        (_columns(first + at, each.letter, now) for at, each in enumerate(dead) if each.letter is not None),
    )
    connection.executemany(
        f"INSERT INTO reason_{there} (seq, kind, reason, description, queue, message_id, attempts, first_ms) "  # noqa: S608 - a number
        f"SELECT ?, ?, ?, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM message_{there} WHERE seq = ?)",
        (
            (seq, KINDS[each.code], _text(each.reason), _text(each.description), source, *known[each.seq], seq)
            for seq, each in enumerate(dead, start=first)
        ),
    )


def has_expired(connection: sqlite3.Connection, number: int, now: int) -> bool:
    """Return whether `dead_letter_expired` would find a message."""
    return connection.execute(_expired(number, 1), (now, now)).fetchone() is not None


def dead_letter_expired(connection: sqlite3.Connection, store: Store, source: str, place: str, now: int) -> int:
    """Move expired messages that are not leased, MOST at a time; return how many."""
    number = store.number(source)
    if number is None:
        return 0
    found = connection.execute(_expired(number, MOST), (now, now)).fetchall()
    dead_letter(connection, store, source, place, [expired(*each) for each in found], now)
    return len(found)


def expired(seq: int, expires_ms: int) -> DeadMessage:
    """Return the dead letter for a message that expired before it was handled."""
    return DeadMessage(seq, Code.EXPIRED, f"nobody handled it before it expired, at {expires_ms} ms since the epoch")


def _expired(number: int, most: int) -> str:
    leased = f"SELECT 1 FROM lease_{number} l WHERE l.seq = m.seq AND l.lease IS NOT NULL AND l.visible_ms > ?"  # noqa: S608 - numbers
    return (
        f"SELECT m.seq, m.expires_ms FROM message_{number} m WHERE m.expires_ms <= ? "  # noqa: S608 - numbers
        f"AND NOT EXISTS ({leased}) ORDER BY m.expires_ms LIMIT {most}"
    )


def _known(
    connection: sqlite3.Connection, number: int, seqs: Sequence[int]
) -> dict[int, tuple[str | None, int, int | None]]:
    """Return id, attempts and first delivery of messages, by their numbers."""
    rows: Iterable[tuple[int, bytes | None, int, int | None]] = connection.execute(
        f"SELECT m.seq, CAST(m.id AS BLOB), coalesce(l.attempts, 0), l.first_ms FROM message_{number} m "  # noqa: S608 - numbers
        f"LEFT JOIN lease_{number} l ON l.seq = m.seq WHERE m.seq IN (SELECT value FROM json_each(?))",
        (json.dumps(seqs),),
    )
    return {
        seq: (None if id_ is None else id_.decode(errors="replace"), attempts, first)
        for seq, id_, attempts, first in rows
    }


def _columns(seq: int, letter: Message, now: int) -> dict[str, object]:
    return {
        "seq": seq,
        "id": letter.id,
        "identity": letter.identity,
        "now": now,
        "timestamp": letter.timestamp_ms,
        "key": letter.key,
        "headers": encode_headers(letter.headers),
        "value": letter.value,
    }


def _ranges(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges that these numbers make: one statement removes a range, and letters lie side by side."""
    ranges: list[tuple[int, int]] = []
    ordered = sorted(set(seqs))
    first = last = ordered[0]
    for seq in ordered:
        if seq > last + 1:
            ranges.append((first, last))
            first = seq
        last = seq
    return [*ranges, (first, last)]


def _text(text: str) -> str:
    """Return text that can be stored: a lone surrogate has no form in UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _forget(connection: sqlite3.Connection, number: int, before: int, most: int) -> None:
    """Forget messages that were removed before a time, the oldest first."""
    oldest = connection.execute(f"SELECT removed_ms FROM taken_{number} ORDER BY number LIMIT 1").fetchone()  # noqa: S608 - a number
    if oldest is not None and oldest[0] < before:
        connection.execute(
            f"DELETE FROM taken_{number} WHERE removed_ms < ? AND number IN "  # noqa: S608 - numbers
            f"(SELECT number FROM taken_{number} ORDER BY number LIMIT {most})",
            (before,),
        )
