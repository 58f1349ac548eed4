"""The workspace keeps its own rules: one version, no address, no broker's name in core, each invariant tested."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from seed_table import INVARIANTS, is_a_test

from redelivery.base.urls import holds_secret
from redelivery.cli import codes_page, commands_page, options_page
from redelivery.cli.plugins import as_markdown
from redelivery.codes import MEANINGS, Code
from redelivery.contract.broker import BrokerPlugin
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Unattributed
from redelivery.registry import Registry, installed
from redelivery.spark.options import ATTRIBUTES

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [
    ROOT / "pyproject.toml",
    ROOT / "core/pyproject.toml",
    ROOT / "conformance_tests/pyproject.toml",
    *sorted(ROOT.glob("plugins/*/pyproject.toml")),
    *sorted(ROOT.glob("plugins/*/standin/pyproject.toml")),
]
#: Files that are part of the project, wherever it was unpacked; not what tools leave behind.
FOLDERS = ("core", "plugins", "conformance_tests", "examples", "benchmarks", "faults", "docs", ".ci")
FILES = [
    path
    for folder in ("", *FOLDERS)
    for path in sorted((ROOT / folder).rglob("*") if folder else ROOT.glob("*"))
    if path.is_file() and path.name != "uv.lock" and path.suffix != ".pyc"
    if not any(part.startswith(".") and part != ".ci" for part in path.relative_to(ROOT).parts)
]
MODULES = [path for path in FILES if path.suffix == ".py"]
SOURCES = [path for path in MODULES if "src" in path.parts]
#: Libraries that wait and try again.
RETRYING = re.compile(r"(tenacity|backoff|retrying|retry|stamina|pyfailsafe)(\.|$)")
#: The numbers of the promises in the README.
README_INVARIANTS = re.findall(r"(?m)^(\d+)\. ", (ROOT / "README.md").read_text(encoding="utf-8"))


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


def test_every_distribution_names_the_pythons_on_which_its_tests_passed() -> None:
    page = (ROOT / "docs/spark_versions.md").read_text(encoding="utf-8")
    head, *rows = (line.strip("| ").split("|") for line in re.findall(r"(?m)^\| (?:distribution|redelivery).*", page))
    versions = [re.sub(r"\.\d+$", "", each.strip()) for each in head[1:]]
    passed = {
        name.strip(): [each for each, cell in zip(versions, cells, strict=False) if cell.strip().startswith("yes")]
        for name, *cells in rows
    }
    assert {(data := project(path)["project"])["name"]: pythons(data["classifiers"]) for path in PROJECTS} == passed


def pythons(classifiers: list[str]) -> list[str]:
    """Return the versions of Python that classifiers name, such as `3.11`, in their order."""
    return re.findall(r"(?m)^Programming Language :: Python :: (3\.\d+)$", "\n".join(classifiers))


@pytest.mark.parametrize("path", PROJECTS, ids=relative(PROJECTS))
def test_every_distribution_says_what_it_is(path: Path) -> None:
    data = project(path)["project"]
    assert data["description"]
    assert data["license"].startswith("Apache-2.0")
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


#: The parts of a plugin: one word for one duty, whichever broker it is. `client` is what only its client needs, and
#: `broker` what is imported when a URL is opened.
ALWAYS = {"__init__", "address", "codec", "errors", "testing"}
WHERE_IT_CAN = {"send": "sender", "receive": "receiver", "browse": "dead_letters", "provision": "admin"}
PLUGIN_FILES = ALWAYS | set(WHERE_IT_CAN.values()) | {"broker", "options", "client"}


def plugin_files() -> dict[str, set[str]]:
    """The modules and folders of each plugin, by its name."""
    packages = [*ROOT.glob("plugins/*/src/redelivery_*"), *ROOT.glob("examples/*/src/redelivery_*")]
    return {
        package.name.removeprefix("redelivery_"): {
            each.stem for each in package.iterdir() if each.name not in {"py.typed", "__pycache__"}
        }
        for package in packages
    }


def test_every_plugin_has_the_same_files() -> None:
    found = plugin_files()
    assert len(found) > 5
    unlike = {name: sorted(files - PLUGIN_FILES | ALWAYS - files) for name, files in found.items()}
    assert {name: files for name, files in unlike.items() if files} == {}


def test_a_plugin_has_a_file_for_each_role_that_it_has_and_for_its_options() -> None:
    files = plugin_files()
    for name, plugin in our_plugins().items():
        wanted = {file for role, file in WHERE_IT_CAN.items() if getattr(plugin.capabilities, role)}
        wanted |= {"options"} if plugin.options else set()
        assert wanted == files[name] & {*WHERE_IT_CAN.values(), "options"}, name


@pytest.mark.parametrize("path", SOURCES, ids=relative(SOURCES))
def test_every_module_says_its_duty_first(path: Path) -> None:
    assert ast.get_docstring(ast.parse(text(path)))


def bound(tree: ast.Module) -> set[str]:
    """Return the names that a module's own statements bind."""
    found = set()
    for each in tree.body:
        if isinstance(each, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in each.names}
        elif isinstance(each, ast.ClassDef | ast.FunctionDef):
            found.add(each.name)
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(each, ast.If):
            found |= bound(ast.Module([*each.body, *each.orelse], []))
    return found


