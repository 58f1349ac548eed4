"""The daemon of Spark's Python workers, for jobs under test: as Spark's own, but its workers write their attempts down.

Spark starts it by `spark.python.daemon.module`, before any of its workers has imported the library.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.daemon import manager

from faults.history import DESTINATION, SINK, Recorder
from faults.recording import RecordingSender
from redelivery import registry
from redelivery.contract.broker import Broker, Sender

#: Names the settings of the job (`faults.sparking`).
VARIABLE: Final = "REDELIVERY_FAULTS_JOB"


def install(settings: Mapping[str, Any]) -> None:
    """Let `registry.connect` give connections that write down what they are asked."""
    connect = registry.connect
    recorders: dict[int, Recorder] = {}

    def recording(url: str, options: Mapping[str, str] | None = None, *, warn: bool = True) -> Broker:
        broker = connect(url, options, warn=warn)
        make, to = broker.sender, DESTINATION if url == settings["url"] else SINK

        def sender() -> Sender:
            pid = os.getpid()  # workers are forks of this process, and each has its own file
            if pid not in recorders:
                recorders[pid] = Recorder(Path(settings["folder"]), f"{settings['who']}-worker-{pid}")
            return RecordingSender(make(), recorders[pid], to)

        broker.sender = sender  # type: ignore[method-assign]
        return broker

    registry.connect = recording


if __name__ == "__main__":
    install(json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8")))
    manager()
