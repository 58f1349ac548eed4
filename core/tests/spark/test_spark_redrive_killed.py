"""A redrive job that is killed at random moments, its driver or a worker, ends with every letter once by its id.

REDELIVERY_REDRIVE_KILLS sets how often; REDELIVERY_REDRIVE_SEED, which moments.
"""

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from buried import stored
from killing import PATIENCE, kill_a_worker, kill_driver, moment, start, wait_until

pytest.importorskip("redelivery_sqlite")

KILLS = int(os.environ.get("REDELIVERY_REDRIVE_KILLS", "3"))
SEED = int(os.environ.get("REDELIVERY_REDRIVE_SEED", "17"))
LETTERS = 600 * (KILLS + 1)
#: Letters a second: a job must live long enough to be killed.
RATE = 600


@pytest.mark.usefixtures("small_spark")
@pytest.mark.parametrize("how", ["plain", "mend"])
def test_a_redrive_that_is_killed_loses_nothing_and_doubles_nothing_under_another_id(place, tmp_path, how):
    place.bury(LETTERS)
    draw = random.Random(f"{SEED} {how}")  # noqa: S311 - repeatable
    log = tmp_path / "log"
    script = Path(__file__).with_name("redrive_job.py")
    shares = sorted(draw.random() * 0.95 for _ in range(KILLS))
    print(f"seed {SEED}: {KILLS} kills at {[int(share * LETTERS) for share in shares]}")  # noqa: T201 - to repeat it
    job, killed = None, Counter()
    for nth, share in enumerate(shares):
        job = job or start(script, place.url, place.journal, RATE, how, log=log)
        if not wait_until(job, lambda share=share: len(place.sent) > share * LETTERS):
            break
        moment(draw)
        if nth % 2:
            kill_driver(job)
            job = None
            killed["driver"] += 1
        else:
            killed["worker"] += kill_a_worker(job, draw)
    job = job or start(script, place.url, place.journal, RATE, how, log=log)
    assert job.wait(timeout=PATIENCE) == 0, log.read_text()[-4000:]
    print(f"killed: {dict(killed)}")  # noqa: T201
    assert killed["driver"] + killed["worker"] >= KILLS - 1, "it was hardly killed, so nothing was tested"
    report = json.loads([line for line in log.read_text().splitlines() if line.startswith('{"considered"')][-1])
    assert report["stopped"] is None

    sent = Counter(name for name, _ in place.sent)
    assert sorted(sent) == sorted(f"n{at}~1" for at in range(LETTERS))
    assert set(sent.values()) == {1}
    assert place.letters == []
    assert {int(value) for _, value in stored(place.file, "orders")} == set(range(LETTERS))
