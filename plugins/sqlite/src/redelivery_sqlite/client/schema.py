"""The schema of the file: what its tables hold, and its versions.

A queue has tables of its own, so that no queue's backlog slows another's reader:

- `message_<n>`: what was sent, in the order of arrival, never altered. `seq` comes from `queue.next` and is never used
  twice (cheaper than AUTOINCREMENT, which looks its counter up at every row; measured, see the README). A message is
  recognised by its `identity`, where it has one, else by its `id`: `KNOWN_BY`, of which the index is. What the broker
  itself moves has a random identity, so that it is recognised as nothing else.
- `lease_<n>`: the messages that were delivered at least once, with their attempts and the time from which they may be
  delivered again (lease end or delay; 0: now). What was never delivered lies past `queue.head`, so that messages need
  no index for it, and leasing rewrites no body. `since_ms` says when `visible_ms` was set: a time to come there, or in
  `queue.clock_ms`, shows that the clock went back.
- `reason_<n>`: why a letter that this broker moved lies here.
- `taken_<n>`: by what removed messages were recognised, for as long as a sender may repeat them.
"""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 3
#: The version before, without identities: such a file is brought up to date as it is opened.
WITHOUT_IDENTITY = 2
#: By what a message is recognised; null: by nothing.
KNOWN_BY = "coalesce(identity, id)"
#: Marks the file as ours ("rdlv"), so that no other program's database is written to.
APPLICATION_ID = 0x72646C76

# STRICT refuses a value of another type in place of storing it as something else; SQLite has it from 3.37.
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

#: What a queue consists of, by name.
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
, identity TEXT)""",  # written as ALTER TABLE leaves a table of the version before
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
    """The statements that make a queue's tables and indexes, by name."""
    strict = {True: _STRICT, False: ""}
    return {
        name.format(n=number): text.format(n=number).strip() + strict["CREATE TABLE" in text]
        for name, text in _QUEUE_SCHEMA.items()
    }
