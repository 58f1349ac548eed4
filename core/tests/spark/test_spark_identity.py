"""Jobs whose rows share ids: each dead row leaves a letter, and each event is a message."""

import pytest

from redelivery.spark import deliver

pytest.importorskip("redelivery_sqlite")


def read(spark, url):
    """What lies in a queue."""
    rows = spark.read.format("redelivery").options(deadLetterSink=url, deadLetters=True).load()
    return sorted((bytes(row.value), row._error.message_id) for row in rows.collect())


@pytest.mark.parametrize("sink", ["native", "?queue=graves"])
def test_two_jobs_whose_rows_share_an_id_leave_two_letters_in_one_place(spark, tmp_path, sink):
    file = f"sqlite://{tmp_path}/q.db"
    url, place = f"{file}?queue=a", f"{file}?queue=a-dead-letters"
    sink, place = (sink, place) if sink == "native" else (file + sink, file + sink)
    for payload in ("first", "second"):
        rows = spark.sql(f"SELECT '1' AS id, '{payload}' AS value, '' AS destination")
        report = deliver(rows, url, deadLetterSink=sink)
        assert (report.rows, report.delivered, report.dead_lettered) == (1, 0, 1)
    assert read(spark, place) == [(b"first", "1"), (b"second", "1")]
    letters = spark.read.format("redelivery").options(deadLetterSink=place, deadLetters=True).load()
    mended = letters.drop("_error", "_position", "destination")
    for sent_before in (0, 2):  # the second write stands for a retried one
        report = deliver(mended, f"{file}?queue=mended")
        assert (report.delivered, report.duplicates) == (2, sent_before)


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_two_events_of_one_id_and_different_source_are_two_messages(spark, tmp_path, mode):
    url = f"sqlite://{tmp_path}/q.db?queue=a"
    events = spark.sql(
        "SELECT '1' AS id, source, 't' AS type, 'x' AS value, 'text/plain' AS datacontenttype "
        "FROM VALUES ('/a'), ('/b') AS (source)"
    )
    for stored_before in (0, 2):
        report = deliver(events, url, contentMode=mode)
        assert (report.delivered, report.duplicates) == (2, stored_before)
    assert [name for _, name in read(spark, url)] == ["1", "1"]
