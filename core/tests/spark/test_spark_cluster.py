"""The same on a cluster of processes, and what is particular there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from redelivery.errors import ConfigurationError
from redelivery.spark.job import refuse_one_host


def run(shelf):
    script = Path(__file__).with_name("cluster_job.py")
    command = [sys.executable, str(script), "local-cluster[2,1,1024]", str(shelf.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    line = next(each for each in done.stdout.splitlines() if each.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")), done.stderr


@pytest.mark.usefixtures("small_spark")
def test_a_killed_worker_loses_no_row_and_doubles_only_under_the_same_id(shelf):
    result, log = run(shelf)
    for report in (result["plain"], result["delivered"]):
        assert (report["rows"], report["delivered"], report["dead_lettered"], report["accounted"]) == (
            1000,
            990,
            10,
            True,
        )
    messages = shelf.messages()
    assert {m.key for m in messages} == {b"%d" % i for i in range(1000) if i % 100}
    assert {m.key for m in shelf.letters()} == {b"%d" % i for i in range(0, 1000, 100)}
    by_id = {}
    for message in messages:
        assert by_id.setdefault(message.id, message.key) == message.key
    assert len(by_id) == 990
    assert result["letters"] == len(shelf.letters())
    assert "spark.speculation is on" in log


def test_a_file_of_one_host_is_refused_on_a_cluster_of_several(shelf_path):
    url = "crate:///var/orders"
    for master in ("local[2]", "local-cluster[2,1,1024]", None):
        refuse_one_host(url, master, shared_mount=False)
    refuse_one_host(url, "spark://host:7077", shared_mount=True)
    refuse_one_host("shelf:///x", "yarn", shared_mount=False)
    for master in ("yarn", "spark://host:7077", "k8s://host"):
        with pytest.raises(ConfigurationError, match="sharedMount=true"):
            refuse_one_host(url, master, shared_mount=False)
