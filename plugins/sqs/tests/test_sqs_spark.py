"""Spark jobs to standard and FIFO queues: each row is stored, whatever the server or the job's tasks do."""

import itertools
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.suite.spark import session
from redelivery_sqs.testing import SqsFifoHarness, consumed
from redelivery_sqs.testing.faults import Answer, Faults, refusal

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def rows(count: int, key: str = "cast(id % 7 as string)") -> Any:
    return session().range(0, count, 1, 2).selectExpr(f"cast({key} as binary) as key", "concat('row ', id) as value")


def write(subject: Subject, df: Any, options: Mapping[str, str] | None = None) -> None:
    given = {**subject.place.options, **(options or {}), "url": subject.place.url}
    df.write.format("redelivery").options(**given).mode("append").save()


def stream(subject: Subject, folder: Path, *files: list[str]) -> None:
    """Each file is a micro-batch."""
    (folder / "source").mkdir()
    for at, lines in enumerate(files):
        path = folder / "source" / f"{at}.txt"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (at, at))  # Spark takes the oldest first
    df = session().readStream.option("maxFilesPerTrigger", 1).text(str(folder / "source"))
    df = df.selectExpr("cast(substring(value, 1, 1) as binary) as key", "value")
    options = {**subject.place.options, "url": subject.place.url, "checkpointLocation": str(folder / "checkpoint")}
    query = df.writeStream.format("redelivery").options(**options).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def numbered(count: int) -> Counter[bytes | None]:
    return Counter(b"row %d" % at for at in range(count))


class TestStandard(Statements):
    broker = "sqs"

    def test_a_stream_is_stored_once(self, subject: Subject, tmp_path: Path) -> None:
        stream(subject, tmp_path, ["a1", "b1"], ["a2"], ["b2", "a3"])
        assert subject.values() == Counter([b"a1", b"b1", b"a2", b"b2", b"a3"])

    def test_a_throttled_server_slows_the_job_and_loses_nothing(self, subject: Subject) -> None:
        """Every third request is refused; the writer waits, as the spec says, and sends those rows again."""
        requests, refused = itertools.count(1), []

        def throttle(operation: str, _given: dict[str, Any], _go_on: Any) -> Answer | None:
            if operation != "SendMessageBatch" or next(requests) % 3:
                return None
            refused.append(operation)
            return refusal("RequestThrottled", status=403)

        with Faults(subject.place.options["sqs.endpoint_url"], throttle) as faults:
            spec = {"retry": "20", "backoffPolicy": "linear", "backoffDelay": "PT0.05S", "backoffMax": "PT0.2S"}
            write(subject, rows(200), {**spec, "sqs.endpoint_url": faults.url})
        assert refused
        assert subject.values() == numbered(200)


class TestFifo(Statements):
    broker = SqsFifoHarness()

    def test_a_batch_job_stores_each_row_once_and_in_its_keys_order(self, subject: Subject) -> None:
        ordered = rows(60, key="cast(id % 6 as string)").coalesce(1).sortWithinPartitions("value")
        write(subject, ordered, {"ordering": "key"})
        stored = consumed(subject)
        assert Counter(each.value for each in stored) == numbered(60)
        for key in (b"%d" % at for at in range(6)):
            values = [each.value for each in stored if each.key == key]
            assert values == sorted(values, key=lambda value: value or b"")

    def test_a_stream_is_stored_once(self, subject: Subject, tmp_path: Path) -> None:
        stream(subject, tmp_path, ["a1", "b1"], ["a2"], ["b2", "a3"])
        found = [each.value or b"" for each in consumed(subject)]
        assert sorted(found) == [b"a1", b"a2", b"a3", b"b1", b"b2"]
        assert [value for value in found if value.startswith(b"a")] == [b"a1", b"a2", b"a3"]

    def test_a_task_retried_in_another_row_order_loses_nothing_to_deduplication(self, subject: Subject) -> None:
        """Half of it was stored before. By position alone another row would come under an id already taken."""
        there = rows(20).coalesce(1).sortWithinPartitions("value")
        back = there.sortWithinPartitions("value", ascending=False)
        write(subject, there.limit(10), {"writeId": "one"})
        write(subject, back, {"writeId": "one"})
        assert {each.value for each in consumed(subject)} == numbered(20).keys()
        write(subject, back, {"writeId": "one"})
        assert not consumed(subject), "in the same order each row comes under its own id again"
