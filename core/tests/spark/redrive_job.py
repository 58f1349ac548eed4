"""A redrive that its parent kills, run as a script until all letters are sent.

Arguments: the destination's URL, the journal, the rate, "mend" or "plain", client options as `name=value`. Its last
line is the report as JSON.
"""

import json
import sys
from dataclasses import asdict

from redelivery.spark import redrive
from redelivery.spark.java import local_session


def main(url: str, journal: str, rate: str, how: str, *options: str) -> None:
    spark = local_session("redrive", master="local[2,100]")
    report = redrive(
        spark,
        url,
        journal=journal,
        rate=float(rate),
        mend=(lambda letters: letters.where("value IS NOT NULL")) if how == "mend" else None,
        options=dict(each.split("=", 1) for each in options),
    )
    print(json.dumps(asdict(report)), flush=True)  # noqa: T201 - its answer
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
