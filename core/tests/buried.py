"""A queue in a file with dead letters, for tests of redrives."""

import sqlite3
from contextlib import closing

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.formats import dialects
from redelivery.registry import connect


def stored(file, queue):
    """The ids and bodies in a queue, as they lie in the file."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as connection:
        number = connection.execute("SELECT number FROM queue WHERE name = ?", (queue,)).fetchone()
        if number is None:
            return []
        return connection.execute(f"SELECT id, value FROM message_{number[0]} ORDER BY seq").fetchall()  # noqa: S608 - a number


class Place:
    """A queue in a file, and its dead letters."""

    def __init__(self, folder):
        self.file = folder / "q.db"
        self.url = f"sqlite://{self.file}?queue=orders"
        self.journal = folder / "state" / "journal.db"

    def bury(self, count, *, first=0, **context):
        """Dead-letter messages `n0`, `n1` and so on."""
        said = ErrorContext(reason="no", kind="permanent", native_code="No", attempts=3, attempts_total=3, **context)
        with connect(f"{self.url}-dead-letters", {}) as broker, broker.sender() as sender:
            limits = broker.capabilities.limits
            messages = [
                dialects.attach(
                    Message(value=b"%d" % at, id=f"n{at}", key=b"k%d" % (at % 7)),
                    said,
                    dialect="json",
                    limits=limits,
                    prefix="ce-",
                )
                for at in range(first, first + count)
            ]
            sender.send(Batch.of(messages), deadline=1e12)
            settled = sender.collect(10)
            assert [each.error for each in settled] == [None]
            assert not any(each.failures for each in settled)

    @property
    def sent(self):
        return stored(self.file, "orders")

    @property
    def letters(self):
        return stored(self.file, "orders-dead-letters")

    def redrive(self, spark, **more):
        from redelivery.spark import redrive  # noqa: PLC0415 - needs pyspark

        return redrive(spark, self.url, journal=self.journal, **more)
