"""The workspace keeps its own rules: one version, no address, no broker's name in core, each invariant tested."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from redelivery.broker import BrokerPlugin
from redelivery.cli import options_page
from redelivery.cli.plugins import as_markdown
from redelivery.plugins import Registry, registry
from redelivery.settings import holds_secret

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [
    ROOT / "pyproject.toml",
    ROOT / "core/pyproject.toml",
    ROOT / "conformance_tests/pyproject.toml",
    *sorted(ROOT.glob("plugins/*/pyproject.toml")),
]
#: Files that are part of the project, wherever it was unpacked; not what tools leave behind.
FOLDERS = ("core", "plugins", "conformance_tests", "examples", "benchmarks", "docs", ".ci")
FILES = [
    path
    for folder in ("", *FOLDERS)
    for path in sorted((ROOT / folder).rglob("*") if folder else ROOT.glob("*"))
    if path.is_file() and path.name != "uv.lock" and path.suffix != ".pyc"
    if not any(part.startswith(".") and part != ".ci" for part in path.relative_to(ROOT).parts)
]
MODULES = [path for path in FILES if path.suffix == ".py"]
SOURCES = [path for path in MODULES if "src" in path.parts]

#: Each invariant of the README, and the tests that state it.
INVARIANTS: dict[int, tuple[str, ...]] = {
    1: (
        "test_a_confirmed_message_is_stored_once",
        "test_a_row_is_stored_by_the_time_it_is_confirmed",
        "test_a_row_counts_as_handled_only_when_a_sink_has_confirmed_it",
    ),
    2: (
        "test_rows_written_are_accounted_for_and_connections_come_back",
        "test_allow_skip_counts_and_logs_what_it_skips",
    ),
    3: (
        "test_a_lost_connection_makes_everything_in_flight_ambiguous_under_the_same_ids",
        "test_the_account_explains_every_duplicate_of_an_outage",
    ),
    4: (
        "test_a_dead_letter_keeps_the_original_and_says_why",
        "test_strip_gives_back_the_message_whatever_the_limits",
        "test_attempts_add_up_over_all_lives",
    ),
    5: ("test_a_failing_sink_surfaces_the_primary_error",),
    6: (
        "test_no_password_in_a_url_is_shown",
        "test_a_password_in_a_url_is_refused_and_not_shown",
        "test_no_secret_reaches_a_letter",
        "test_a_password_never_shows",
    ),
    7: (
        "test_a_batch_is_settled_by_its_deadline",
        "test_a_plugin_that_hangs_does_not_hang_the_job",
        "test_a_batch_that_is_never_settled_fails_the_job",
        "test_a_job_into_a_black_hole_ends_within_the_stated_time",
        "test_and_so_it_does_where_its_sinks_are_black_holes_too",
    ),
    8: (
        "test_a_waiting_record_never_holds_up_its_neighbours",
        "test_the_culprit_of_a_failed_batch_is_found_and_its_neighbours_are_delivered",
        "test_a_plugin_that_fails_is_named_with_its_cause_and_harms_no_other",
    ),
    9: ("test_limits_are_respected_and_the_message_is_never_held_back",),
    10: ("test_no_plugin_sleeps_or_retries", "test_a_refused_row_is_tried_once"),
}


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_every_distribution_has_the_same_version() -> None:
    assert len({project(path)["project"]["version"] for path in PROJECTS}) == 1


@pytest.mark.parametrize("path", PROJECTS, ids=relative(PROJECTS))
def test_our_distributions_require_each_other_in_that_very_version(path: Path) -> None:
    data = project(path)["project"]
    wanted = chain(data.get("dependencies", []), *data.get("optional-dependencies", {}).values())
    ours = [requirement for requirement in wanted if requirement.startswith("redelivery")]
    assert [each for each in ours if not each.endswith(f"=={data['version']}")] == []


def test_what_is_installed_has_the_version_of_the_workspace() -> None:
    for path in PROJECTS[1:]:
        data = project(path)["project"]
        assert importlib.metadata.version(data["name"]) == data["version"]


@pytest.mark.parametrize("path", PROJECTS, ids=relative(PROJECTS))
def test_every_distribution_says_what_it_is(path: Path) -> None:
    data = project(path)["project"]
    assert data["description"]
    assert data["license"] == "Apache-2.0"
    assert data["requires-python"] == ">=3.11"
    assert (path.parent / data["readme"]).is_file()


def test_every_dependency_is_pinned() -> None:
    pinned = set(re.findall(r"(?m)^([A-Za-z0-9._-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8")))
    for path in PROJECTS:
        data = project(path)
        lists = [data["project"].get("dependencies", []), *data["project"].get("optional-dependencies", {}).values()]
        for requirement in chain(*lists, *data.get("dependency-groups", {}).values()):
            name = re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower()
            assert name in pinned or name.startswith("redelivery"), requirement


def test_no_package_index_is_named() -> None:
    address = re.compile(
        r"(?m)^\s*(--)?(extra-)?index(-url)?\b|find-links\s*=|https?://\S*(pypi|simple|artifact|nexus|maven)"
    )
    found = [
        path
        for path in FILES
        if path.suffix in {".txt", ".toml", ".cfg", ".yaml", ".yml"} and address.search(text(path))
    ]
    assert relative(found) == []


def test_no_path_of_a_machine_is_in_a_file() -> None:
    home = re.compile(r"(?<![\w.])/(?:root|home|Users|work)/\w")
    assert relative([path for path in FILES if home.search(text(path))]) == []


def test_modules_are_small() -> None:
    large = {str(path.relative_to(ROOT)): count for path in SOURCES if (count := text(path).count("\n")) > 450}
    assert set(large) - {"core/src/redelivery/broker.py"} == set()  # the contract is to be read as one file


@pytest.mark.parametrize("path", SOURCES, ids=relative(SOURCES))
def test_every_module_says_its_duty_first(path: Path) -> None:
    assert ast.get_docstring(ast.parse(text(path)))


def test_core_names_no_broker() -> None:
    brokers = re.compile(r"kafka|rabbit|amqp|sqs|boto|service.?bus", re.IGNORECASE)
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in SOURCES
        if path.is_relative_to(ROOT / "core") and "dialects" not in path.parts
        for word in code_words(path)
        if brokers.search(word)
    }
    assert found == set()


def test_shared_tests_name_no_broker() -> None:
    brokers = re.compile(r"kafka|rabbit|amqp|sqs|boto|service.?bus|sqlite", re.IGNORECASE)
    shared = [path for path in SOURCES if path.is_relative_to(ROOT / "conformance_tests")]
    found = {
        f"{path.relative_to(ROOT)}: {word}" for path in shared for word in code_words(path) if brokers.search(word)
    }
    assert found == set()


def test_core_imports_no_plugin() -> None:
    for path in SOURCES:
        if path.is_relative_to(ROOT / "core"):
            for node in ast.walk(ast.parse(text(path))):
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not [name for name in names if name.startswith("redelivery_")], path


def test_no_plugin_sleeps_or_retries() -> None:
    own = re.compile(r"^(sleep|tenacity|backoff|retrying|stamina)$")
    plugins = [path for path in SOURCES if path.is_relative_to(ROOT / "plugins")]
    found = {f"{path.relative_to(ROOT)}: {word}" for path in plugins for word in code_words(path) if own.match(word)}
    assert plugins
    assert found == set()


@pytest.mark.parametrize("number", INVARIANTS)
def test_every_invariant_has_a_test_by_name(number: int) -> None:
    there = {node.name for path in MODULES for node in functions(path) if node.name.startswith("test_")}
    missing = [name for name in INVARIANTS[number] if name not in there]
    assert INVARIANTS[number], f"no test states invariant {number}"
    assert missing == []


def test_no_two_test_files_have_one_name() -> None:
    names = [path.name for path in MODULES if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def our_plugins() -> dict[str, BrokerPlugin]:
    """Those of the workspace; other tests of the same process may have registered more."""
    ours = [path.parent.name for path in PROJECTS if path.parent.parent.name == "plugins"]
    found = {name: plugin for name, plugin in registry().plugins.items() if name in ours}
    assert sorted(found) == ours, registry().failed
    return found


def test_the_readme_shows_the_capabilities_as_they_are() -> None:
    readme = text(ROOT / "README.md")
    shown = readme.partition("<!-- capabilities -->\n")[2].partition("\n<!-- end -->")[0]
    assert shown == as_markdown(Registry(our_plugins(), {}, ())), (
        "run: redelivery plugins --markdown, and put its output into README.md"
    )


def test_the_page_of_options_shows_them_as_they_are() -> None:
    assert text(ROOT / "docs/options.md") == options_page.as_markdown(Registry(our_plugins(), {}, ())) + "\n", (
        "run: redelivery plugins --options > docs/options.md"
    )


def test_every_option_that_is_a_secret_is_known_as_one() -> None:
    """Spark shows options in plans and logs, so there a secret is refused unless it is a reference."""
    for plugin in our_plugins().values():
        asked = {name for name, text in plugin.options.items() if "reference" in text}
        assert asked == {name for name in plugin.options if holds_secret(name)}, plugin.name


def test_every_plugin_has_a_readme_with_its_mapping_and_its_gaps() -> None:
    for path in PROJECTS:
        if path.parent.parent.name == "plugins":
            assert (path.parent / "README.md").is_file(), path.parent.name


def test_the_check_is_the_readmes_command() -> None:
    command = text(ROOT / ".ci/run").splitlines()[-1].removeprefix("exec ").removesuffix(' "$@"')
    assert f"\n    {command}\n" in text(ROOT / "README.md")


def test_the_bootstrap_needs_nothing_but_a_python() -> None:
    """Up to where nox is imported, noxfile.py uses the standard library alone and any Python can parse it."""
    before = text(ROOT / "noxfile.py").partition("\nimport nox")[0]
    tree = ast.parse(before, feature_version=(3, 8))
    names = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(ast.parse(text(path))) if isinstance(node, ast.FunctionDef))


def code_words(path: Path) -> Iterator[str]:
    """Names and texts of a module, without its comments and docstrings: what it does, not what it explains."""
    tree = ast.parse(text(path))
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(word)) if id(node) not in explained:
                yield word
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.FunctionDef(name=word) | ast.ClassDef(name=word):
                yield word
            case ast.alias(name=word) | ast.arg(arg=word):
                yield word
