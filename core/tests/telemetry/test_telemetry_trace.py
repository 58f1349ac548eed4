"""A row that Spark writes, that dies, is redriven and handled is one trace; OpenLineage hears of the write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redelivery.spark.lineage import run_id

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def test_a_row_of_spark_is_one_trace_until_its_redriven_letter_is_handled(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from redelivery_conformance.tracing import journey  # noqa: PLC0415 - needs the SDK

    events = tmp_path / "lineage.jsonl"
    lineage = {
        "OPENLINEAGE__TRANSPORT__TYPE": "file",
        "OPENLINEAGE__TRANSPORT__LOG_FILE_PATH": str(events),
        "OPENLINEAGE__TRANSPORT__APPEND": "true",
    }
    found = journey(f"sqlite:{tmp_path}/q.db?queue=orders", {}, tmp_path / "seen", lineage)
    found.check()
    (commit,) = (each for each in found.spans if each.name == "commit")
    start, complete = map(json.loads, events.read_text(encoding="utf-8").splitlines())
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert complete["run"]["runId"] == run_id(commit.attributes["redelivery.run"])
    assert complete["job"]["name"] == f"traced.redelivery.{tmp_path}/q.db/orders"
    (output,) = complete["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
