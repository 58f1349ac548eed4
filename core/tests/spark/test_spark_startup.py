"""What the short processes of a write must not pay for: those that plan and commit it, and those that run its tasks.

Only what is ours counts. pyarrow imports pandas in each task, with the first value that it takes from Python, and our
digests need it; Spark alone would not. Before 4.2 Spark imports numpy everywhere.
"""

import subprocess
import sys

import pytest

#: What a write of plain rows does without.
_SLOW = {"cloudevents.core.formats.json", "cryptography", "jsonpatch", "jsonschema", "opentelemetry.sdk", "rich"}
_SLOW |= {"yaml", "redelivery.deadletters", "redelivery.spark.letters_reader", "redelivery.ui"}
#: What only tasks need; pandas imports dateutil and six.
_OF_TASKS = {"dateutil", "numpy", "pandas", "pyarrow", "redelivery.spark.encoding", "six"}

_PLAN = """
from pyspark.sql.types import StringType, StructType
from pyspark_redelivery import DefaultSource
schema = StructType().add("value", StringType())
options = {"url": "sqlite:a.db?queue=q", "retry": "3", "backoffDelay": "PT1S", "deadLetterSink": "dead"}
writer = DefaultSource(options).writer(schema, overwrite=False)
writer.commit([])
"""
_TASK = """
import pandas, pyarrow
from redelivery.spark.job import deliver_partition
rows = pyarrow.record_batch([pyarrow.array(["a"])], ["value"])
report, _ = deliver_partition(writer.job, iter([rows]))
assert report.delivered == 1, report
"""


@pytest.mark.parametrize(("script", "slow"), [(_PLAN, _SLOW | _OF_TASKS), (_PLAN + _TASK, _SLOW)], ids=["plan", "task"])
def test_a_write_of_plain_rows_imports_only_what_it_needs(tmp_path, script, slow):
    told = f"print(sorted({slow} & (set(sys.modules) - sparks)))"
    made = "import sqlite3, sys\nimport pyspark\nsparks = set(sys.modules)\nsqlite3.connect('a.db').close()\n"
    done = subprocess.run(
        [sys.executable, "-c", made + script + told], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
