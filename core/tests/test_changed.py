"""Which tests `nox -s quick` runs for what changed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = {"core/tests/test_workspace.py", "core/tests/test_seeds.py"}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("changed", ROOT / ".ci/changed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plugins_file_means_that_plugins_tests_without_spark_and_the_suite(script):
    found = script.chosen(["plugins/sqlite/src/redelivery_sqlite/__init__.py", "plugins/sqlite/pyproject.toml"])
    tests = {each.relative_to(ROOT).as_posix() for each in (ROOT / "plugins/sqlite/tests").rglob("test_*.py")}
    left_out = {each for each in tests if each.endswith("_conformance.py") or "spark" in each}
    assert left_out
    assert {*found} == {*(tests - left_out), *ALWAYS}


def test_a_file_of_core_means_cores_tests_without_spark_and_what_is_slow(script):
    found = script.chosen(["core/src/redelivery/provisioning.py"])
    assert {"core/tests/test_flow.py", "core/tests/kit/test_kit_errors.py", *ALWAYS} <= {*found}
    assert [each for each in found if not each.startswith("core/tests/")] == []
    slow = [each for each in found if any(Path(each).is_relative_to(name) for name in script.SLOW)]
    assert [*slow, *(each for each in found if "spark" in Path(each).name)] == []


def test_a_changed_test_runs_whatever_it_needs(script):
    changed = [script.SLOW[0], "core/tests/spark/test_spark_write.py"]
    assert {*changed} <= {*script.chosen(changed)}
    model = "core/tests/simulation/test_model.py"
    assert (ROOT / model).exists()
    assert {model, "core/tests/simulation/test_simulation.py"} <= {*script.chosen([model])}
    assert "core/tests/gone/test_gone.py" not in script.chosen(["core/tests/gone/test_gone.py"])


def test_a_file_of_the_faults_means_their_tests(script):
    found = script.chosen(["faults/checker.py", "faults/results/sqlite-3.40.1.json"])
    assert {Path(each).parts[0] for each in {*found} - ALWAYS} == {"faults"}


def test_documents_and_pins_add_nothing(script):
    for path in ("README.md", "plugins/file/README.md", "constraints.txt", "pyproject.toml", "docs/seeds.md"):
        assert {*script.chosen([path])} == ALWAYS


def test_what_is_left_out_exists(script):
    assert [each for each in [*script.SLOW, *script.ALWAYS] if not (ROOT / each).exists()] == []


def test_processes_are_balanced_by_the_seconds_of_each_file_and_none_is_lost(script):
    files = script.chosen(["core/src/redelivery/provisioning.py"])
    seconds = {each: 10.0 if "flow" in each else 0.5 for each in files}
    groups = script.balanced(files, seconds, 3)
    assert sorted(each for group in groups for each in group) == files
    taken = [sum(seconds[each] for each in group) for group in groups]
    assert max(taken) - min(taken) <= 0.5
    assert script.balanced(sorted(ALWAYS), {}) == [sorted(ALWAYS)], "few files are one process"


def test_changed_tests_of_spark_share_a_process(script):
    spark = ["core/tests/spark/test_spark_flow.py", "core/tests/spark/test_spark_read.py"]
    first, *others = script.balanced(script.chosen(["core/src/redelivery/provisioning.py", *spark]), {}, 3)
    assert {*spark} <= {*first}
    assert [len(each) > 1 for each in others] == [True, True]


def test_a_file_whose_seconds_are_not_known_counts_by_its_size(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "FEWEST", 1)
    for name, size in (("known", 100), ("large", 300), ("small", 100), ("tiny", 50)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert script.balanced(["known", "large", "small", "tiny"], {"known": 20.0}, 2) == [
        ["large"],
        ["known", "small", "tiny"],
    ]
    assert script.balanced(["large", "small"], {}, 2) == [["large"], ["small"]]


def test_seconds_are_those_of_the_newest_result_that_has_the_file(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    case = '<testcase classname="{}" name="test_x" time="{}"/>'
    for age, (name, *cases) in enumerate(
        [
            ("unit/1.xml", ("core.tests.test_flow", 9), ("core.tests.kit.test_kit_roles.TestRoles", 3)),
            ("quick/1.xml", ("core.tests.test_flow", 1), ("core.tests.test_flow.TestOrder", 1)),
        ]
    ):
        path = tmp_path / script.PASSED / name
        path.parent.mkdir(parents=True)
        path.write_text(
            f"<testsuites><testsuite>{''.join(case.format(*each) for each in cases)}</testsuite></testsuites>"
        )
        os.utime(path, (age, age))
    (tmp_path / script.PASSED / "quick/2.xml").write_text("<testsuites>")
    assert script.measured() == {"core/tests/test_flow.py": 2.0, "core/tests/kit/test_kit_roles.py": 3.0}


def test_changes_are_those_since_the_branch_and_what_is_not_committed(script, tmp_path, monkeypatch):
    """In a clone without a remote."""
    who = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    monkeypatch.setattr(script, "ROOT", tmp_path)

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True, env={**os.environ, **who})

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-m", name)

    with pytest.raises(SystemExit, match="not a git clone"):
        script.changed()
    git("init", "-b", "main")
    commit("first")
    commit("second")
    assert script.changed() == ["second"], "all is committed, on main"
    git("checkout", "-b", "branch")
    commit("third")
    assert script.changed() == ["third"]
    (tmp_path / "first").write_text("other")
    (tmp_path / "new").write_text("new")
    assert script.changed() == ["first", "new", "third"]
    assert script.changed("HEAD~2") == ["first", "new", "second", "third"]
