"""The suite; and that this form uses no part of the kit."""

import subprocess
import sys

from redelivery_conformance import BrokerSuite

FOREIGN = """
import sys
import redelivery_plainlmdb
import redelivery_plainlmdb.client.store
used = {name for name in sys.modules if name.startswith("redelivery.")}
print(*sorted(name for name in used if name.startswith("redelivery.kit")))
"""


class TestPlainLmdb(BrokerSuite):
    broker = "plainlmdb"


def test_it_imports_no_part_of_the_kit():
    done = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
