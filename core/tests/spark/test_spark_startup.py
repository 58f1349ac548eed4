"""What Spark's short helper processes must not pay for: they plan and commit each write, and live for a moment."""

import subprocess
import sys


def test_planning_a_write_imports_nothing_that_only_tasks_need():
    slow = {"pandas", "pyarrow.compute", "redelivery.spark.encoding", "redelivery.spark.letters_reader"}
    script = f"import sys, pyspark_redelivery, redelivery.spark.job; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
