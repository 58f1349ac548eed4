"""The table of the seeds' statements is true: what it names is there, and what did not pass is told."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
import seed_table
from seed_table import Statement, statements

STATEMENTS = statements()
IDS = [" ".join(each.numbers) for each in STATEMENTS]


@pytest.mark.parametrize("statement", STATEMENTS, ids=IDS)
def test_each_statement_of_the_seeds_lives_somewhere_and_has_a_test_or_a_record(statement: Statement) -> None:
    assert len(statement.says) > 10
    assert [place for place in statement.places if not seed_table.is_there(place)] == []
    assert [node for node in statement.tests if not seed_table.is_a_test(node)] == []
    links = re.findall(r"\(decisions/([^)]+)\)", statement.differs)
    assert [link for link in links if not (seed_table.DECISIONS / link).is_file()] == []
    assert links or not statement.differs, "how we differ is in a record"
    assert links or (statement.places and statement.tests)


def test_the_statements_of_each_text_are_numbered_without_a_gap() -> None:
    numbers = [each.rpartition(".") for each in chain.from_iterable(statement.numbers for statement in STATEMENTS)]
    for text in ("K1", "K2", "F", "P", "C"):
        own = [int(number) for name, _, number in numbers if name == text]
        assert own == list(range(1, len(own) + 1)), text
        assert own, text


def test_a_renamed_test_and_a_moved_function_are_noticed() -> None:
    assert seed_table.is_there("redelivery.policy.decisions.decide")
    assert seed_table.is_there("redelivery.receiving.subscription.Subscription.terminate")
    assert not seed_table.is_there("redelivery.policy.decisions.decided")
    assert seed_table.is_a_test("core/tests/test_seeds.py::test_a_renamed_test_and_a_moved_function_are_noticed")
    assert not seed_table.is_a_test("core/tests/test_seeds.py::test_gone")
    assert not seed_table.is_a_test("core/tests/test_gone.py::test_gone")


def test_a_test_that_failed_was_skipped_or_did_not_run_is_told(tmp_path: Path) -> None:
    assert "run it first" in seed_table.not_shown(tmp_path)[0]
    of_invariants = set(chain.from_iterable(seed_table.INVARIANTS.values()))
    nodes = sorted({*chain.from_iterable(each.tests for each in STATEMENTS), *of_invariants})
    cases = []
    for node in nodes:
        path, *within = node.split("::")
        module = ".".join([path.removesuffix(".py").replace("/", "."), *within[:-1]])
        cases.append(f'<testcase classname="{module}" name="{within[-1]}[a]">')
    (tmp_path / "unit").mkdir()
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance/1.xml").write_text("<testsuites/>")

    def told(*outcomes: str) -> set[str]:
        run = [f"{case}{outcome}</testcase>" for case, outcome in zip(cases, outcomes, strict=False)]
        (tmp_path / "unit/1.xml").write_text(f"<testsuites>{''.join(run)}</testsuites>")
        return {each.rpartition(" ")[2] for each in seed_table.not_shown(tmp_path)}

    good = [""] * len(cases)
    assert told(*good) == set()
    assert told(*good[:-1]) == {nodes[-1]}
    assert of_invariants <= told() == set(nodes)
    for outcome in ("<failure/>", "<error/>", "<skipped/>"):
        assert told(*good[:-1], outcome) == {nodes[-1]}
