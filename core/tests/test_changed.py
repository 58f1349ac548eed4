"""Which tests `nox -s quick` runs for what changed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = {"core/tests/test_workspace.py", "core/tests/test_seeds.py"}
CONFORMANCE = "--ignore-glob=*_conformance.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("changed", ROOT / ".ci/changed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plugins_file_means_that_plugins_tests_without_spark_and_the_suite(script):
    found = script.chosen(["plugins/file/src/redelivery_file/__init__.py", "plugins/file/pyproject.toml"])
    assert {each for each in found if not each.startswith("--ignore=")} == {"plugins/file/tests", *ALWAYS, CONFORMANCE}


def test_a_file_of_core_means_cores_tests_without_spark_and_what_is_slow(script):
    found = script.chosen(["core/src/redelivery/provisioning.py"])
    assert [each for each in found if not each.startswith("--")] == ["core/tests"]
    assert {f"--ignore={each}" for each in script.SLOW} <= set(found)
    assert "--ignore=core/tests/spark/test_spark_write.py" in found


def test_a_changed_test_runs_whatever_it_needs(script):
    slow, spark = script.SLOW[0], "core/tests/spark/test_spark_write.py"
    found = script.chosen([slow, spark])
    assert not {f"--ignore={slow}", f"--ignore={spark}"} & set(found)
    assert "--ignore=core/tests/simulation" not in script.chosen(["core/tests/simulation/test_model.py"])


def test_a_file_of_the_faults_means_their_tests(script):
    found = script.chosen(["faults/checker.py", "faults/results/sqlite-3.40.1.json"])
    assert {each for each in found if not each.startswith("--ignore=")} == {"faults/tests", *ALWAYS, CONFORMANCE}


def test_documents_and_pins_add_nothing(script):
    for path in ("README.md", "plugins/file/README.md", "constraints.txt", "pyproject.toml", "docs/seeds.md"):
        assert {each for each in script.chosen([path]) if not each.startswith("--ignore=")} == {*ALWAYS, CONFORMANCE}


def test_what_is_left_out_exists(script):
    assert [each for each in [*script.SLOW, *script.ALWAYS] if not (ROOT / each).exists()] == []


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

    with pytest.raises(SystemExit, match="no git clone"):
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