def exported(tree: ast.Module) -> set[str]:
    """The names of a module's `__all__`."""
    lists = [each.value for each in tree.body if isinstance(each, ast.Assign) and ast.unparse(each).startswith("__all")]
    return {name for each in lists for name in ast.literal_eval(each)}


def is_lazy(tree: ast.Module) -> bool:
    """Whether a module makes its names only when they are asked for."""
    return "__getattr__" in bound(tree)


def test_every_exported_name_is_there() -> None:
    trees = {path: ast.parse(text(path)) for path in SOURCES}
    assert any(map(exported, trees.values()))
    missing = {path: sorted(exported(tree) - bound(tree)) for path, tree in trees.items() if not is_lazy(tree)}
    assert {path: names for path, names in missing.items() if names} == {}


def test_every_module_that_a_text_names_is_there() -> None:
    there = [f"/{each}" for each in relative(MODULES)]
    named = re.compile(r"`([\w./]*\w\.py)\b")
    texts = [path for path in FILES if path.suffix in {".md", ".py"} and path.name != "CHANGELOG.md"]
    found = [(path.name, name) for path in texts for name in named.findall(text(path))]
    assert found
    assert [each for each in found if not any(path.endswith(f"/{each[1]}") for path in there)] == []


def described(docstring: str) -> set[str]:
    """The names of a docstring's sections on arguments and attributes."""
    sections = re.findall(r"(?m)^(?:Args|Attributes):\n((?: {4}.*\n|\n)+)", f"{docstring}\n")
    lines = [each for section in sections for each in re.findall(r"(?m)^ {4}(\w[\w, ]*):(?: |$)", section)]
    return {name.strip() for line in lines for name in line.split(",")}


def mentioned(tree: ast.AST) -> set[str]:
    """The names of arguments, attributes, variables and functions anywhere in a class or function."""
    named = ((ast.arg, "arg"), (ast.Attribute, "attr"), (ast.Name, "id"), (ast.FunctionDef, "name"))
    return {getattr(each, name) for each in ast.walk(tree) for kind, name in named if isinstance(each, kind)}


def test_every_argument_and_attribute_that_a_docstring_describes_is_there() -> None:
    found = [
        (str(path.relative_to(ROOT)), each.name, name)
        for path in SOURCES
        for each in ast.walk(ast.parse(text(path)))
        if isinstance(each, ast.ClassDef | ast.FunctionDef)
        for name in sorted(described(ast.get_docstring(each) or "") - mentioned(each))
    ]
    assert found == []


#: Not `http`, which core speaks too.
BROKERS = re.compile(r"kafka|rabbit|amqp|sqs|boto|service.?bus|jetstream|(?<![a-z])nats(?![a-z])", re.IGNORECASE)


