"""The engine's thread: what the caller of a delivery sees, and that nothing hangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scripted import FakeClock, ScriptedBroker, ScriptedSender

from redelivery.contract.broker import Broker, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Ref, Sink
from redelivery.errors import (
    ConfigurationError,
    ContractViolation,
    DeliveryFailed,
    Fatal,
    Permanent,
    Retriable,
)
from redelivery.sending import Bounds, Delivery, Origin, Rejected, letters
from redelivery.sending import delivery as module
from redelivery.sending.connector import Connector, Resources, sink_url
from redelivery.sending.group import Group
from redelivery.sending.letters import Contexts, LetterWriter


class RealClock(FakeClock):
    """The scripted broker's clock, where it must be the machine's."""

    @property  # type: ignore[override]
    def now(self) -> float:
        return time.monotonic()

    @now.setter
    def now(self, value: float) -> None:
        pass


class Lent:
    """Lends scripted brokers by URL, and notes how they came back."""

    def __init__(self, **brokers: Broker) -> None:
        self.brokers = brokers
        self.returned: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def __call__(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        name = url.removeprefix("scripted:")
        try:
            yield self.brokers[name]
        except BaseException as error:
            self.returned.append((name, type(error).__name__))
            raise
        self.returned.append((name, ""))


def scripted(**script: list[str]) -> ScriptedBroker:
    return ScriptedBroker(RealClock(), script=dict(script))


def opened(lent: Lent, **spec: Any) -> Delivery:
    sinks = tuple(Sink(uri=f"scripted:{name}") for name in lent.brokers if name != "work")
    return Delivery.open(
        "scripted:work", DeliverySpec(dead_letter_sink=sinks, **spec), origin=Origin(run="r"), connection_factory=lent
    )


def batch(*ids: str) -> Batch:
    return Batch.of([Message(value=b"v", id=name) for name in ids])


def test_rows_written_are_accounted_for_and_connections_come_back() -> None:
    lent = Lent(work=scripted(b=["permanent"]), sink=scripted())
    with opened(lent) as delivery:
        delivery.write(batch("a", "b"))
        bad = Batch.of([Message(value=b"{}", id="c")])
        delivery.reject(Rejected(bad, [Permanent("no", native_code="Invalid")], "VALUE_CONVERTER"))
        report = delivery.finish()
    assert (report.rows, report.delivered, report.dead_lettered) == (3, 1, 2)
    assert report.seconds > 0
    assert sorted(lent.returned) == [("sink", ""), ("work", "")]


def test_a_failure_is_raised_in_the_callers_thread_and_its_connection_is_not_reused() -> None:
    lent = Lent(work=scripted(a=["permanent"]))
    with pytest.raises(DeliveryFailed, match="'a' could not be delivered"), opened(lent) as delivery:
        for n in range(1000):
            delivery.write(batch("a" if n == 0 else f"b{n}"))
        delivery.finish()
    assert lent.returned == [("work", "DeliveryFailed")]


def test_due_retries_go_on_while_the_caller_blocks() -> None:
    work = scripted(a=["retriable", "retriable"])
    lent = Lent(work=work)
    with opened(lent, retry=2) as delivery:
        delivery.write(batch("a"))
        end = time.monotonic() + 10
        while not work.stored and time.monotonic() < end:
            time.sleep(0.01)  # the caller does nothing: its row iterator blocks
        assert work.stored_ids() == {"a": 1}
        delivery.finish()


def test_leaving_by_an_exception_of_the_callers_gives_up_at_once() -> None:
    work = scripted(a=["retriable"] * 1000)
    lent = Lent(work=work)
    began = time.monotonic()
    with pytest.raises(KeyError), opened(lent, retry=1000) as delivery:
        delivery.write(batch("a"))
        raise KeyError("the caller's own")
    assert time.monotonic() - began < 5
    assert lent.returned == [("work", "KeyError")]
    assert not any(thread.name == "redelivery-engine" for thread in threading.enumerate())


def test_closing_badly_never_hides_why_the_caller_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(_self: object) -> None:
        raise Retriable("close failed")

    monkeypatch.setattr("scripted.ScriptedSender.close", close)
    with pytest.raises(ValueError, match="the caller's own"), opened(Lent(work=scripted())):
        raise ValueError("the caller's own")


def test_a_destination_that_cannot_be_opened_fails_before_any_row_is_taken() -> None:
    work = scripted()
    work.on_open = Fatal("no access")
    with pytest.raises(Fatal, match="no access"):
        opened(Lent(work=work))


class Unsteady(ScriptedBroker):
    """Fails to open `failing` times."""

    failing = 0
    tries = 0

    def sender(self) -> Sender:
        self.tries += 1
        if self.tries <= self.failing:
            raise Retriable("the connection was closed while it opened")
        return super().sender()


def opened_after(failing: int, stop_at: float = float("inf"), **spec: Any) -> tuple[Unsteady, FakeClock]:
    clock = FakeClock()
    broker = Unsteady(clock)
    broker.failing = failing
    with Resources() as resources:
        connector = Connector(
            url="scripted:work",
            spec=DeliverySpec(**spec),
            options={},
            bounds=Bounds(),
            clock=clock,
            connection_factory=Lent(work=broker),
            resources=resources,
        )
        try:
            connector.destination(broker, lambda: clock.now >= stop_at)
        except Retriable:
            assert broker.tries <= failing
    return broker, clock


@given(failing=st.integers(0, 6), retry=st.integers(0, 6))
def test_a_destination_is_opened_again_as_often_as_a_row_is_sent_again(failing: int, retry: int) -> None:
    broker, clock = opened_after(failing, retry=retry, backoff_delay=timedelta(seconds=2), backoff_policy="linear")
    assert broker.tries == min(failing, retry) + 1
    assert (clock.now > 1000) == (min(failing, retry) > 0)


def test_a_destination_is_opened_again_for_as_long_as_a_row_is_sent_again() -> None:
    _, clock = opened_after(10**6, retry_timeout=timedelta(seconds=20), backoff_delay=timedelta(seconds=3))
    assert clock.now == 1020


@pytest.mark.parametrize(("stop_at", "tries"), [(1000, 1), (1004, 1), (1040, 3)])
def test_an_operator_who_stops_it_does_not_wait_for_a_destination_that_is_down(stop_at: float, tries: int) -> None:
    broker, clock = opened_after(10**6, stop_at, retry=-1, backoff_delay=timedelta(seconds=10), backoff_policy="linear")
    assert broker.tries == tries
    assert stop_at <= clock.now < stop_at + 1


def test_a_destination_is_opened_once_where_no_retries_are_asked_for() -> None:
    broker, clock = opened_after(1)
    assert (broker.tries, clock.now) == (1, 1000)


def test_a_sink_that_can_never_work_is_said_before_any_row_is_sent() -> None:
    sink = scripted()
    sink.on_open = Fatal("no access")
    with pytest.raises(Fatal, match="no access"):
        opened(Lent(work=scripted(), sink=sink))


def test_a_sink_that_is_only_down_does_not_keep_good_rows_from_their_destination() -> None:
    sink = scripted()
    sink.on_open = Retriable("down")
    with opened(Lent(work=scripted(), sink=sink)) as delivery:
        delivery.write(batch("a"))
        assert delivery.finish().delivered == 1


def test_a_sink_equal_to_the_destination_is_refused() -> None:
    spec = DeliverySpec(dead_letter_sink=(Sink(uri="scripted:work"),))
    with pytest.raises(ConfigurationError, match="is the destination itself"):
        Delivery.open("scripted:work", spec, origin=Origin(run="r"), connection_factory=Lent(work=scripted()))


def test_a_sink_that_is_the_destination_by_another_spelling_is_refused() -> None:
    work, sink = scripted(), scripted()
    work.canonical_url = sink.canonical_url = "scripted:the-same"
    with pytest.raises(ConfigurationError, match="is the destination itself"):
        opened(Lent(work=work, sink=sink))


def test_a_native_sink_is_the_one_that_the_broker_names() -> None:
    lent = Lent(work=scripted(a=["permanent"]), native=scripted())
    spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
    with Delivery.open("scripted:work", spec, origin=Origin(run="r"), connection_factory=lent) as delivery:
        delivery.write(batch("a"))
        assert delivery.finish().destinations["scripted:native"].delivered == 1


def test_a_ref_is_the_place_of_that_name_at_the_destinations_broker() -> None:
    lent = Lent(work=scripted(a=["permanent"]), letters=scripted())
    spec = DeliverySpec(dead_letter_sink=(Sink(ref=Ref(kind="Queue", name="letters")),))
    with Delivery.open("scripted:work", spec, origin=Origin(run="r"), connection_factory=lent) as delivery:
        delivery.write(batch("a"))
        assert delivery.finish().destinations["scripted:letters"].delivered == 1


@pytest.mark.parametrize(
    "ref",
    [
        Ref(kind="Service", name="letters", api_version="serving.knative.dev/v1"),
        Ref(kind="Queue", name="letters", api_version="elsewhere.example/v1"),
        Ref(kind="queue", name="letters"),
        Ref(kind="Queue", name="letters", namespace="jobs"),
    ],
    ids=["kind", "group", "case", "namespace"],
)
def test_a_ref_that_the_broker_does_not_know_is_refused_and_the_known_kinds_named(ref: Ref) -> None:
    spec = DeliverySpec(dead_letter_sink=(Sink(ref=ref),))
    work, letters = scripted(), scripted()
    with pytest.raises(ConfigurationError, match=r"deadLetterSink: .*ref.*Queue") as refused:
        Delivery.open(
            "scripted:work", spec, origin=Origin(run="r"), connection_factory=Lent(work=work, letters=letters)
        )
    assert (ref.namespace or ref.group_kind) in str(refused.value)
    assert work.sends == []


def test_a_broker_without_kinds_resolves_no_ref() -> None:
    work = scripted()
    work.capabilities = replace(work.capabilities, ref_kinds=())
    spec = DeliverySpec(dead_letter_sink=(Sink(ref=Ref(kind="Queue", name="letters")),))
    with pytest.raises(ConfigurationError, match="resolves no refs; give a URL"):
        Delivery.open("scripted:work", spec, origin=Origin(run="r"), connection_factory=Lent(work=work))


def relative(base: str, uri: str) -> str:
    """The URL that a uri relative to a ref means, where the broker resolves the ref to `base`."""
    work = scripted()
    work.sibling = lambda _name: base  # type: ignore[method-assign]
    return sink_url(Sink(uri=uri, ref=Ref(kind="Queue", name="letters")), work)


@pytest.mark.parametrize(
    ("base", "uri", "url"),
    [
        ("x://h:1,g:2/letters", "poison", "x://h:1,g:2/poison"),
        ("x://h/a/letters", "/poison", "x://h/poison"),
        ("x://h/a/letters", "../poison", "x://h/poison"),
        ("x://u:pw@h/v?queue=letters", "?queue=poison", "x://u:pw@h/v?queue=poison"),
        ("x:///a/q.db?queue=letters", "?queue=poison", "x:///a/q.db?queue=poison"),
        ("x:letters", "poison", "x:poison"),
    ],
)
def test_a_uri_relative_to_a_ref_is_resolved_as_rfc_3986_says(base: str, uri: str, url: str) -> None:
    assert relative(base, uri) == url


@pytest.mark.parametrize(
    ("base", "uri", "why"),
    [
        ("x://u:pw@h/v?queue=letters", "poison", "would lose its query"),
        ("x:letters?region=here", "poison", "would lose its query"),
        ("x://h/letters", "//elsewhere/poison", "another host"),
        ("x://h/letters", "\t//elsewhere/poison", "another host"),
        ("x://h/letters", "http://elsewhere/poison", "another host"),
        ("x:letters", "http://elsewhere/poison", "another host"),
        ("x://h/letters", "y://elsewhere/poison", "another host"),
        ("x://h/letters", "//[elsewhere/poison", "does not parse"),
        ("x://h/letters", "letters", "is the ref itself"),
        ("x://h/letters", "#poison", "names no other place"),
    ],
)
def test_a_uri_relative_to_a_ref_that_means_no_other_place_there_is_refused(base: str, uri: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"deadLetterSink: .*{why}.*give a URL") as refused:
        relative(base, uri)
    assert "pw" not in str(refused.value)


@example("//a@[b", "x:b?q=1")
@given(st.text(min_size=1) | st.from_regex(r"[/.?#\[\]:@a]{1,8}"), st.sampled_from(["x://u:pw@h:1,g:2/a/b", "x:b?q=1"]))
def test_any_uri_beside_a_ref_is_resolved_at_the_same_host_or_refused(uri: str, base: str) -> None:
    with contextlib.suppress(ConfigurationError):
        url = relative(base, uri)
        assert url.startswith("x://u:pw@h:1,g:2/" if "//" in base else "x:")


def test_the_caller_waits_while_there_is_no_room() -> None:
    work = scripted()
    work.latency = 0.2
    lent = Lent(work=work)
    spec = DeliverySpec()
    bounds = Bounds(in_flight_bytes=1)
    began = time.monotonic()
    with Delivery.open(
        "scripted:work", spec, origin=Origin(run="r"), bounds=bounds, connection_factory=lent
    ) as delivery:
        for n in range(4):
            delivery.write(batch(f"m{n}"))
        assert time.monotonic() - began > 0.35, "rows pile up in memory"
        delivery.finish()
    assert work.most_in_flight == batch("m0").nbytes


def test_a_broker_that_is_drained_at_the_bound_gets_the_next_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK", 10.0)
    work = scripted()
    work.latency = 0.05
    work.capabilities = replace(work.capabilities, settles="quiescence")
    began = time.monotonic()
    with Delivery.open(
        "scripted:work",
        DeliverySpec(),
        origin=Origin(run="r"),
        bounds=Bounds(in_flight_records=2),
        connection_factory=Lent(work=work),
    ) as delivery:
        for n in range(6):
            delivery.write(batch(f"m{n}"))
        delivery.finish()
    assert time.monotonic() - began < 9.0, "it idles while rows wait to be taken"


class Hanging(ScriptedBroker):
    """A plugin that never returns from send()."""

    def sender(self) -> Sender:
        release = self.release = threading.Event()

        class Sends(Sender):
            def send(self, batch: Batch, *, deadline: float) -> None:
                release.wait(20)

            def collect(self, wait: float) -> Sequence[Settled]:
                return []

            def close(self) -> None:
                pass

        return Sends()


def test_a_plugin_that_hangs_does_not_hang_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.1)
    hanging = Hanging(RealClock())
    lent = Lent(work=hanging)
    delivery = opened(lent)
    delivery._longest_call = 0.5
    with pytest.raises(ContractViolation, match="has not returned from a call"):
        delivery.write(batch("a"))
        delivery.finish()
    delivery.close()
    assert lent.returned == []
    hanging.release.set()
    until(lambda: lent.returned)
    assert [name for name, _ in lent.returned] == ["work"], "closed as soon as the plugin came back"


def test_an_engine_that_is_busy_with_many_letters_is_not_taken_for_a_plugin_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"m{n}" for n in range(300)]
    lent = Lent(work=scripted(**{name: ["permanent"] for name in names}), sink=scripted())
    write, slow = LetterWriter._letters, 0.01

    def written(writer: LetterWriter, group: Group, contexts: Contexts) -> Batch:
        time.sleep(slow * len(group))  # a row's worth of work each
        return write(writer, group, contexts)

    monkeypatch.setattr(letters, "_PIECE", 10)
    monkeypatch.setattr(LetterWriter, "_letters", written)
    with opened(lent) as delivery:
        delivery._longest_call = 150 * slow
        delivery.write(batch(*names))
        assert delivery.finish().dead_lettered == len(names)


def test_rows_that_went_at_their_second_attempt_make_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the broker answers at once, so that nothing is in flight between the engine's turns."""
    monkeypatch.setattr(module, "_TICK", 5.0)
    names = [f"m{n}" for n in range(5)]
    lent = Lent(work=scripted(**{name: ["retriable"] for name in names}))
    began = time.monotonic()
    spec = DeliverySpec(retry=1, backoff_policy="linear", backoff_delay=timedelta(0))
    bounds, origin, collect = Bounds(waiting_records=1), Origin(run="r"), ScriptedSender.collect
    with Delivery.open("scripted:work", spec, origin=origin, bounds=bounds, connection_factory=lent) as delivery:

        def collect_with_more_to_come(sender: ScriptedSender, wait: float) -> Sequence[Settled]:
            until(lambda: delivery._inbox or delivery._finishing)
            return collect(sender, wait)

        monkeypatch.setattr(ScriptedSender, "collect", collect_with_more_to_come)
        for name in names:
            delivery.write(batch(name))
        assert delivery.finish().delivered == len(names)
    assert time.monotonic() - began < 5.0


