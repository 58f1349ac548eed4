"""Hostile letters in a DataFrame: no letter fails the read of its neighbours. Without Spark, but for the last test."""

import time

from hostile import FIELDS, MARKS, VALUES, messages
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.broker import Letter, LetterBatch
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.trust import Targets
from redelivery.registry import connect, installed
from redelivery.spark.letter_columns import LetterColumns
from redelivery.spark.letter_schema import schema
from redelivery.spark.options import ReadSettings

WANTED = schema(ReadSettings(url="sqlite:/none.db"))
THERE = installed().plugins["sqlite"].capabilities
GOOD = Letter(position="good", message=Message(value=b"v"), context=ErrorContext(reason="good", attempts=3))


def shown(letter):
    """The letter's row, read beside a good one."""
    columns = LetterColumns(WANTED, Targets(allowed=("*",)), THERE)
    found = columns.record_batch(LetterBatch.of([letter, GOOD])).to_pylist()
    assert found[1]["_error"]["message"] == "good"
    assert found[1]["_error"]["attempts"] == 3
    return found[0]


@given(messages, st.integers() | st.none(), st.integers() | st.none())
def test_no_letter_fails_a_batch(message, timestamp_ms, dead_ms):
    timed = Message(value=message.value, headers=message.headers, timestamp_ms=timestamp_ms)
    row = shown(Letter(position="1", message=timed, dead_lettered_ms=dead_ms))
    assert row["_position"] == "1"


def test_a_column_of_the_brokers_own_that_does_not_fit_is_null_alone():
    message = Message(value=b"v", extra={"expires_ms": "soon", "delay_ms": 2**70})
    assert shown(Letter(position="1", message=message))["value"] == b"v"


def test_a_message_of_a_time_that_no_column_has_is_shown_without_it():
    for millis in (10**400, 2**62, -(2**62), 253_402_300_800_000):
        row = shown(Letter(position="1", message=Message(value=b"v", timestamp_ms=millis)))
        assert (row["value"], row["timestamp"]) == (b"v", None)


def test_spark_reads_the_letters_between_hostile_ones(spark, tmp_path):
    url = f"sqlite:{tmp_path}/q.db"
    hostile = [
        Message(
            value=value.encode(),
            timestamp_ms=2**62,
            headers=(
                ("redelivery-context", f'{{"redelivery": {{"{name}": {value}}}}}'.encode()),
                ("redelivery-letter", MARKS[0]),
            ),
        )
        for name in FIELDS[3:28:4]
        for value in VALUES
        if len(value) < 10_000
    ]
    with connect(url) as broker, connect(broker.native_sink()) as sink, sink.sender() as sender:
        sender.send(Batch.of([*hostile, Message(value=b"good")]), deadline=time.monotonic() + 30)
        assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]
    place = spark.read.format("redelivery").options(url=url, deadLetters=True)
    found = place.load().collect()
    assert len(found) == len(hostile) + 1
    assert bytes(found[-1]["value"]) == b"good"
    assert {row["_error"]["kind"] for row in found} >= {"invalid", None}