def test_core_names_no_broker() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in SOURCES
        if path.is_relative_to(ROOT / "core") and "dialects" not in path.parts
        for word in code_words(path)
        if BROKERS.search(word)
    }
    assert found == set()


def test_core_names_no_broker_in_its_comments() -> None:
    """Except where a format is another software's own."""
    folder = ROOT / "core/src/redelivery"
    sources = [path for path in SOURCES if path.is_relative_to(folder) and not path.is_relative_to(folder / "formats")]
    assert [path.name for path in sources if BROKERS.search(path.read_text(encoding="utf-8"))] == []


def test_shared_tests_name_no_broker() -> None:
    brokers = re.compile(f"{BROKERS.pattern}|sqlite", re.IGNORECASE)
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


def test_a_plugin_waits_only_where_it_can_be_woken() -> None:
    """No sleep, by whatever name, and no library that retries.

    Whoever waits for an event uses the answer: it says that the role was closed. A condition's wait stands within its
    lock. A plugin tries each send once: the suite states that.
    """
    plugins = [
        path
        for path in SOURCES
        if path.is_relative_to(ROOT / "plugins") and not {"testing", "standin"} & set(path.parts)
    ]
    assert plugins
    assert [f"{path.relative_to(ROOT)}:{line}" for path in plugins for line in sleeps(text(path))] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import time\ntime.sleep(1)", [2]),
        ("from time import sleep as nap", [1]),
        ("from stamina import retry", [1]),
        ("import tenacity", [1]),
        ("closed.wait(1)", [1]),
        ("while left > 0:\n    self._closed.wait(left)", [2]),
        ("if threading.Event().wait(1):\n    pass", [1]),
        ("_ = closed.wait(1)", [1]),
        ("if closed.wait(1):\n    stop()", []),
        ("while not closed.wait(1):\n    look()", []),
        ("with self._lock:\n    while empty:\n        self._filled.wait(1)", []),
    ],
)
def test_a_wait_that_nobody_can_end_is_found(source: str, lines: list[int]) -> None:
    assert sleeps(source) == lines


@pytest.mark.parametrize("invariant", README_INVARIANTS)
def test_every_invariant_of_the_readme_has_tests_that_are_there(invariant: str) -> None:
    """That they passed is what the session `seeds` compares."""
    nodes = INVARIANTS[int(invariant)]
    assert nodes, f"no test states invariant {invariant}"
    assert [node for node in nodes if not is_a_test(node)] == []


