"""A destination that refuses rows, before another that stores them: to measure what dead and retried rows cost.

`failing:?of=URL&dead=N` refuses every Nth row permanently; `dead=1` refuses all. `failing:?of=URL&once=1` refuses every
row the first time, as a throttled broker does. What is not refused goes to the broker at URL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qs, quote

import one_run

from redelivery import registry
from redelivery.codes import Code
from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities, Failure, Sender, Settled, Support
from redelivery.contract.hooks import hookimpl
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError, Permanent, Retriable


class FailingSender(Sender):
    """Refuses some rows of each batch, and sends the others."""

    def __init__(self, inner: Sender, *, dead: int, once: bool) -> None:
        self._inner = inner
        self._dead = dead
        self._once = once
        self._seen: set[bytes | None] = set()
        self._refused: dict[int, list[int]] = {}
        self._sent: dict[int, list[int]] = {}
        self._done: list[Settled] = []

    def send(self, batch: Batch, *, deadline: float) -> None:
        refused = self._refuses(batch)
        if not refused:
            self._inner.send(batch, deadline=deadline)
        elif len(refused) == len(batch):
            self._done.append(Settled(batch=batch.number, failures=self._failures(refused)))
        else:
            there = set(refused)
            sent = [row for row in range(len(batch)) if row not in there]
            self._refused[batch.number], self._sent[batch.number] = refused, sent
            self._inner.send(batch.take(sent), deadline=deadline)

    def _refuses(self, batch: Batch) -> list[int]:
        if self._once:
            keys = batch.key.values if batch.key is not None else []
            if keys and keys[0] in self._seen:
                self._seen.difference_update(keys)
                return []
            self._seen.update(keys)
            return list(range(len(batch)))
        return list(range(-batch.first % self._dead, len(batch), self._dead)) if self._dead else []

    def _failures(self, rows: Sequence[int]) -> list[Failure]:
        error: BrokerError = Permanent("this row is refused", code=Code.INVALID_MESSAGE, native_code="Refused")
        if self._once:
            error = Retriable("not now", code=Code.THROTTLED, native_code="NotNow")
        return [Failure(row, error) for row in rows]

    def collect(self, wait: float) -> Sequence[Settled]:
        done, self._done = self._done, []
        for settled in self._inner.collect(0.0 if done else wait):
            rows = self._sent.pop(settled.batch, None)
            if rows is None:
                done.append(settled)
                continue
            failures = [Failure(rows[each.index], each.error) for each in settled.failures]
            failures += self._failures(self._refused.pop(settled.batch))
            done.append(Settled(batch=settled.batch, failures=failures, error=settled.error))
        return done

    def close(self) -> None:
        self._inner.close()


class FailingBroker(Broker):
    """Another broker that refuses rows."""

    name = "failing"

    def __init__(self, inner: Broker, dead: int, once: bool) -> None:  # noqa: FBT001
        self._inner = inner
        self._dead = dead
        self._once = once
        self.capabilities = inner.capabilities

    def sender(self) -> Sender:
        return FailingSender(self._inner.sender(), dead=self._dead, once=self._once)

    def close(self) -> None:
        self._inner.close()


def connect(url: str, _options: Mapping[str, str]) -> Broker:
    """Return the broker at `of`, which refuses rows."""
    given = parse_qs(url.partition("?")[2])
    inner = registry.connect(given["of"][0], json.loads(given.get("with", ["{}"])[0]))
    return FailingBroker(inner, int(given.get("dead", ["0"])[0]), given.get("once") == ["1"])


def url(of: str, options: Mapping[str, str], *, dead: int = 0, once: bool = False) -> str:
    """Return the URL of a destination that refuses rows before `of`, which is opened with these client options."""
    own = f"&with={quote(json.dumps(dict(options)), safe='')}" if options else ""
    return f"failing:?of={quote(of, safe='')}&dead={dead}" + ("&once=1" if once else "") + own


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin."""
    capabilities = Capabilities(send=Support.NATIVE, keys=Support.NATIVE, headers=Support.NATIVE, ids=Support.NATIVE)
    return BrokerPlugin(name="failing", schemes=("failing",), version="0", capabilities=capabilities, connect=connect)


def install(folder: Path) -> None:
    """Install this plugin for one run."""
    one_run.install("failing", Path(__file__), folder)
