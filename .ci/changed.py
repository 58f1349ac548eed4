"""Which tests `nox -s quick` runs: prints pytest's arguments for what changed.

Compared with `main`: with where this branch left it, and with what is not committed, new files included. Where that
shows nothing (on `main` itself, all committed), with the commit before the last. `python .ci/changed.py COMMIT`
compares with another one. No remote is needed. The rule:

- The tests of each distribution with a changed file (core, a plugin, the suite itself) and those of `faults`. Without
  Spark, without the suite against a broker (`*_conformance.py`), and without what is slow for its size (`SLOW`).
- Each changed test file, whatever it needs, but for the suite against a broker.
- Always: the rules of the workspace, and the tables of what is stated.
- What no distribution holds (`pyproject.toml`, `constraints.txt`, documents) adds nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ["core/tests/test_workspace.py", "core/tests/test_seeds.py"]
#: They take long for what they are likely to find; `nox` runs them.
SLOW = [
    "core/tests/test_outages.py",
    "core/tests/simulation",
    "core/tests/test_breaker.py",
    "core/tests/test_dialects_columns.py",
    "core/tests/test_operating_document.py",
    "core/tests/test_returned.py",
    "core/tests/test_watch.py",
    "core/tests/ui/browser",
    "conformance_tests/tests/test_suite_catches.py",
]


def changed(compared: str | None = None) -> list[str]:
    """Return files that differ from a commit, and untracked ones. SystemExit: this folder is not a git clone."""
    if not _git("rev-parse", "HEAD"):
        raise SystemExit("this is no git clone with a commit, so nothing says what changed: nox -s unit -- PATH")
    new = _git("ls-files", "--others", "--exclude-standard")
    if compared is None:
        [compared] = _git("merge-base", "HEAD", "main") or _git("merge-base", "HEAD", "origin/main") or ["HEAD"]
        compared = compared if new or _git("diff", "--name-only", compared) else "HEAD~1"
    return sorted({*_git("diff", "--name-only", compared), *new})


def chosen(paths: list[str]) -> list[str]:
    """Arguments for pytest: folders and files of tests, and what of them is left out."""
    folders = sorted({folder for each in paths if (folder := tests_of(PurePosixPath(each)))})
    files = [each for each in paths if _is_test(PurePosixPath(each)) and (ROOT / each).exists()]
    left_out = [each for each in SLOW if not any(PurePosixPath(name).is_relative_to(each) for name in files)]
    left_out += [str(each.relative_to(ROOT)) for folder in folders for each in (ROOT / folder).rglob("test_*spark*.py")]
    ignored = [f"--ignore={each}" for each in left_out if each not in files]
    within = [each for each in files if not any(each.startswith(f"{folder}/") for folder in folders)]
    always = [each for each in ALWAYS if "core/tests" not in folders and each not in within]
    return [*folders, *within, *always, "--ignore-glob=*_conformance.py", *ignored]


def tests_of(path: PurePosixPath) -> str | None:
    """The folder of the tests of a file's distribution: `plugins/kafka/tests`. None: no distribution of ours has it."""
    if path.suffix == ".md" or path.parts[0] == "examples":
        return None
    if path.parts[0] == "faults":
        return "faults/tests"
    has_tests = (
        each for each in path.parents if (ROOT / each / "pyproject.toml").is_file() and (ROOT / each / "tests").is_dir()
    )
    return next((f"{each}/tests" for each in has_tests), None)


def _is_test(path: PurePosixPath) -> bool:
    named = path.name.startswith("test_") and path.suffix == ".py" and not path.stem.endswith("_conformance")
    return named and "tests" in path.parts and path.parts[0] != "examples"


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


if __name__ == "__main__":
    print(*chosen(changed(*sys.argv[1:2])), sep="\n")
