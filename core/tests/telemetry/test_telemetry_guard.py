"""An SDK whose processors, samplers or instruments raise loses telemetry, and no message, job or result."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
from opentelemetry.trace import get_current_span

from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import TerminalNack
from redelivery.receiving.subscription import Subscription
from redelivery.sending import Delivery, Origin
from redelivery.telemetry import guard
from redelivery.telemetry.current import Telemetry, using
from redelivery.telemetry.owned import here, traced

HEADERS = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)


class Broken(Exception):
    """Of code that is not ours; its text holds a secret."""


class Begins(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise Broken("hunter2")


class Ends(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise Broken("hunter2")


class Samples(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        raise Broken("hunter2")

    def get_description(self) -> str:
        return "broken"


class Meters(MeterProvider):
    """Its instruments raise when they are used."""

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        return Measures()  # type: ignore[return-value]


class Measures:
    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: Instrument()


class Instrument:
    def __getattr__(self, name: str) -> Any:
        def broken(*_: Any, **__: Any) -> None:
            raise Broken("hunter2")

        return broken


class NoMeters(Meters):
    """It makes no instruments."""

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        return Instrument()  # type: ignore[return-value]


def begins() -> AbstractContextManager[Telemetry]:
    tracers = TracerProvider()
    tracers.add_span_processor(Begins())
    return using(tracers)


def ends() -> AbstractContextManager[Telemetry]:
    tracers = TracerProvider()
    tracers.add_span_processor(Ends())
    return using(tracers)


BROKEN = {
    "a processor, when a span begins": begins,
    "a processor, when a span ends": ends,
    "a sampler": lambda: using(TracerProvider(sampler=Samples())),
    "an instrument": lambda: using(meter_provider=Meters()),
    "a meter": lambda: using(meter_provider=NoMeters()),
}


@pytest.fixture(params=list(BROKEN.values()), ids=list(BROKEN))
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(guard, "_told", set())
    with request.param():
        yield


@pytest.mark.usefixtures("broken")
@pytest.mark.filterwarnings("error")
def test_nothing_of_it_reaches_a_job_a_handler_or_a_redrive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, other = (f"sqlite:{tmp_path}/q.db?queue={name}" for name in ("orders", "other"))
    spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
    good = [Message(value=b"v", id=f"n{n}", headers=HEADERS) for n in range(3)]
    handled: list[str | None] = []
    failing = True

    def handler(message: Message) -> None:
        handled.append(message.id)
        if failing:
            raise TerminalNack("never")

    async def later(message: Message) -> None:
        handler(message)

    with caplog.at_level(logging.WARNING):
        for target, rows, letters in ((url, good, 0), (other, [replace(good[0], destination="")], 1)):
            with traced("task", run="r"), Delivery.open(target, spec, origin=Origin(run="r")) as delivery:
                delivery.write(Batch.of(rows))
                report = delivery.finish()
            assert (report.rows, report.dead_lettered) == (len(rows), letters)
        assert here() is None
        first = Subscription(url, handler, spec=spec).run(until_empty=True)
        assert first.terms == first.dead_lettered == 3
        with dead_letters(url) as dlq:
            assert dlq.redrive().redriven == 3
        failing = False
        assert Subscription(url, later, spec=spec).run(until_empty=True).accepted == 3
    assert len(handled) == 6
    assert not get_current_span().get_span_context().is_valid, "a span is still the current one"
    said = [each.getMessage() for each in caplog.records if each.name == "redelivery.telemetry"]
    assert 1 <= len(said) == len(set(said)), said
    assert all("Broken in " in each for each in said)
    assert not any("hunter2" in each for each in said)


@pytest.mark.usefixtures("broken")
def test_an_error_inside_a_span_is_the_one_that_is_raised() -> None:
    with pytest.raises(KeyError, match="mine"), traced("task"):
        raise KeyError("mine")
