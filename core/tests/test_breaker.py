"""The breaker of a subscription: an outage of what handles messages keeps them in the queue, and poison is given up."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leasing import NATIVE
from scripted import FakeClock, ScriptedBroker

from redelivery import policy
from redelivery.contract.broker import (
    Accept,
    Broker,
    Capabilities,
    Outcome,
    Received,
    Receiver,
    Release,
    Retry,
    Support,
)
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import (
    BrokerError,
    ConfigurationError,
    DeliveryFailed,
    LeaseLost,
    Permanent,
    Retriable,
    TerminalNack,
    Throttled,
    Unsupported,
)
from redelivery.policy.breaker import Breaker, Circuit
from redelivery.receiving import subscription as subscriptions
from redelivery.receiving.leases import LeasedMessage
from redelivery.receiving.subscription import Subscription
from redelivery.sending.report import SubscriptionReport

SECOND = timedelta(seconds=1)


def down(_: Message) -> None:
    raise ConnectionError("the bank is down")


# --- the circuit: pure ---


def circuit(**settings: Any) -> Circuit:
    return Circuit(Breaker(**settings), lambda: 0.0)


def fail(tested: Circuit, *names: str, now: float = 0.0, code: str = "X", kind: type[BrokerError] = Retriable) -> None:
    for name in names:
        tested.failed(kind("failed", native_code=code), name, began=now, now=now)


def names(count: int, start: int = 0) -> list[str]:
    return [f"m{number}" for number in range(start, start + count)]


def test_as_many_messages_in_a_row_as_the_settings_say_are_an_outage() -> None:
    tested = circuit()
    fail(tested, *names(19))
    assert not tested.is_open
    fail(tested, "m19", now=7.0)
    assert tested.since == 7.0


def test_one_message_that_fails_for_ever_is_none() -> None:
    tested = circuit()
    fail(tested, *["poison"] * 1000)
    assert not tested.is_open


def test_a_success_between_failures_shows_that_there_is_none() -> None:
    tested = circuit()
    for number in range(100):
        fail(tested, *names(19, number * 100))
        tested.succeeded(began=0.0)
    assert not tested.is_open


@pytest.mark.parametrize("kind", [Permanent])
def test_permanent_errors_are_the_messages_own(kind: type[BrokerError]) -> None:
    tested = circuit()
    fail(tested, *names(1000), kind=kind)
    assert not tested.is_open


def test_two_reasons_mixed_are_an_outage_once_one_of_them_is() -> None:
    tested = circuit()
    for number in range(19):
        fail(tested, f"a{number}", code="refused")
        fail(tested, f"b{number}", code="timeout")
    assert not tested.is_open
    fail(tested, "a19", code="refused")
    assert tested.is_open


def test_a_different_reason_for_each_message_is_none() -> None:
    tested = circuit()
    for number in range(1000):
        fail(tested, f"m{number}", code=f"reason {number}")
    assert not tested.is_open


def test_what_began_before_the_outage_does_not_end_it() -> None:
    tested = circuit(failures=2)
    fail(tested, "a", "b", now=10.0)
    assert not tested.succeeded(began=9.0)
    assert tested.is_open
    assert tested.succeeded(began=10.5)
    assert not tested.is_open


def test_after_an_outage_few_failures_are_one_until_as_many_messages_were_handled() -> None:
    tested = circuit()
    fail(tested, *names(20))
    tested.succeeded(began=1.0)
    fail(tested, *names(4), now=2.0)
    assert tested.is_open
    tested.succeeded(began=3.0)
    for _ in range(20):
        tested.succeeded(began=4.0)
    fail(tested, *names(19), now=5.0)
    assert not tested.is_open


def test_the_pause_grows_to_its_bound_and_a_recovered_destination_is_tried_within_it() -> None:
    tested, now, pauses = circuit(), 0.0, []
    fail(tested, *names(20))
    for _ in range(6):
        before = now
        while not tested.is_due(now):
            now += 0.125
        pauses.append(now - before)
        tested.tried(now)
        fail(tested, "m1", now=now)
    assert pauses == [0.5, 1, 2, 4, 4, 4]


def test_what_asks_to_be_left_alone_is() -> None:
    tested = circuit(failures=2)
    for name in "ab":
        tested.failed(Throttled("later", retry_after=30), name, began=0.0, now=0.0, asked=30.0)
    assert tested.is_open
    assert not tested.is_due(29.9)
    assert tested.is_due(30.0)


@pytest.mark.parametrize(
    "settings", [{"failures": 1}, {"pause": timedelta(0)}, {"pause_max": SECOND / 4}, {"patience": -SECOND}]
)
def test_settings_that_make_no_breaker_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Breaker(**settings)


events = st.lists(
    st.tuples(st.sampled_from(["ok", "x", "y", "permanent", "try"]), st.integers(0, 9), st.floats(0, 9)), max_size=200
)


@given(events, st.integers(2, 8))
def test_whatever_happens_it_opens_for_a_row_of_failures_alone_and_closes_for_a_success_alone(
    steps: list[tuple[str, int, float]], failures: int
) -> None:
    tested, now = Circuit(Breaker(failures=failures), lambda: 0.5), 0.0
    since_success: dict[str, set[int]] = {"x": set(), "y": set()}
    ever_closed = False
    for kind, number, later in steps:
        now += later
        was = tested.is_open
        if kind == "ok":
            closed = tested.succeeded(began=now)
            assert closed == was
            ever_closed |= closed
            assert not tested.is_open
            since_success = {"x": set(), "y": set()}
        elif kind == "try":
            tested.tried(now)
            assert tested.is_due(now + 4.0), "a try without an answer never blocks the next for longer"
        elif kind == "permanent":
            assert not tested.failed(Permanent("no"), number, began=now, now=now)
            assert tested.is_open == was
        else:
            since_success[kind].add(number)
            opened = tested.failed(Retriable("no", native_code=kind), number, began=now, now=now)
            assert opened == (tested.is_open and not was)
            if was or opened:
                assert tested.is_open
                assert tested.is_due(now + 4.0)
                assert not tested.is_due(now)
            if opened:
                assert len(since_success[kind]) >= (2 if ever_closed else failures)
            elif not was:
                assert len(since_success[kind]) < failures


# --- a subscription, on a clock that moves when it is waited for ---


@dataclass
class Item:
    number: int
    visible: float
    attempts: int = 0
    lease: int = 0


@dataclass
class Stream(Broker):
    """A queue into which messages arrive at a rate; what has not arrived costs nothing."""

    clock: FakeClock
    rate: float
    total: int
    prolongs: bool = True
    lasting: bool = True
    keys: int = 0
    name: str = "stream"
    items: dict[int, Item] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    leases: int = 0
    arrived: int = 0
    most_attempts: int = 0
    most_held: int = 0

    def __post_init__(self) -> None:
        self.start = self.clock.now
        self.capabilities = Capabilities(
            receive=NATIVE,
            delay=NATIVE,
            attempts=NATIVE,
            first_delivery=NATIVE,
            extend=NATIVE if self.prolongs else Support.NONE,
            dead_letter=NATIVE,
        )

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:
        return StreamReceiver(self, lease.total_seconds())

    def arrive(self) -> None:
        due = min(self.total, int((self.clock.now - self.start) * self.rate) + 1)
        for number in range(self.arrived, due):
            self.items[number] = Item(number, self.clock.now)
        self.arrived = max(self.arrived, due)

    def close(self) -> None:
        pass


class StreamReceiver(Receiver):
    def __init__(self, broker: Stream, lease: float) -> None:
        self.broker = broker
        self.lease = lease

    def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
        taken = self._take(max_messages)
        if not taken and wait > 0:
            self.broker.clock.sleep(wait)
            taken = self._take(max_messages)
        return taken

    def _take(self, most: int) -> list[Received]:
        broker, now = self.broker, self.broker.clock.now
        broker.arrive()
        taken: list[Received] = []
        for item in broker.items.values():
            if len(taken) == most:
                break
            if item.visible <= now:
                broker.leases += 1
                item.lease, item.attempts, item.visible = broker.leases, item.attempts + 1, now + self.lease
                broker.most_attempts = max(broker.most_attempts, item.attempts)
                taken.append(self._received(item))
        return taken

    def _received(self, item: Item) -> Received:
        return Received(
            message=Message(
                value=b"%d" % item.number,
                id=f"m{item.number}",
                key=b"%d" % (item.number % self.broker.keys) if self.broker.keys else None,
            ),
            attempt=item.attempts,
            lease=(item.number, item.lease),
            expires=item.visible,
            position=str(item.number),
            lasting=self.broker.lasting,
            first_ms=0,
        )

    def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
        return [self._settle(received, outcome) for received, outcome in outcomes]

    def _settle(self, received: Received, outcome: Outcome) -> LeaseLost | None:
        broker, (number, lease) = self.broker, received.lease
        item = broker.items.get(number)
        if item is None or item.lease != lease or item.visible <= broker.clock.now:
            return LeaseLost("over")
        item.lease = 0
        if isinstance(outcome, Accept):
            del broker.items[number]
            broker.accepted.append(number)
        elif isinstance(outcome, Retry):
            item.visible = broker.clock.now + outcome.delay.total_seconds()
        elif isinstance(outcome, Release):
            item.visible, item.attempts = 0.0, item.attempts - 1
        return None

    def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
        if not self.broker.prolongs:
            raise Unsupported("no")
        answers: list[Received | LeaseLost] = []
        for received in leases:
            number, lease = received.lease
            item = self.broker.items.get(number)
            if item is None or item.lease != lease:
                answers.append(LeaseLost("over"))
            else:
                item.visible = self.broker.clock.now + seconds
                answers.append(self._received(item))
        return answers

    def close(self) -> None:
        pass


class InlineWorkers:
    """Workers without threads: a look for results runs as many handlers as there are workers, and takes their time."""

    seconds = 0.001

    def __init__(
        self, handler: Callable[[Message], object], count: int, _name: str, clock: FakeClock, *_: object
    ) -> None:
        self.count = count
        self.overrun = 0
        self._handler = handler
        self._clock = clock
        self._todo: list[LeasedMessage] = []
        self._stopped = False

    @property
    def have_work(self) -> bool:
        return bool(self._todo)

    def submit(self, leased: LeasedMessage) -> None:
        self._todo.append(leased)

    def results(self, wait: float = 0.0) -> list[tuple[LeasedMessage, BaseException | None]]:
        todo, self._todo = self._todo[: self.count], self._todo[self.count :]
        todo = [leased for leased in todo if not leased.decided]
        for leased in todo:
            leased.began = self._clock.now
        said: list[tuple[LeasedMessage, BaseException | None]] = []
        for leased in todo:
            try:
                self._handler(leased.received.message)
            except Exception as error:  # noqa: BLE001 - told to the loop
                said.append((leased, error))
            else:
                said.append((leased, None))
            leased.ended = True
        self._clock.sleep(self.seconds if todo else wait)
        return said

    def recall(self) -> list[LeasedMessage]:
        recalled, self._todo = self._todo, []
        return recalled

    def replace(self, leased: LeasedMessage) -> bool:
        raise NotImplementedError

    def drop(self) -> None:
        self._todo.clear()

    def dismiss(self) -> None:
        self.drop()


class Simulated:
    """A subscription over a stream, on one clock."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        handler: Callable[[Message], object],
        *,
        total: int = 10**9,
        rate: float = 1000,
        spec: Mapping[str, Any] | None = None,
        queue: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        monkeypatch.setattr(subscriptions, "Workers", InlineWorkers)
        self.clock = FakeClock()
        self.queue = Stream(self.clock, rate, total, **(queue or {}))
        self.sink = ScriptedBroker(self.clock)
        self.handler = handler
        self.runs: Counter[str] = Counter()
        self.handled_at: list[float] = []
        self.subscription = Subscription(
            "stream:q",
            self._handle,
            name=f"s{id(self)}",
            spec=DeliverySpec(dead_letter_sink=(Sink(uri="scripted:0"),), **(spec or {})),
            connection_factory=self.connection_factory,
            clock=self.clock,
            random=lambda: 0.5,
            **options,
        )
        self.stop_at = float("inf")

    @contextlib.contextmanager
    def connection_factory(self, url: str, _options: Mapping[str, str]) -> Iterator[Broker]:
        yield self.queue if url.startswith("stream") else self.sink

    def _handle(self, message: Message) -> None:
        self.runs[message.id or ""] += 1
        if self.clock.now >= self.stop_at:
            self.subscription.stop()
        self.handler(message)
        self.handled_at.append(self.clock.now)

    @property
    def letters(self) -> list[int]:
        return [int(letter.value or b"") for letter in self.sink.stored]

    def run(self, *, until_empty: bool = True) -> SubscriptionReport:
        return self.subscription.run(until_empty=until_empty)


