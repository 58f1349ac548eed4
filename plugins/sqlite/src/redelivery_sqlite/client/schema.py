"""The schema of the file: its tables and its versions.

Each queue has its own tables, so that no queue's backlog slows another's reader:

- `message_<n>`: the messages in order of arrival, never changed. `seq` comes from `queue.next` and is never reused
  (cheaper than AUTOINCREMENT, which looks up its counter at every row; measured, see the README). Duplicates are
  recognised by `identity` if it is set, else by `id`; the index is on this expression, `KNOWN_BY`. A message that the
  broker itself moves gets a random identity, so that it never counts as a duplicate.
- `lease_<n>`: the messages that were delivered at least once, with their attempts and the time from which they may be
  delivered again (lease end or delay; 0: now). Messages that were never delivered lie past `queue.head`, so they need
  no index for it, and leasing rewrites no body. `since_ms` is the time at which `visible_ms` was set. If it, or
  `queue.clock_ms`, lies in the future, the clock went back.
- `reason_<n>`: why this broker moved a letter here.
- `taken_<n>`: the identities of removed messages, for as long as a sender may repeat them.
"""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 3
#: The previous version, without identities. Such a file is migrated when it is opened.
WITHOUT_IDENTITY = 2
#: The identity of a message; null: it has none.
KNOWN_BY = "coalesce(identity, id)"
#: Marks the file as ours ("rdlv"), so that we never write to another program's database.
APPLICATION_ID = 0x72646C76

# STRICT refuses a value of the wrong type instead of converting it; SQLite supports it from 3.37.
_STRICT = " STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""

FILE_SCHEMA = f"""
CREATE TABLE queue (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    created_ms INTEGER NOT NULL,
    next INTEGER NOT NULL DEFAULT 1,
    head INTEGER NOT NULL DEFAULT 0,
    clock_ms INTEGER NOT NULL DEFAULT 0,
    max_deliveries INTEGER
){_STRICT}"""

#: The parts of a queue, by name.
_QUEUE_SCHEMA = {
    "message_{n}": """
CREATE TABLE message_{n} (
    seq INTEGER PRIMARY KEY,
    id TEXT,
    enqueued_ms INTEGER NOT NULL,
    timestamp_ms INTEGER,
    expires_ms INTEGER,
    key BLOB,
    headers TEXT,
    value BLOB
, identity TEXT)""",  # formatted as ALTER TABLE leaves a table of the previous version
    "message_{n}_identity": (
        f"CREATE UNIQUE INDEX message_{{n}}_identity ON message_{{n}} ({KNOWN_BY}) WHERE {KNOWN_BY} IS NOT NULL"
    ),
    "message_{n}_expires": (
        "CREATE INDEX message_{n}_expires ON message_{n} (expires_ms) WHERE expires_ms IS NOT NULL"
    ),
    "lease_{n}": """
CREATE TABLE lease_{n} (
    seq INTEGER PRIMARY KEY,
    visible_ms INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    first_ms INTEGER,
    lease TEXT
)""",
    "lease_{n}_visible": "CREATE INDEX lease_{n}_visible ON lease_{n} (visible_ms)",
    "reason_{n}": """
CREATE TABLE reason_{n} (
    seq INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    reason TEXT NOT NULL,
    description TEXT NOT NULL,
    queue TEXT NOT NULL,
    message_id TEXT,
    attempts INTEGER NOT NULL,
    first_ms INTEGER
)""",
    "taken_{n}": """
CREATE TABLE taken_{n} (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    removed_ms INTEGER NOT NULL
)""",
}


def queue_schema(number: int) -> dict[str, str]:
    """Return the statements that create a queue's tables and indexes, by name."""
    strict = {True: _STRICT, False: ""}
    return {
        name.format(n=number): text.format(n=number).strip() + strict["CREATE TABLE" in text]
        for name, text in _QUEUE_SCHEMA.items()
    }
