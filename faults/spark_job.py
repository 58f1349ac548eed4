"""The process under test of the workloads `spark` and `stream`: the driver of a Spark job.

`python -m faults.spark_job SETTINGS`: a JSON file, see `faults.sparking`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from faults.history import Recorder
from faults.plan import Plan
from faults.spark_daemon import VARIABLE
from faults.writer import message
from redelivery.spark import deliver
from redelivery.spark.java import local_session

SCHEMA: Final = (
    "value binary, key binary, headers array<struct<key: string, value: binary>>, id string, destination string"
)
_PARTITIONS: Final = 4
_FILES: Final = 8
_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CONFIG: Final = {
    "spark.python.daemon.module": "faults.spark_daemon",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": _JVM,
}


def main(path: str) -> int:
    """Run; return the exit code: 0 reported, 1 failed."""
    settings: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    os.environ[VARIABLE] = path
    recorder = Recorder(Path(settings["folder"]), settings["who"])
    plan = Plan.from_dict(settings["plan"])
    master = f"local[2,{_FILES}]"  # a killed worker is a failed task
    spark = local_session("faults", master=master, config=_CONFIG)
    try:
        if settings["stream"]:
            _stream(spark, settings, plan, recorder)
        else:
            _batch(spark, settings, plan, recorder)
    except Exception as error:  # noqa: BLE001 - Spark wraps the library's errors in its own
        recorder.write("note", text=f"it failed: {type(error).__name__}: {error}"[:4000])
        return 1
    finally:
        spark.stop()
    return 0


def rows(settings: dict[str, Any], plan: Plan) -> list[tuple[Any, ...]]:
    """Return the plan's rows as Spark takes them."""
    found = (message(plan, number, settings["nowhere"]) for number in range(plan.rows))
    return [(each.value, each.key, list(each.headers), each.id, each.destination) for each in found]


def _batch(spark: Any, settings: dict[str, Any], plan: Plan, recorder: Recorder) -> None:
    frame = spark.createDataFrame(rows(settings, plan), SCHEMA).repartition(_PARTITIONS)
    recorder.write("handed", rows=list(range(plan.rows)))
    options: dict[str, Any] = _options(settings)
    report = deliver(frame, settings["url"], **options)
    recorder.write("reported", report=report.to_dict())


def _stream(spark: Any, settings: dict[str, Any], plan: Plan, recorder: Recorder) -> None:
    scratch = Path(settings["scratch"])
    source = scratch / "source"
    if not source.exists():  # in one step: this process may be killed
        made = scratch / f"source-{settings['who']}"
        spark.createDataFrame(rows(settings, plan), SCHEMA).repartition(_FILES).write.parquet(str(made))
        made.rename(source)
    recorder.write("handed", rows=list(range(plan.rows)))
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(source))
    query = (
        frame.writeStream.format("redelivery")
        .options(url=settings["url"], checkpointLocation=str(scratch / "checkpoint"), **_options(settings))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    recorder.write("reported", report={"batches": (query.lastProgress or {}).get("batchId")})


def _options(settings: dict[str, Any]) -> dict[str, str]:
    return {**settings["options"], **settings["spec"], "maxRecordsPerSecond": str(int(settings["rate"]))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