DOWN, RECOVERED = 1010.0, 1610.0


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize(
    "spec", [{}, {"retry": 3, "backoff_policy": "linear", "backoff_delay": SECOND}], ids=["no retry", "3 retries"]
)
def test_ten_minutes_without_downstream_at_a_thousand_messages_a_second(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], workers: int
) -> None:
    """The figures of the issue: at most 100 letters, work again within 5 s, and 1 % poison is given up all the time."""
    given_up: dict[int, float] = {}

    def handler(message: Message) -> None:
        number, now = int(message.value or b""), tested.clock.now
        if number % 100 == 50:
            given_up[number] = now
            raise Permanent("not a payment", native_code="NotAPayment")
        if DOWN <= now < RECOVERED:
            raise ConnectionError("the bank is down")

    tested = Simulated(monkeypatch, handler, spec=spec, workers=workers)
    tested.stop_at = RECOVERED + 8
    report = tested.run(until_empty=False)
    innocent = [number for number in tested.letters if number % 100 != 50]
    assert len(innocent) <= (0 if spec else 19 + 10), "those that open it, and then one a minute at most"
    first = min(now for now in tested.handled_at if now >= RECOVERED)
    assert first - RECOVERED <= 5.0
    assert report.outages == 1
    assert sorted(set(tested.letters) - set(innocent)) == sorted(given_up)
    for begin, end in ((0.0, DOWN), (DOWN + 1, RECOVERED), (RECOVERED, RECOVERED + 8)):
        assert any(begin <= at < end for at in given_up.values())
    assert tested.queue.most_attempts <= 3, "a few are tried in place of others"
    assert 599 <= report.outage_seconds <= 605


