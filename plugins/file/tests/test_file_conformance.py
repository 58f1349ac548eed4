"""The conformance suite against `file:`, in both formats."""

from redelivery_conformance import BrokerSuite
from redelivery_file.testing import FileHarness


class TestFile(BrokerSuite):
    broker = "file"


class TestFilesOfMany(BrokerSuite):
    broker = FileHarness("jsonl")
