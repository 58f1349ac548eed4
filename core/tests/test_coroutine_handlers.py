"""Handlers that are coroutine functions: side by side on one loop, cancelled where threads cannot be."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from test_subscription import QUICK, SubscriptionSetup, message

from redelivery.contract.message import Message
from redelivery.errors import Fatal, Permanent, TerminalNack
from redelivery.formats import dialects
from redelivery.receiving.coroutines import is_coroutine_function

MS = timedelta(milliseconds=1)


async def returns(_: Message) -> None:
    await asyncio.sleep(0)


class Charging:
    async def __call__(self, _: Message) -> None:
        await asyncio.sleep(0)

    async def charge(self, _: Message) -> None:
        await asyncio.sleep(0)


@pytest.mark.parametrize("handler", [returns, Charging(), Charging().charge, functools.partial(returns)])
def test_every_kind_of_coroutine_function_is_one(handler: Any) -> None:
    assert is_coroutine_function(handler)
    setup = SubscriptionSetup(message("a"))
    assert setup.subscription(handler).run(until_empty=True).accepted == 1


@pytest.mark.parametrize("handler", [print, functools.partial(print), threading.Event()])
def test_others_are_none(handler: Any) -> None:
    assert not is_coroutine_function(handler)


def test_as_many_run_at_once_as_there_are_workers_on_one_thread() -> None:
    setup = SubscriptionSetup(*(message(f"m{n}") for n in range(40)))
    threads, now, most = set(), 0, 0

    async def handler(_: Message) -> None:
        nonlocal now, most
        threads.add(threading.get_ident())
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1

    report = setup.subscription(handler, workers=20).run(until_empty=True)
    assert report.accepted == 40
    assert most == 20
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_they_raise_is_classified_as_ever() -> None:
    setup = SubscriptionSetup(*map(message, ("retriable", "permanent", "given up", "good")), retry=2, **QUICK)

    async def handler(m: Message) -> None:
        await asyncio.sleep(0)
        if m.id == "retriable":
            raise ValueError("no such airport")
        if m.id == "permanent":
            raise Permanent("never")
        if m.id == "given up":
            raise TerminalNack("closed")

    report = setup.subscription(handler, workers=3).run(until_empty=True)
    contexts = [(each.id, dialects.read(each)) for each in setup.sinks[0].stored]
    assert {name: (c.kind, c.attempts) for name, c in contexts if c} == {
        "retriable": ("retriable", 3),
        "permanent": ("permanent", 1),
        "given up": ("terminated", 1),
    }
    assert (report.accepted, report.terms, report.retried) == (1, 1, 2)


def test_one_that_overruns_its_time_is_cancelled_and_has_failed() -> None:
    setup = SubscriptionSetup(message("a"), message("b"), timeout=200 * MS)
    ended: list[str] = []

    async def handler(m: Message) -> None:
        try:
            await asyncio.sleep(0 if m.id == "b" else 60)
        finally:
            ended.append(m.id or "")

    report = setup.subscription(handler).run(until_empty=True)
    assert sorted(ended) == ["a", "b"]
    assert (report.accepted, report.dead_lettered) == (1, 1)
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert "took longer than 0.2 s" in context.reason


def test_a_stop_waits_for_them_and_then_cancels_them_before_their_messages_are_released() -> None:
    setup = SubscriptionSetup(message("a"))
    released_before: list[bool] = []

    async def handler(_: Message) -> None:
        subscription.stop()
        try:
            await asyncio.sleep(60)
        finally:
            released_before.append(bool(setup.queue.settled))

    subscription = setup.subscription(handler, stop_timeout=100 * MS)
    began = time.monotonic()
    subscription.run()
    assert time.monotonic() - began < 10
    assert released_before == [False]
    assert setup.outcomes() == [("a", "Release")]


def test_one_that_cancels_itself_has_failed() -> None:
    setup = SubscriptionSetup(message("a"))

    async def handler(_: Message) -> None:
        raise asyncio.CancelledError

    assert setup.subscription(handler).run(until_empty=True).dead_lettered == 1
    context = dialects.read(setup.sinks[0].stored[0])
    assert context is not None
    assert context.reason == "the handler was cancelled"


def test_one_that_exits_stops_the_subscription() -> None:
    setup = SubscriptionSetup(message("a"))

    async def handler(_: Message) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        setup.subscription(handler).run()
    assert setup.outcomes() == [("a", "Release")]


def test_their_leases_are_prolonged_while_they_wait_and_while_they_block_the_loop() -> None:
    setup = SubscriptionSetup(message("a"))
    deadline = time.monotonic() + 30

    async def handler(_: Message) -> None:
        while setup.queue.extended < 1 and time.monotonic() < deadline:  # noqa: ASYNC110 - a broker sets no event
            await asyncio.sleep(0.01)
        while setup.queue.extended < 2 and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251 - it blocks

    report = setup.subscription(handler, lease=timedelta(seconds=1)).run(until_empty=True)
    assert setup.queue.extended >= 2
    assert (report.accepted, report.lost) == (1, 0)


def test_one_may_wait_for_the_termination_of_its_message() -> None:
    setup = SubscriptionSetup(message("a"))

    async def handler(m: Message) -> None:
        await asyncio.wrap_future(subscription.terminate(m, "seen enough"))

    subscription = setup.subscription(handler)
    report = subscription.run(until_empty=True)
    assert (report.terms, report.dead_lettered) == (1, 1)


def test_a_function_that_returns_a_coroutine_is_refused_and_its_message_stays() -> None:
    """It did nothing: accepted, the message would be lost."""
    setup = SubscriptionSetup(message("a"))
    with pytest.raises(Fatal, match="pass the `async def` function itself"):
        setup.subscription(lambda m: returns(m)).run(until_empty=True)  # noqa: PLW0108 - the mistake
    assert setup.outcomes() == [("a", "Release")]


def test_one_that_returns_what_it_should_have_awaited_is_refused_and_its_message_stays() -> None:
    async def forgets(m: Message) -> object:
        return returns(m)

    setup = SubscriptionSetup(message("a"))
    with pytest.raises(Fatal, match="await it in the handler"):
        setup.subscription(forgets).run(until_empty=True)
    assert setup.outcomes() == [("a", "Release")]


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    SubscriptionSetup(message("a")).subscription(returns).run(until_empty=True)
    end = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before
