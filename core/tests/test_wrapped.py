"""A letter is always storable: what a sink refuses for what it holds is sent once more as an event that holds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile import STRUCTURED, messages
from hypothesis import given
from scripted import FakeClock, ScriptedBroker

from redelivery.contract.broker import Broker, Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import DeliveryFailed
from redelivery.formats import dialects, events
from redelivery.receiving.subscription import Subscription
from redelivery.registry import connect
from redelivery.sending import Bounds, Origin
from redelivery.sending.engine import Engine
from redelivery.sending.send_queue import SendQueue

CONTEXT = ErrorContext(reason="why", kind="permanent", attempts=1, attempts_total=1, message_id="i")
ROW = Message(
    value=b"\x00v", key=b"\xff", headers=(("CC", b"evil"), ("n", None), ("n", b"\xfe")), id="bad", timestamp_ms=7
)


def engine_of(*sinks: ScriptedBroker, main: ScriptedBroker, **spec: object) -> Engine:
    names = [f"scripted:{at}" for at in range(len(sinks))]
    asked = DeliverySpec(tolerance="all", dead_letter_sink=tuple(Sink(uri=name) for name in names), **spec)  # type: ignore[arg-type]
    send_queues = [
        SendQueue(url, broker, asked, Bounds(), broker.clock)
        for url, broker in [("scripted:main", main), *zip(names, sinks, strict=True)]
    ]
    return Engine(send_queues, asked, Origin(run="r"), main.clock, lambda: 0.5)


def delivered(row: Message, *, script: list[list[str]], **spec: object) -> tuple[list[ScriptedBroker], Engine]:
    clock = FakeClock()
    main = ScriptedBroker(clock, script={"bad": ["permanent"]})
    sinks = [ScriptedBroker(clock, script={"bad": list(each)}) for each in script]
    engine = engine_of(*sinks, main=main, **spec)
    engine.take(Batch.of([row]))
    engine.drain()
    return sinks, engine


def test_what_a_sink_refuses_is_sent_once_more_wrapped_and_comes_back_as_it_was() -> None:
    (sink,), engine = delivered(ROW, script=[["permanent"]])
    (letter,) = sink.stored
    assert not {"CC", "n"} & {name for name, _ in letter.headers}
    assert (letter.key, letter.timestamp_ms) == (None, None)
    form = json.loads(letter.value or b"")
    assert form["type"] == events.WRAPPED, "it does not say what it is"
    assert (form["knativeerrordest"], form["knativeerrorcode"]) == ("scripted:main", "Poison"), "it is an event now"
    context = dialects.read(letter)
    assert context is not None
    assert (context.message_id, context.kind) == ("bad", "permanent")
    assert dialects.strip(letter) == Message(
        value=ROW.value,
        key=ROW.key,
        headers=(*ROW.headers, *(each for each in dialects.strip(letter).headers if each[0] == "redelivery-letter")),
        id=ROW.id,
        timestamp_ms=ROW.timestamp_ms,
    )
    assert dialects.history(dialects.redriven(letter)).hops == 1
    assert (engine.report.dead_lettered, engine.report.sink_requests, engine.report.sink_failures) == (1, 2, 1)


def test_the_next_sink_gets_the_letter_as_it_is_first() -> None:
    (first, second), _ = delivered(ROW, script=[["permanent", "permanent"], []])
    assert not first.stored
    assert [each.value for each in second.stored] == [ROW.value]


def test_a_sink_that_refuses_it_wrapped_too_fails_the_job_with_what_it_said() -> None:
    with pytest.raises(DeliveryFailed, match="wrapped"):
        delivered(ROW, script=[["permanent"] * 2])


def test_a_letter_without_context_headers_is_wrapped_and_given_back_too() -> None:
    (sink,), _ = delivered(ROW, script=[["permanent"]], sink_context_headers=False)
    (letter,) = sink.stored
    assert dialects.strip(letter) == ROW


def test_what_a_wrapped_letter_says_of_a_destination_is_not_followed() -> None:
    inner = events.wrapped(Message(value=b"v", destination="elsewhere", extra={"exchange": "evil"}))
    letter = Message(value=inner.value, headers=(STRUCTURED, ("redelivery-letter", b'{"wrapped": true}')))
    found = dialects.redriven(letter)
    assert (found.value, found.destination, found.extra) == (b"v", None, {})


@given(messages)
def test_any_message_comes_back_from_a_wrapped_letter_as_from_any_other(message: Message) -> None:
    taken = {name for name, _ in message.headers} >= {"redelivery-letter", "redelivery-letter-2"}
    if taken:
        return
    bare = dialects.strip(message)
    plain, wrapped = (
        dialects.attach(message, CONTEXT, dialect="json", limits=Limits(), prefix=None, wrapped=each)
        for each in (False, True)
    )
    assert dialects.strip(wrapped) == dialects.strip(plain)
    assert dialects.redriven(wrapped).value == bare.value
    assert set(wrapped.headers) - {STRUCTURED} == {
        each for each in wrapped.headers if each[0].startswith("redelivery-")
    }


@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity", "1" + "0" * 5000])
def test_an_event_of_a_number_that_json_cannot_hold_ends_no_subscription_whose_sink_is_a_folder(
    tmp_path: Path, number: str
) -> None:
    body = b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"amount": %s}}' % number.encode()
    row = Message(value=body, headers=(STRUCTURED,), id="1")
    url = f"sqlite:{tmp_path}/q.db?queue=orders"
    broker: Broker
    with connect(url) as broker, broker.sender() as sender:
        sender.send(Batch.of([row]), deadline=1e9)
        assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]

    def handler(_: Message) -> None:
        raise ValueError("no")

    folder = f"file:{tmp_path}/letters"
    (tmp_path / "letters").mkdir(mode=0o700)
    spec = DeliverySpec(tolerance="all", dead_letter_sink=(Sink(uri=folder),))
    report = Subscription(url, handler, spec=spec).run(until_empty=True)
    assert report.dead_lettered == 1
    with dead_letters(url, sink=folder) as dlq:
        (letter,) = dlq
    assert dialects.strip(letter.message).value == body
