"""What a broker itself dead-lettered goes down the sinks as any letter does, and for as long as is asked."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from scripted import FakeClock, ScriptedBroker
from test_deadletters import DeadLetterSetup
from test_delivery import RealClock

from redelivery.contract.broker import Broker, Letter
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.errors import Ambiguous, BrokerError, ConfigurationError, Fatal, Retriable
from redelivery.formats import dialects
from redelivery.formats.events import is_structured
from redelivery.sending.group import Group

EVENT = (("ce-specversion", b"1.0"), ("ce-id", b"a"), ("ce-source", b"s"), ("ce-type", b"order.placed"))


def expired(name: str, **fields: Any) -> Letter:
    """A letter of the broker's own."""
    context = ErrorContext(kind="expired", reason="its time to live had run out", broker="scripted", attempts=2)
    return Letter(position=f"p-{name}", message=Message(value=name.encode(), id=name, **fields), context=context)


class Sinks(DeadLetterSetup):
    """Letters in a place, and a chain of sinks."""

    def __init__(self, *letters: Letter, count: int = 2) -> None:
        super().__init__(*letters)
        self.chain = [ScriptedBroker(RealClock()) for _ in range(count)]
        self.spec = DeliverySpec(dead_letter_sink=tuple(Sink(uri=f"scripted:{at}") for at in range(count)))

    @contextlib.contextmanager
    def connection_factory(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        name = url.partition(":")[2]
        if name.isdigit():
            yield self.chain[int(name)]
        else:
            with super().connection_factory(url, options) as broker:
                yield broker

    def values(self) -> list[list[bytes | None]]:
        return [[message.value for message in sink.stored] for sink in self.chain]


def test_what_the_first_sink_refuses_goes_to_the_second() -> None:
    here = Sinks(expired("a"), expired("b"))
    here.chain[0].script = {"a": ["permanent", "permanent"]}
    with here.dlq() as dlq:
        report = dlq.forward(spec=here.spec)
    assert here.values() == [[b"b"], [b"a"]]
    assert (report.redriven, report.removed, report.failed) == (2, 2, 0)
    context = dialects.read(here.chain[1].stored[0])
    assert context is not None
    assert (context.kind, context.reason, context.attempts) == ("expired", "its time to live had run out", 2)


def test_a_sink_that_takes_nothing_is_passed_over() -> None:
    here = Sinks(expired("a"), expired("b"))
    here.chain[0].script = {"a": ["fatal"], "b": ["fatal"]}
    with here.dlq() as dlq:
        assert dlq.forward(spec=here.spec).removed == 2
    assert sorted(here.values()[1], key=repr) == [b"a", b"b"]


def test_what_no_sink_takes_stays_and_fails_no_other() -> None:
    here = Sinks(expired("a"), expired("b"))
    for sink in here.chain:
        sink.script = {"a": ["permanent", "permanent"]}
    with here.dlq() as dlq:
        report = dlq.forward(spec=here.spec)
    assert (report.considered, report.redriven, report.failed) == (2, 1, 1)
    assert [each.position for each in here.place.letters] == ["p-a"]


def test_where_no_sink_takes_anything_that_is_said_and_all_stay() -> None:
    here = Sinks(*(expired(f"n{at}") for at in range(600)))
    for sink in here.chain:
        sink.script = {f"n{at}": ["fatal"] for at in range(600)}
    with here.dlq() as dlq, pytest.raises(Fatal, match="no access"):
        dlq.forward(spec=here.spec)
    assert len(here.place.letters) == 600


def test_letters_are_forwarded_in_the_format_of_the_spec() -> None:
    here = Sinks(expired("a", headers=EVENT))
    spec = DeliverySpec(dead_letter_sink=here.spec.dead_letter_sink, format="json")
    with here.dlq() as dlq:
        dlq.forward(spec=spec)
    (there,) = here.chain[0].stored
    assert is_structured(there)
    assert dialects.read(there) is not None


def test_each_sink_gets_the_context_in_its_own_dialect() -> None:
    here = Sinks(expired("a"))
    object.__setattr__(here.chain[1].capabilities, "context_dialect", "connect")
    here.chain[0].script = {"a": ["permanent", "permanent"]}
    with here.dlq() as dlq:
        dlq.forward(spec=here.spec)
    assert any(name.startswith("__connect.errors") for name, _ in here.chain[1].stored[0].headers)


def test_a_target_that_is_named_takes_the_place_of_the_specs_sinks_and_not_of_its_format() -> None:
    here = Sinks(expired("a", headers=EVENT))
    with here.dlq() as dlq:
        assert dlq.forward("scripted:other", spec=DeliverySpec(format="json")).removed == 1
    assert is_structured(here.other.stored[0])


def test_letters_do_not_go_back_to_their_own_queue() -> None:
    here = Sinks(expired("a"))
    with here.dlq() as dlq, pytest.raises(ConfigurationError, match="is the destination itself"):
        dlq.forward("scripted:work")
    assert len(here.place.letters) == 1


def test_two_letters_of_one_id_are_two_and_one_that_is_forwarded_again_is_one() -> None:
    """A sink that recognises what it has must not swallow the other."""
    one = expired("a")
    other = replace(one, position="p-2")
    here = Sinks(one, other)
    with here.dlq() as dlq:
        dlq.forward(spec=here.spec)
    first = [message.identity for message in here.chain[0].stored]
    assert len({*first}) == 2
    here.place.letters += [one, other]
    with here.dlq() as dlq:
        dlq.forward(spec=here.spec)
    assert [message.identity for message in here.chain[0].stored] == first * 2


def test_an_expired_message_is_forwarded_though_a_framework_wrote_an_earlier_failure_into_it() -> None:
    letter = expired("a")
    others = replace(letter.message, headers=(*letter.message.headers, ("NServiceBus.FailedQ", b"orders")))
    here = Sinks(replace(letter, message=others))
    with here.dlq() as dlq:
        assert dlq.forward(spec=here.spec).removed == 1


# --- following ---


class Turns:
    """Does one thing before each look but the first, and then ends the run."""

    def __init__(self, *actions: Callable[[], None]) -> None:
        self.actions = list(actions)
        self.clock = FakeClock()
        self.next = self.clock.now + 9.5
        self.over = False

    def sleep(self, seconds: float) -> None:
        self.clock.now += seconds
        if self.clock.now >= self.next:
            self.next += 10.0
            if self.actions:
                self.actions.pop(0)()
            else:
                self.over = True


def followed(
    here: Sinks, monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], None], **settings: Any
) -> RedriveReport:
    turns = Turns(*actions)
    for sink in here.chain:
        sink.clock = turns.clock
    monkeypatch.setattr(turns.clock, "sleep", turns.sleep, raising=False)
    monkeypatch.setattr("redelivery.deadletters.queue.SystemClock", lambda: turns.clock)
    with dead_letters("scripted:work", connection_factory=here.connection_factory) as dlq:
        return dlq.forward(
            spec=here.spec,
            follow=True,
            interval=timedelta(seconds=10),
            settings=RedriveSettings(max_returns=None, stop=lambda: turns.over, **settings),
        )


