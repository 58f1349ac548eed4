"""A destination that accepts nothing: when a job ends, what it survives, and what it holds meanwhile."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Literal
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted import FakeClock, ScriptedBroker, ScriptedSender

from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import FOREVER, UNLIMITED, DeliverySpec, Sink
from redelivery.errors import Ambiguous, RedeliveryError, Retriable
from redelivery.formats import dialects
from redelivery.policy.backoff import wait_before_retry
from redelivery.policy.decisions import OPENING, attempt_timeout, for_sink, worst_case_seconds
from redelivery.sending import Bounds, Engine, Origin, SendQueue, send_queue

#: How a dead destination lets a caller wait: `send` blocks and raises, or blocks and `collect` tells; `send` returns,
#: and `collect` tells at the deadline; or not even a sender can be opened.
Manner = Literal["raises", "tells", "silent", "opening"]
MANNERS: tuple[Manner, ...] = ("raises", "tells", "silent")


class BlackHole(ScriptedBroker):
    """Accepts nothing, and lets each call wait until its deadline, until it is `back`."""

    manner: Manner = "raises"
    back: float = float("inf")

    def sender(self) -> Sender:
        if self.manner == "opening" and self.clock.now < self.back:
            self.clock.now += OPENING
            raise Retriable("no connection", native_code="Opening")
        return _Swallowing(self)

    @property
    def dead(self) -> bool:
        return self.clock.now < self.back


class _Swallowing(ScriptedSender):
    def __init__(self, broker: BlackHole) -> None:
        super().__init__(broker)
        self._hole = broker
        self._swallowed: list[tuple[float, Batch]] = []

    def send(self, batch: Batch, *, deadline: float) -> None:
        hole = self._hole
        if not hole.dead:
            super().send(batch, deadline=deadline)
            return
        hole.sends.append((hole.clock.now, [m.id or "" for m in batch.rows()], batch.isolate))
        if hole.manner != "silent":
            hole.clock.now = max(hole.clock.now, deadline)
        if hole.manner not in {"tells", "silent"}:
            raise Retriable("no connection", native_code="Down")
        self._swallowed.append((deadline, batch))

    def collect(self, wait: float) -> Sequence[Settled]:
        hole = self._hole
        if self._swallowed:
            first = min(at for at, _ in self._swallowed)
            hole.clock.now = max(hole.clock.now, min(first, hole.clock.now + wait))
        over = [batch for at, batch in self._swallowed if at <= hole.clock.now]
        self._swallowed = [each for each in self._swallowed if each[0] > hole.clock.now]
        error = Ambiguous("no answer", native_code="Silent")
        told = [
            Settled(batch=batch.number, failures=[Failure(row, error) for row in range(len(batch))]) for batch in over
        ]
        return [*told, *super().collect(0.0 if told or self._swallowed else wait)]


@dataclass
class Ticking(FakeClock):
    """Time that also passes while the engine computes, so that no two records are due at one moment."""

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now


class Job:
    """A task that writes batches as fast as they are taken, and sends a few records again at a time."""

    def __init__(self, spec: DeliverySpec, manner: Manner, sinks: Sequence[Manner | None], bounds: Bounds) -> None:
        self.clock = Ticking()
        self.spec = spec
        self.work = BlackHole(self.clock)
        self.work.manner = manner
        self.sinks = [BlackHole(self.clock) for _ in sinks]
        for hole, how in zip(self.sinks, sinks, strict=True):
            if how is None:
                hole.back = 0.0
            else:
                hole.manner = how
        send_queues = [SendQueue("scripted:work", self.work, spec, bounds, self.clock)]
        send_queues += [
            SendQueue(f"scripted:{n}", hole, for_sink(spec), bounds, self.clock) for n, hole in enumerate(self.sinks)
        ]
        self.engine = Engine(send_queues, spec, Origin(run="r"), self.clock, lambda: 0.5)
        self.failure: RedeliveryError | None = None
        self.began = self.clock.now
        self.most_held = 0

    def run(self, sizes: Sequence[int]) -> float:
        """Write batches of so many rows, to the end; returns the seconds that it took."""
        with mock.patch.object(send_queue, "RESEND", 7):
            return self._run(self._batches(sizes))

    def _run(self, batches: Iterator[Batch]) -> float:
        batch = next(batches, None)
        try:
            for _ in range(200_000):
                taken = batch is not None and self.engine.can_take(batch)
                if batch is not None and taken:
                    self.engine.take(batch)
                    batch = next(batches, None)
                    self._hold()
                self.engine.turn(0.0 if taken else 0.02)
                if batch is None and self.engine.idle:
                    return self.clock.now - self.began
                if not taken and not self.engine.busy:
                    due = self.engine.next_due
                    self.clock.now = max(self.clock.now, self.clock.now + 0.5 if due is None else due)
        except RedeliveryError as error:
            self.failure = error
            return self.clock.now - self.began
        raise AssertionError("the job never came to an end")

    def _hold(self) -> None:
        report = self.engine.report
        self.most_held = max(self.most_held, report.rows - report.delivered - report.dead_lettered)

    @staticmethod
    def _batches(sizes: Sequence[int]) -> Iterator[Batch]:
        numbers = iter(range(sum(sizes)))
        for size in sizes:
            yield Batch.of([Message(value=b"body", id=f"m{next(numbers)}") for _ in range(size)])


def spec_of(
    retry: int | None, retry_timeout: int | None, timeout: float, delay: float | None, policy: Literal["linear"] | None
) -> DeliverySpec:
    return DeliverySpec(
        retry=retry,
        retry_timeout=None if retry_timeout is None else timedelta(seconds=retry_timeout),
        timeout=timedelta(seconds=timeout),
        backoff_delay=None if delay is None else timedelta(seconds=delay),
        backoff_policy=None if delay is None else policy,
    )


specs = st.builds(
    spec_of,
    st.none() | st.integers(0, 4),
    st.none() | st.integers(0, 60),
    st.integers(1, 40).map(lambda quarters: quarters / 4),
    st.none() | st.sampled_from([0.0, 0.5, 7.0]),
    st.sampled_from(["linear", None]),
)
sizes = st.lists(st.integers(1, 30), min_size=1, max_size=25)
bounds = st.builds(
    Bounds,
    in_flight_records=st.sampled_from([40, 10**9]),
    in_flight_bytes=st.sampled_from([2000, 10**9]),
    waiting_records=st.sampled_from([5, 10_000]),
)


def with_sinks(spec: DeliverySpec, count: int) -> DeliverySpec:
    return replace(spec, dead_letter_sink=tuple(Sink(uri=f"scripted:{n}") for n in range(count)))


@given(specs, sizes, st.sampled_from(MANNERS), bounds)
@example(spec_of(4, None, 10.0, 0.0, None), [1] * 40, "raises", Bounds())
@example(spec_of(4, None, 10.0, 0.5, None), [1] * 40, "tells", Bounds())
@example(spec_of(2, None, 10.0, 0.5, None), [60], "tells", Bounds())
@settings(max_examples=100, deadline=None)
def test_a_job_into_a_black_hole_ends_within_the_stated_time(
    spec: DeliverySpec, sizes: list[int], manner: Manner, bounds: Bounds
) -> None:
    job = Job(spec, manner, [], bounds)
    assert job.run(sizes) <= worst_case_seconds(spec)
    assert job.failure is not None


@given(
    specs,
    sizes,
    st.sampled_from(MANNERS),
    st.lists(st.sampled_from([None, "opening", *MANNERS]), min_size=1, max_size=2),
    bounds,
)
@example(spec_of(None, 11, 0.25, None, None), [1] * 11, "raises", ["opening", None], Bounds(waiting_records=5))
@settings(max_examples=150, deadline=None)
def test_and_so_it_does_where_its_sinks_are_black_holes_too(
    spec: DeliverySpec, sizes: list[int], manner: Manner, sinks: list[Manner | None], bounds: Bounds
) -> None:
    spec = with_sinks(spec, len(sinks))
    job = Job(spec, manner, sinks, bounds)
    assert job.run(sizes) <= worst_case_seconds(spec)
    report = job.engine.report
    if None in sinks:
        assert job.failure is None
        assert report.accounted
        assert report.dead_lettered == sum(sizes)
    else:
        assert "no dead letter sink could take it" in str(job.failure)


@given(specs, sizes, st.sampled_from(MANNERS), bounds, st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_a_destination_that_is_back_in_time_loses_nothing_and_dead_letters_nothing(
    spec: DeliverySpec, sizes: list[int], manner: Manner, bounds: Bounds, part: float
) -> None:
    job = Job(with_sinks(spec, 1), manner, [None], bounds)
    job.work.back = job.began + part * survived(spec)
    job.run(sizes)
    assert job.failure is None
    assert job.engine.report.delivered == sum(sizes)
    assert job.engine.report.dead_lettered == 0
    assert set(job.work.stored_ids()) == {f"m{n}" for n in range(sum(sizes))}


def test_only_one_batch_at_a_time_tries_a_destination_that_accepts_nothing() -> None:
    job = Job(with_sinks(spec_of(2, None, 2.0, 5.0, "linear"), 1), "silent", [None], Bounds())
    job.run([1000] * 4)
    fresh, again = job.work.sends[:4], job.work.sends[4:]
    assert max(at for at, _, _ in fresh) < job.began + 0.1
    assert all(later - earlier >= 2.0 for (earlier, *_), (later, *_) in pairwise(again))
    assert len(again) <= 2 + 1, "one for each round of retries, and one for those that came due during the last"


def test_a_letter_tells_the_attempts_that_were_made_and_not_those_that_were_spared() -> None:
    job = Job(with_sinks(spec_of(2, None, 2.0, 5.0, "linear"), 1), "silent", [None], Bounds())
    job.run([1000] * 4)
    made = Counter(name for _, ids, _ in job.work.sends for name in ids)
    letters = {message.id: dialects.read(message) for message in job.sinks[0].stored}
    assert {name: letter.attempts for name, letter in letters.items() if letter} == made
    assert sum(made.values()) == 4000 + job.engine.report.retries


def test_what_comes_when_an_outage_has_outlasted_all_attempts_is_refused_untried_and_says_so() -> None:
    job = Job(with_sinks(spec_of(1, None, 2.0, 1.0, "linear"), 1), "raises", [None], Bounds(waiting_records=5))
    job.run([10] * 30)
    tried = {name for _, ids, _ in job.work.sends for name in ids}
    assert len(tried) < 100
    untried = [message for message in job.sinks[0].stored if message.id not in tried]
    context = dialects.read(untried[-1])
    assert context is not None
    assert (context.attempts, context.native_code, context.kind) == (0, "Down", "retriable")
    assert "not sent, as what went before it has failed: no connection" in context.reason


def test_a_destination_that_is_back_late_is_found_again_and_gets_what_comes_then() -> None:
    job = Job(with_sinks(spec_of(1, None, 2.0, 1.0, "linear"), 1), "raises", [None], Bounds())
    job.work.back = job.began + 60
    first = job.run([10] * 10)
    assert job.engine.report.delivered == 0
    job.clock.now = max(job.work.back, job.began + first)
    job.run([10] * 10)
    assert job.engine.report.delivered == 100
    assert job.engine.report.dead_lettered == 100


def test_an_old_outage_takes_no_retries_from_those_who_come_long_after() -> None:
    job = Job(with_sinks(spec_of(1, None, 2.0, 1.0, "linear"), 1), "raises", [None], Bounds())
    job.run([10])
    assert job.engine.report.dead_lettered == 10
    job.clock.now += 3600
    job.work.back = job.clock.now + 2.5
    job.run([10])
    assert job.engine.report.delivered == 10


def test_no_new_rows_are_taken_while_others_wait_in_an_outage_so_they_keep_their_budget() -> None:
    job = Job(with_sinks(spec_of(2, None, 2.0, 1.0, "linear"), 1), "raises", [None], Bounds())
    job.work.back = job.began + 6.0
    job.run([10] * 5)
    before = {name for at, ids, _ in job.work.sends if at < job.work.back for name in ids}
    assert before == {f"m{n}" for n in range(10)}
    assert job.engine.report.delivered == 50


def test_a_last_attempt_is_made_unless_a_try_that_began_since_it_was_due_has_failed() -> None:
    spec = with_sinks(spec_of(1, None, 10.0, 1.0, "linear"), 1)
    job = Job(spec, "silent", [None], Bounds())
    job.engine.take(Batch.of([Message(value=b"body", id="early")]))
    job.clock.now += 0.5
    job.engine.take(Batch.of([Message(value=b"body", id="late")]))
    job.work.back = job.began + 11.2  # "early" is tried again after 11 s, in vain, and "late" was due after 11.5 s
    job.run([])
    assert set(job.work.stored_ids()) == {"late"}
    assert set(job.sinks[0].stored_ids()) == {"early"}


def test_a_broker_that_has_blocked_is_asked_how_that_went_before_it_gets_more() -> None:
    job = Job(spec_of(9, None, 2.0, 1.0, "linear"), "tells", [], Bounds())
    job.work.back = 0.0
    names = [f"m{n}" for n in range(3001)]
    job.work.script.update({name: ["retriable"] for name in names[1:]})
    job.engine.take(Batch.of([Message(value=b"body", id=name) for name in names]))
    job.engine.turn(0.0)
    job.clock.now += 1.0
    job.work.back = float("inf")
    began = job.clock.now
    with mock.patch.object(send_queue, "RESEND", 1000):
        job.engine.turn(0.0)
    assert job.clock.now - began < 2.1


def test_rows_that_fail_by_themselves_are_no_outage_and_hold_up_nobody() -> None:
    clock = FakeClock()
    work = ScriptedBroker(clock, script={"bad": ["retriable"] * 50})
    spec = spec_of(5, None, 2.0, 60.0, "linear")
    destination = SendQueue("scripted:work", work, spec, Bounds(), clock)
    engine = Engine([destination], spec, Origin(run="r"), clock, lambda: 0.5)
    for names in (["bad"], ["m1"], ["m2", "m3"]):
        batch = Batch.of([Message(value=b"body", id=name) for name in names])
        assert engine.can_take(batch)
        engine.take(batch)
        engine.turn(0.1)
    assert clock.now == 1000.0
    assert set(work.stored_ids()) == {"m1", "m2", "m3"}


@given(specs, st.integers(0, 3))
def test_the_stated_time_grows_with_each_sink_and_is_finite_where_the_spec_is(spec: DeliverySpec, sinks: int) -> None:
    worst = worst_case_seconds(with_sinks(spec, sinks))
    assert 0 < worst < worst_case_seconds(with_sinks(spec, sinks + 1)) < math.inf
    for endless in (DeliverySpec(retry=UNLIMITED), DeliverySpec(retry_timeout=FOREVER)):
        assert worst_case_seconds(endless) == math.inf


def test_the_stated_time_of_a_spec_by_hand() -> None:
    spec = DeliverySpec(
        retry=2, timeout=timedelta(seconds=2), backoff_policy="linear", backoff_delay=timedelta(seconds=0.5)
    )
    # 2 s until it is noticed; three attempts of 2 s and waits of 0.5 and 1 s; 2 s behind another's try; 10 s to close.
    assert worst_case_seconds(spec) == 2 + 3 * 2 + 1.5 + 2 + 10
    # A sink: three attempts that open it and may wait for a try at the destination, in 60 s at most and what is begun.
    assert worst_case_seconds(with_sinks(spec, 1)) == 21.5 + min(3 * 32 + 1.5, 60 + 32) + 32


@given(specs, sizes, st.sampled_from(MANNERS), st.sampled_from([None, "opening", *MANNERS]), st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_what_a_task_holds_is_bounded_wherever_it_stands(
    spec: DeliverySpec, sizes: list[int], manner: Manner, sink: Manner | None, part: float
) -> None:
    for bounds in (Bounds(in_flight_records=40), Bounds(in_flight_bytes=40 * Message(value=b"body").nbytes)):
        job = Job(with_sinks(spec, 1), manner, [sink], bounds)
        job.work.back = job.began + 2 * part * survived(spec)
        job.run(sizes)
        assert job.most_held <= 40


def survived(spec: DeliverySpec) -> float:
    """Seconds for which a destination may be dead, such that each row's last attempt begins later."""
    if spec.retry is None and spec.retry_timeout is None:
        return 0.0
    found = []
    timeout = attempt_timeout(spec)
    if spec.retry is not None:
        waits = sum(wait_before_retry(spec, n, lambda: 0.0) for n in range(1, spec.retry + 1))
        found.append((timeout if spec.retry else 0.0) + waits)
    if spec.retry_timeout is not None:  # an attempt that fails after the end is the last
        found.append(spec.retry_timeout.total_seconds() - timeout)
    return max(0.0, min(found))


