"""A running subscription: handlers side by side, their time, how it stops, and that one name runs once."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from leasing import LeasingReceiver
from test_subscription import QUICK, SubscriptionSetup, fails, message

from redelivery.contract.message import Message
from redelivery.errors import (
    ConfigurationError,
    DeliveryFailed,
    Fatal,
    Retriable,
)
from redelivery.formats import dialects
from redelivery.receiving.leases import LeasedMessage
from redelivery.receiving.workers import Workers


def test_handlers_run_side_by_side() -> None:
    setup = SubscriptionSetup(*(message(f"m{n}") for n in range(4)))
    together = threading.Barrier(4, timeout=5)
    report = setup.subscription(lambda _: together.wait(), workers=4).run(until_empty=True)
    assert report.accepted == 4


def test_a_stop_settles_what_is_done_and_gives_back_what_was_not_begun() -> None:
    setup = SubscriptionSetup(*(message(f"m{n}") for n in range(50)))

    def handler(_message: Message) -> None:
        subscription.stop()
        time.sleep(0.05)

    subscription = setup.subscription(handler)
    report = subscription.run()
    assert report.accepted == 1
    assert report.given_back == 49
    assert len(setup.queue.items) == 49
    assert all(item.attempts == 0 for item in setup.queue.items)


def test_a_stop_gives_back_what_a_hanging_handler_holds_when_its_time_is_over() -> None:
    setup = SubscriptionSetup(message("a"))
    release = threading.Event()

    def handler(_message: Message) -> None:
        subscription.stop()
        release.wait(10)

    subscription = setup.subscription(handler, stop_timeout=timedelta(seconds=0.1))
    began = time.monotonic()
    subscription.run()
    release.set()
    assert time.monotonic() - began < 5
    assert setup.outcomes() == [("a", "Release")]


def test_a_handler_that_takes_longer_than_the_timeout_has_failed() -> None:
    setup = SubscriptionSetup(message("a"), message("b"), timeout=timedelta(seconds=1.5))
    release = threading.Event()

    def handler(m: Message) -> None:
        if m.id == "a":
            release.wait(10)

    report = setup.subscription(handler).run(until_empty=True)
    release.set()
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert "took longer than 1.5 s" in context.reason
    assert (report.dead_lettered, report.accepted) == (1, 1)


def test_a_handler_that_came_back_in_time_is_not_late_while_others_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """They return as the first settlement begins, which then takes longer than a handler may."""
    setup = SubscriptionSetup(*(message(f"m{n}") for n in range(12)), timeout=timedelta(seconds=1))
    settle, settling = LeasingReceiver.settle, threading.Event()

    def slow(*arguments: Any) -> Any:
        if not settling.is_set():
            settling.set()
            time.sleep(1.2)
        return settle(*arguments)

    def handler(m: Message) -> None:
        assert m.id == "m0" or settling.wait(30)

    monkeypatch.setattr(LeasingReceiver, "settle", slow)
    report = setup.subscription(handler, workers=2).run(until_empty=True)
    assert (report.accepted, report.failures, report.dead_lettered) == (12, 0, 0)


def test_closing_badly_never_hides_why_the_subscription_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(_: object) -> None:
        raise Retriable("connection reset")

    monkeypatch.setattr(LeasingReceiver, "close", close)
    with pytest.raises(DeliveryFailed, match="no such airport"):
        SubscriptionSetup(message("a"), sinks=0).subscription(fails).run(until_empty=True)


def test_handlers_that_overrun_and_come_back_cost_no_thread_for_ever() -> None:
    setup = SubscriptionSetup(*(message(f"m{n}") for n in range(14)), timeout=timedelta(seconds=0.05))
    before = threading.active_count()
    began: list[threading.Event] = []

    def handler(_: Message) -> None:
        """Comes back when five others have begun, so after its time."""
        mine = threading.Event()
        began.append(mine)
        if len(began) > 5:
            began[-6].set()
        mine.wait(30)

    report = setup.subscription(handler).run(until_empty=True)
    assert report.dead_lettered == 14
    for each in began:
        each.set()
    end = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_what_a_neighbour_accepted_is_settled_although_the_subscription_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = SubscriptionSetup(message("good"), message("bad"), sinks=0)
    results = Workers.results

    def both(workers: Workers, wait: float = 0.0) -> list[tuple[LeasedMessage, BaseException | None]]:
        said = results(workers, wait)
        while len(said) == 1:
            said += results(workers, 0.05)
        return said

    def handler(m: Message) -> None:
        if m.id == "bad":
            raise ValueError("no such airport")

    monkeypatch.setattr(Workers, "results", both)
    with pytest.raises(DeliveryFailed):
        setup.subscription(handler).run()
    assert sorted(setup.outcomes()) == [("bad", "Release"), ("good", "Accept")]


def test_a_handler_that_exits_stops_the_subscription_and_its_message_comes_again() -> None:
    setup = SubscriptionSetup(message("a"))

    def handler(_message: Message) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        setup.subscription(handler).run()
    assert setup.outcomes() == [("a", "Release")]


def test_a_handler_that_raises_a_fatal_error_stops_the_subscription() -> None:
    setup = SubscriptionSetup(message("a"), retry=5, **QUICK)

    def handler(_message: Message) -> None:
        raise Fatal("the database is gone")

    with pytest.raises(Fatal, match="the database is gone"):
        setup.subscription(handler).run()
    assert setup.outcomes() == [("a", "Release")]
    assert setup.sinks[0].stored == []


def test_a_handler_that_forks_settles_once() -> None:
    setup = SubscriptionSetup(message("a"))

    def handler(_message: Message) -> None:
        if os.fork() == 0:
            os._exit(0)
        os.wait()

    report = setup.subscription(handler).run(until_empty=True)
    assert setup.outcomes() == [("a", "Accept")]
    assert report.accepted == 1


def test_one_name_runs_once_in_a_process() -> None:
    setup = SubscriptionSetup(message("a"))
    other = SubscriptionSetup()
    refused: list[str] = []

    def handler(_message: Message) -> None:
        with pytest.raises(ConfigurationError) as error:
            other.subscription(fails, name="same").run()
        refused.append(str(error.value))

    setup.subscription(handler, name="same").run(until_empty=True)
    assert "already running" in refused[0]


def test_it_is_a_context_manager_that_stops() -> None:
    setup = SubscriptionSetup()
    with setup.subscription(fails) as subscription:
        runner = threading.Thread(target=subscription.run)
        runner.start()
    runner.join(5)
    assert not runner.is_alive()
