"""Which tests `nox -s quick` runs: prints the test files for what changed, one line for each process.

Compared with `main`: with where this branch left it, and with what is not committed, new files included. Where that
shows nothing (on `main` itself, all committed), with the commit before the last. `python .ci/changed.py COMMIT`
compares with another one. No remote is needed. The rule:

- The tests of each distribution with a changed file (core, a plugin, the suite itself) and those of `faults`. Without
  Spark, without the suite against a broker (`*_conformance.py`), and without what is slow for its size (`SLOW`).
- Each changed test file, whatever it needs, but for the suite against a broker.
- Always: the rules of the workspace, and the tables of what is stated.
- What no distribution holds (`pyproject.toml`, `constraints.txt`, documents) adds nothing.

The processes are balanced by the seconds that each file took in the last run, of any session, in this clone; where none
is known, by its size.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
#: Results of earlier runs, a folder for each session.
PASSED = ".nox/passed"
#: More than processors, so that one that takes longer than expected does not run alone for long.
PROCESSES = 3
#: Fewer tests are not worth another process, which takes seconds to start.
FEWEST = 8
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
        raise SystemExit(
            "this folder is not a git clone with a commit: name the tests to run, as in nox -s unit -- PATH"
        )
    new = _git("ls-files", "--others", "--exclude-standard")
    if compared is None:
        [compared] = _git("merge-base", "HEAD", "main") or _git("merge-base", "HEAD", "origin/main") or ["HEAD"]
        compared = compared if new or _git("diff", "--name-only", compared) else "HEAD~1"
    return sorted({*_git("diff", "--name-only", compared), *new})


def chosen(paths: Iterable[str]) -> list[str]:
    """Return the test files to run for these changed files, sorted."""
    tests = {each for each in paths if _is_test(PurePosixPath(each)) and (ROOT / each).exists()}
    folders = {folder for each in paths if (folder := tests_of(PurePosixPath(each)))}
    # A changed test of a folder that is slow brings the folder: it may be what the others share.
    slow = [each for each in SLOW if not any(PurePosixPath(name).is_relative_to(each) for name in tests)]
    found = {path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("test_*.py")}
    for path in found:
        needs_spark, is_slow = "spark" in path.name, any(path.is_relative_to(each) for each in slow)
        if _is_test(PurePosixPath(path)) and not needs_spark and not is_slow:
            tests.add(path.as_posix())
    return sorted({*tests, *ALWAYS})


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


def measured() -> dict[str, float]:
    """Return the seconds that each test file took, in the newest result that has it."""
    seconds: dict[str, float] = {}
    for result in sorted(ROOT.glob(f"{PASSED}/*/*.xml"), key=lambda path: path.stat().st_mtime):
        found: defaultdict[str, float] = defaultdict(float)
        try:
            for case in ET.parse(result).iter("testcase"):  # noqa: S314 - our own pytest wrote it
                found[_file_of(case.get("classname", ""))] += float(case.get("time", 0))
        except (ET.ParseError, ValueError):  # of a run that was killed
            continue
        seconds |= found
    return seconds


def balanced(files: Iterable[str], seconds: Mapping[str, float], processes: int = PROCESSES) -> list[list[str]]:
    """Return the files in groups that take about the same time; fewer than `processes` of few files.

    Args:
        files: the test files.
        seconds: what is known of them. A file of which nothing is known counts by its size.
        processes: how many groups.
    """
    sizes = {each: (ROOT / each).stat().st_size for each in files}
    known = [each for each in sizes if each in seconds]
    per_byte = sum(seconds[each] for each in known) / sum(sizes[each] for each in known) if known else 1.0
    weights = {each: seconds.get(each, size * per_byte) for each, size in sizes.items()}
    groups: list[list[str]] = [[] for _ in range(max(1, min(processes, len(sizes) // FEWEST)))]
    spark = [each for each in weights if "spark" in Path(each).name]  # in one process: Spark takes long to start
    groups[0] += spark
    for each in sorted(weights.keys() - spark, key=lambda name: (-weights[name], name)):
        min(groups, key=lambda group: sum(weights[name] for name in group)).append(each)
    return [sorted(group) for group in groups]


def _file_of(classname: str) -> str:
    """Return the file of a test by its name in a result: `core.tests.test_flow.TestOrder`."""
    parts = classname.split(".")
    at = next((index for index, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    return f"{'/'.join(parts[: at + 1])}.py"


def _is_test(path: PurePosixPath) -> bool:
    named = path.name.startswith("test_") and path.suffix == ".py" and not path.stem.endswith("_conformance")
    return named and "tests" in path.parts and path.parts[0] != "examples"


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


if __name__ == "__main__":
    for group in balanced(chosen(changed(*sys.argv[1:2])), measured()):
        print(*group)
