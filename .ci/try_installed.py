"""Tries what is installed in this environment: run by its own Python, from wheels, without the repository's sources.

    ENVIRONMENT/bin/python -I .ci/try_installed.py WHEELS [--without MODULE ...] [--plugins NAME ...] [--use] [--spark]

It needs nothing but what is installed, and imports every module of our distributions. With `--without`: the modules,
and those below, that need an extra that is not installed; one of them has to fail. `--plugins` says which plugins are
found, `--use` writes, reads and redrives without Spark, `--spark` runs a job.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import pkgutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

#: The command's exit status where it cannot do what was asked.
FAILED = 2


def ours() -> list[Distribution]:
    """Return our distributions that are installed here."""
    return [each for each in distributions() if each.name == "redelivery" or each.name.startswith("redelivery-")]


def come_from(wheels: Path) -> None:
    """Check that each is installed from its wheel in this folder, file by file."""
    for each in ours():
        stem = f"{each.name.replace('-', '_')}-{each.version}"
        with zipfile.ZipFile(wheels / f"{stem}-py3-none-any.whl") as archive:
            record = archive.read(f"{stem}.dist-info/RECORD").decode().split()
        installed = (each.read_text("RECORD") or "").split()
        lacks = [line for line in record if line not in installed and not line.startswith(f"{stem}.dist-info/RECORD")]
        assert not lacks, f"{each.name} is not the wheel's: {lacks[:3]}"


def modules() -> Iterator[str]:
    """Yield the names of all modules of our distributions."""
    for each in ours():
        tops = {
            path.parts[0] for path in each.files or () if path.suffix == ".py" and not path.parts[0].startswith(".")
        }
        for top in sorted(tops):
            yield top.removesuffix(".py")
            folder = Path(str(each.locate_file(top)))
            if folder.is_dir():
                yield from (found.name for found in pkgutil.walk_packages([str(folder)], f"{top}."))


def import_all(without: list[str]) -> int:
    """Import every module. Return how many were imported."""
    failed = {}
    count = 0
    # Those that start something when they are imported, as `python -m` does.
    for name in (each for each in modules() if not each.endswith("__main__")):
        try:
            importlib.import_module(name)
            count += 1
        except ImportError as error:
            failed[name] = str(error)
    below = {each: [name for name in failed if f"{name}.".startswith(f"{each}.")] for each in without}
    wrong = {name: why for name, why in failed.items() if not any(name in names for names in below.values())}
    assert not wrong, f"undeclared, or imported too early: {wrong}"
    needless = [each for each, names in below.items() if not names]
    assert not needless, f"imported without the extra that brings its packages: {needless}"
    return count


def command(*arguments: str) -> tuple[int, str, str]:
    """Run the command `redelivery`; return its status and its output."""
    from redelivery.cli import main  # noqa: PLC0415 - what is tried

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = main(arguments)
        except SystemExit as left:
            status = int(left.code or 0)
    return status, out.getvalue(), errors.getvalue()


def command_says_what_lacks() -> None:
    """Check that a command whose packages are not installed says so in one line, and which extra brings them."""
    for needs, arguments in {
        "prometheus_client": ("watch", "--once", "sqlite:none.db?queue=q"),
        "starlette": ("ui", "sqlite:none.db?queue=q"),
        "shtab": ("completion", "bash"),
    }.items():
        if importlib.util.find_spec(needs) is None:
            status, _, errors = command(*arguments)
            assert status == FAILED, (arguments, status, errors)
            assert errors.count("\n") == 1, errors
            assert "pip install 'redelivery" in errors, errors


def use(folder: Path) -> None:
    """Send two messages, give up one of them, look at its letter, send it back and receive it."""
    from redelivery import DeliverySpec, Message, Sink, Subscription, TerminalNack, connect, dead_letters  # noqa: PLC0415
    from redelivery.contract.message import Batch  # noqa: PLC0415

    url = f"sqlite:{folder / 'tried.db'}?queue=orders"
    spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))

    def refuse(message: Message) -> None:
        if message.value == b"lost":
            raise TerminalNack("the order is lost")

    messages = [Message(value=b"paid", id="1"), Message(value=b"lost", id="2")]
    with connect(url) as broker, broker.sender() as sender:
        sender.send(Batch.of(messages), deadline=time.monotonic() + 10)
        sender.collect(10.0)
    Subscription(url, refuse, spec=spec).run(until_empty=True)
    status, out, errors = command("dead-letters", "list", url)
    assert (status, errors) == (0, ""), errors
    assert "the order is lost" in out
    with dead_letters(url) as letters:
        assert letters.redrive().redriven == 1
    received: list[bytes | None] = []
    Subscription(url, lambda message: received.append(message.value)).run(until_empty=True)
    assert received == [b"lost"]


def use_spark(folder: Path) -> None:
    """Run a job that writes two rows, of which one fails, and read its letter by another."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession  # noqa: PLC0415

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    url = f"sqlite:{folder / 'spark.db'}?queue=orders"
    # An event needs a type, so the second row becomes a dead letter.
    events = [("1", "paid", "/tried", "a"), ("2", "", "/tried", "b")]
    rows = spark.createDataFrame(events, "id string, type string, source string, value string").coalesce(1)
    options = {"url": url, "deadLetterSink": "native"}
    rows.write.format("redelivery").mode("append").options(**options).save()
    letters = spark.read.format("redelivery").option("url", url).option("deadLetters", "true").load()
    found = letters.select("_error.code").collect()
    spark.stop()
    assert len(found) == 1, found


def main() -> None:
    """Try what the command line says. Raises AssertionError."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--plugins", nargs="*")
    parser.add_argument("--use", action="store_true")
    parser.add_argument("--spark", action="store_true")
    asked = parser.parse_args()
    come_from(asked.wheels)
    version = next(each.version for each in ours())
    status, out, _ = command("--version")
    assert (status, out) == (0, f"redelivery {version}\n"), (status, out)
    if asked.plugins is not None:
        from redelivery.registry import installed  # noqa: PLC0415

        found = sorted(installed().plugins), list(installed().failed)
        assert found == (sorted(asked.plugins), []), found
        assert command("plugins")[0] == 0
    command_says_what_lacks()
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = name
        if asked.use:
            use(Path(name))
        if asked.spark:
            use_spark(Path(name))
    count = import_all(asked.without)
    print(f"{', '.join(sorted(each.name for each in ours()))}: {count} modules imported")


if __name__ == "__main__":
    main()