def test_without_a_breaker_everything_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = Simulated(monkeypatch, down, total=300, breaker=None)
    assert tested.run().dead_lettered == 300


def test_a_handler_that_is_down_from_the_first_message_on_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(message: Message) -> None:
        if tested.clock.now < 1030:
            down(message)

    tested = Simulated(monkeypatch, handler, total=200, spec={"retry": 1, "backoff_delay": SECOND})
    report = tested.run()
    assert (report.accepted, report.dead_lettered, report.outages) == (200, 0, 1)


def test_one_message_that_fails_for_ever_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(message: Message) -> None:
        if message.id == "m7":
            down(message)

    tested = Simulated(monkeypatch, handler, total=500, spec={"retry": 50, "backoff_delay": SECOND / 100})
    report = tested.run()
    assert (report.outages, report.accepted, tested.letters) == (0, 499, [7])


def test_a_run_until_empty_ends_with_a_clear_status_in_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = Simulated(monkeypatch, down, total=300, rate=1e9)
    with pytest.raises(DeliveryFailed, match=r"is down for 60 s \(ConnectionError: the bank is down\); messages stay"):
        tested.run()
    assert len(tested.queue.items) == 300 - 19
    assert all(item.lease == 0 for item in tested.queue.items.values()), "all are given back"


