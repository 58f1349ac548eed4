"""Every task a contributor runs, as nox sessions; `nox --list` names them.

As a script this file needs only Python 3.11 or later. It installs nox and uv into `.nox/tools` and runs the sessions
named on its command line, or the default ones::

    python3 noxfile.py demo
    python3 noxfile.py
    python3 noxfile.py wheels -- sqlite      # arguments after `--` go to the session

Sessions install the versions in `constraints.txt` into environments in `.nox`, which later runs reuse.
"""

import concurrent.futures
import hashlib
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CONSTRAINTS = ROOT / "constraints.txt"


# --- as a script: standard library only ----------------------------------------------------------------------------


def bootstrap(arguments: list[str]) -> int:
    """Run nox in its own environment, which is created if missing; `nox -s` may be left out."""
    if sys.version_info < (3, 11):  # noqa: UP036 - a script may start on an older one
        return _refuse(f"this is Python {sys.version.split()[0]}; redelivery needs 3.11 or later")
    tools = ROOT / ".nox" / "tools"
    python = tools / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, wanted = tools / "complete", f"{sys.version}\n{CONSTRAINTS.read_text(encoding='utf-8')}"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print("Setting up nox in .nox/tools ...", flush=True)
        if problem := _make_tools(tools, python):
            return _refuse(problem)
        stamp.write_text(wanted, encoding="utf-8")
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--session", *arguments]
    environment = {**os.environ, "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])}
    if _pip_has_its_own_index(python):
        environment.setdefault("NOX_DEFAULT_VENV_BACKEND", "virtualenv")
    command = [str(python), "-m", "nox", "--noxfile", str(ROOT / "noxfile.py"), *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def _make_tools(tools: Path, python: Path) -> str:
    """Recreate the environment; return what is wrong with this machine, or an empty text."""
    has_pip, has_ensurepip = (importlib.util.find_spec(name) is not None for name in ("pip", "ensurepip"))
    if importlib.util.find_spec("venv") is None or not (has_pip or has_ensurepip):
        return (
            f"{sys.executable} has neither pip nor ensurepip. Install what your system leaves out of Python "
            "(Debian, Ubuntu: apt install python3-venv) and run this again"
        )
    shutil.rmtree(tools, ignore_errors=True)
    for command in _commands(tools, python, has_ensurepip=has_ensurepip):
        if subprocess.run(command, check=False).returncode:
            return f"this command failed, see above: {' '.join(command)}"
    return ""


def _commands(tools: Path, python: Path, *, has_ensurepip: bool) -> Iterator[list[str]]:
    """Yield the commands that create the environment, each after the one before has passed."""
    yield [sys.executable, "-m", "venv", *([] if has_ensurepip else ["--without-pip"]), str(tools)]
    # The environment's own pip always works; `pip --python` is for a Python without ensurepip.
    pip = [str(python), "-m", "pip"] if has_ensurepip else [sys.executable, "-m", "pip", "--python", str(python)]
    install = [*pip, "install", "--quiet", "--disable-pip-version-check"]
    # pip does not read hashes from constraints: it installs uv alone with hashes, and uv installs the rest with hashes.
    yield [*install, "--requirement", str(pinned("uv", only="uv"))]
    if _pip_has_its_own_index(python):
        yield [*install, "--constraint", str(pinned("plain")), "nox"]
    else:
        yield [str(python), "-m", "uv", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), "nox"]


def _pip_has_its_own_index(python: Path) -> bool:
    """Return whether only pip is configured for another package index: uv does not read pip's settings."""
    if any(name.startswith("UV_") and "INDEX" in name for name in os.environ):
        return False
    if importlib.util.find_spec("pip") is not None:
        python = Path(sys.executable)
    command = [str(python), "-m", "pip", "config", "list"]
    settings = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return any(f".{name}=" in settings.replace("_", "-") for name in ("index-url", "extra-index-url", "no-index"))


def pinned(name: str, *, only: str | None = None, built: str | None = None, spark: str = "") -> Path:
    """Write a part of `constraints.txt` into `.nox`, without hashes ("plain") or with them; return its path.

    Args:
        name: part of the file's name.
        only: write this package alone.
        built: write this package without hashes: it was built here from a source whose hash was checked.
        spark: the pin of another Spark, which takes the place of the one there.
    """
    entries = re.split(r"\n(?=[A-Za-z0-9])", CONSTRAINTS.read_text(encoding="utf-8").strip())
    kept = []
    for pin in entries:
        package = pin.partition("=")[0]
        entry = spark if spark and package == "pyspark" else pin
        if only in {None, package}:
            kept.append(entry.split(" \\\n")[0] if name == "plain" or package == built else entry)
    path = ROOT / ".nox" / f"constraints-{name}.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return path


def _refuse(why: str) -> int:
    print(f"noxfile.py: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(bootstrap(sys.argv[1:]))


# --- the sessions --------------------------------------------------------------------------------------------------

import nox  # noqa: E402 - a script has no nox yet

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = os.environ.get("NOX_DEFAULT_VENV_BACKEND", "uv|virtualenv")
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "docs", "wheels", "tests", "spark", "faults", "seeds", "simulate", "stranger"]

#: A third-party plugin, outside the workspace like that of any other author.
STRANGER = "examples/third_party_plugin"
#: The same plugin without the kit: it shows that a plugin does not need the kit.
WITHOUT_KIT = "examples/plugin_without_kit"
#: Of the short table of faults: the same plan at every run; others are tried with `-- --seed`.
SEED = "2611"
#: Another plugin that is not ours, on a server.
NETWORK = "examples/network_plugin"
PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
#: Plugins with our own stand-in for their broker in tests: a distribution in the plugin's folder.
STANDINS = [name for name in PLUGINS if (ROOT / "plugins" / name / "standin").is_dir()]
#: The code that is shipped to users.
SOURCES = [
    "core/src",
    *(f"plugins/{name}/src" for name in PLUGINS),
    *(f"plugins/{name}/standin/src" for name in STANDINS),
]
DISTRIBUTIONS = [
    "pyproject.toml",
    "conformance_tests/pyproject.toml",
    f"{STRANGER}/pyproject.toml",
    f"{NETWORK}/pyproject.toml",
    *(f"plugins/{name}/pyproject.toml" for name in PLUGINS),
    *(f"plugins/{name}/standin/pyproject.toml" for name in STANDINS),
]
GROUPS = nox.project.load_toml("pyproject.toml")
#: Spark's source is half a gigabyte. With some indexes an installer cannot cache its build, so it is built here.
WHEELS = ROOT / ".nox" / "built"
#: Our own wheels and source distributions, as `wheels` builds them.
DIST = ROOT / ".nox" / "dist"
#: Modules of core that need the extra of this name.
NEED_EXTRAS = {
    "ui": ["redelivery.ui"],
    "watch": ["redelivery.watch"],
    "spark": ["redelivery.spark", "pyspark_redelivery"],
}
#: The plugins that `redelivery` brings without an extra.
EMBEDDED = ["file", "sqlite"]
#: Tests of what is installed: of each layer some, with all of a plugin.
TRY_WHEELS = [
    "plugins/sqlite/tests",
    "core/tests/test_cli_letters.py",
    "core/tests/test_cli_run.py",
    "core/tests/test_completion.py",
    "core/tests/test_subscription.py",
    "core/tests/ui/test_ui_pages.py",
]
#: The passed tests: one folder per session, recreated by each run. `seeds` reads them.
PASSED = ROOT / ".nox" / "passed"
#: Without deadlines for single examples, which would only measure how busy the machine is.
PYTEST = ["pytest", "--hypothesis-profile=ci", "--durations=15", "--durations-min=1"]
FROM_WHEELS = ["-m", *PYTEST, "-p", "no:cacheprovider"]
NO_SPARK = ["-m", "not spark"]
#: The page in a real browser: a separate process, which waits more than it computes.
BROWSER = "core/tests/ui/browser"
#: If brokers are required, as in continuous integration, a missing one is a failure.
REQUIRED = ["--require-brokers"] if os.environ.get("REDELIVERY_REQUIRE_BROKERS") else []
#: Test processes at a time. A broker's tests mostly wait, so there are more processes than processors.
SLOTS = 5
#: How many processes share the suite of a broker whose tests wait longest. Each process has its own broker.
PARTS = {"kafka": 3, "servicebus": 3, "sqs": 3, "rabbitmq": 2}
#: The supported versions of Spark before that of `constraints.txt`, and the pins of the newest patch of each.
OLDER_SPARKS = ("4.0", "4.1", "4.2")
SPARKS = ROOT / "constraints-spark.txt"
#: What the session `spark` runs by default: where the versions differ, and each way of writing and reading once.
SPARK_SHORT = [
    *(f"core/tests/spark/test_spark_{name}.py" for name in ("features", "stream", "letters", "pipeline")),
    "plugins/sqlite/tests",
]
#: The version of toxiproxy that the session `faults` builds.
TOXIPROXY = "v2.12.0"
#: An argument of the session `conformance`.
ALL_VERSIONS = "--all-versions"


def install(
    session: nox.Session,
    *what: str,
    groups: tuple[str, ...] = (),
    spark: str = "",
    variables: Mapping[str, str] | None = None,
) -> None:
    """Install packages and dependency groups in the versions of `constraints.txt`; `spark` pins another Spark."""
    wanted = nox.project.dependency_groups(GROUPS, *groups) if groups else ()
    options = _pins(session, *what, spark=spark)
    # Without this uv installs the workspace's packages as editable, even if they are named here as not editable.
    session.install(*options, *what, *wanted, env={"UV_NO_SOURCES": "1", **(variables or {})})


def _by_uv(session: nox.Session) -> bool:
    return getattr(session.virtualenv, "venv_backend", "") == "uv"


def _pins(session: nox.Session, *what: str, spark: str = "") -> list[str]:
    """Return the installer's options for the pinned versions. Build Spark's wheel where `what` needs it."""
    pins = pinned("session", built="pyspark", spark=spark) if _by_uv(session) else pinned("plain", spark=spark)
    options = ["--constraint", str(pins)]
    found = re.search(r"^pyspark==[^ \n]+", pins.read_text(encoding="utf-8"), re.MULTILINE)
    if found and any(re.search(r"\[.*\bspark\b.*\]", each) for each in what):
        if not list(WHEELS.glob(f"{found[0].replace('==', '-')}-*.whl")):
            session.install(*options, "pip")
            source = ["--requirement", str(pinned("spark", only="pyspark", spark=spark))]  # by its hash
            session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(WHEELS), *source)
        options += ["--find-links", str(WHEELS)]
    return options


