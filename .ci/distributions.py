"""Builds the wheels and source distributions of this repository, and checks what is in them.

    python .ci/distributions.py FOLDER

`nox -s wheels` and `nox -s release` use it; it needs the packages build and hatchling. Each distribution is built
without isolation: the backend is the pinned one of this environment. The wheel is built a second time, from the
unpacked source distribution, and both must have the same bytes. A wheel holds the files of `src`, its metadata and
licences, and nothing else; a source distribution what is needed to build the wheel.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import HeaderParser
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Folders of distributions below the repository.
WHERE = ("", "core/", "conformance_tests/", "plugins/*/", "plugins/*/standin/")
#: What hatchling adds to each source distribution.
ADDED = {"PKG-INFO", ".gitignore", "pyproject.toml"}


class Refused(Exception):
    """Something is wrong with a distribution; the text says what."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of this repository.

    Attributes:
        folder: of its `pyproject.toml`.
        project: the table `[project]`.
    """

    folder: Path
    project: dict[str, Any]

    @property
    def stem(self) -> str:
        """The first part of its files' names: `redelivery_core-0.1.0`."""
        return f"{self.project['name'].replace('-', '_')}-{self.project['version']}"

    @property
    def sources(self) -> dict[str, Path]:
        """The files of `src` by their names in a wheel."""
        src = self.folder / "src"
        files = (path for path in sorted(src.rglob("*")) if path.is_file() and path.suffix != ".pyc")
        return {path.relative_to(src).as_posix(): path for path in files}

    def wheel(self, folder: Path) -> Path:
        """Return the path of its wheel in a folder."""
        return folder / f"{self.stem}-py3-none-any.whl"

    def sdist(self, folder: Path) -> Path:
        """Return the path of its source distribution in a folder."""
        return folder / f"{self.stem}.tar.gz"


def distributions(root: Path = ROOT) -> list[Distribution]:
    """Return the distributions of a checkout. Raises Refused: their versions differ."""
    found = [
        Distribution(path.parent, tomllib.loads(path.read_text(encoding="utf-8"))["project"])
        for where in WHERE
        for path in sorted(root.glob(f"{where}pyproject.toml"))
    ]
    versions = {each.project["version"] for each in found}
    if len(versions) != 1:
        raise Refused(f"the distributions have several versions: {', '.join(sorted(versions))}")
    return found


def build(found: list[Distribution], out: Path) -> None:
    """Build all distributions into an empty folder. Raises Refused: a source distribution makes another wheel."""
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out} is not empty")
    import build as frontend  # noqa: PLC0415 - the tests of the checks need no frontend
    from pyproject_hooks import quiet_subprocess_runner  # noqa: PLC0415

    def one(each: Distribution) -> None:
        builder = frontend.ProjectBuilder(each.folder, runner=quiet_subprocess_runner)
        builder.build("sdist", out)
        builder.build("wheel", out)
        with tempfile.TemporaryDirectory() as name:
            again = Path(name)
            unpack(each.sdist(out), again)
            frontend.ProjectBuilder(again / each.stem, runner=quiet_subprocess_runner).build("wheel", again)
            if each.wheel(again).read_bytes() != each.wheel(out).read_bytes():
                raise Refused(f"{each.stem}: its source distribution makes another wheel than its folder")

    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, found))


def unpack(path: Path, folder: Path) -> None:
    """Unpack a tar file that was made here."""
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)  # noqa: S202 - ours; Debian 12's Python 3.11.2 has no filters


def check(found: list[Distribution], out: Path) -> None:
    """Check that a folder holds the distributions and nothing else, and what is in each. Raises Refused."""
    wanted = {path.name for each in found for path in (each.wheel(out), each.sdist(out))}
    _same("the folder of distributions", {path.name for path in out.iterdir()}, wanted)
    for each in found:
        _check_wheel(each, out)
        _check_sdist(each, out)


def _check_wheel(each: Distribution, out: Path) -> None:
    path = each.wheel(out)
    info = f"{each.stem}.dist-info"
    licences = {f"{info}/licenses/{name}": each.folder / name for name in each.project["license-files"]}
    files = each.sources | licences
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        made = {"METADATA", "WHEEL", "RECORD"}
        if each.project.keys() & {"scripts", "entry-points"}:
            made.add("entry_points.txt")
        _same(path.name, names, files.keys() | {f"{info}/{name}" for name in made})
        if changed := sorted(name for name, source in files.items() if archive.read(name) != source.read_bytes()):
            raise Refused(f"{path.name}: not as in the repository: {', '.join(changed)}")
        if told := sorted(name for name in names if str(each.folder).encode() in archive.read(name)):
            raise Refused(f"{path.name}: a path of this machine is in {', '.join(told)}")
        metadata = HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode())
    if untyped := sorted(f"{name}/py.typed" for name in _packages(each) if f"{name}/py.typed" not in names):
        raise Refused(f"{path.name}: it lacks {', '.join(untyped)}")
    said = {name: metadata.get_all(name) for name in ("Name", "Version", "License-Expression")}
    project = {"Name": each.project["name"], "Version": each.project["version"]}
    project["License-Expression"] = each.project["license"]
    if wrong := [name for name, value in project.items() if said[name] != [value]]:
        raise Refused(f"{path.name}: its metadata differs from pyproject.toml in {', '.join(wrong)}")
    if not metadata.get_payload().strip():
        raise Refused(f"{path.name}: it has no long description")


def _packages(each: Distribution) -> set[str]:
    """Return the top-level packages, but for those of one file: Spark looks such a one up by its name."""
    tops = {name.partition("/")[0] for name in each.sources}
    return {top for top in tops if sum(name.startswith(f"{top}/") for name in each.sources) > 1}


def _check_sdist(each: Distribution, out: Path) -> None:
    path = each.sdist(out)
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    if odd := sorted(member.name for member in members if not member.isfile()):
        raise Refused(f"{path.name}: not a file: {', '.join(odd)}")
    more = {"CHANGELOG.md"} if each.folder == ROOT or not each.sources else set()
    named = ADDED | more | {each.project["readme"], *each.project["license-files"]}
    wanted = {f"{each.stem}/{name}" for name in chain(named, (f"src/{name}" for name in each.sources))}
    _same(path.name, {member.name for member in members}, wanted)


def _same(where: str, names: set[str], wanted: set[str]) -> None:
    if names != wanted:
        lacks, surplus = sorted(wanted - names), sorted(names - wanted)
        raise Refused(f"{where}: it lacks {lacks or 'nothing'}, and has too much: {surplus or 'nothing'}")


def main(out: Path) -> int:
    """Build into a folder and check it. Return the exit status."""
    try:
        found = distributions()
        build(found, out)
        check(found, out)
    except Refused as error:
        print(f"distributions: {error}", file=sys.stderr)
        return 1
    print(f"{len(found)} distributions of version {found[0].project['version']} in {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
