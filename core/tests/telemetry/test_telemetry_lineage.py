"""A write is reported to OpenLineage; an error there never fails it, and delays it only briefly."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from redelivery.errors import ToleranceExceeded
from redelivery.registry import connect
from redelivery.sending.report import DeliveryReport, DestinationReport
from redelivery.spark import job, lineage
from redelivery.spark.lineage import Write, dataset, emit, run_id
from redelivery.spark.listener import DeliveryListener

RUN = "7d3ad7ef2f3c4b5fa4a2d7a4a6ad4d43"


class Receiver:
    """An OpenLineage server."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 200
        self.released = threading.Event()
        self.released.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.released.wait(30)
                receiver.events.append(json.loads(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    # One try: the client would wait between several.
    found = Receiver()
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", found.url)
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY__TOTAL", "0")
    yield found
    found.released.set()
    found.server.shutdown()
    found.server.server_close()


def write(tmp_path: Path, **settings: str) -> Write:
    url, sink = f"sqlite:{tmp_path}/q.db?queue=orders", f"sqlite:{tmp_path}/q.db?queue=orders-dead-letters"
    unused = f"file:{tmp_path}/letters"
    report = DeliveryReport(rows=10, dead_lettered=3, primary=url, run=RUN)
    report.destinations = {
        url: DestinationReport(delivered=7, bytes=70),
        sink: DestinationReport(delivered=3, bytes=30),
        unused: DestinationReport(),
    }
    return Write(url=url, report=report, started=time.time() - 5, settings=settings)


def test_a_write_that_fails_by_its_limits_is_not_told_as_complete(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ToleranceExceeded("too many")

    told = write(tmp_path)
    settings = SimpleNamespace(redelivered=None, report_path=None, url=told.url, client={}, spec=None)
    done = SimpleNamespace(settings=settings, run=RUN, started=told.started)
    monkeypatch.setattr(job, "settle_job", refuse)
    with pytest.raises(ToleranceExceeded):
        job.finish(done, [told.report], speculation=False)  # type: ignore[arg-type]
    assert receiver.events == []
    monkeypatch.setattr(job, "settle_job", lambda *_, **__: None)
    job.finish(done, [told.report], speculation=False)  # type: ignore[arg-type]
    assert [each["eventType"] for each in receiver.events] == ["START", "COMPLETE"]


def test_destination_and_dead_letter_place_are_outputs_with_their_rows(receiver: Receiver, tmp_path: Path) -> None:
    emit(write(tmp_path, **{"spark.app.name": "nightly", "spark.openlineage.namespace": "prod"}))
    start, complete = receiver.events
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"] == "7d3ad7ef-2f3c-4b5f-a4a2-d7a4a6ad4d43"
    assert (start["job"]["namespace"], start["job"]["name"]) == ("prod", f"nightly.redelivery.{tmp_path}/q.db/orders")
    assert start["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert start["eventTime"] < complete["eventTime"]
    found = {
        (each["namespace"], each["name"]): each["outputFacets"]["outputStatistics"]["rowCount"]
        for each in complete["outputs"]
    }
    assert found == {
        ("file", f"{tmp_path}/q.db/orders"): 7,
        ("file", f"{tmp_path}/q.db/orders-dead-letters"): 3,
    }


def test_the_parent_run_is_that_of_sparks_settings_or_of_the_environment(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = "0198a5b2-7c1d-7000-8000-000000000001"
    names = {"parentJobNamespace": "airflow", "parentJobName": "dag.task", "parentRunId": parent}
    emit(write(tmp_path, **{f"spark.openlineage.{name}": text for name, text in names.items()}))
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/dag.task/{parent}")
    emit(write(tmp_path))
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "nonsense")
    emit(write(tmp_path))
    facets = [each["run"]["facets"] for each in receiver.events[::2]]
    for each in facets[:2]:
        assert each["parent"]["run"]["runId"] == parent
        assert each["parent"]["job"] == {"namespace": "airflow", "name": "dag.task"} | {
            name: value for name, value in each["parent"]["job"].items() if name == "facets"
        }
    assert "parent" not in facets[2]


def test_a_server_that_refuses_is_one_line_of_the_log(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 500
    with caplog.at_level(logging.WARNING, logger="redelivery.spark"):
        emit(write(tmp_path))
    (line,) = [each for each in caplog.records if each.name == "redelivery.spark"]
    assert line.getMessage().startswith(f"the lineage of run {RUN} was not emitted: ")


def test_a_server_that_hangs_delays_a_commit_for_a_bounded_time(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "PATIENCE", 0.3)
    receiver.released.clear()
    began = time.monotonic()
    emit(write(tmp_path))
    assert time.monotonic() - began < 20
    assert "no answer within 0.3 s" in caplog.text
    assert receiver.events == []


def test_without_the_clients_variables_nothing_is_emitted(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    emit(write(tmp_path))
    monkeypatch.delenv("OPENLINEAGE_DISABLED")
    for name in ("TYPE", "URL", "RETRY__TOTAL"):
        monkeypatch.delenv(f"OPENLINEAGE__TRANSPORT__{name}")
    emit(write(tmp_path))
    assert receiver.events == []


def test_a_run_that_is_no_uuid_gets_the_same_one_each_time() -> None:
    assert run_id("query-7") == run_id("query-7") != run_id("query-8")


def test_a_place_is_named_by_openlineages_rules_without_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dataset("file:///var/letters") == ("file", "/var/letters")
    there: Any = SimpleNamespace(
        canonical_url="carrier://one:9/orders",
        destination_name="orders",
        hosts=("one",),
        capabilities=SimpleNamespace(networked=True),
    )
    monkeypatch.setattr(lineage, "opened", lambda *_: there)
    assert dataset("carrier://u:secret@one,two/orders") == ("carrier://one:9", "orders")
    there.canonical_url = "carrier://u:secret@one:9/shop?queue=orders"
    assert dataset("carrier:x") == ("carrier://one:9", "shop/orders")
    monkeypatch.setattr(lineage, "opened", lambda *_: None)  # the driver may lack a secret
    assert dataset("carrier://u:secret@one:9,two:9/shop?queue=orders") == ("carrier://one:9", "shop/orders")


def test_a_url_that_is_opened_for_its_name_repeats_no_warning_of_what_is_insecure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:{tmp_path}/q.db?queue=orders"
    monkeypatch.setattr(type(connect(url)), "insecure", ("anybody can read it",), raising=False)
    assert dataset(url) == ("file", f"{tmp_path}/q.db/orders")
    assert not caplog.records
    connect(url)
    assert "anybody can read it" in caplog.text


class TestDeliveryListener:
    def progress(self, query: str, batch: int) -> Any:
        return SimpleNamespace(progress=SimpleNamespace(id=query, batchId=batch))

    def test_each_micro_batch_is_shown_with_its_report(self, tmp_path: Path) -> None:
        seen: list[DeliveryReport] = []
        listener = DeliveryListener(tmp_path, show=seen.append)
        report = DeliveryReport(rows=2, skipped=2, primary="sqlite:q.db", run="q-3")
        (tmp_path / "q-3.json").write_text(json.dumps({"query": "q", "batch": 3, **report.to_dict()}))
        for batch in (2, 3):
            listener.onQueryProgress(self.progress("q", batch))
        assert [each.rows for each in seen] == [2]

    def test_what_is_no_report_is_told_and_no_error(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "q-3.json").write_text("[]")
        DeliveryListener(tmp_path).onQueryProgress(self.progress("q", 3))
        assert "cannot be read" in caplog.text
