"""A plugin that does nothing, to measure the framework and the engine. `install` installs it for one run.

`null:?dead=SECONDS` is a black hole for this time: it accepts each batch and reports nothing until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import one_run

from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities, Failure, Sender, Settled, Support
from redelivery.contract.hooks import hookimpl
from redelivery.contract.message import Batch
from redelivery.errors import Ambiguous


class NullSender(Sender):
    """Settles at once and never reads a row. Batches that are sent before `back` fail at their deadline."""

    def __init__(self, back: float = 0.0) -> None:
        self._back = back
        self._done: list[Settled] = []
        self._lost: list[tuple[float, Batch]] = []

    def send(self, batch: Batch, *, deadline: float) -> None:
        if time.monotonic() < self._back:
            self._lost.append((deadline, batch))
        else:
            self._done.append(Settled(batch=batch.number))

    def collect(self, wait: float) -> Sequence[Settled]:
        if self._lost:
            if not self._done:
                time.sleep(max(0.0, min(wait, self._lost[0][0] - time.monotonic())))
            self._tell()
        done, self._done = self._done, []
        return done

    def _tell(self) -> None:
        """Report each row with its own error, as clients do."""
        while self._lost and self._lost[0][0] <= time.monotonic():
            _, batch = self._lost.pop(0)
            failures = [
                Failure(row, Ambiguous(f"row {row} got no answer", native_code="Silent")) for row in range(len(batch))
            ]
            self._done.append(Settled(batch=batch.number, failures=failures))

    def close(self) -> None:
        pass


class NullBroker(Broker):
    """Accepts everything and stores nothing."""

    name = "null"
    capabilities = Capabilities(send=Support.NATIVE, keys=Support.NATIVE, headers=Support.NATIVE)

    def __init__(self, dead: float = 0.0) -> None:
        self._back = time.monotonic() + dead

    def sender(self) -> Sender:
        return NullSender(self._back)

    def close(self) -> None:
        pass


def connect(url: str, _options: Mapping[str, str]) -> Broker:
    """Return the null broker."""
    _, _, dead = url.partition("?dead=")
    return NullBroker(float(dead or 0))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin."""
    return BrokerPlugin(
        name="null", schemes=("null",), version="0", capabilities=NullBroker.capabilities, connect=connect
    )


def install(folder: Path) -> None:
    """Install this plugin for one run."""
    one_run.install("null", Path(__file__), folder)
