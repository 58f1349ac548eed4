"""docs/seeds.md and the README's invariants as data: each statement, where it lives, which tests show it.

Run as a script it compares both with what passed: `python core/tests/seed_table.py FOLDER`. The folder holds one
folder of JUnit files for each session, as the noxfile has them written.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/seeds.md"
DECISIONS = ROOT / "docs/decisions"
#: A statement of the suite is a test of each broker's own module: there it has the name alone.
SUITE = "conformance_tests/src/"
_STATED = SUITE + "redelivery_conformance/suite"

#: Each invariant of the README, by its number there, and the tests that state it.
INVARIANTS: dict[int, tuple[str, ...]] = {
    1: (
        f"{_STATED}/publishing.py::Publishing::test_a_confirmed_message_is_stored_once",
        f"{_STATED}/publishing.py::Publishing::test_a_row_is_stored_by_the_time_it_is_confirmed",
        "core/tests/test_engine.py::test_a_row_counts_as_handled_only_when_a_sink_has_confirmed_it",
    ),
    2: (
        "core/tests/test_delivery.py::test_rows_written_are_accounted_for_and_connections_come_back",
        "core/tests/test_engine.py::test_allow_skip_counts_and_logs_what_it_skips",
    ),
    3: (
        "core/tests/test_engine.py::test_a_lost_connection_makes_everything_in_flight_ambiguous_under_the_same_ids",
        f"{_STATED}/failures.py::Failures::test_the_account_explains_every_duplicate_of_an_outage",
    ),
    4: (
        "core/tests/test_engine.py::test_a_dead_letter_keeps_the_original_and_says_why",
        "core/tests/test_dialects_properties.py::test_strip_gives_back_the_message_whatever_the_limits",
        "core/tests/test_dialects_properties.py::test_attempts_add_up_over_all_lives",
    ),
    5: ("core/tests/test_engine.py::test_a_failing_sink_surfaces_the_primary_error",),
    6: (
        "core/tests/test_settings.py::test_no_password_in_a_url_is_shown",
        "core/tests/spark/test_spark_options.py::test_a_password_in_a_url_is_refused_and_not_shown",
        "core/tests/test_settings.py::test_a_password_in_a_url_is_refused_and_not_shown",
        "core/tests/test_dialects_properties.py::test_no_secret_reaches_a_letter",
        f"{_STATED}/secrecy.py::Secrecy::test_a_password_in_a_url_shows_nowhere_when_all_fails",
    ),
    7: (
        f"{_STATED}/settling.py::Settling::test_a_batch_is_settled_by_its_deadline",
        "core/tests/test_delivery.py::test_a_plugin_that_hangs_does_not_hang_the_job",
        "core/tests/test_engine.py::test_a_batch_that_is_never_settled_fails_the_job",
        "core/tests/test_outages.py::test_a_job_into_a_black_hole_ends_within_the_stated_time",
        "core/tests/test_outages.py::test_and_so_it_does_where_its_sinks_are_black_holes_too",
    ),
    8: (
        "core/tests/test_engine.py::test_a_waiting_record_never_holds_up_its_neighbours",
        "core/tests/test_engine.py::test_the_culprit_of_a_failed_batch_is_found_and_its_neighbours_are_delivered",
        "core/tests/test_plugins.py::test_a_plugin_that_fails_is_named_with_its_cause_and_harms_no_other",
    ),
    9: ("core/tests/test_dialects_properties.py::test_limits_are_respected_and_the_message_is_never_held_back",),
    10: (
        "core/tests/test_workspace.py::test_a_plugin_waits_only_where_it_can_be_woken",
        f"{_STATED}/settling.py::Settling::test_a_refused_row_is_tried_once",
    ),
    11: (
        "core/tests/test_identity.py::test_whatever_makes_a_letter_another_one_gives_it_another_identity",
        "core/tests/test_identity.py::test_two_letters_share_an_identity_only_where_they_say_the_same",
        "core/tests/test_letters_of_others.py::test_an_applications_own_id_is_never_taken_for_one_of_ours",
    ),
    12: (
        f"{_STATED}/fidelity.py::Fidelity::test_a_foreign_letter_is_redriven_as_it_was",
        f"{_STATED}/fidelity.py::Fidelity::test_a_foreign_message_that_dies_here_is_redriven_as_it_was",
        f"{_STATED}/fidelity.py::Fidelity::test_looking_at_a_foreign_letter_changes_nothing",
    ),
    13: (
        "core/tests/test_redriving.py::test_under_to_no_target_of_a_letter_is_followed_whatever_its_headers_say",
        "core/tests/test_redriving.py::test_a_column_that_routes_is_a_target_too",
    ),
    14: (
        f"{_STATED}/splits.py::Splits::test_splits_together_show_every_letter_once",
        "core/tests/spark/test_spark_letter_columns.py::test_columns_are_rows",
        "core/tests/test_letter_batches.py::test_batches_of_letters_are_bounded",
    ),
}

_ROW = re.compile(r"^\| ([A-Z]\d*\.\d+(?: [A-Z]\d*\.\d+)*) \|(.*)\|\s*$", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Statement:
    """One row.

    Attributes:
        numbers: `K1.3`: of a text and a statement; several where two texts say the same.
        says: the statement.
        places: where it lives: dotted names.
        tests: node ids without parameters.
        differs: how we differ, with links to the records; empty where we do not.
    """

    numbers: tuple[str, ...]
    says: str
    places: tuple[str, ...]
    tests: tuple[str, ...]
    differs: str


def statements() -> list[Statement]:
    """Every row of the table."""
    found = []
    for numbers, rest in _ROW.findall(TABLE.read_text(encoding="utf-8")):
        says, places, tests, differs = (cell.strip() for cell in rest.split(" | "))
        quoted = tuple(_QUOTED.findall(places)), tuple(_QUOTED.findall(tests))
        found.append(Statement(tuple(numbers.split()), says, *quoted, differs.strip(" |")))
    return found


def is_there(place: str) -> bool:
    """Whether a dotted name (package, module, class, function, attribute) is in a source folder."""
    parts = place.split(".")
    for source in (ROOT / "core/src", *sorted(ROOT.glob("plugins/*/src")), ROOT / SUITE):
        for end in range(len(parts), 0, -1):
            path = source.joinpath(*parts[:end])
            module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if module.is_file() and _defines(module, tuple(parts[end:])):
                return True
    return False


def is_a_test(node: str) -> bool:
    """Whether a node id names an existing test."""
    path, *names = node.split("::")
    file = ROOT / path
    return file.is_file() and names[-1].startswith("test_") and _defines(file, tuple(names))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _defines(path: Path, names: tuple[str, ...]) -> bool:
    node: ast.AST = _parsed(path)
    for name in names:
        inside = [each for each in ast.iter_child_nodes(node) if name in _names(each)]
        if not inside:
            return False
        node = inside[-1]
    return True


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {each.id for each in targets if isinstance(each, ast.Name)}


def passed(folder: Path) -> Iterator[tuple[str, str]]:
    """Module (dotted, with its class) and name of every test that passed at least once."""
    for file in sorted(folder.rglob("*.xml")):
        for case in ET.parse(file).iter("testcase"):  # noqa: S314 - our own pytest wrote it
            if not any(each.tag in {"failure", "error", "skipped"} for each in case):
                yield case.get("classname", ""), case.get("name", "").partition("[")[0]


def not_shown(folder: Path) -> list[str]:
    """What the runs in a folder did not show: the tests of the table and of the invariants of which none has passed."""
    for session in ("unit", "conformance"):
        if not list(folder.glob(f"{session}/*.xml")):
            return [f"nothing is known of the session {session!r}; run it first: nox -s tests seeds"]
    found = set(passed(folder))
    names = {name for _, name in found}
    missing = []
    stated = [(" ".join(each.numbers), each.tests) for each in statements()]
    for what, nodes in [*stated, *((f"invariant {number}", nodes) for number, nodes in INVARIANTS.items())]:
        for node in nodes:
            path, *within = node.split("::")
            module = ".".join([path.removesuffix(".py").replace("/", "."), *within[:-1]])
            if not (within[-1] in names if path.startswith(SUITE) else (module, within[-1]) in found):
                missing.append(f"{what}: failed, skipped or not run: {node}")
    return missing


if __name__ == "__main__":
    raise SystemExit("\n".join(not_shown(Path(sys.argv[1]))) or 0)
