"""A job under Spark Connect, run as a script: prints what came of it as JSON.

Arguments: the shelf's folder, and one of its own.
"""

import json
import sys
from pathlib import Path

from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.spark import deliver, register, undelivered
from redelivery.spark.java import local_session


def main(shelf: str, folder: Path) -> None:
    spark = local_session("connect", master="local[2]", connect=True)
    register(spark)
    df = spark.sql(
        "SELECT CAST(id AS string) AS key, concat(IF(id % 10 = 0, 'permanent ', 'v'), id) AS value "
        "FROM range(0, 100, 1, 2)"
    )
    result = {"connect": type(spark).__module__}

    url = f"shelf://{shelf}?queue=plain"
    report = folder / "plain.json"
    df.write.format("redelivery").options(url=url, deadLetterSink="native", reportPath=str(report)).mode(
        "append"
    ).save()
    result["plain"] = json.loads(report.read_text())
    letters = spark.read.format("redelivery").options(url=url, deadLetters=True).load()
    result["letters"] = sorted(row[0] for row in letters.selectExpr("CAST(key AS string)").collect())

    spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
    delivered = deliver(df, f"shelf://{shelf}?queue=delivered", spec)
    result["delivered"] = delivered.to_dict()
    result["undelivered"] = [
        row[0] for row in undelivered(spark, delivered, spec).select("_error.native_code").collect()
    ]

    source = folder / "source"
    df.select("value").coalesce(1).write.text(str(source))
    options = {"url": f"shelf://{shelf}?queue=stream", "deadLetterSink": "native", "reportPath": str(folder / "s.json")}
    options["checkpointLocation"] = str(folder / "checkpoint")
    stream = spark.readStream.text(str(source)).writeStream.format("redelivery").options(**options)
    stream.trigger(availableNow=True).start().awaitTermination()
    result["stream"] = json.loads((folder / "s.json").read_text())

    def write(batch, number):
        named = {"url": f"shelf://{shelf}?queue=each", "writeId": f"each-{number}", "deadLetterSink": "native"}
        batch.write.format("redelivery").options(**named).mode("append").save()

    stream = spark.readStream.text(str(source)).writeStream.foreachBatch(write)
    stream = stream.option("checkpointLocation", str(folder / "each")).trigger(availableNow=True).start()
    stream.awaitTermination()
    print("RESULT " + json.dumps(result))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
