"""Spark jobs to Service Bus's stand-in: each row is stored, though the server is stopped and started mid-job."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.suite.spark import session
from servicebus_standin import StandIn

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]

PATIENT = {"retry": "30", "backoffPolicy": "linear", "backoffDelay": "PT0.1S", "backoffMax": "PT0.3S"}


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def rows(count: int, size: int = 20) -> Any:
    return session().range(0, count, 1, 2).selectExpr(f"cast(lpad(id, {size}, '0') as binary) as value")


def numbered(count: int, size: int = 20) -> Counter[bytes | None]:
    return Counter(b"%0*d" % (size, at) for at in range(count))


def write(subject: Subject, df: Any, options: Mapping[str, str] | None = None) -> None:
    given = {**subject.place.options, **(options or {}), "url": subject.place.url}
    df.write.format("redelivery").options(**given).mode("append").save()


@contextmanager
def interrupted(subject: Subject, times: int) -> Iterator[None]:
    """The server is stopped and started so often, as soon as rows have come and then again and again."""
    ended = threading.Event()
    stops: list[float] = []

    def run() -> None:
        end = time.monotonic() + 120
        place: Any = subject.place
        main = namespace(subject).store.queue(place.queue).main
        while not ended.is_set() and len(stops) < times and time.monotonic() < end:
            if len(main.messages) > len(stops) * 200:  # its own count: a look at each would take too long
                with subject.runtime.outage():
                    ended.wait(0.5)
                stops.append(time.monotonic())
            ended.wait(0.005)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert stops, "the server was never stopped while the job ran"


class TestSpark(Statements):
    broker = "servicebus"

    def test_a_batch_job_through_outages_loses_nothing(self, subject: Subject) -> None:
        """An ambiguous message may be stored twice, under one id."""
        df = rows(4_000, 2_000)  # Spark takes its time to start
        with interrupted(subject, times=2):
            write(subject, df, PATIENT)
        stored = subject.values()
        assert stored.keys() == numbered(4_000, 2_000).keys()
        stored_messages = subject.place.stored()
        assert len({each.id for each in stored_messages}) == 4_000

    def test_a_stream_is_stored_through_an_outage(self, subject: Subject, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        for at in range(3):
            path = tmp_path / "source" / f"{at}.txt"
            path.write_text("".join(f"{at}-{line:04d}-{'x' * 5000}\n" for line in range(150)))
            os.utime(path, (at, at))
        df = session().readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "source"))
        options = {**subject.place.options, **PATIENT, "url": subject.place.url}
        options["checkpointLocation"] = str(tmp_path / "checkpoint")
        with interrupted(subject, times=1):
            query = df.writeStream.format("redelivery").options(**options).trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            finally:
                query.stop()
        found = {(each.value or b"")[:6] for each in subject.place.stored()}
        assert found == {b"%d-%04d" % (at, line) for at in range(3) for line in range(150)}
