"""The admin role: the file, the queue and its dead letter place. This file must not alter what exists.

A queue's limit of deliveries that nobody has set counts as missing.
"""

from __future__ import annotations

import contextlib
import sqlite3
from urllib.parse import quote

from redelivery.contract.broker import Admin, Difference, NativeObject, Plan
from redelivery.contract.spec import UNLIMITED, DeliverySpec, DeliveryStatus, Ref
from redelivery_sqlite.address import Address
from redelivery_sqlite.errors import classified
from redelivery_sqlite.schema import APPLICATION_ID, SCHEMA_VERSION, WITHOUT_IDENTITY, queue_schema
from redelivery_sqlite.store import Store

#: Deliveries beyond core's own limit: only handlers that never come back to core get so far.
MARGIN = 10
#: What a queue is called in a `ref`.
KIND = "Queue"


class SqliteAdmin(Admin):
    """Makes and checks the file and the two queues of one address."""

    def __init__(self, store: Store, address: Address) -> None:
        self._store = store
        self._address = address

    def plan(self, spec: DeliverySpec) -> Plan:
        wanted = [self._address.queue, self._address.dead_letters.queue]
        names = list(dict.fromkeys(wanted))
        if not self._store.exists:
            file = NativeObject(kind="file", name=str(self._address.path), action="create")
            queues = [NativeObject(kind="queue", name=name, action="create") for name in names]
            queues += self._limit(spec, None)
        else:
            with classified(f"looking at {str(self._address.path)!r}"), contextlib.closing(self._look()) as connection:
                file = self._file(connection)
                queues = [self._queue(connection, name) for name in names]
                queues += self._limit(spec, None if file.action == "differs" else connection)
        return Plan(objects=[file, *queues], status=self._status(spec))

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        if self._is_of_the_version_before():
            self._store.connection()  # which brings it up to date
        plan = self.plan(spec)
        plan.refuse_differences(f"sqlite: {str(self._address.path)!r}")
        doing = f"provisioning {str(self._address.path)!r}"
        with self._store.writing(doing) as connection:
            for item in plan.objects:
                if item.kind == "queue":
                    self._store.number(item.name, create=True)
                elif item.kind == "limit" and item.action == "create":
                    limit = (item.attributes["max_deliveries"], item.name)
                    connection.execute("UPDATE queue SET max_deliveries = ? WHERE name = ?", limit)
        return plan.status

    def depth(self) -> int:
        doing = f"counting queue {self._address.queue!r} of {str(self._address.path)!r}"
        number = self._store.existing(self._address, doing)
        if number is None:
            return 0
        with classified(doing):
            connection = self._store.connection()
            return int(connection.execute(f"SELECT count(*) FROM message_{number}").fetchone()[0])  # noqa: S608 - a number

    def close(self) -> None:
        self._store.close()

    def _is_of_the_version_before(self) -> bool:
        if not self._store.exists:
            return False
        with classified(f"looking at {str(self._address.path)!r}"), contextlib.closing(self._look()) as connection:
            return bool(connection.execute("PRAGMA user_version").fetchone()[0] == WITHOUT_IDENTITY)

    def _look(self) -> sqlite3.Connection:
        """The file as it is, read only: opening it otherwise would set what is looked for."""
        name = f"file:{quote(str(self._address.path.absolute()))}?mode=ro"
        return sqlite3.connect(name, uri=True, timeout=self._store.settings.busy_timeout)

    def _file(self, connection: sqlite3.Connection) -> NativeObject:
        wanted = {"application_id": str(APPLICATION_ID), "user_version": str(SCHEMA_VERSION), "journal_mode": "wal"}
        found = {name: str(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in wanted}
        return _compare("file", str(self._address.path), wanted, found)

    def _queue(self, connection: sqlite3.Connection, name: str) -> NativeObject:
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'queue'").fetchone()
        row = known and connection.execute("SELECT number FROM queue WHERE name = ?", (name,)).fetchone()
        if not row:
            return NativeObject(kind="queue", name=name, action="create")
        wanted = queue_schema(row[0])
        found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        return _compare("queue", name, wanted, found)

    def _limit(self, spec: DeliverySpec, connection: sqlite3.Connection | None) -> list[NativeObject]:
        """The limit of deliveries that the spec's retries need; none where it says nothing of them."""
        if spec.retry is None or self._address.is_dead_letters:
            return []
        name = self._address.queue
        found: int | None = None
        known = connection and connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'queue'").fetchone()
        if connection is not None and known:
            row = connection.execute("SELECT max_deliveries FROM queue WHERE name = ?", (name,)).fetchone()
            found = row[0] if row else None
        wanted = 0 if spec.retry == UNLIMITED else spec.retry + 1 + MARGIN
        if found is None:
            return [NativeObject(kind="limit", name=name, action="create", attributes={"max_deliveries": str(wanted)})]
        return [_compare("limit", name, {"max_deliveries": str(wanted)}, {"max_deliveries": str(found)})]

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        place = self._address.dead_letters
        return DeliveryStatus.of(spec, uri=place.url, channel=Ref(kind=KIND, name=place.queue))


def _compare(kind: str, name: str, wanted: dict[str, str], found: dict[str, str]) -> NativeObject:
    differences = [
        Difference(attribute, text, found.get(attribute, "missing"))
        for attribute, text in wanted.items()
        if found.get(attribute) != text
    ]
    attributes = {} if kind == "queue" else wanted
    return NativeObject.compared(kind, name, attributes, differences)
