"""A broker that does not answer for a while ends no subscription: receiving is tried again until it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_subscription import MS, SubscriptionSetup, message

from redelivery.contract.message import Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.policy import Breaker, ReceiveOutage

SOON = Breaker(pause=10 * MS, pause_max=20 * MS, patience=timedelta(seconds=60))
AWAY = Retriable("connection refused")


def wait_for(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


# --- when it is asked again: pure ---


@given(
    answers=st.lists(st.booleans(), max_size=40),
    pause=st.integers(1, 1000),
    longest=st.integers(1000, 10_000),
    random=st.floats(0, 1, exclude_max=True),
)
def test_pauses_double_up_to_the_longest_and_begin_again_after_an_answer(
    answers: list[bool], pause: int, longest: int, random: float
) -> None:
    outage, now, failed = ReceiveOutage(Breaker(pause=pause * MS, pause_max=longest * MS), lambda: random), 1000.0, 0
    began = now
    for answered in answers:
        if answered:
            assert outage.succeeded(now) == (pytest.approx(now - began) if failed else None)
            failed = 0
            continue
        assert outage.failed(AWAY, now) is (failed == 0)
        began = began if failed else now
        expected = min(pause * 2**failed, longest) / 1000
        assert 0.75 * expected - 1e-6 <= outage.next - now <= expected + 1e-6
        failed, now = failed + 1, outage.next
        assert (outage.since, outage.error) == (began, AWAY)


def test_a_broker_that_asks_to_be_left_alone_is() -> None:
    outage = ReceiveOutage(SOON, lambda: 0.0)
    outage.failed(AWAY, 100.0, asked=7.0)
    assert outage.next == 107.0


@pytest.mark.parametrize("kind", [Retriable, Throttled, Ambiguous])
def test_these_errors_pass(kind: type[BrokerError]) -> None:
    assert ReceiveOutage(SOON, lambda: 0.0).passes(kind("x"))


# --- a subscription ---


def test_a_subscription_goes_on_when_its_broker_is_back() -> None:
    """Until then the queue is not taken for empty."""
    setup = SubscriptionSetup(message("a"), message("b"))
    setup.queue.receive_errors = [AWAY] * 4
    report = setup.subscription(lambda _: None, breaker=SOON).run(until_empty=True)
    assert (report.accepted, report.outages) == (2, 1)
    assert report.outage_seconds >= 0.03


@pytest.mark.parametrize("breaker", [SOON, None], ids=["breaker", "no-breaker"])
def test_messages_in_hand_are_handled_and_settled_in_the_meantime(breaker: Breaker | None) -> None:
    setup = SubscriptionSetup(*(message(f"m{at}") for at in range(3)))
    handled: list[str | None] = []

    def handler(each: Message) -> None:
        if not handled:
            setup.queue.receive_errors = [AWAY] * 3
        handled.append(each.id)

    report = setup.subscription(handler, breaker=breaker, workers=1, prefetch=1).run(until_empty=True)
    assert handled == ["m0", "m1", "m2"]
    assert report.accepted == 3


@pytest.mark.parametrize("error", [Fatal("access denied"), Permanent("no"), Unattributed("no")])
def test_an_error_that_does_not_pass_ends_it_at_once(error: BrokerError) -> None:
    setup = SubscriptionSetup(message("a"))
    setup.queue.receive_errors = [error]
    with pytest.raises(type(error)):
        setup.subscription(lambda _: None, breaker=SOON).run()
    assert not setup.queue.receive_errors


@pytest.mark.parametrize(
    "error", [AWAY, Throttled("connection refused", retry_after=3600.0)], ids=["away", "throttled"]
)
def test_a_run_until_empty_ends_with_the_brokers_error_when_its_patience_is_over(error: BrokerError) -> None:
    """Also where the broker asks for a longer pause."""
    setup = SubscriptionSetup(message("a"))
    setup.queue.receive_errors = [error] * 10_000
    impatient = Breaker(pause=10 * MS, pause_max=20 * MS, patience=100 * MS)
    began = time.monotonic()
    subscription = setup.subscription(lambda _: None, breaker=impatient)
    with pytest.raises(Retriable, match="connection refused"):
        subscription.run(until_empty=True)
    assert time.monotonic() - began >= 0.1
    assert [item.message.id for item in setup.queue.items] == ["a"]
    assert (subscription.report.outages, subscription.report.outage_seconds >= 0.1) == (1, True)


def test_without_an_end_it_waits_for_its_broker_says_so_and_can_be_stopped() -> None:
    setup = SubscriptionSetup()
    setup.queue.receive_errors = [AWAY] * 10_000
    subscription = setup.subscription(
        lambda _: None, breaker=Breaker(pause=10 * MS, pause_max=20 * MS, patience=0 * MS)
    )
    running = threading.Thread(target=subscription.run)
    running.start()
    wait_for(lambda: len(setup.queue.receive_errors) < 9_990)
    assert subscription.outage is not None
    assert "connection refused" in subscription.outage.text
    setup.queue.receive_errors.clear()
    setup.queue.put(message("a"))
    wait_for(lambda: subscription.report.accepted)
    assert subscription.outage is None
    setup.queue.receive_errors = [Throttled("slow down", retry_after=3600.0)] * 2
    wait_for(lambda: subscription.outage is not None)
    subscription.stop()
    running.join(20)
    assert not running.is_alive()
    assert len(setup.queue.receive_errors) == 1, "it left its broker alone"


def test_the_log_has_a_line_when_an_outage_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    setup = SubscriptionSetup(message("a"))
    setup.queue.receive_errors = [Retriable("no route to amqp://ann:hunter22x@h/q")] * 5
    setup.subscription(lambda _: None, breaker=SOON).run(until_empty=True)
    lines = [each.getMessage() for each in caplog.records if each.name == "redelivery.subscription"]
    assert ["tried again" in each for each in lines] == [True, False]
    assert "goes on" in lines[1]
    assert all("hunter22x" not in each for each in lines)