def install_project(session: nox.Session, *groups: str, tested: bool = True) -> None:
    """Install every distribution of the workspace as editable, and Spark's needs; again if a declaration changes.

    What is not `tested` is what `redelivery[spark]` installs.
    """
    declared = [
        CONSTRAINTS,
        ROOT / "pyproject.toml",
        *(ROOT / path for path in DISTRIBUTIONS),
        ROOT / "core/pyproject.toml",
    ]
    wanted = hashlib.sha256(b"\0".join([repr(groups).encode(), *(path.read_bytes() for path in declared)])).hexdigest()
    stamp = Path(session.virtualenv.location, "complete")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        folders = ["core[spark]", *(f"plugins/{name}" for name in EMBEDDED), "."]
        if tested:
            plugins = [f"plugins/{name}[testing]" for name in PLUGINS]
            plugins += [f"plugins/{name}/standin" for name in STANDINS]
            folders = ["core[spark]", "conformance_tests", *plugins, ".[watch,ui,lineage]"]
        editable = [argument for folder in folders for argument in ("--editable", folder)]
        install(session, *editable, groups=groups, variables=_compiler(session) if tested else {})
    provide_spark(session)
    stamp.write_text(wanted, encoding="utf-8")


def _compiler(session: nox.Session) -> dict[str, str]:
    """Return variables that name a C compiler, where the machine has none: a stand-in builds python-qpid-proton."""
    if os.name == "nt" or os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang"))):
        return {}
    install(session, groups=("compiler",))
    zig = f"{shlex.quote(str(shutil.which('python', path=session.bin)))} -m ziglang"
    return {"CC": f"{zig} cc", "CXX": f"{zig} c++"}


