"""What `nox -s wheels` and `nox -s release` refuse: distributions with too much or too little, and unready releases."""

from __future__ import annotations

import hashlib
import importlib
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READY = "# Changelog\n\n## [0.1.0] - 2026-01-01\n"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    return importlib.import_module("distributions"), importlib.import_module("release")


@pytest.mark.parametrize(
    ("changes", "changelog", "urls", "upload", "why"),
    [
        ("", READY, {"Source": "x"}, True, []),
        ("", READY, None, False, []),
        (" M README.md", READY, None, False, ["not committed"]),
        ("", "\n## [Unreleased]\n", None, False, ["no entry of 0.1.0"]),
        ("", "\n## [0.1.0.dev1]\n", None, False, ["no entry of 0.1.0"]),
        ("", READY, None, True, ["[project.urls]"]),
    ],
)
def test_a_release_that_is_not_ready_is_refused(scripts, changes, changelog, urls, upload, why):
    found = scripts[1].refusals("0.1.0", changes, changelog, urls, upload=upload)
    assert [part in text for part, text in zip(why, found, strict=True)] == [True] * len(why)


def test_the_provenance_names_each_file_by_its_digest_and_the_commit(scripts, tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    (tmp_path / "a.whl").write_bytes(b"a")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    told = scripts[1].provenance([tmp_path / "a.whl"], "c0ffee", now, now)
    assert told["subject"] == [{"name": "a.whl", "digest": {"sha256": hashlib.sha256(b"a").hexdigest()}}]
    assert told["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": "c0ffee"}
    assert told["predicate"]["runDetails"]["builder"]["id"] == "urn:redelivery:local"


def wheel(each, folder, *, without=(), more=()):
    """A wheel as it should be, but for files that it lacks or has too much."""
    info = f"{each.stem}.dist-info"
    metadata = f"Name: {each.project['name']}\nVersion: {each.project['version']}\n"
    metadata += f"License-Expression: {each.project['license']}\n\nlong"
    files = {name: path.read_bytes() for name, path in each.sources.items()}
    files |= {f"{info}/licenses/{name}": (each.folder / name).read_bytes() for name in each.project["license-files"]}
    files |= {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": b"", f"{info}/RECORD": b""}
    files |= {f"{info}/entry_points.txt": b"", **dict(more)}
    with zipfile.ZipFile(each.wheel(folder), "w") as archive:
        for name, content in files.items():
            if name not in without:
                archive.writestr(name, content)


@pytest.mark.parametrize(
    ("without", "more", "why"),
    [
        ((), {}, None),
        (("redelivery_sqlite/py.typed",), {}, "it lacks ['redelivery_sqlite/py.typed']"),
        ((), {"tests/test_x.py": b""}, "too much: ['tests/test_x.py']"),
        ((), {"redelivery_sqlite/__init__.py": b"other"}, "not as in the repository"),
        (("redelivery_sqlite-0.1.0.dist-info/licenses/LICENSE",), {}, "licenses/LICENSE"),
    ],
)
def test_a_wheel_holds_the_sources_and_the_licence_and_nothing_else(scripts, tmp_path, without, more, why):
    script = scripts[0]
    [each] = [each for each in script.distributions() if each.project["name"] == "redelivery-sqlite"]
    wheel(each, tmp_path, without=without, more=more)
    if why is None:
        script._check_wheel(each, tmp_path)
        return
    with pytest.raises(script.Refused) as raised:
        script._check_wheel(each, tmp_path)
    assert why in str(raised.value)


def test_what_is_not_ours_in_the_folder_is_refused(scripts, tmp_path):
    (tmp_path / "other-1.0-py3-none-any.whl").touch()
    with pytest.raises(scripts[0].Refused, match=r"other-1\.0"):
        scripts[0].check(scripts[0].distributions(), tmp_path)


def test_a_python_without_filters_for_tar_files_unpacks_too(scripts, tmp_path, monkeypatch):
    """As Debian 12's 3.11.2."""
    (tmp_path / "a").write_text("content")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a", "a")
    extractall = tarfile.TarFile.extractall
    has_filters = hasattr(tarfile, "fully_trusted_filter")
    trusting = {"filter": tarfile.fully_trusted_filter} if has_filters else {}  # Python 3.14 has a stricter default

    def without_filters(archive: tarfile.TarFile, path: Path) -> None:
        extractall(archive, path, **trusting)

    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(tarfile.TarFile, "extractall", without_filters)
    scripts[0].unpack(tmp_path / "a.tar", tmp_path / "out")
    assert (tmp_path / "out" / "a").read_text() == "content"