class _OneRefuses(ScriptedSender):
    def _settle(self, batch: Batch) -> Settled:
        error = Retriable("the queue is full", native_code="Full")
        rows = list(batch.rows())
        self._broker.stored += [row for row in rows if row.destination != "full"]
        failures = [Failure(n, error) for n, row in enumerate(rows) if row.destination == "full"]
        return Settled(batch=batch.number, failures=failures)


class OneRefuses(BlackHole):
    """Takes what goes anywhere but to "full"."""

    def sender(self) -> Sender:
        return _OneRefuses(self)


def test_a_target_that_accepts_nothing_is_no_outage_of_the_others() -> None:
    """However long it lasts: rows with another target of their own are tried, and arrive."""
    bounds = Bounds(in_flight_records=20, waiting_records=15)
    job = Job(with_sinks(spec_of(1, None, 1.0, 0.5, "linear"), 1), "raises", [None], bounds)
    job.work = OneRefuses(job.clock)
    job.work.latency = 0.01
    job.engine = Engine(
        [
            SendQueue("scripted:work", job.work, job.spec, bounds, job.clock),
            SendQueue("scripted:0", job.sinks[0], for_sink(job.spec), bounds, job.clock),
        ],
        job.spec,
        Origin(run="r"),
        job.clock,
        lambda: 0.5,
    )
    targets = ["full"] * 30 + ["good"] * 3
    batches = [
        Batch.of([Message(value=b"v", id=f"{target}{n}-{row}", destination=target) for row in range(10)])
        for n, target in enumerate(targets)
    ]
    job._run(iter(batches))
    assert job.failure is None
    dead = {message.id for message in job.sinks[0].stored}
    untried = [m for m in job.sinks[0].stored if (context := dialects.read(m)) is not None and not context.attempts]
    assert untried, "the outage of the one never outlasted all attempts"
    assert not {name for name in dead if name and name.startswith("good")}
    assert job.engine.report.delivered == 30