@dataclass(frozen=True)
class Run:
    """One process of tests.

    Attributes:
        passed: folder in `PASSED` for its results; `seeds` reads `unit` and `conformance`.
        command: the command line.
        variables: environment variables.
        computes: whether it starts Spark.
    """

    passed: str
    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    computes: bool = False


def side_by_side(session: nox.Session, runs: list[Run], *, slots: int = SLOTS) -> None:
    """Run processes in this order, several at a time; print the output of each when it ends. None is repeated."""
    environment = {**os.environ, **{name: value for name, value in session.env.items() if value is not None}}
    environment["PATH"] = os.pathsep.join([*(session.bin_paths or []), environment.get("PATH", os.defpath)])
    numbers, began = itertools.count(1), time.monotonic()
    for each in {each.passed for each in runs}:
        shutil.rmtree(PASSED / each, ignore_errors=True)

    def run(each: Run) -> bool:
        number, started = next(numbers), time.monotonic()
        command = [*each.command]
        if command[0] == "pytest":  # separate caches: they would write to one file at the same time
            cache = session.cache_dir / f"{session.name}-{number}"
            command += [f"--junit-xml={PASSED / each.passed / f'{number}.xml'}", "-o", f"cache_dir={cache}"]
        done = subprocess.run(
            command,
            env={**environment, **each.variables},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        span = f"{started - began:.0f} to {time.monotonic() - began:.0f} s"
        print(f"{' '.join(command)}\n{done.stdout}(exit {done.returncode}, {span})\n", flush=True)
        return done.returncode == 0

    with concurrent.futures.ThreadPoolExecutor(slots) as pool:
        failed = [each for each, passed in zip(runs, pool.map(run, runs), strict=True) if not passed]
    if failed:
        session.error("failed: " + "; ".join(" ".join(each.command) for each in failed))


def provide_spark(session: nox.Session) -> None:
    """Provide Python and Java for Spark."""
    python = shutil.which("python", path=session.bin)
    session.env["PYSPARK_PYTHON"] = session.env["PYSPARK_DRIVER_PYTHON"] = python
    find = "from redelivery.spark.java import ensure_java; print(ensure_java())"
    home = session.run("python", "-c", find, silent=True, log=False, success_codes=[0, 1], stderr=subprocess.DEVNULL)
    if not home:
        install(session, groups=("java",))
        home = session.run("python", "-c", find, silent=True, log=False)
    session.env["JAVA_HOME"] = str(home).strip()


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: all its rules, and its format; bandit over what is shipped; the layers. `-- --fix` repairs what it can."""
    install(session, groups=("lint",))
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]), ".")
    # From medium severity on: ruff's rules S cover lower severities line by line.
    session.run(
        "bandit",
        "--quiet",
        "--configfile=pyproject.toml",
        "-ll",
        "--recursive",
        *SOURCES,
    )
    session.run("lint-imports", env={"PYTHONPATH": os.pathsep.join(["conformance_tests/src", *SOURCES])})


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict, over every distribution, the examples, the benchmarks and the faults."""
    install_project(session, "types", "test")
    session.run("mypy", *_typed())


@nox.session
def quick(session: nox.Session) -> None:
    """Before a commit: ruff, the layers, mypy and the tests of what changed, without Spark and brokers in containers.

    `.ci/changed.py` says which tests, by which rule, and what they are compared with. It leaves out bandit, the suite
    against brokers, other distributions' tests, what is slow for its size, and all that needs Spark or a container:
    `nox` runs those.
    """
    install_project(session, "lint", "types", "test")
    printed = session.run("python", ".ci/changed.py", *session.posargs, silent=True, log=False)
    path = {"PYTHONPATH": os.pathsep.join(["conformance_tests/src", *SOURCES])}
    nowhere = {"DOCKER_HOST": "unix:///none"}  # tests that need a container are skipped
    checks = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]]
    options = [*PYTEST, "--maxfail=5", "-m", "not spark and not browser", "--broker-kind=embedded"]
    runs = [Run("quick", ["mypy", *_typed()]), *(Run("quick", each, path) for each in checks)]
    runs[1:1] = [Run("quick", [*options, *line.split()], nowhere) for line in printed.splitlines()]
    side_by_side(session, runs, slots=os.cpu_count() or 2)
    session.log("these are not all tests: `nox` runs all of them")