def test_following_takes_what_is_dead_lettered_later_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Sinks(expired("a"))
    came = [lambda name=name: here.place.letters.append(expired(name)) for name in ("b", "c")]
    report = followed(here, monkeypatch, *came)
    assert here.values()[0] == [b"a", b"b", b"c"]
    assert (report.redriven, report.removed, report.considered) == (3, 3, 3)
    assert here.place.letters == []


def test_what_stays_is_counted_once_however_often_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Letter(
        position="p",
        message=dialects.attach(
            Message(value=b"v"),
            ErrorContext(reason="r"),
            dialect="json",
            limits=DeadLetterSetup().work.capabilities.limits,
            prefix="ce-",
        ),
    )
    here = Sinks(expired("a"), ours)
    for sink in here.chain:
        sink.script = {"a": ["permanent", "permanent"] * 3}
    report = followed(here, monkeypatch, *[lambda: None] * 3)
    assert (report.considered, report.redriven, report.failed) == (2, 1, 0), "refused three times, and then taken"
    assert sum(report.left.values()) == 1


def test_a_broker_that_is_away_for_a_while_does_not_end_the_following(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Sinks(expired("a"))
    browse = here.place.browse
    errors: list[Retriable] = []

    def flaky() -> Iterator[Letter]:
        if errors:
            raise errors.pop()
        return browse()

    def breaks() -> None:
        here.place.letters.append(expired("b"))
        errors.append(Retriable("busy"))

    here.place.browse = flaky  # type: ignore[method-assign]
    assert followed(here, monkeypatch, lambda: None, breaks, lambda: None).redriven == 2


@pytest.mark.parametrize("error", [Fatal("no access"), ConfigurationError("gone")])
def test_what_can_never_work_ends_the_following(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Sinks(expired("a"))

    def broken() -> Iterator[Letter]:
        raise error

    here.place.browse = broken  # type: ignore[method-assign]
    with pytest.raises((BrokerError, ConfigurationError), match=str(error)):
        followed(here, monkeypatch, lambda: None)


@pytest.mark.parametrize("error", [Retriable("away"), Ambiguous("no answer")])
def test_a_letter_whose_removal_fails_is_removed_at_a_later_look_and_not_sent_again(
    monkeypatch: pytest.MonkeyPatch, error: BrokerError
) -> None:
    here = Sinks()
    remove, errors = here.place.remove, [error, error]

    def flaky(positions: Sequence[str]) -> int:
        if errors:
            raise errors.pop()
        return remove(positions)

    here.place.remove = flaky  # type: ignore[method-assign]
    came = lambda: here.place.letters.append(expired("a"))  # noqa: E731
    report = followed(here, monkeypatch, came, *[lambda: None] * 4)
    assert here.values()[0] == [b"a"]
    assert (report.redriven, report.resumed, here.place.letters) == (1, 1, [])


def test_a_place_that_is_followed_is_opened_anew_for_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that cannot look without taking would else hide what it has shown forever."""
    here = Sinks(expired("a"))
    opened: list[bool] = []

    def again(*, direct: bool = False) -> Any:
        opened.append(direct)
        return here.place

    here.work.dead_letters = again  # type: ignore[method-assign]
    followed(here, monkeypatch, *[lambda: None] * 3)
    assert len(opened) >= 4


def test_what_keeps_a_followed_place_in_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Sinks(expired("n0"))
    held: list[int] = []

    def more() -> None:
        for sink in here.chain:
            sink.stored.clear()
            sink.sends.clear()
            sink.attempts.clear()
        here.place.at_work_when_removed.clear()
        gc.collect()
        held.append(sum(isinstance(each, Letter | Message | Group) for each in gc.get_objects()))
        here.place.letters += [expired(f"n{len(held)}-{each}") for each in range(500)]

    assert followed(here, monkeypatch, *[more] * 12).redriven == 6001
    assert max(held[6:]) <= held[5] + 10, held


def test_an_event_goes_on_under_the_type_of_the_spec_or_of_the_sink_that_takes_it() -> None:
    here = Sinks(expired("a", headers=EVENT), expired("b", headers=EVENT))
    here.chain[0].script = {"a": ["permanent", "permanent"]}
    first, second = here.spec.dead_letter_sink
    spec = replace(
        here.spec, dead_letter_sink=(first, replace(second, type="order.lost")), dead_letter_type="order.dead"
    )
    with here.dlq() as dlq:
        assert dlq.forward(spec=spec).removed == 2
    kinds = [[dict(message.headers)["ce-type"] for message in sink.stored] for sink in here.chain]
    assert kinds == [[b"order.dead"], [b"order.lost"]]
    assert dict(dialects.redriven(here.chain[1].stored[0]).headers)["ce-type"] == b"order.placed"


@pytest.mark.parametrize("by", ["spec", "sink"])
def test_an_event_is_forwarded_under_the_type_that_is_asked_for(by: str) -> None:
    here = Sinks(expired("a", headers=EVENT), count=1)
    named = DeliverySpec(dead_letter_sink=(Sink(uri="scripted:0", type="order.expired"),))
    whole = DeliverySpec(dead_letter_sink=(Sink(uri="scripted:0"),), dead_letter_type="order.expired")
    with here.dlq() as dlq:
        dlq.forward(spec=whole if by == "spec" else named)
    (there,) = here.chain[0].stored
    assert ("ce-type", b"order.expired") in there.headers
    assert ("ce-type", b"order.placed") in dialects.redriven(there).headers
