"""The admin role: the file, the queue and its dead letter queue.

If a queue has no limit of deliveries yet, the limit counts as missing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from urllib.parse import quote

from redelivery.contract.broker import Admin, NativeObject, Plan
from redelivery.contract.spec import UNLIMITED, DeliverySpec, DeliveryStatus, Ref
from redelivery.kit.plans import MARGIN, compared
from redelivery.kit.roles import Resource
from redelivery_sqlite.address import KIND, Address
from redelivery_sqlite.client.schema import APPLICATION_ID, SCHEMA_VERSION, WITHOUT_IDENTITY, queue_schema
from redelivery_sqlite.client.store import Store
from redelivery_sqlite.errors import TABLE


class SqliteAdmin(Resource, Admin):
    """Creates and checks the file and the two queues of one address."""

    def __init__(self, store: Store, address: Address) -> None:
        super().__init__("sqlite", f"queue {address.queue!r} of {str(address.path)!r}")
        self._store = store
        self._address = address

    def plan(self, spec: DeliverySpec) -> Plan:
        self.check_open("looking at")
        names = list(dict.fromkeys([self._address.queue, self._address.dead_letters.queue]))
        if not self._store.exists:
            file = NativeObject(kind="file", name=str(self._address.path), action="create")
            queues = [NativeObject(kind="queue", name=name, action="create") for name in names]
            queues += self._limit(spec, None)
        else:
            with self._look() as connection:
                file = self._file(connection)
                queues = [self._queue(connection, name) for name in names]
                queues += self._limit(spec, None if file.action == "differs" else connection)
        return Plan(objects=[file, *queues], status=self._status(spec))

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:
        self.check_open("provisioning")
        if self._is_of_the_version_before():
            self._store.connection()  # which migrates the file
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
        self.check_open("counting")
        doing = self.doing("counting")
        number = self._store.existing(self._address, doing)
        if number is None:
            return 0
        with TABLE.while_doing(doing):
            connection = self._store.connection()
            return int(connection.execute(f"SELECT count(*) FROM message_{number}").fetchone()[0])  # noqa: S608 - a number

    def _release(self) -> None:
        self._store.end()

    def _is_of_the_version_before(self) -> bool:
        if not self._store.exists:
            return False
        with self._look() as connection:
            return bool(connection.execute("PRAGMA user_version").fetchone()[0] == WITHOUT_IDENTITY)

    @contextmanager
    def _look(self) -> Iterator[sqlite3.Connection]:
        """Open the file read-only: any other way to open it would set the properties that are compared."""
        name = f"file:{quote(str(self._address.path.absolute()))}?mode=ro"
        wait = self._store.settings.busy_timeout
        doing = f"looking at {str(self._address.path)!r}"
        with TABLE.while_doing(doing), closing(sqlite3.connect(name, uri=True, timeout=wait)) as connection:
            yield connection

    def _file(self, connection: sqlite3.Connection) -> NativeObject:
        wanted = {"application_id": str(APPLICATION_ID), "user_version": str(SCHEMA_VERSION), "journal_mode": "wal"}
        found = {name: str(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in wanted}
        return compared("file", str(self._address.path), wanted, found)

    def _queue(self, connection: sqlite3.Connection, name: str) -> NativeObject:
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'queue'").fetchone()
        row = known and connection.execute("SELECT number FROM queue WHERE name = ?", (name,)).fetchone()
        if not row:
            return NativeObject(kind="queue", name=name, action="create")
        wanted = queue_schema(row[0])
        found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        return replace(compared("queue", name, wanted, found), attributes={})

    def _limit(self, spec: DeliverySpec, connection: sqlite3.Connection | None) -> list[NativeObject]:
        """Return the limit of deliveries that the spec's retries need; None if the spec does not set them."""
        if spec.retry is None or self._address.is_dead_letters:
            return []
        name = self._address.queue
        found: int | None = None
        known = connection and connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'queue'").fetchone()
        if connection is not None and known:
            row = connection.execute("SELECT max_deliveries FROM queue WHERE name = ?", (name,)).fetchone()
            found = row[0] if row else None
        wanted = {"max_deliveries": str(0 if spec.retry == UNLIMITED else spec.retry + 1 + MARGIN)}
        return [compared("limit", name, wanted, None if found is None else {"max_deliveries": str(found)})]

    def _status(self, spec: DeliverySpec) -> DeliveryStatus:
        place = self._address.dead_letters
        return DeliveryStatus.of(spec, uri=place.url, channel=Ref(kind=KIND, name=place.queue))