def test_few_messages_that_all_fail_are_given_up_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = Simulated(monkeypatch, down, total=10, spec={"retry": 3, "backoff_delay": SECOND})
    assert tested.run().dead_lettered == 10


def test_a_subscription_that_is_stopped_in_an_outage_gives_its_messages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = Simulated(monkeypatch, down, total=300)
    tested.stop_at = 1020.0
    report = tested.run(until_empty=False)
    assert report.given_back > 80
    assert len(tested.queue.items) == 300 - 19


def test_poison_that_is_tried_in_an_outage_is_given_up_and_the_next_is_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[float, str]] = []

    def handler(message: Message) -> None:
        tried.append((tested.clock.now, message.id or ""))
        if 20 <= int(message.value or b"") < 25:
            raise TerminalNack("poison") if message.id == "m20" else Permanent("poison")
        if tested.clock.now < 1010:
            down(message)

    tested = Simulated(monkeypatch, handler, total=60, rate=1e9)
    report = tested.run()
    first = next(now for now, name in tried if name == "m20")
    assert next(now for now, name in tried if name == "m25") - first < 0.2
    assert set(tested.letters) == {*range(19), *range(20, 25)}
    assert report.accepted == 60 - 24


def test_messages_go_on_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(message: Message) -> None:
        if tested.clock.now < 1030:
            down(message)

    tested = Simulated(monkeypatch, handler, total=100, rate=1e9)
    tested.run()
    probe, *others = tested.queue.accepted[19:]  # behind those that were given up
    assert others == [number for number in range(19, 100) if number != probe]


