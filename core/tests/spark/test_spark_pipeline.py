"""Spark Declarative Pipelines: the example runs as it stands, with a queue as its sink and a quarantine beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from buried import stored

from redelivery.spark.features import FEATURES
from redelivery.spark.java import ensure_java

pytest.importorskip("redelivery_sqlite")

ROOT = Path(__file__).resolve().parents[3]
[PIPELINES] = [each for each in FEATURES if "Pipelines" in each.name]


@pytest.mark.skipif(not PIPELINES.present, reason="this Spark has no declarative pipelines")
@pytest.mark.usefixtures("small_spark", "free_port")
def test_a_flow_goes_to_a_queue_and_what_is_bad_to_its_quarantine(tmp_path):
    folder = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples/pipeline", folder)
    for each in (folder / "spark-pipeline.yml", folder / "transformations/orders.py"):
        text = each.read_text(encoding="utf-8")
        assert "/tmp/redelivery-pipeline" in text  # noqa: S108 - as the example writes it
        each.write_text(text.replace("/tmp/redelivery-pipeline", str(tmp_path)), encoding="utf-8")  # noqa: S108
    for numbers in (range(10), range(20)):  # the second update goes on where the first ended
        update(folder)
        sent = stored(tmp_path / "orders.db", "orders")
        assert sorted(json.loads(value)["number"] for _, value in sent) == [each for each in numbers if each % 10]
        letters = stored(tmp_path / "orders.db", "orders-dead-letters")
        assert len(letters) == len(numbers) // 10


def update(folder: Path) -> None:
    """Run the pipeline once."""
    home = Path(pyspark.__file__).parent
    own = {"JAVA_HOME": ensure_java(), "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    command = [home / "bin/spark-pipelines", "run"]
    environment = {**os.environ, **own, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
