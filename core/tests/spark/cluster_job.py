"""A job for a cluster of processes, run as a script: prints what came of it as JSON.

Arguments: Spark's master and the shelf's folder. A worker is killed on the way; speculation is on.
"""

import json
import os
import sys

from pyspark.sql import functions as f

from redelivery.spark import deliver
from redelivery.spark.java import local_session


def main(master: str, folder: str) -> None:
    spark = local_session("cluster", master=master, config={"spark.speculation": "true"})
    df = spark.range(1000, numPartitions=2).selectExpr(
        "CAST(id AS string) AS key", "CAST(concat(IF(id % 100 = 0, 'permanent ', 'v'), id) AS binary) AS value"
    )
    url = f"shelf://{folder}?queue=orders"

    @f.udf("binary")
    def killed_once(value):
        mark = os.path.join(folder, "killed")  # noqa: PTH118 - runs on a worker
        if value == b"v999" and not os.path.exists(mark):  # noqa: PTH110
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            with open(mark, "w"):  # noqa: PTH123
                pass
            os._exit(1)
        return value

    df = df.withColumn("value", killed_once("value"))
    report_path = os.path.join(os.path.dirname(folder), "report.json")  # noqa: PTH118, PTH120
    df.write.format("redelivery").options(url=url, deadLetterSink="native", reportPath=report_path).mode(
        "append"
    ).save()
    with open(report_path) as file:  # noqa: PTH123
        plain = json.load(file)
    report = deliver(df, f"shelf://{folder}?queue=again", deadLetterSink="native").to_dict()
    letters = spark.read.format("redelivery").options(url=url, deadLetters=True).load().count()
    print("RESULT " + json.dumps({"plain": plain, "delivered": report, "letters": letters}))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
