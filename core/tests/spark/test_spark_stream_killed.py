"""A streaming job that is killed and started again from its checkpoint loses nothing, and on a broker that recognises
ids it doubles nothing: counted in the file itself, by plain SQL."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from redelivery.contract.message import Batch, Message
from redelivery.registry import connect
from redelivery.spark.features import ADMISSION_CONTROL

pytest.importorskip("redelivery_sqlite")

FILES = 8
LINES = 100
KILLS = 3


def stored(file, queue):
    """The ids and bodies in a queue, as they lie in the file."""
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as connection:
        try:
            number = connection.execute("SELECT number FROM queue WHERE name = ?", (queue,)).fetchone()
        except sqlite3.OperationalError:  # not made yet
            return []
        if number is None:
            return []
        return connection.execute(f"SELECT id, value FROM message_{number[0]}").fetchall()  # noqa: S608 - a number


def start(*arguments, log, script="stream_job.py"):
    script = Path(__file__).with_name(script)
    with log.open("ab") as out:
        command = [sys.executable, str(script), *map(str, arguments)]
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


#: Seconds after which a job hangs, however busy the machine is: starting Spark has taken two minutes.
PATIENCE = 400


def kill_when(job, reached):
    """Kill the job, its JVM with it, at the moment that `reached()` holds."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert job.poll() is None, "the job ended before it was to be killed"
        assert time.monotonic() < deadline, "the job makes no progress"
        time.sleep(0.02)  # each look reads all that is stored
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


@pytest.mark.usefixtures("small_spark")
def test_a_killed_stream_loses_nothing_and_doubles_nothing(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    lines = [str(number) for number in range(FILES * LINES)]
    for index in range(FILES):
        (source / f"{index:02}.txt").write_text("\n".join(lines[index * LINES : (index + 1) * LINES]) + "\n")
    file, reports, log = tmp_path / "queue.db", tmp_path / "reports", tmp_path / "log"
    reports.mkdir()
    job = (source, f"sqlite://{file}?queue=lines", tmp_path / "checkpoint", reports)

    draw = random.Random(4)  # noqa: S311 - repeatable
    for nth in range(KILLS):
        share = (nth + draw.random()) / (KILLS + 1)
        rows = int(share * FILES * LINES * 0.9)
        kill_when(start(*job, log=log), lambda rows=rows: len(stored(file, "lines")) > rows)
    last = start(*job, log=log)
    assert last.wait(timeout=PATIENCE) == 0, log.read_text()[-4000:]

    sent = stored(file, "lines")
    letters = stored(file, "lines-dead-letters")
    assert sorted(int(value) for _, value in sent) == [int(each) for each in lines if not each.endswith("0")]
    lost_subject = [json.loads(json.loads(value)["data"]["value"]) for _, value in letters]
    assert sorted(lost_subject) == [int(each) for each in lines if each.endswith("0")]
    written = [json.loads(path.read_text()) for path in reports.iterdir()]
    assert len({each["query"] for each in written}) == 1
    assert all(each["accounted"] for each in written)
    again = sum(place["duplicates"] for each in written for place in each["destinations"].values())
    assert again > 0, "no batch was replayed, so nothing was tested"


@pytest.mark.usefixtures("small_spark")
def test_a_killed_stream_of_letters_shows_each_of_them_once(tmp_path):
    count = 2_000
    url, noted, log = f"sqlite://{tmp_path}/queue.db?queue=lines", tmp_path / "noted", tmp_path / "log"
    noted.mkdir()

    def put(*numbers):
        letters = Batch.of([Message(value=b"%d" % number) for number in numbers])
        with connect(f"{url}-dead-letters") as broker, broker.sender() as sender:
            sender.send(letters, deadline=time.monotonic() + 60)
            assert sender.collect(60)[0].failures == []

    put(*range(count))
    job = (url, tmp_path / "checkpoint", noted)
    held = 3 if ADMISSION_CONTROL else 0  # elsewhere one micro-batch has all that exist
    (noted / f"hold-{held}").touch()
    kill_when(start(*job, log=log, script="letters_job.py"), (noted / f"{held}.json").exists)
    (noted / f"hold-{held}").unlink()
    put(*range(count, count + 100))
    with connect(url) as broker, broker.dead_letters() as letters:
        last = {letter.position for letter in letters.browse() if letter.message.value == b"2050"}
        assert letters.remove(sorted(last)) == 1
    # Without bounds `availableNow` is a single micro-batch: at first the one that was cut off.
    for _ in range(1 if ADMISSION_CONTROL else 2):
        assert start(*job, log=log, script="letters_job.py").wait(timeout=PATIENCE) == 0, log.read_text()[-4000:]
    found = [position for path in noted.glob("*.json") for position in json.loads(path.read_text())]
    with connect(url) as broker, broker.dead_letters() as letters:
        assert sorted(found) == [int(letter.position) for letter in letters.browse()]
    assert len(found) == count + 99
    assert (noted / "replayed").exists()
