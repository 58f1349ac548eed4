"""The suite proves itself: every broken broker is caught by the statement meant for it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import broken_suites
import pytest
from broken import Broken

FILE = Path(broken_suites.__file__)


class Outcomes:
    """Collects what failed, by class of statements."""

    def __init__(self) -> None:
        self.failed: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when == "call":
            _, class_name, test = report.nodeid.split("::", 2)
            self.failed[class_name].add(test)


def nodeid(broken: type[Broken]) -> str:
    """The id of the statement that is meant to catch it."""
    name = broken.caught_by if "[" in broken.caught_by else f"{broken.caught_by}[memory]"
    return f"test_{name}"


@pytest.fixture(scope="module")
def failed() -> dict[str, set[str]]:
    """For each broken broker, the statements of the suite that fail; all run in this process."""
    outcomes = Outcomes()
    meant = [f"{FILE}::Test{broken.__name__}::{nodeid(broken)}" for broken in Broken.all]
    quiet = ["-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:terminal", "--import-mode=importlib"]
    pytest.main([*quiet, "-c", str(FILE.parents[2] / "pyproject.toml"), *meant], plugins=[outcomes])
    return outcomes.failed


def test_broken_brokers_have_names_of_their_own():
    assert len({broken.__name__ for broken in Broken.all}) == len(Broken.all)


@pytest.mark.parametrize("broken", Broken.all, ids=lambda broken: broken.__name__)
def test_a_broken_broker_is_caught_by_the_statement_meant_for_it(broken, failed):
    assert nodeid(broken) in failed[f"Test{broken.__name__}"]