def test_no_two_test_files_have_one_name() -> None:
    names = [path.name for path in MODULES if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def our_plugins() -> dict[str, BrokerPlugin]:
    """Those of the workspace; other tests of the same process may have registered more."""
    ours = [path.parent.name for path in PROJECTS if path.parent.parent.name == "plugins"]
    found = {name: plugin for name, plugin in installed().plugins.items() if name in ours}
    assert sorted(found) == ours, installed().failed
    return found


def test_the_page_of_brokers_shows_the_capabilities_as_they_are() -> None:
    page = text(ROOT / "docs/brokers.md")
    shown = page.partition("<!-- capabilities -->\n")[2].partition("\n<!-- end -->")[0]
    assert shown == as_markdown(Registry(our_plugins(), {}, ())), (
        "run: redelivery plugins --markdown, and put its output into docs/brokers.md"
    )


def test_every_document_is_in_the_navigation_of_the_site() -> None:
    """Decisions have an index instead. `nox -s docs` fails where a path in the navigation or a link leads nowhere."""
    inside = re.findall(r"(?m)^ +- (?:[^:\n]+: )?(\S+\.(?:md|ipynb))$", text(ROOT / "mkdocs.yml"))
    documents = [path for path in FILES if path.suffix in {".md", ".ipynb"} and path.parent.name != "decisions"]
    assert sorted(set(inside) - {"docs/decisions/README.md"}) == sorted(relative(documents))
    assert len(inside) == len(set(inside))


def test_no_brokers_word_for_a_destination_is_an_attribute_of_events() -> None:
    """The column would then send each event to the destination that its attribute names."""
    words = {plugin.capabilities.destination_column for plugin in installed().plugins.values()}
    assert words & {*ATTRIBUTES} == set()


def test_the_readme_lists_every_plugin() -> None:
    listed = re.findall(r"(?m)^\| \[`redelivery-(\w+)`\]\(plugins/\1\) \|", text(ROOT / "README.md"))
    assert sorted(listed) == sorted(our_plugins())


#: What the README says was measured, and the generated pages that say it.
MEASURED = {
    "docs/faults.md": (r"cells were run, with ([\d,]+) rows: (?:\d+) hold, 0 do not", r"([\d,]+) rows, each counted"),
    "docs/simulation.md": (r"Recorded: ([\d,]+) seeds", r"after every step: ([\d,]+) seeds"),
}


@pytest.mark.parametrize("page", MEASURED)
def test_the_readme_says_no_more_than_was_measured(page: str) -> None:
    pages = zip(MEASURED[page], (ROOT / page, ROOT / "README.md"), strict=True)
    recorded, said = (int(re.findall(pattern, text(path))[0].replace(",", "")) for pattern, path in pages)
    assert recorded >= said > 100_000


def test_the_readme_is_short() -> None:
    assert len(text(ROOT / "README.md").splitlines()) <= 120


@pytest.mark.parametrize("package", ["contract", "kit"])
def test_every_module_for_plugins_is_on_its_page_of_the_api(package: str) -> None:
    modules = (ROOT / "core/src/redelivery" / package).glob("[!_]*.py")
    shown = re.findall(r"(?m)^::: (\S+)$", text(ROOT / f"docs/api/{package}.md"))
    assert sorted(shown) == sorted(f"redelivery.{package}.{path.stem}" for path in modules)


#: Their Python is compiled only: a sketch of what others write, and a job that needs a server.
SKETCHES = {"CONTRIBUTING.md", "conformance_tests/README.md", "plugins/http/README.md"}


def test_the_python_of_every_document_runs_in_a_test() -> None:
    """Each document with code is named by the test that runs it."""
    tests = "".join(text(path) for path in MODULES if path.name.startswith("test_") and path != Path(__file__))
    with_code = {
        str(path.relative_to(ROOT)): re.findall(r"(?ms)^ *```python\n(.*?)^ *```", text(path))
        for path in FILES
        if path.suffix == ".md" and "```python" in text(path)
    }
    names = {name: name if name.endswith("README.md") else Path(name).name for name in with_code}
    assert {name for name, short in names.items() if not re.search(rf'[/"]{re.escape(short)}"', tests)} == SKETCHES
    for name in SKETCHES:
        for block in with_code[name]:
            compile(textwrap.dedent(block), name, "exec")


def test_the_page_of_options_shows_them_as_they_are() -> None:
    assert text(ROOT / "docs/options.md") == options_page.as_markdown(Registry(our_plugins(), {}, ())) + "\n", (
        "run: redelivery plugins --options > docs/options.md"
    )


def test_the_page_of_codes_shows_them_as_they_are() -> None:
    assert text(ROOT / "docs/codes.md") == codes_page.as_markdown() + "\n", (
        "run: redelivery plugins --codes > docs/codes.md"
    )


def test_the_page_of_commands_shows_them_as_they_are() -> None:
    assert text(ROOT / "docs/cli.md") == commands_page.as_markdown() + "\n", (
        "run: redelivery plugins --commands > docs/cli.md"
    )


def test_every_code_is_its_own_name_and_has_a_meaning() -> None:
    assert {code.name for code in MEANINGS} == {str(code) for code in Code}
    assert all(meaning.endswith(".") for meaning in MEANINGS.values())


#: Classes of errors that mean more than one thing, and so have no error code.
WITHOUT_A_CODE = {each.__name__ for each in (BrokerError, Retriable, Ambiguous, Permanent, Unattributed, Fatal)}


@pytest.mark.parametrize("path", SOURCES, ids=relative(SOURCES))
def test_every_error_of_a_broker_is_given_a_code(path: Path) -> None:
    calls = (node for node in ast.walk(ast.parse(text(path))) if isinstance(node, ast.Call))
    made = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id in WITHOUT_A_CODE)
    assert [call.lineno for call in made if "code" not in {each.arg for each in call.keywords}] == []


