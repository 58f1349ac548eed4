"""The process under test of the workload `redrive`: one redrive of all letters, with its journal.

`python -m faults.redriver SETTINGS`: a JSON file, see `faults.redriving`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults import clock
from faults.history import Recorder
from faults.recording import recorded
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.redrive import RedriveSettings
from redelivery.errors import RedeliveryError
from redelivery.formats.specs import options as spec_options


def main(path: str) -> int:
    """Run; return the exit code: 0 reported, 1 failed."""
    settings: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    clock.install(Path(settings["scratch"]))
    recorder, url = Recorder(Path(settings["folder"]), settings["who"]), settings["url"]
    try:
        with dead_letters(url, options=settings["options"], connection_factory=recorded(recorder, url)) as queue:
            report = queue.redrive(
                journal=Path(settings["journal"]),
                settings=RedriveSettings(rate=settings["rate"], max_returns=None),
                spec=spec_options.read(settings["spec"]),
            )
    except RedeliveryError as error:
        recorder.write("note", text=f"it failed: {type(error).__name__}: {error}"[:2000])
        return 1
    recorder.write("reported", report=asdict(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
