"""A broker that follows a script, on a clock that moves only while someone waits on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from redelivery.contract.broker import Broker, Capabilities, Failure, Sender, Settled, Support
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, Fatal, NotSent, Permanent, Retriable, Throttled, Unattributed

#: What may happen to a row in one attempt. "lost" and "stored" are ambiguous, "culprit" fails its whole batch, and
#: "unsent" is a row for which no time was left; where order is kept it is "retriable".
OUTCOMES = ("ok", "retriable", "throttled", "lost", "stored", "permanent", "culprit", "unsent")


@dataclass
class FakeClock:
    """Time that a test moves."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class ScriptedBroker(Broker):
    """Each row fares as `script` says for it: a list of outcomes, one an attempt; then "ok" forever."""

    clock: FakeClock
    script: dict[str, list[str]] = field(default_factory=dict)
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(
            send=Support.NATIVE, keys=Support.NATIVE, headers=Support.NATIVE, ref_kinds=("Queue",)
        )
    )
    name: str = "scripted"
    latency: float = 0.0
    refuse: BrokerError | None = None  # raised by send()
    cut: BrokerError | None = None  # raised by the next collect()
    on_open: BrokerError | None = None

    def __post_init__(self) -> None:
        self.stored: list[Message] = []
        self.attempts: Counter[str] = Counter()
        self.ambiguous: Counter[str] = Counter()
        self.sends: list[tuple[float, list[str], bool]] = []
        self.in_flight: dict[int, tuple[float, Batch]] = {}
        self.most_in_flight = 0
        self.kept_back: dict[int, set[bytes | None]] = {}  # batch in flight: keys of which an earlier row failed
        self.senders = 0
        self.closed = 0

    def sender(self) -> Sender:
        if self.on_open is not None:
            raise self.on_open
        self.senders += 1
        return ScriptedSender(self)

    def native_sink(self) -> str:
        return "scripted:native"

    def sibling(self, name: str) -> str:
        return f"scripted:{name}"

    def close(self) -> None:
        self.closed += 1

    def stored_ids(self) -> Counter[str]:
        return Counter(message.id or "" for message in self.stored)


class ScriptedSender(Sender):
    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker

    def send(self, batch: Batch, *, deadline: float) -> None:
        broker = self._broker
        broker.sends.append((broker.clock.now, [m.id or "" for m in batch.rows()], batch.isolate))
        if broker.refuse is not None:
            broker.attempts.update(m.id or "" for m in batch.rows())
            raise broker.refuse
        assert deadline > broker.clock.now
        broker.in_flight[batch.number] = (broker.clock.now + broker.latency, batch)
        broker.most_in_flight = max(broker.most_in_flight, sum(b.nbytes for _, b in broker.in_flight.values()))

    def collect(self, wait: float) -> Sequence[Settled]:
        broker = self._broker
        if broker.cut is not None and broker.in_flight:
            error, broker.cut = broker.cut, None
            for _, batch in broker.in_flight.values():
                for message in batch.rows():
                    broker.attempts[message.id or ""] += 1
                    broker.ambiguous[message.id or ""] += 1
            broker.in_flight.clear()
            raise error
        if broker.in_flight:
            first = min(at for at, _ in broker.in_flight.values())
            if first > broker.clock.now:
                broker.clock.now = min(first, broker.clock.now + wait)
        due = [number for number, (at, _) in broker.in_flight.items() if at <= broker.clock.now]
        return [
            self._settle(broker.in_flight.pop(number)[1])
            for number in (due if broker.capabilities.order else reversed(due))
        ]

    def _settle(self, batch: Batch) -> Settled:
        broker = self._broker
        rows = list(batch.rows())
        fates = [self._fate(message) for message in rows]
        broker.attempts.update(m.id or "" for m in rows)
        if "culprit" in fates and not batch.isolate:
            self._keep_back(m.key for m in rows)
            return Settled(batch=batch.number, error=Unattributed("the whole batch failed", native_code="BatchFailed"))
        failures = []
        stopped = broker.kept_back.pop(batch.number, set())
        for index, (message, fate) in enumerate(zip(rows, fates, strict=True)):
            if message.key in stopped:
                failures.append(Failure(index, NotSent("kept back")))
                broker.attempts[message.id or ""] -= 1
                if fate not in {"culprit", "ok"}:
                    broker.script[message.id or ""].insert(0, fate)
                continue
            if fate == "unsent" and not batch.ordered:
                broker.attempts[message.id or ""] -= 1
                failures.append(Failure(index, NotSent("no time was left")))
                continue
            if fate != "ok" and message.key is not None and batch.ordered and broker.capabilities.order:
                stopped.add(message.key)
            if fate in {"ok", "stored"}:
                broker.stored.append(message)
            if fate in {"lost", "stored"}:
                broker.ambiguous[message.id or ""] += 1
            if fate != "ok":
                failures.append(Failure(index, _ERRORS[fate]()))
        self._keep_back(rows[failure.index].key for failure in failures)
        return Settled(batch=batch.number, failures=failures)

    def _keep_back(self, keys: Iterable[bytes | None]) -> None:
        """What is in flight behind a failed row, and has its key, is not stored."""
        keys = {key for key in keys if key is not None}
        if self._broker.capabilities.order:
            for number, (_, batch) in self._broker.in_flight.items():
                if batch.ordered:
                    self._broker.kept_back.setdefault(number, set()).update(keys)

    def _fate(self, message: Message) -> str:
        script = self._broker.script.get(message.id or "", [])
        if not script:
            return "ok"
        return script[0] if script[0] == "culprit" else script.pop(0)

    def close(self) -> None:
        self._broker.closed += 1


_ERRORS: dict[str, Callable[[], BrokerError]] = {
    "retriable": lambda: Retriable("try again", native_code="Busy"),
    "unsent": lambda: Retriable("no time was left", native_code="Busy"),
    "throttled": lambda: Throttled("slow down", native_code="Throttled", retry_after=5.0),
    "lost": lambda: Ambiguous("no answer", native_code="NoAnswer"),
    "stored": lambda: Ambiguous("no answer", native_code="NoAnswer"),
    "permanent": lambda: Permanent("never", native_code="Poison"),
    "culprit": lambda: Permanent("too large", native_code="TooLarge"),
    "fatal": lambda: Fatal("no access", native_code="Denied"),
}