def test_every_option_that_is_a_secret_is_known_as_one() -> None:
    """Spark shows options in plans and logs, so there a secret is refused unless it is a reference."""
    for plugin in our_plugins().values():
        asked = {name for name, text in plugin.options.items() if "reference" in text}
        assert asked == {name for name in plugin.options if holds_secret(name)}, plugin.name


@pytest.mark.parametrize("name", [path.parent.name for path in PROJECTS if path.parent.parent.name == "plugins"])
def test_every_plugin_has_a_readme_with_its_mapping_gaps_errors_and_rights(name: str) -> None:
    has = our_plugins()[name].capabilities
    sections = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", text(ROOT / "plugins" / name / "README.md")))
    mapping = re.findall(r"(?m)^\| ([^|]+) \| *[^| ]", sections["Native mapping"])
    assert mapping[0] == "redelivery", "a table: what we say, and what it is on this broker"
    told = "\n".join(mapping[1:])
    wanted = {"headers": has.headers, "lease": has.receive, "`Retry(delay)`": has.receive, "`Terminate`": has.receive}
    assert [word for word, there in wanted.items() if there and word not in told] == []
    assert re.search(r"(?m)^- \S", sections["Gaps"])
    assert sections["Errors"].strip()
    assert sections["Least privilege"].strip()


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


@pytest.mark.parametrize("has_pip", [True, False], ids=["pip", "ensurepip-alone"])
def test_the_bootstrap_asks_no_environment_before_it_exists(tmp_path, monkeypatch, has_pip) -> None:
    """Debian's python3-venv brings ensurepip without pip: the new environment's own pip is asked then."""
    script = {"__name__": "noxfile", "__file__": str(tmp_path / "noxfile.py")}
    exec(text(ROOT / "noxfile.py").partition('\nif __name__ == "__main__"')[0], script)  # noqa: S102 - our own file
    (tmp_path / "constraints.txt").write_text("nox==1\nuv==1\n", encoding="utf-8")
    python, ran = tmp_path / "tools/bin/python", []

    def run(command, **_options):
        assert command[0] == sys.executable or ran, "it does not exist yet"
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: has_pip or name != "pip" or None)
    assert not script["_make_tools"](tmp_path / "tools", python)
    assert [part for part in ("venv", "uv", "nox") if any(part in " ".join(each) for each in ran)] == [
        "venv",
        "uv",
        "nox",
    ]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def sleeps(source: str) -> list[int]:
    """Lines that sleep, import what does or what retries, or wait for an event and do not ask whether it came."""
    tree = ast.parse(source)
    locked = {id(node) for each in ast.walk(tree) if isinstance(each, ast.With) for node in ast.walk(each)}
    asked = {
        id(node)
        for each in ast.walk(tree)
        if isinstance(each, ast.If | ast.While | ast.Return | ast.BoolOp | ast.UnaryOp | ast.Assert)
        for part in (each.test if hasattr(each, "test") else each,)
        for node in ast.walk(part)
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                bad = any(RETRYING.match(each.name) for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                bad = bool(RETRYING.match(module)) or any(each.name == "sleep" for each in names)
            case ast.Attribute(attr="sleep"):
                bad = True
            case ast.Call(func=ast.Attribute(value=owner, attr="wait")):
                bad = isinstance(owner, ast.Call) or (id(node) not in asked and id(node) not in locked)
            case _:
                bad = False
        if bad:
            found.append(node.lineno)
    return found


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