def test_who_does_not_return_is_named_and_a_slow_opening_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink is opened when it is needed, and may take long to find that it is down."""
    sink = Hanging(RealClock())
    delivery = opened(Lent(work=scripted(a=["permanent"]), sink=sink), timeout=timedelta(seconds=1))
    assert delivery._longest_call >= 30 + 2 * module.GRACE
    monkeypatch.setattr(module, "GRACE", 0.1)
    delivery._longest_call = 2.0
    with pytest.raises(ContractViolation, match="the plugin at scripted:sink has not returned"):
        delivery.write(batch("a"))
        delivery.finish()
    delivery.close()
    sink.release.set()


@pytest.mark.parametrize("call", ["ScriptedBroker.sender", "ScriptedSender.send", "ScriptedSender.collect"])
def test_what_a_plugin_raises_against_the_contract_is_told_without_its_secrets(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raw(*_: object, **__: object) -> None:
        raise OSError("cannot connect to amqp://app:hunter2@host/v")

    monkeypatch.setattr(f"scripted.{call}", raw)
    told = pytest.raises(ContractViolation, match=rf"{call.partition('.')[2]}\(\) raised OSError")
    with told as caught, opened(Lent(work=scripted())) as delivery:
        delivery.write(batch("a"))
        delivery.finish()
    assert "hunter2" not in str(caught.value)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
