"""A query over dead letters that its parent kills, run as a script until it has read all there is.

Arguments: the URL, the checkpoint's folder, the folder that takes the positions of each micro-batch.
"""

import json
import sys
import threading
from pathlib import Path

from redelivery.spark.features import ADMISSION_CONTROL
from redelivery.spark.java import local_session


def main(url: str, checkpoint: str, folder: str) -> None:
    spark = local_session("letters", master="local[2]")

    def note(batch, number):
        found = sorted(int(row["_position"]) for row in batch.collect())
        path = Path(folder) / f"{number}.json"
        if path.exists():  # it was killed before Spark had noted the batch's end
            assert json.loads(path.read_text()) == found, f"micro-batch {number} has other letters than before"
            (Path(folder) / "replayed").touch()
        path.with_suffix(".part").write_text(json.dumps(found))
        path.with_suffix(".part").rename(path)
        if (Path(folder) / f"hold-{number}").exists():
            threading.Event().wait()  # for ever: the parent kills it here

    options = {"url": url, "deadLetters": "true", "columns": "_position, value"}
    if ADMISSION_CONTROL:
        options["maxLettersPerTrigger"] = "250"
    place = spark.readStream.format("redelivery").options(**options).load()
    query = place.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
