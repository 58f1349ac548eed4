"""A plugin that does nothing: what is left is the framework and the engine. Installed for one run by `install`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from redelivery.broker import Broker, BrokerPlugin, Capabilities, Sender, Settled, Support
from redelivery.message import Batch
from redelivery.plugins import hookimpl


class NullSender(Sender):
    """Settles at once and never looks at a row."""

    def __init__(self) -> None:
        self._done: list[Settled] = []

    def send(self, batch: Batch, *, deadline: float) -> None:  # noqa: ARG002
        self._done.append(Settled(batch=batch.number))

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        pass


class NullBroker(Broker):
    """Takes everything and keeps nothing."""

    name = "null"
    capabilities = Capabilities(send=Support.NATIVE, keys=Support.NATIVE, headers=Support.NATIVE)

    def sender(self) -> Sender:
        return NullSender()

    def close(self) -> None:
        pass


def connect(_url: str, _options: Mapping[str, str]) -> Broker:
    """The null broker."""
    return NullBroker()


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """The hook."""
    return BrokerPlugin(
        name="null", schemes=("null",), version="0", capabilities=NullBroker.capabilities, connect=connect
    )


def install(folder: Path) -> None:
    """Make this file a distribution in a folder that this process and Spark's workers look into."""
    shutil.copy(__file__, folder / "redelivery_null.py")
    info = folder / "redelivery_null-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: redelivery-null\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[redelivery]\nnull = redelivery_null\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, str(folder))
