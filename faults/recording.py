"""A connection that writes every attempt and every settlement into the history, between the engine and the plugin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from faults.history import DESTINATION, SINK, STORED, Recorder
from faults.plan import number_of
from redelivery.contract.broker import Broker, Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery.sending.connector import ConnectionFactory, connected


def recorded(recorder: Recorder, destination: str) -> ConnectionFactory:
    """Return a connection factory for `Delivery.open`; `destination` is the URL that is not a sink."""

    @contextmanager
    def connection(url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        with connected(url, options) as broker:
            make, to = broker.sender, DESTINATION if url == destination else SINK
            broker.sender = lambda: RecordingSender(make(), recorder, to)  # type: ignore[method-assign]
            yield broker

    return connection


class RecordingSender(Sender):
    """A plugin's sender, with a history."""

    def __init__(self, inner: Sender, recorder: Recorder, to: str) -> None:
        self._inner = inner
        self._recorder = recorder
        self._to = to
        self._in_flight: dict[int, list[int | None]] = {}

    def check(self, *, deadline: float) -> None:
        self._inner.check(deadline=deadline)

    def send(self, batch: Batch, *, deadline: float) -> None:
        rows = [number_of(value) for value in batch.value.values]
        self._recorder.write("attempt", rows=_known(rows), to=self._to)
        try:
            self._inner.send(batch, deadline=deadline)
        except BrokerError as error:
            self._settled(_known(rows), error)
            raise
        self._in_flight[batch.number] = rows

    def collect(self, wait: float) -> Sequence[Settled]:
        found = self._inner.collect(wait)
        for settled in found:
            self._settle(self._in_flight.pop(settled.batch), settled)
        return found

    def close(self) -> None:
        self._inner.close()

    def _settle(self, rows: list[int | None], settled: Settled) -> None:
        failed: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        errors: dict[tuple[str, str], BrokerError] = {}
        for each in settled.failures:
            name = (each.error.kind, each.error.label)
            number = rows[each.index]
            errors[name] = each.error
            if number is not None:
                failed[name].append(number)
        rejected = {each.index for each in settled.failures}
        self._settled(_known([row for at, row in enumerate(rows) if at not in rejected]), settled.error)
        for name, numbers in failed.items():
            self._settled(numbers, errors[name])

    def _settled(self, rows: list[int], error: BrokerError | None) -> None:
        if not rows:
            return
        if error is None:
            self._recorder.write("settled", **{"rows": rows, "to": self._to, "as": STORED})
            return
        told = {"rows": rows, "to": self._to, "as": error.kind, "code": error.label, "error": str(error)[:200]}
        self._recorder.write("settled", **told)


def _known(rows: Sequence[int | None]) -> list[int]:
    return [row for row in rows if row is not None]
