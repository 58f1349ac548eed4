"""The same under Spark Connect: the client has no JVM and no SparkContext."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")
pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")


@pytest.mark.usefixtures("small_spark", "free_port")
def test_batch_stream_and_dead_letters_under_connect(shelf, tmp_path):
    script = Path(__file__).with_name("connect_job.py")
    command = [sys.executable, str(script), str(shelf.root), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(each for each in done.stdout.splitlines() if each.startswith("RESULT "))
    result = json.loads(line.removeprefix("RESULT "))
    assert result["connect"].startswith("pyspark.sql.connect")
    for name in ("plain", "delivered", "stream"):
        report = result[name]
        assert (report["rows"], report["delivered"], report["dead_lettered"], report["accounted"]) == (
            100,
            90,
            10,
            True,
        )
    assert result["letters"] == sorted(str(number) for number in range(0, 100, 10))
    assert result["undelivered"] == ["REFUSED"] * 10
    assert result["stream"]["run"] == f"{result['stream']['query']}-0"
    assert {len(shelf.messages(name)) for name in ("plain", "delivered", "stream", "each")} == {90}
    assert all(message.id.startswith("each-0-") for message in shelf.messages("each"))
