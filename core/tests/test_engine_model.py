"""The engine against a model: whatever a broker does to it, the account adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scripted import OUTCOMES, FakeClock, ScriptedBroker

from redelivery.contract.broker import Support
from redelivery.contract.context import STAGES
from redelivery.contract.message import ROW_OVERHEAD, Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import Ambiguous, Permanent, RedeliveryError, Retriable
from redelivery.formats import dialects
from redelivery.policy.decisions import for_sink
from redelivery.sending import Bounds, Engine, Flow, Origin, Rejected, SendQueue

fates = st.lists(st.sampled_from(OUTCOMES), max_size=4)
rows = st.tuples(fates, st.sampled_from([None, b"a", b"b"]))
rejections = st.tuples(st.sampled_from(["no time", "no key"]), st.sampled_from(STAGES[:3]))
VALUE = b"v" * 100
ROW = len(VALUE) + ROW_OVERHEAD


class Model(RuleBasedStateMachine):
    """Feeds rows with drawn fates, lets time pass, cuts connections, and counts what an independent reader finds."""

    @initialize(
        retry=st.none() | st.integers(0, 3),
        budget=st.none() | st.integers(0, 20),
        sinks=st.integers(0, 2),
        latency=st.sampled_from([0.0, 0.5]),
        settles=st.sampled_from(["batch", "quiescence"]),
        order=st.sampled_from([None, "native", "emulated"]),
        park=st.booleans(),
    )
    def begin(
        self,
        retry: int | None,
        budget: int | None,
        sinks: int,
        latency: float,
        settles: Literal["batch", "quiescence"],
        order: str | None,
        park: bool,
    ) -> None:
        self.clock = FakeClock()
        self.work = ScriptedBroker(self.clock, latency=latency)
        self.work.capabilities = replace(
            self.work.capabilities,
            settles=settles,
            order=Support.NATIVE if order == "native" else Support.NONE,
        )
        self.flow = Flow(ordering="key" if order else "none", park_successors=park)
        self.sinks = [ScriptedBroker(self.clock) for _ in range(sinks)]
        self.spec = DeliverySpec(
            retry=retry,
            retry_timeout=None if budget is None else timedelta(seconds=budget),
            dead_letter_sink=tuple(Sink(uri=f"scripted:{n}") for n in range(sinks)),
            tolerance="all",
            allow_skip=True,
        )
        self.bounds = Bounds(in_flight_records=60, in_flight_bytes=10 * ROW, waiting_records=20)
        send_queues = [SendQueue("scripted:work", self.work, self.spec, self.bounds, self.clock)]
        send_queues += [
            SendQueue(f"scripted:{n}", sink, for_sink(self.spec), self.bounds, self.clock)
            for n, sink in enumerate(self.sinks)
        ]
        self.send_queues = send_queues
        self.engine = Engine(send_queues, self.spec, Origin(run="r"), self.clock, lambda: 0.5, self.flow)
        self.given: list[str] = []
        self.failed: RedeliveryError | None = None

    def alive(self) -> bool:
        return self.failed is None

    def step(self) -> None:
        try:
            self.engine.turn(0.1)
        except RedeliveryError as error:
            self.failed = error

    @precondition(alive)
    @rule(
        rows=st.lists(rows, min_size=1, max_size=8)
        | st.builds(lambda row, times: [row] * times, rows, st.integers(2, 8)),
        sink_scripts=st.lists(fates, max_size=3),
    )
    def feed(self, rows: list[tuple[list[str], bytes | None]], sink_scripts: list[list[str]]) -> None:
        ids = [f"m{len(self.given) + n}" for n in range(len(rows))]
        scripts = [script for script, _ in rows]
        batch = Batch.of([Message(value=VALUE, id=name, key=row[1]) for name, row in zip(ids, rows, strict=True)])
        if not self.engine.can_take(batch):
            return
        self.work.script.update(zip(ids, map(list, scripts), strict=True))
        for sink in self.sinks:
            sink.script.update(zip(ids, map(list, sink_scripts), strict=False))
        self.given += ids
        self.engine.take(batch)

    @precondition(alive)
    @rule()
    def reject(self) -> None:
        name = f"m{len(self.given)}"
        self.given.append(name)
        try:
            bad = Batch.of([Message(value=VALUE, id=name)])
            self.engine.reject(Rejected(bad, [Permanent("no time", native_code="Invalid")], "VALUE_CONVERTER"))
        except RedeliveryError as error:
            self.failed = error

    @precondition(alive)
    @rule()
    def turn(self) -> None:
        self.step()

    @precondition(alive)
    @rule(seconds=st.floats(0, 30))
    def pass_time(self, seconds: float) -> None:
        # Not so much that a batch in flight would count as never settled.
        self.clock.now += seconds if not self.engine.busy else 0

    @precondition(alive)
    @rule()
    def cut(self) -> None:
        self.work.cut = Ambiguous("connection lost", native_code="Cut")

    @precondition(alive)
    @rule(down=st.booleans())
    def outage(self, down: bool) -> None:
        self.work.refuse = Retriable("refused", native_code="Refused") if down else None

    @rule()
    def rest(self) -> None:
        """Nothing: all that is left once the job has failed."""

    @invariant()
    def never_more_accounted_than_given(self) -> None:
        if not hasattr(self, "engine"):
            return
        report = self.engine.report
        assert report.rows == len(self.given)
        assert report.delivered + report.dead_lettered + report.skipped <= report.rows

    @invariant()
    def what_is_in_flight_is_bounded(self) -> None:
        if hasattr(self, "work"):
            assert self.work.most_in_flight <= self.bounds.in_flight_bytes + 8 * ROW

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.work.refuse = self.work.cut = None
        for _ in range(10_000):
            if self.failed or self.engine.idle:
                break
            self.step()
            if not self.engine.busy and self.engine.next_due is not None:
                self.clock.now = max(self.clock.now, self.engine.next_due)
        else:
            raise AssertionError("the engine never came to an end")
        self.check()

    def check(self) -> None:
        report = self.engine.report
        found = self.work.stored_ids()
        letters: Counter[str] = Counter()
        for sink in self.sinks:
            letters += sink.stored_ids()
        assert report.ambiguous <= sum(self.work.ambiguous.values())
        if self.failed is None:
            assert report.ambiguous == sum(self.work.ambiguous.values()), "the bound on duplicates can be audited"
            for letter in (message for sink in self.sinks for message in sink.stored):
                context = dialects.read(letter)
                assert context is not None
                assert context.maybe_delivered == (self.work.ambiguous[letter.id or ""] > 0)
        for name, times in found.items():
            assert times <= 1 + self.work.ambiguous[name], "more duplicates than ambiguous attempts explain"
        if self.failed is not None:
            assert self.sinks, "with allowSkip and no sink nothing may fail the job"
            assert "dead letter sink" in str(self.failed)
            return
        assert report.accounted
        missing = set(self.given) - set(found) - set(letters)
        assert len(missing) <= report.skipped
        if self.sinks:
            assert not missing, "a row was neither delivered nor dead-lettered"
            assert report.skipped == 0
        assert report.dead_lettered <= sum(letters.values())
        assert report.dead_lettered + report.skipped == report.record_errors == sum(report.reasons.values())
        if self.flow.ordering == "key":
            for key in (b"a", b"b"):
                mine = [int((m.id or "")[1:]) for m in self.work.stored if m.key == key]
                firsts = list(dict.fromkeys(mine))
                assert firsts == sorted(firsts), f"rows of key {key!r} were stored out of order: {mine}"
        assert all(message.value == VALUE for message in self.work.stored)
        # A letter that a sink refused for what it holds was sent once more, wrapped: it is given back as it was.
        assert all(dialects.strip(message).value == VALUE for sink in self.sinks for message in sink.stored)


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestAccountAlwaysAddsUp = Model.TestCase
