"""Spark jobs that write to RabbitMQ, batch and stream, while an operator closes their connections."""

import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from redelivery.spark import deliver
from redelivery_conformance.statements import Statements
from redelivery_conformance.suite.spark import session

ROWS = 20_000
#: How often connections are closed; the operator's tool takes its time.
CLOSINGS = 4
RETRY = {"errors.retry.timeout": "60000", "errors.retry.delay.max.ms": "500"}

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def rows(count, partitions=2):
    return session().range(0, count, 1, partitions).selectExpr("cast(concat('row ', id) as binary) as value")


def options(subject, **more):
    return {**subject.place.options, "url": subject.place.url, **more}


@contextmanager
def closing(subject, told):
    """While entered, every connection is closed a few times; `told` counts them."""
    done = threading.Event()

    def close():
        while not done.wait(0.5) and len(told) < CLOSINGS:
            text = subject.place.runtime.operator.execute("rabbitmqctl", "close_all_connections", "by the operator")
            told.append(text)

    thread = threading.Thread(target=close)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def account(subject, count):
    """Check that nothing is lost; return how many rows exist more than once, each under one id."""
    stored = subject.place.stored()
    copies = Counter(message.value for message in stored)
    assert set(copies) == {b"row %d" % at for at in range(count)}, "rows are lost, or were never sent"
    ids = {}
    for message in stored:
        assert message.id is not None
        assert ids.setdefault(message.value, message.id) == message.id, "a repeated row came under another id"
    return copies.total() - count


class TestSparkWrites(Statements):
    broker = "rabbitmq"

    def test_a_batch_whose_connections_are_closed_loses_nothing(self, subject):
        told = []
        with closing(subject, told):
            report = deliver(rows(ROWS), **options(subject, **RETRY))
        assert report.delivered == ROWS
        assert told
        assert account(subject, ROWS) <= report.retried

    def test_a_stream_whose_connections_are_closed_loses_nothing(self, subject, tmp_path):
        source = tmp_path / "source"
        rows(6_000, 6).selectExpr("cast(value as string) as value").write.text(str(source))
        stream = session().readStream.option("maxFilesPerTrigger", 1).text(str(source))
        everything = options(subject, checkpointLocation=str(tmp_path / "checkpoint"), **RETRY)
        told = []
        with closing(subject, told):
            query = stream.writeStream.format("redelivery").options(**everything).trigger(availableNow=True).start()
            query.awaitTermination()
        assert told
        account(subject, 6_000)

    def test_rows_that_no_queue_takes_are_letters_that_know_where_they_were_to_go(self, subject):
        """A letter goes to the dead letter place, not where its row could not go."""
        df = rows(10).selectExpr(
            "value", "'amq.direct' as exchange", "if(value = cast('row 3' as binary), 'nowhere', null) as routing_key"
        )
        df = df.selectExpr("value", "if(routing_key is null, null, exchange) as exchange", "routing_key")
        report = deliver(df, **options(subject, deadLetterSink="native"))
        assert (report.delivered, report.dead_lettered) == (9, 1)
        letters = session().read.format("redelivery").options(**options(subject, deadLetters="true")).load()
        (letter,) = letters.collect()
        assert (bytes(letter.value), letter._error.code, letter._error.native_code) == (
            b"row 3",
            "NO_SUCH_DESTINATION",
            "NO_ROUTE",
        )
