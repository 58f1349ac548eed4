"""Each batch that was handed over is settled once, by its deadline, and each row of it for the right reason."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.codes import Code
from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, NotSent, Permanent, Retriable
from redelivery.kit.in_flight import FailedKeys, InFlight, SettledBatches, time_left


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def batch(number: int, *keys: bytes | None, ordered: bool = False) -> Batch:
    messages = [Message(value=b"v", key=key) for key in keys or (None,)]
    return Batch.of(messages, number=number, ordered=ordered)


def account(clock: Clock | None = None, window: int | None = None) -> InFlight:
    return InFlight("carrier", "queue 'orders'", window=window, clock=clock or Clock())


def failures(settled: Settled) -> dict[int, type[BrokerError]]:
    return {failure.index: type(failure.error) for failure in settled.failures}


def test_a_batch_is_settled_when_its_last_row_is() -> None:
    flights = account()
    sent = flights.add(batch(1, None, None), 110.0)
    assert flights.sent(sent, 0)
    flights.stored(sent, 0)
    assert flights.collect(0) == []
    flights.failed(sent, 1, Permanent("no"))
    (settled,) = flights.collect(0)
    assert (settled.batch, failures(settled)) == (1, {1: Permanent})
    assert len(flights) == 0
    assert flights.collect(0) == []


def test_a_batch_without_rows_is_settled_at_once() -> None:
    flights = account()
    flights.add(Batch.of([], number=1), 110.0)
    assert [(settled.batch, settled.failures) for settled in flights.collect(0)] == [(1, [])]
    assert len(flights) == 0


def test_duplicates_are_counted() -> None:
    flights = account()
    sent = flights.add(batch(1, None, None), 110.0)
    flights.stored(sent, 0, duplicate=True)
    flights.stored(sent, 1)
    assert flights.collect(0)[0].duplicates == 1


def test_at_the_deadline_what_was_sent_is_ambiguous_and_what_was_not_is_retriable() -> None:
    clock = Clock()
    flights = account(clock)
    sent = flights.add(batch(1, None, None, None), 110.0)
    flights.sent(sent, 0)
    flights.sent(sent, 1)
    flights.stored(sent, 0)
    clock.now = 110.0
    (settled,) = flights.collect(0)
    assert failures(settled) == {1: Ambiguous, 2: Retriable}
    assert "may have been stored" in str(settled.failures[0].error)
    assert "not sent" in str(settled.failures[1].error)


def test_what_is_heard_after_that_changes_nothing() -> None:
    clock = Clock()
    flights = account(clock)
    sent = flights.add(batch(1, None, None), 110.0)
    flights.sent(sent, 0)
    clock.now = 111.0
    flights.collect(0)
    flights.stored(sent, 0)
    flights.failed(sent, 1, Permanent("no"))
    assert not flights.sent(sent, 1)
    assert flights.collect(0) == []


def test_a_batch_whose_deadline_has_passed_is_refused() -> None:
    with pytest.raises(Retriable, match="deadline"):
        account().add(batch(1), 100.0)


def test_a_lost_connection_settles_everything() -> None:
    flights = account()
    one, other = flights.add(batch(1, None, None), 110.0), flights.add(batch(2), 120.0)
    flights.sent(one, 0)
    flights.sent(other, 0)
    flights.lost(Retriable("the connection broke", code=Code.CONNECTION_LOST))
    told = {each.batch: failures(each) for each in flights.collect(0)}
    assert told == {1: {0: Ambiguous, 1: Retriable}, 2: {0: Ambiguous}}


def test_a_failure_may_keep_others_back() -> None:
    kept = NotSent("behind")
    flights = InFlight("c", "q", clock=Clock(), on_failure=lambda sent, index, error: flights.failed(other, 0, kept))
    one, other = flights.add(batch(1), 110.0), flights.add(batch(2), 110.0)
    flights.failed(one, 0, Permanent("no"))
    assert {each.batch: failures(each) for each in flights.collect(0)} == {1: {0: Permanent}, 2: {0: NotSent}}


def test_no_more_rows_than_the_window_has_are_sent_and_unanswered() -> None:
    flights = InFlight("carrier", "queue 'orders'", window=2)
    sent = flights.add(batch(1, None, None, None), time.monotonic() + 60)
    assert flights.wait_for_room(time.monotonic() + 60)
    flights.sent(sent, 0)
    flights.sent(sent, 1)
    assert not flights.wait_for_room(time.monotonic() + 0.01)
    threading.Timer(0.05, flights.stored, (sent, 0)).start()
    assert flights.wait_for_room(time.monotonic() + 60)


def test_collect_waits_for_the_first_and_not_longer() -> None:
    flights = InFlight("carrier", "queue 'orders'")
    assert flights.collect(60) == []
    sent = flights.add(batch(1), time.monotonic() + 60)
    assert flights.collect(0.01) == []
    threading.Timer(0.05, flights.stored, (sent, 0)).start()
    assert [each.batch for each in flights.collect(60)] == [1]


def test_collect_wakes_at_the_deadline() -> None:
    flights = InFlight("carrier", "queue 'orders'")
    sent = flights.add(batch(1), time.monotonic() + 0.05)
    flights.sent(sent, 0)
    assert failures(flights.collect(60)[0]) == {0: Ambiguous}


@given(st.data())
def test_whatever_happens_each_batch_is_settled_once_and_no_room_is_lost(data: st.DataObject) -> None:
    clock = Clock()
    flights = account(clock, window=4)
    sents = [flights.add(batch(number, None, None), 100.0 + 5 * (number + 1)) for number in range(3)]
    told: list[int] = []
    steps = st.tuples(
        st.sampled_from(["send", "store", "fail", "tick", "lose", "collect"]), st.integers(0, 2), st.integers(0, 1)
    )
    for step, number, index in data.draw(st.lists(steps, max_size=30)):
        match step:
            case "send":
                flights.sent(sents[number], index)
            case "store":
                flights.stored(sents[number], index)
            case "fail":
                flights.failed(sents[number], index, Permanent("no"))
            case "tick":
                clock.now += 3
            case "lose":
                flights.lost(Retriable("lost"))
            case _:
                told += [each.batch for each in flights.collect(0)]
    clock.now = 200.0
    told += [each.batch for each in flights.collect(0)]
    assert sorted(told) == [0, 1, 2]
    assert flights.wait_for_room(300.0)


def test_time_left_is_told_before_something_is_sent() -> None:
    assert 0 < time_left(time.monotonic() + 5, "carrier: sending") <= 5
    with pytest.raises(Retriable, match=r"carrier: sending: the deadline had passed.*nothing was stored"):
        time_left(time.monotonic() - 1, "carrier: sending")


def test_what_is_settled_is_told_once() -> None:
    told = SettledBatches()
    assert not told
    told.add(batch(3, None, None), {1: Permanent("b"), 0: Permanent("a")}, duplicates=1)
    assert told
    (settled,) = told.take()
    assert (settled.batch, [each.index for each in settled.failures], settled.duplicates) == (3, [0, 1], 1)
    assert told.take() == []


def test_rows_behind_a_failed_one_of_their_key_are_kept_back() -> None:
    keys = FailedKeys("carrier")
    given_batch = batch(1, b"a", b"b", b"a", None, b"a", ordered=True)
    found = keys.keep_back(given_batch, {0: Permanent("no"), 3: Permanent("no")})
    assert {index: type(error) for index, error in found.items()} == {
        0: Permanent, 2: NotSent, 3: Permanent, 4: NotSent
    }  # fmt: skip
    assert not keys
    keys.remember(given_batch, found)
    assert b"a" in keys
    assert b"b" not in keys
    assert None not in keys


def test_a_key_is_free_when_all_its_failures_are_told() -> None:
    keys = FailedKeys("carrier")
    keys.add(b"a", 1)
    keys.add(b"a", 2)
    later = batch(3, b"a", b"b", ordered=True)
    keys.told(1)
    assert list(keys.keep_back(later, {})) == [0]
    keys.told(2)
    keys.told(2)
    assert keys.keep_back(later, {}) == {}
    keys.add(b"a", 4)
    keys.clear()
    assert not keys


def test_rows_without_order_or_key_keep_nothing_back() -> None:
    keys = FailedKeys("carrier")
    for plain in (batch(1, b"a", b"a"), batch(1, None, None, ordered=True)):
        failed: dict[int, BrokerError] = {0: Permanent("no")}
        assert keys.keep_back(plain, failed) == failed
        keys.remember(plain, failed)
    assert not keys


def test_a_sender_says_why_rows_were_not_sent_by_their_deadline() -> None:
    clock, told = Clock(), NotSent("the rows before it took all the time")
    flights = InFlight("carrier", "queue 'orders'", late=lambda sent: told if sent.was_sent(0) else None, clock=clock)
    first, second = (flights.add(batch(number, None, None), 110.0) for number in (1, 2))
    flights.sent(first, 0)
    clock.now = 110.0
    settled = {each.batch: failures(each) for each in flights.collect(0)}
    assert settled == {1: {0: Ambiguous, 1: NotSent}, 2: {0: Retriable, 1: Retriable}}
    assert second.is_settled