@nox.session
def tests(session: nox.Session) -> None:
    """All of `unit` and `conformance`, in one go."""
    install_project(session, "test")
    _toxiproxy(session)
    runs = [*_unit(), *_conformance(session)]
    # The longest first. Core and Spark compute and brokers wait, so one of those runs beside brokers if possible.
    waiting = [each for each in runs if not each.computes]
    waiting.sort(key=lambda each: not any(f"plugins/{name}/" in " ".join(each.command) for name in PARTS))
    for at, each in enumerate(each for each in runs if each.computes):
        waiting.insert(at * SLOTS, each)
    side_by_side(session, waiting)


@nox.session
def unit(session: nox.Session) -> None:
    """The tests of core and of each plugin. The suite itself is left to `conformance`."""
    install_project(session, "test")
    _toxiproxy(session)
    if session.posargs:
        session.run(*PYTEST, *session.posargs, env=_newest())
        return
    side_by_side(session, _unit())


@nox.session
def conformance(session: nox.Session) -> None:
    """The suite and Spark against every broker that is available here, and the broken ones; `-- BROKER` runs one.

    With `--all-versions`: the suite and a broker's own tests against each of its versions that is here.
    """
    install_project(session, "test")
    rest = [each for each in session.posargs if each != ALL_VERSIONS]
    if len(rest) < len(session.posargs):
        runs = [run for name in [_plugin(session, each).name for each in rest] or PLUGINS for run in _versions_of(name)]
        if not runs:
            session.error("no versions are here: REDELIVERY_<BROKER>_IMAGES names their images, oldest first")
        side_by_side(session, runs)
        return
    if rest and not rest[0].startswith("-"):
        _plugin(session, rest[0])
        session.run(*_suite(), _module(rest[0]), *rest[1:], env=_newest())
        return
    side_by_side(session, _conformance(session))


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation site, in `.nox/site`; each warning is an error. `-- serve` shows it, and each change of a page.

    Its code blocks and its generated pages are tests of `unit`. Nothing of ours is installed: signatures and docstrings
    are read from the sources.
    """
    install(session, groups=("docs",))
    # Not `--quiet`: it hides warnings from the strict mode too, and so nothing would fail.
    session.run("mkdocs", *(session.posargs or ["build"]), env={"NO_MKDOCS_2_WARNING": "1"})
    session.log("open .nox/site/index.html")


@nox.session
def spark(session: nox.Session) -> None:
    """Spark's part on the oldest supported Spark, cut short. `-- 4.1`: all of it, on the newest patch of 4.1.

    `-- 4.1 PATH ...` runs these tests there. The newest Spark is part of `tests`.
    """
    pins = re.split(r"(?m)^(?=pyspark==)", SPARKS.read_text(encoding="utf-8"))[1:]
    versions = dict(zip(OLDER_SPARKS, (pin.strip() for pin in pins), strict=True))
    newest = re.search(r"^pyspark==(\d+\.\d+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    versions |= {newest[1]: ""} if newest else {}
    version, *rest = session.posargs or OLDER_SPARKS[:1]
    if version not in versions:
        session.error(f"name one of the versions {', '.join(versions)}, as in: nox -s spark -- {OLDER_SPARKS[0]}")
    folders = ["core[spark]", "conformance_tests", "plugins/sqlite", "plugins/file"]
    editable = [argument for folder in folders for argument in ("--editable", folder)]
    install(session, *editable, groups=("test",), spark=versions[version])
    provide_spark(session)
    everything = ["core/tests/spark", "plugins/sqlite/tests"] if session.posargs else SPARK_SHORT
    conformance = [each for each in rest or everything if each.startswith("plugins/")]
    tests = [each for each in rest or everything if not each.startswith("plugins/")]
    if tests:
        session.run(*PYTEST, *tests)
    if conformance:
        session.run(*PYTEST, "-m", "spark", *conformance)


@nox.session(python=False)
def python(session: nox.Session) -> None:
    """`-- 3.14`: the tests that need no container, on another Python; `-- 3.14 PATH ...`: these tests there.

    The interpreter is looked for on PATH and in pyenv; else uv may download it. None is an error.
    """
    version, *rest = session.posargs or [""]
    if re.fullmatch(r"3\.[0-9]{2}", version) is None:
        session.error("name a version of Python, as in: nox -s python -- 3.14")
    if not session.python:  # again, in an environment of that interpreter
        found = _interpreter(version)
        if found is None:
            session.error(f"no Python {version} was found on PATH, in pyenv or by uv: install it and run this again")
        again = ["--noxfile", __file__, "--session", "python", "--force-python", found, "--", *session.posargs]
        session.run(sys.executable, "-m", "nox", *again, external=True)
        return
    install_project(session, "test")
    session.env["DOCKER_HOST"] = "unix:///none"
    if rest:
        session.run(*PYTEST, *rest)
        return
    core = ["core/tests", "faults/tests", f"--ignore={BROWSER}", "--ignore=core/tests/spark"]
    runs = [Run("python", [*PYTEST, "core/tests/spark"], computes=True), Run("python", [*PYTEST, *NO_SPARK, *core])]
    suites = [[_module(name)] if name == "kafka" else _tests(name) for name in PLUGINS]  # its own need a server
    suites.append(["conformance_tests/tests"])
    runs += [Run("python", [*PYTEST, *NO_SPARK, "--broker-kind=embedded", *each]) for each in suites]
    side_by_side(session, runs)


@nox.session
def browser(session: nox.Session) -> None:
    """The operator's page in a real browser. `-- --screenshots` renews the pictures in `docs/images`."""
    install_project(session, "test")
    session.run(*PYTEST, *REQUIRED, BROWSER, *session.posargs, env=_newest())


