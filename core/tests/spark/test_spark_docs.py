"""The Python code in the documents runs as it stands, each document from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from redelivery.spark import deliver

pytest.importorskip("redelivery_sqlite")

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = Sybil(parsers=[PythonCodeBlockParser()])


PAGES = [
    "README.md",
    "docs/start.md",
    "docs/dead_letters.md",
    "docs/receiving.md",
    "docs/streaming.md",
    "docs/the_day_after_an_outage.md",
    "docs/recipes/clusters.md",
    "docs/recipes/from_foreach_partition.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_document_runs_and_prints_what_its_comments_say(name, spark, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    url = f"sqlite://{tmp_path}/orders.db?queue=orders"
    assert deliver(spark.sql("SELECT 'paid' AS value, 'order-42' AS id"), url).delivered == 1
    bad = spark.sql(
        "SELECT 't' AS type, '/s' AS source, STRING(NULL) AS subject, id AS number, 'a' AS sku FROM range(3)"
    )
    if "outage" in name:
        deliver(bad, url, deadLetterSink="native", requireAttributes="subject")
    text = (ROOT / name).read_text(encoding="utf-8")
    for folder in ("/tmp/", "/var/lib/"):  # noqa: S108 - as the documents write it
        text = text.replace(folder, f"{tmp_path}/")
    copy = tmp_path / Path(name).name
    copy.write_text(text, encoding="utf-8")
    stream = spark.readStream.format("rate").option("rowsPerSecond", 100).load().selectExpr("string(value) AS value")
    document = DOCUMENTS.parse(copy)
    document.namespace.update(
        spark=spark,
        url=url,
        schema=bad.schema,
        events=stream,
        df=stream.selectExpr("value", "int(value) - 3 AS amount"),
        checkpoint=str(tmp_path / "checkpoint"),
        path=str(tmp_path / "other"),
        orders=spark.sql("SELECT STRING(id) AS value FROM range(3)")
        if "recipes" in name
        else f"sqlite:{tmp_path / 'two.db'}?queue=orders",
        refunds=f"sqlite:{tmp_path / 'two.db'}?queue=refunds",
    )
    examples = list(document.examples())
    assert examples
    try:
        for example in examples:
            example.evaluate()
    finally:
        for query in spark.streams.active:
            query.stop()
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in re.findall(r"(?m)^print\(.+\)  # (.+)$", text) if line not in printed] == []
