"""Messages that are sent, given up, redriven and handled are seen in spans and metrics, and no message is changed."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from telemetry.conftest import Recorded

from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Retriable, TerminalNack
from redelivery.formats import dialects
from redelivery.policy.breaker import Breaker
from redelivery.receiving.subscription import Subscription
from redelivery.sending import Delivery, Origin
from redelivery.telemetry import conventions, counters
from redelivery.telemetry.current import using
from redelivery_sqlite.receiver import SqliteReceiver

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
TRACED = (("traceparent", PARENT.encode()), ("tracestate", b"v=1"), ("mine", b"\x00"))
NAMES = itertools.count()


def message(name: str, *, traced: bool = True, value: bytes = b"v") -> Message:
    return Message(value=value, id=name, headers=TRACED if traced else ())


def deliver(url: str, *messages: Message, **spec: object) -> None:
    given = DeliverySpec(dead_letter_sink=(Sink(uri="native"),), **spec)  # type: ignore[arg-type]
    with Delivery.open(url, given, origin=Origin(run="r")) as delivery:
        delivery.write(Batch.of(messages))
        delivery.finish()


def handle(url: str, handler: Callable[[Message], object], *, workers: int = 1, **spec: object) -> Subscription:
    given = DeliverySpec(dead_letter_sink=(Sink(uri="native"),), backoff_delay=timedelta(0), **spec)  # type: ignore[arg-type]
    found = Subscription(url, handler, name=f"telemetry-{next(NAMES)}", spec=given, workers=workers)
    found.run(until_empty=True)
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/q.db?queue=orders"


def refused(name: str, *, traced: bool = True) -> Message:
    """A message that its destination refuses for good."""
    return replace(message(name, traced=traced), destination="")


def in_trace(recorded: Recorded) -> list[str]:
    return [each.name for each in recorded.spans() if each.context.trace_id == int(TRACE, 16)]


def test_a_batch_is_one_span_and_counted_by_the_conventions(recorded: Recorded, url: str) -> None:
    deliver(url, *(message(f"n{n}") for n in range(3)))
    span = recorded.span("send")
    assert (span.name, span.kind) == ("send orders", trace.SpanKind.CLIENT)
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "messaging.system": "sqlite",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 3,
        "redelivery.attempt": 1,
        "redelivery.outcome": "delivered",
    }
    assert not span.links
    assert recorded.total("messaging.client.sent.messages", messaging__system="sqlite") == 3
    assert recorded.total("messaging.client.operation.duration", messaging__operation__name="send") == 1


def test_the_callers_span_is_the_parent_though_the_engine_has_a_thread_of_its_own(recorded: Recorded, url: str) -> None:
    with recorded.tracers.get_tracer("test").start_as_current_span("job") as job:
        deliver(url, message("a"))
    span = recorded.span("send")
    assert span.parent is not None
    assert span.parent.span_id == job.get_span_context().span_id


def test_what_died_is_in_its_own_trace_from_the_failure_to_the_handler(recorded: Recorded, url: str) -> None:
    def fails(_: Message) -> None:
        raise ValueError("password=hunter2")

    deliver(url, message("a"))
    handle(url, fails, retry=1)
    with dead_letters(url) as dlq:
        (letter,) = dlq.select()
        said = dialects.read(letter.message)
        assert dlq.redrive().redriven == 1
    seen: list[Message] = []
    handle(url, seen.append)

    first, second, third = recorded.spans("process")
    assert in_trace(recorded) == ["process orders", "process orders", "redrive", "process orders"]
    assert [each.parent.span_id for each in (first, second, third) if each.parent] == [int(SPAN, 16)] * 3
    assert [each.attributes["redelivery.attempt"] for each in (first, second, third) if each.attributes] == [1, 2, 1]
    assert [each.attributes["redelivery.hop"] for each in (first, second, third) if each.attributes] == [0, 0, 1]
    assert second.attributes is not None
    assert second.attributes["error.type"] == "ValueError"
    assert second.attributes["redelivery.outcome"] == "failed"
    assert "hunter2" not in second.to_json()
    # The letter says in which span it failed, and the redrive links to it.
    assert said is not None
    assert said.traceparent is not None
    assert said.traceparent.split("-")[2] == f"{second.context.span_id:016x}"
    for name in ("redrive", "redrive letters"):
        span = next(each for each in recorded.spans("redrive") if each.name == name)
        assert second.context.span_id in {each.context.span_id for each in span.links}
    # And the message is as it was written.
    assert [each for each in seen[0].headers if each[0] in dict(TRACED)] == list(TRACED)
    assert recorded.total("messaging.client.consumed.messages") == 3
    assert recorded.total("messaging.process.duration") == 3
    assert recorded.total("messaging.process.duration", error__type="ValueError") == 2


def test_a_row_that_is_given_up_gets_a_span_in_its_own_trace_and_the_batch_links_to_it(
    recorded: Recorded, url: str
) -> None:
    deliver(url, message("good"), refused("bad"), refused("plain", traced=False))
    given_up = recorded.span("give up")
    assert in_trace(recorded) == ["give up orders"]
    assert given_up.attributes is not None
    assert given_up.attributes["redelivery.code"] == given_up.attributes["error.type"] == "INVALID_DESTINATION"
    assert given_up.attributes["messaging.message.id"] == "bad"
    failed = [each for each in recorded.spans("send orders") if not each.status.is_ok]
    assert any(link.context.trace_id == int(TRACE, 16) for each in failed for link in each.links)
    with dead_letters(url) as dlq:
        said = {each.message.id: dialects.read(each.message) for each in dlq.select()}
    spans = {
        name: context.traceparent.split("-")[2] for name, context in said.items() if context and context.traceparent
    }
    assert spans["bad"] == f"{given_up.context.span_id:016x}"
    assert spans["plain"] in {f"{each.context.span_id:016x}" for each in failed}
    assert recorded.total("messaging.client.sent.messages", error__type="INVALID_DESTINATION") >= 2


def test_a_terminal_nack_is_counted_apart_and_kip_298s_metrics_have_their_names(recorded: Recorded, url: str) -> None:
    def gives_up(_: Message) -> None:
        raise TerminalNack("never")

    deliver(url, message("a"), message("b"))
    report = handle(url, gives_up).report
    metrics = recorded.metrics()
    assert {*conventions.KIP_298, conventions.LAST_ERROR, conventions.TERMS} <= metrics.keys()
    for name, value in report.delivery.metrics().items():
        assert recorded.total(name) == value
    assert recorded.total("terms") == report.terms == 2
    assert all(
        span.attributes and span.attributes["redelivery.outcome"] == "terminated" for span in recorded.spans("process")
    )


def test_an_outage_of_a_handler_is_a_gauge_while_it_lasts(
    recorded: Recorded, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "EVERY", 0.0)
    seen: list[float] = []

    def down_until_it_is_shown(_: Message) -> None:
        seen.append(recorded.total("redelivery.subscription.outage", redelivery__subscription="breaker"))
        if 1 not in seen:
            raise ConnectionError("the bank is down")

    deliver(url, *(message(f"n{n}") for n in range(5)))
    breaker = Breaker(failures=2, pause=timedelta(milliseconds=10), patience=timedelta(seconds=30))
    spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
    report = Subscription(url, down_until_it_is_shown, name="breaker", spec=spec, breaker=breaker).run(until_empty=True)
    assert seen[0] == 0
    assert 1 in seen
    assert recorded.total("redelivery.subscription.outage") == 0
    assert recorded.total("redelivery.subscription.outages") == report.outages == 1


def test_an_outage_of_the_broker_is_shown_also_without_a_breaker(
    recorded: Recorded, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(url, message("a"))
    receive, errors = SqliteReceiver.receive, [Retriable("locked")]

    def fails_once(*arguments: Any, **named: Any) -> Any:
        if errors:
            raise errors.pop()
        return receive(*arguments, **named)

    monkeypatch.setattr(SqliteReceiver, "receive", fails_once)
    report = Subscription(url, lambda _: None, breaker=None).run(until_empty=True)
    assert "terms" in recorded.metrics()
    assert recorded.total("redelivery.subscription.outage") == 0
    assert recorded.total("redelivery.subscription.outages") == report.outages == report.accepted == 1


def test_a_handlers_own_spans_are_children_of_its_process_span(recorded: Recorded, url: str) -> None:
    tracer = recorded.tracers.get_tracer("mine")

    async def slow(_: Message) -> None:
        with tracer.start_as_current_span("mine"):
            await asyncio.sleep(0.01)

    def quick(_: Message) -> None:
        tracer.start_span("mine").end()

    for handler in (quick, slow):
        deliver(url, message(handler.__name__), message(f"other {handler.__name__}", traced=False))
        handle(url, handler, workers=2)
    processes = {each.context.span_id for each in recorded.spans("process")}
    assert len(processes) == 4
    assert {each.parent.span_id for each in recorded.spans("mine") if each.parent} == processes


def test_settling_is_a_span_where_it_says_more_than_that_messages_were_handled(recorded: Recorded, url: str) -> None:
    failed: list[str | None] = []

    def fails_once(given: Message) -> None:
        if given.id == "n3" and not failed:
            failed.append(given.id)
            raise ValueError

    deliver(url, *(message(f"n{n}") for n in range(5)))
    handle(url, fails_once, retry=2)
    (settled,) = [each.attributes for each in recorded.spans("settle orders")]
    assert settled is not None
    assert "retry" in str(settled["redelivery.outcome"])
    assert recorded.total("messaging.client.operation.duration", messaging__operation__name="settle") >= 2


def test_a_hostile_id_is_shown_in_part_and_can_be_exported(recorded: Recorded, url: str) -> None:
    deliver(url, Message(value=b"v", id="a" * 10_000, headers=TRACED, destination=""))
    shown = (recorded.span("give up").attributes or {})["messaging.message.id"]
    assert str(shown) == "a" * 256


def test_no_attribute_of_a_metric_depends_on_a_row(recorded: Recorded, url: str) -> None:
    deliver(url, *(message(f"n{n}") for n in range(50)))
    handle(url, lambda _: None)
    assert max(map(len, recorded.metrics().values())) <= 4


def test_a_trace_that_is_not_recorded_makes_no_span_of_its_own(recorded: Recorded, url: str) -> None:
    off = (("traceparent", f"00-{TRACE}-{SPAN}-00".encode()),)
    deliver(url, Message(value=b"v", id="a", headers=off))
    handle(url, lambda _: None)
    assert in_trace(recorded) == []


def test_without_an_sdk_nothing_is_recorded_and_a_letter_says_no_span(url: str) -> None:
    with using():
        deliver(url, refused("bad"))
    with dead_letters(url) as dlq:
        (letter,) = dlq.select()
    said = dialects.read(letter.message)
    assert said is not None
    assert said.traceparent is None


def test_without_an_sdk_opentelemetry_is_not_even_imported(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from redelivery.contract.message import Batch, Message\n"
        "from redelivery.contract.spec import DeliverySpec\n"
        "from redelivery.sending import Delivery, Origin\n"
        "from redelivery.receiving.subscription import Subscription\n"
        f"url = 'sqlite:{tmp_path}/q.db'\n"
        "with Delivery.open(url, DeliverySpec(), origin=Origin(run='r')) as delivery:\n"
        "    delivery.write(Batch.of([Message(value=b'v')]))\n"
        "    delivery.finish()\n"
        "Subscription(url, print).run(until_empty=True)\n"
        "assert not [each for each in sys.modules if each.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