@nox.session(python=False)
def seeds(session: nox.Session) -> None:
    """docs/seeds.md against what `unit` and `conformance` ran last: each statement's tests have passed."""
    session.run(sys.executable, "core/tests/seed_table.py", str(PASSED), external=True)


@nox.session
def simulate(session: nox.Session) -> None:
    """The real engine and redrive under 10,000 seeds of faults; `-- --seed 4711` runs one, `-- --help` says more."""
    install(session, "--editable", "core", "--editable", "conformance_tests")
    session.run("python", "-m", "simulation", *session.posargs, env={"PYTHONPATH": "core/tests"})


@nox.session
def demo(session: nox.Session) -> None:
    """The main job on real data: examples/flights.py. `-- --help` shows its options."""
    install_project(session, "demo", tested=False)
    session.run("python", "examples/flights.py", *session.posargs)


@nox.session
def mend(session: nox.Session) -> None:
    """Dead letters mended with Spark on a real broker: examples/mend_with_spark.py. `-- --broker NAME` picks it."""
    install_project(session, "demo")
    session.run("python", "examples/mend_with_spark.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """`-- BROKER [--json FILE]`: rows/s and memory, against loops written by hand, in one run."""
    install_project(session, "demo")
    session.run("python", "benchmarks/bench.py", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Every row counted while brokers, networks and processes break: a short table. `-- --all`: the whole one.

    `-- --broker kafka --fault freeze --seed 7 --rows 5000` runs some cells, `-- --help` shows all options.
    """
    install_project(session, "test")
    _toxiproxy(session)
    command = ["python", "-m", "faults.run"]
    if session.posargs:
        session.run(*command, *session.posargs, env=_newest())
        return
    short = [*command, "--short", "--seed", SEED, "--broker"]
    of = [name for name in PLUGINS if name != "file"]
    side_by_side(session, [Run("faults", [*short, name], _newest()) for name in of], slots=3)


@nox.session
def wheels(session: nox.Session) -> None:
    """Every distribution, built and tried from its wheel: each plugin alone, each extra, without Spark and with it.

    Tests run against what is installed, too. `-- NAME` tries one plugin alone and runs all its tests.
    """
    install(session, "build", "hatchling", "uv")
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("python", ".ci/distributions.py", str(DIST))
    if session.posargs:
        name, *rest = session.posargs
        _plugin(session, name)
        python = _fresh(session, f"{name}-tests", *_tested(name), groups=("test",))
        runs = [_alone(session, name), Run("wheels", [python, *FROM_WHEELS, *NO_SPARK, *_tests(name), *rest])]
        side_by_side(session, runs)
        return
    tried = {"core": ("redelivery-core", ["ui", "watch", "spark"], ["--plugins"])}
    tried["redelivery"] = ("redelivery", ["ui", "watch", "spark"], ["--use", "--plugins", *EMBEDDED])
    tried |= {
        extra: (f"redelivery[{extra}]", [each for each in NEED_EXTRAS if each != extra], ["--plugins", *EMBEDDED])
        for extra in ("ui", "watch")
    }
    tried["whole"] = (_whole(), [], ["--spark", "--plugins", *PLUGINS])
    runs = [_tried(session, name, *each) for name, each in tried.items()] + [_alone(session, name) for name in PLUGINS]
    python = _fresh(session, "tests", "redelivery[ui,watch]", *_tested("sqlite"), *_tested("file"), groups=("test",))
    runs.append(Run("wheels", [python, *FROM_WHEELS, *NO_SPARK, *TRY_WHEELS]))
    side_by_side(session, sorted(runs, key=lambda run: "pytest" not in run.command), slots=2)


@nox.session
def release(session: nox.Session) -> None:
    """A release in `.nox/released`: built twice, checked, with SBOM, hashes and provenance. It uploads nothing.

    `-- --draft` makes one of a tree that is not ready; `-- --upload REPOSITORY` uploads it (CONTRIBUTING.md).
    """
    install(session, "uv", groups=("release",))
    # The SBOM lists what `redelivery` with every extra installs.
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("python", ".ci/distributions.py", str(DIST))
    python = _fresh(session, "release", _whole())
    out = ROOT / ".nox" / "released"  # .nox/release is this environment
    shutil.rmtree(out, ignore_errors=True)
    session.run("python", ".ci/release.py", str(out), python, *session.posargs)


@nox.session(reuse_venv=False)
def stranger(session: nox.Session) -> None:
    """Plugins that are not ours, and the tutorials on them, in a fresh environment with nothing editable."""
    plugins = (f"./{STRANGER}[testing]", f"./{WITHOUT_KIT}", f"./{NETWORK}[testing]")
    install(session, "./core[spark]", "./conformance_tests", *plugins, groups=("test", "types"))
    provide_spark(session)
    for folder in (STRANGER, WITHOUT_KIT):
        with session.chdir(folder):
            session.run("mypy", "src")
            session.run(*PYTEST, "--require-brokers", *session.posargs)
    with session.chdir(NETWORK):
        session.run("mypy", "src")
        command = [*PYTEST, "--require-brokers", *NO_SPARK]  # the first one has shown Spark
        parts = [f"--broker-part={number}/{SLOTS}" for number in range(1, SLOTS + 1)]
        side_by_side(session, [Run("stranger", [*command, part, *session.posargs]) for part in parts])


@nox.session
def constraints(session: nox.Session) -> None:
    """Pin the versions that every session installs again. `-- --upgrade` takes the newest."""
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--all-extras"]
    command += ["--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += [argument for group in GROUPS["dependency-groups"] for argument in ("--group", group)]
    for own in (
        "redelivery",
        "redelivery-core",
        "redelivery-conformance",
        "redelivery-lmdb",
        "redelivery-beanstalk",
        *(f"redelivery-{name}" for name in PLUGINS),
        *(f"redelivery-{name}-standin" for name in STANDINS),
    ):
        command += ["--no-emit-package", own]
    session.install("uv")
    session.run(*command, "--output-file", "constraints.txt", *session.posargs, *DISTRIBUTIONS)
    one = ["uv", "pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
    pins = []
    for version in OLDER_SPARKS:
        wanted = Path(session.create_tmp(), "spark.in")
        wanted.write_text(f"pyspark~={version}.0\n", encoding="utf-8")
        pins.append(
            session.run(*one, "--no-emit-index-url", "--no-emit-find-links", str(wanted), silent=True, log=False)
        )
    SPARKS.write_text("".join(pins), encoding="utf-8")


def _toxiproxy(session: nox.Session) -> None:
    """Build toxiproxy's server if Go is here. Without it our own proxy makes the same faults."""
    folder = ROOT / ".nox" / "toxiproxy"
    go = shutil.which("go")
    if go is None or shutil.which("toxiproxy-server") or (folder / "server").exists():
        return
    wanted = f"github.com/Shopify/toxiproxy/v2/cmd/server@{TOXIPROXY}"
    try:
        subprocess.run([go, "install", wanted], env={**os.environ, "GOBIN": str(folder)}, check=True, timeout=180)
    except subprocess.SubprocessError as error:
        session.warn(f"toxiproxy was not built, so our own proxy is used: {error}")


def _interpreter(version: str) -> str | None:
    """Return the path of a Python that works; uv may download it."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *map(str, pyenv.glob(f"{version}.*/bin"))]
    paths = [shutil.which(f"python{version}", path=folder) for folder in folders]
    if found := next((path for path in paths if path and _is_python(path, version)), None):
        return found
    if uv := shutil.which("uv"):
        subprocess.run([uv, "python", "install", "--quiet", version], check=False, stderr=subprocess.DEVNULL)
        command = [uv, "python", "find", "--quiet", "--no-python-downloads", version]
        path = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
        return path if path and _is_python(path, version) else None
    return None


def _is_python(path: str, version: str) -> bool:
    """Whether a command is this Python: one of pyenv's may only say that the version is not chosen."""
    command = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip() == version


def _fresh(session: nox.Session, name: str, *what: str, groups: tuple[str, ...] = ()) -> str:
    """Make an environment in `.nox/tried`, with our distributions from the wheels in `DIST`; return its Python."""
    folder = ROOT / ".nox" / "tried" / name
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    wanted = [*what, *(nox.project.dependency_groups(GROUPS, *groups) if groups else ())]
    options = ["--quiet", *_pins(session, *what), "--find-links", str(DIST), *wanted]
    if _by_uv(session):
        session.run(
            "uv", "venv", "--quiet", "--clear", "--python", str(session.virtualenv.bin) + "/python", str(folder)
        )
        # uv remembers a local wheel by its name.
        ours = {each.name.partition("-")[0].replace("_", "-") for each in DIST.glob("*.whl")}
        fresh = [option for each in sorted(ours) for option in ("--refresh-package", each)]
        session.run("uv", "pip", "install", "--python", python, *fresh, *options, env={"UV_NO_SOURCES": "1"}, log=False)
    else:
        session.run("python", "-m", "venv", "--clear", str(folder))
        session.run(python, "-m", "pip", "install", *options, external=True, log=False)
    return python


def _tried(session: nox.Session, name: str, what: str, without: list[str], arguments: list[str]) -> Run:
    """Return the trial of an environment with these packages; `without` these folders of core that need an extra."""
    java = () if "--spark" not in arguments or shutil.which("java") or "JAVA_HOME" in os.environ else ("java",)
    python = _fresh(session, name, what, groups=java)
    missing = [each for folder in without for each in NEED_EXTRAS[folder]]
    packages = [f"redelivery_{each}.testing" for each in arguments if each in PLUGINS]
    return Run(
        "wheels", [python, "-I", ".ci/try_installed.py", str(DIST), *arguments, "--without", *missing, *packages]
    )


def _alone(session: nox.Session, name: str) -> Run:
    return _tried(session, f"{name}-alone", f"redelivery-{name}", list(NEED_EXTRAS), ["--plugins", name])


def _whole() -> str:
    return f"redelivery[{','.join([*NEED_EXTRAS, 'lineage', *(name for name in PLUGINS if name not in EMBEDDED)])}]"


def _tested(name: str) -> list[str]:
    standin = [f"redelivery-{name}-standin"] if name in STANDINS else []
    return [f"redelivery-{name}[testing]", "redelivery-conformance", *standin]


def _typed() -> list[str]:
    scripts = [
        str(path) for folder in ("examples", "benchmarks", "faults") for path in sorted(Path(folder).glob("*.py"))
    ]
    return [*SOURCES, "conformance_tests/src", "core/tests/typing/public_api.py", *scripts]


def _unit() -> list[Run]:
    """The longest first."""
    own = [*PYTEST, *NO_SPARK, *REQUIRED, "--ignore-glob=*_conformance.py", f"--ignore={BROWSER}"]
    spark = "core/tests/spark"
    # Tests that start their own Spark.
    apart = [f"{spark}/test_spark_{name}.py" for name in ("stream_killed", "connect", "cluster")]
    commands = [[*own, *apart], [*own, spark, *(f"--ignore={path}" for path in apart)]]
    commands += [[*own, "core/tests", "faults/tests", f"--ignore={spark}"]]
    runs = [Run("unit", each, _newest(), computes=True) for each in commands]
    names = sorted(PLUGINS, key=lambda name: -PARTS.get(name, 0))
    runs.append(Run("unit", [*PYTEST, *REQUIRED, BROWSER], _newest()))
    return [*runs, *(Run("unit", [*own, *_tests(name)], _newest()) for name in names)]


def _conformance(session: nox.Session) -> list[Run]:
    """The longest first."""
    rest = session.posargs
    # Spark takes half a minute to start, so all tests that need it share one process.
    tests = [*(f"plugins/{name}/tests" for name in PLUGINS), "conformance_tests/tests"]
    spark = Run("conformance", [*_suite(), "-m", "spark", *tests, *rest], _newest(), computes=True)
    commands = [[*_suite(), *NO_SPARK, "conformance_tests/tests", *rest]]
    # A plugin's own module has all its variants under test: kinds of queues, and kinds of runtime.
    for name in sorted(PLUGINS, key=lambda name: -PARTS.get(name, 0)):
        parts = [f"--broker-part={number + 1}/{PARTS[name]}" for number in range(PARTS.get(name, 0))]
        commands += [[*_suite(), *NO_SPARK, part, _module(name), *rest] for part in parts or ["--broker-part=1/1"]]
    return [spark, *(Run("conformance", each, _newest()) for each in commands)]


def _suite() -> list[str]:
    return [*PYTEST, *REQUIRED, *(f"--broker-kind={kind}" for kind in ("container", "embedded") if REQUIRED)]


def _module(name: str) -> str:
    return f"plugins/{name}/tests/test_{name}_conformance.py"


def _image(name: str) -> str:
    return f"REDELIVERY_{name.upper()}_IMAGE"


def _versions(name: str) -> list[str]:
    """Return the images of a broker on this machine, oldest first."""
    return os.environ.get(f"{_image(name)}S", "").split()


def _newest() -> dict[str, str]:
    """Return the default run's image of each broker with several: the newest."""
    return {_image(name): _versions(name)[-1] for name in PLUGINS if _versions(name)}


def _versions_of(name: str) -> list[Run]:
    """Return the suite and the own tests of a broker on each of its versions, the newest first."""
    own = [*_tests(name), "--ignore-glob=*_conformance.py"]
    parts = range(1, PARTS.get(name, 1) + 1)
    whole = [[_module(name), f"--broker-part={number}/{parts[-1]}"] for number in parts]
    return [_on(name, image, tests) for image in reversed(_versions(name)) for tests in (*whole, own)]


def _on(name: str, image: str, tests: list[str]) -> Run:
    command = [*PYTEST, *NO_SPARK, *REQUIRED, "--broker-kind=container", *tests]
    return Run("versions", command, {**_newest(), _image(name): image})


def _tests(name: str) -> list[str]:
    return [f"plugins/{name}/tests", *([f"plugins/{name}/standin/tests"] if name in STANDINS else [])]


def _plugin(session: nox.Session, name: str) -> Path:
    if name not in PLUGINS:
        session.error(f"name one of our plugins: {', '.join(PLUGINS)}, as in: nox -s {session.name} -- {PLUGINS[0]}")
    return Path("plugins", name)
