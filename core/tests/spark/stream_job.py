"""A streaming job that its parent kills, run as a script until it has read all there is.

Arguments: the folder of its source, the destination's URL, the checkpoint's folder, the reports' folder.
"""

import sys

from pyspark.sql import functions as f

from redelivery.spark.java import local_session


def main(source: str, url: str, checkpoint: str, reports: str) -> None:
    spark = local_session("stream", master="local[2]")
    lines = spark.readStream.option("maxFilesPerTrigger", "2").text(source)
    rows = lines.select(
        "value",
        f.lit("line").alias("type"),
        f.lit("/lines").alias("source"),
        f.when(~f.col("value").endswith("0"), f.col("value")).alias("subject"),
    )
    options = {
        "url": url,
        "checkpointLocation": checkpoint,
        "reportPath": reports,
        "requireAttributes": "subject",
        "deadLetterSink": "native",
        "maxRecordsPerSecond": "200",
    }
    query = rows.writeStream.format("redelivery").options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
