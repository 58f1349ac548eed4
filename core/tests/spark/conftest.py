"""What the Spark tests share: a broker that every process can load, and one session."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from buried import Place

from redelivery import registry
from redelivery.contract.message import Batch
from redelivery.registry import connect

pyspark = pytest.importorskip("pyspark")

#: PySpark before 4.2 leaves it to the garbage collector to close the socket of a result.
LEAVES_SOCKETS = pyspark.__version__.startswith(("4.0.", "4.1."))


def pytest_itemcollected(item: pytest.Item) -> None:
    if LEAVES_SOCKETS:
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


#: For short jobs: no compiler that only pays off after minutes, no threads for a large heap.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEFAULTS = f"""
spark.ui.showConsoleProgress false
spark.sql.shuffle.partitions 2
spark.executor.memory 512m
spark.driver.extraJavaOptions {JVM}
spark.executor.extraJavaOptions {JVM}
"""


@pytest.fixture(scope="session")
def small_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Makes every Spark of the tests a small one, those of scripts too."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "spark-defaults.conf").write_text(DEFAULTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        yield


@pytest.fixture(scope="session")
def shelf_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Installs the broker of `shelf.py` and the data source of `contested.py`, here and in processes started here."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(Path(__file__).with_name("contested.py"), site / "pyspark_contested.py")
    shutil.copy(Path(__file__).with_name("shelf.py"), site / "redelivery_shelf.py")
    info = site / "redelivery_shelf-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: redelivery-shelf\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[redelivery]\nshelf = redelivery_shelf:Shelf\ntray = redelivery_shelf:Tray\ncrate = redelivery_shelf:Crate\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
        patch.syspath_prepend(site)
        registry.installed.cache_clear()
        yield site
    registry.installed.cache_clear()


@pytest.fixture(scope="session")
def spark(shelf_path, small_spark, tmp_path_factory):
    """One session for all tests."""
    from redelivery.spark.java import local_session  # noqa: PLC0415

    session = local_session(
        "tests",
        master="local[2]",
        config={"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))},
        log=tmp_path_factory.mktemp("log") / "spark.log",
    )
    yield session
    session.stop()


@pytest.fixture
def shelf(shelf_path, tmp_path):
    """A fresh shelf: `.url(queue)`, `.messages(queue)`, `.letters(queue)`."""
    return FreshShelf(tmp_path / "shelf")


@pytest.fixture
def free_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets processes that start here take any free port for Spark Connect: its usual one is in use."""
    monkeypatch.setenv("SPARK_TESTING", "1")  # as Spark's own tests: each may run beside others
    with socket.socket() as other:
        with suppress(OSError):  # another process has it
            other.bind(("127.0.0.1", 15002))
            other.listen()
        yield


class FreshShelf:
    def __init__(self, root: Path) -> None:
        self.root = root

    def url(self, queue: str = "orders", scheme: str = "shelf") -> str:
        return f"{scheme}://{self.root}?queue={queue}"

    def messages(self, queue: str = "orders"):
        from redelivery_shelf import stored  # noqa: PLC0415

        return stored(self.root / queue)

    def put(self, *messages, queue: str = "orders-dead-letters") -> None:
        """Put letters on the shelf."""
        with connect(self.url(queue)) as broker, broker.sender() as sender:
            sender.send(Batch.of(list(messages)), deadline=time.monotonic() + 10)
            assert sender.collect(5.0)[0].failures == []

    def remove(self, *positions: int, queue: str = "orders-dead-letters") -> None:
        with (self.root / queue / "removed").open("a") as note:
            note.write("".join(f"{each}\n" for each in positions))

    def letters(self, queue: str = "orders"):
        return self.messages(f"{queue}-dead-letters")

    def opened(self) -> list[str]:
        log = self.root / "opened"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def place(tmp_path):
    """A queue in a file, with `.bury(count)`, `.redrive(spark)`, `.sent` and `.letters`."""
    return Place(tmp_path)