@pytest.mark.parametrize("recovered", [1003, 1030, 1200])
def test_messages_of_a_key_go_on_in_their_order_where_one_is_handled_at_a_time(
    monkeypatch: pytest.MonkeyPatch, recovered: int
) -> None:
    """With one worker and nothing leased ahead, nothing else changes it: an outage must not either."""

    def handler(message: Message) -> None:
        if tested.clock.now < recovered:
            down(message)

    tested = Simulated(monkeypatch, handler, total=200, rate=1e9, prefetch=0, queue={"keys": 7})
    tested.subscription._breaker = Breaker(patience=timedelta(minutes=10))
    tested.run()
    assert len(tested.queue.accepted) >= 200 - 22
    for key in range(7):
        of_key = [number for number in tested.queue.accepted if number % 7 == key]
        assert of_key == sorted(of_key)


@pytest.mark.parametrize("prefetch", [0, 100])
@pytest.mark.parametrize("run", [30, 150])
def test_poison_that_looks_like_an_outage_does_not_block_the_queue_for_ever(
    monkeypatch: pytest.MonkeyPatch, prefetch: int, run: int
) -> None:
    """More messages in a row than are leased fail for one retriable reason, and the next ones would be handled."""

    def handler(message: Message) -> None:
        if int(message.value or b"") < run:
            raise ValueError("not a payment")

    tested = Simulated(monkeypatch, handler, total=2000, rate=1e9, prefetch=prefetch)
    tested.stop_at = 1000.0 + 7200
    breaker = Breaker(patience=timedelta(hours=2))
    tested.subscription._breaker = breaker
    report = tested.run()
    assert report.accepted == 2000 - run
    assert sorted(tested.letters) == list(range(run))


def test_leases_that_cannot_be_prolonged_run_out_and_nothing_is_handled_under_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler(message: Message) -> None:
        item = tested.queue.items[int(message.value or b"")]
        assert item.visible > tested.clock.now, "its lease is over"
        if tested.clock.now < 1300:
            down(message)

    tested = Simulated(
        monkeypatch,
        handler,
        total=200,
        rate=1e9,
        queue={"prolongs": False},
        lease=timedelta(seconds=30),
        breaker=Breaker(patience=timedelta(minutes=10)),
    )
    report = tested.run()
    assert report.accepted == 200 - 19
    assert tested.queue.most_attempts <= 12, "a lease a delivery, not a try a delivery"


def test_a_partial_outage_costs_pauses_and_few_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the messages needs nothing that is down: their success looks like the end, for a moment."""

    def handler(message: Message) -> None:
        if chance.random() > 0.05:
            down(message)

    chance = Random(7)  # noqa: S311 - nothing secret
    tested = Simulated(monkeypatch, handler, workers=4, rate=100)
    tested.stop_at = 1600.0
    tested.run(until_empty=False)
    assert len(tested.letters) <= 100


def test_an_outage_can_be_asked_for_and_is_logged_once_each_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def handler(_: Message) -> None:
        if (outage := tested.subscription.outage) is not None:
            seen.append(outage.reason)
            assert 0 <= outage.seconds < 35
        if tested.clock.now < 1030:
            raise Retriable("db://me:hunter2@host is down", native_code="Down")

    tested = Simulated(monkeypatch, handler, total=100, rate=1e9)
    tested.run()
    assert set(seen) == {"Down"}
    assert tested.subscription.outage is None
    lines = [each.getMessage() for each in caplog.records if "receiving" in each.getMessage()]
    assert len(lines) == 2
    assert "db://me:***@host is down" in lines[0]
    assert "receiving goes on after 3" in lines[1]


def test_a_message_without_a_lasting_position_is_known_by_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = Simulated(
        monkeypatch, down, total=10, spec={"retry": 9, "backoff_delay": SECOND / 100}, queue={"lasting": False}
    )
    assert tested.run().dead_lettered == 10


def test_the_policy_counts_a_try_of_an_outage_by_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(message: Message) -> None:
        if tested.clock.now < 1300:
            down(message)

    tested = Simulated(
        monkeypatch, handler, total=25, rate=1e9, breaker=Breaker(patience=timedelta(minutes=10)),
        spec={"retry": 1, "backoff_delay": SECOND},
    )  # fmt: skip
    report = tested.run()
    assert max(tested.runs.values()) > 5
    assert (tested.queue.most_attempts, report.dead_lettered, report.accepted) == (2, 0, 25)


def test_the_state_machine_is_part_of_the_policy() -> None:
    assert policy.Circuit is Circuit
