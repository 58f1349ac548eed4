"""Redrive: confirmed at work before it is removed, under an id that says the hop, and never growing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import buried
import pytest
from scripted import ScriptedBroker
from test_delivery import RealClock

from redelivery.base import secrets
from redelivery.codes import Code
from redelivery.contract.broker import Broker, DeadLetters, Letter, LetterBatch, Limits, Support
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.deadletters import redrive
from redelivery.deadletters.operations import original_id
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import RedriveSettings
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.trust import context_of
from redelivery.errors import ConfigurationError, Fatal, Permanent
from redelivery.formats import dialects, events


class Place(DeadLetters):
    """Letters in memory; notes what was at work when something was removed."""

    def __init__(self, letters: list[Letter], work: ScriptedBroker) -> None:
        self.letters = letters
        self.work = work
        self.at_work_when_removed: list[tuple[str, bool]] = []

    def browse(self) -> Iterator[Letter]:
        yield from list(self.letters)

    def remove(self, positions: Sequence[str]) -> int:
        stored = {(message.id or "").split("~")[0] for message in self.work.stored}
        gone = [letter for letter in self.letters if letter.position in positions]
        self.at_work_when_removed += [(letter.position, letter.message.id in stored) for letter in gone]
        self.letters[:] = [letter for letter in self.letters if letter not in gone]
        return len(gone)

    def purge(self) -> int:
        return self.remove([letter.position for letter in self.letters])

    def close(self) -> None:
        pass


class DeadLetterSetup:
    def __init__(self, *letters: Letter) -> None:
        self.work = ScriptedBroker(RealClock())
        object.__setattr__(self.work.capabilities, "dead_letter", Support.NATIVE)
        self.other = ScriptedBroker(RealClock())
        self.place = Place(list(letters), self.work)
        self.work.dead_letters = lambda *, direct=False: self.place  # type: ignore[method-assign]

    @contextlib.contextmanager
    def connection_factory(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        yield {"scripted:work": self.work, "scripted:sink": self.work, "scripted:other": self.other}[url]

    def dlq(self, **options: Any) -> DeadLetterQueue:
        return dead_letters("scripted:work", connection_factory=self.connection_factory, **options)


CONTEXT = ErrorContext(reason="no", kind="permanent", native_code="No", attempts=3, attempts_total=3)


def letter(name: str, context: ErrorContext = CONTEXT, **fields: Any) -> Letter:
    message = Message(value=b"body", id=name, key=b"k", headers=(("mine", b"1"),), **fields)
    return Letter(
        position=f"p-{name}",
        message=dialects.attach(message, context, dialect="json", limits=Limits(), prefix="ce-"),
    )


def test_a_letter_is_confirmed_at_work_before_it_is_removed() -> None:
    setup = DeadLetterSetup(letter("a"), letter("b"))
    with setup.dlq() as dlq:
        report = dlq.redrive()
    assert (report.considered, report.redriven, report.removed) == (2, 2, 2)
    assert setup.place.at_work_when_removed == [("p-a", True), ("p-b", True)]


def test_letters_of_a_place_that_nobody_can_send_to_are_sent_back_forwarded_and_removed() -> None:
    """Only a writer needs the native sink."""

    def refuse() -> str:
        raise ConfigurationError("it cannot be sent to: provision it")

    given_up = Letter(position="p-c", message=Message(value=b"c", id="c"), context=replace(CONTEXT, kind="expired"))
    setup = DeadLetterSetup(letter("a"), letter("b"), given_up)
    setup.work.native_sink = refuse  # type: ignore[method-assign]
    setup.work.dead_letter_places = lambda: ("scripted:inside", "scripted:beside")  # type: ignore[method-assign]
    spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"), Sink(uri="scripted:other")))
    with setup.dlq() as dlq:
        assert dlq.place == "scripted:inside"
        assert dlq.redrive(["a"]).removed == 1
        assert dlq.remove(["b"]) == 1
        assert dlq.forward(spec=spec).removed == 1
        for place in ("scripted:inside", "scripted:beside"):
            with pytest.raises(ConfigurationError, match="the place that the letters are in"):
                dlq.redrive(to=place)
    assert [message.value for message in setup.other.stored] == [b"c"]
    assert setup.place.letters == []


def test_it_goes_back_as_it_was_sent_under_its_hop_without_our_context() -> None:
    setup = DeadLetterSetup(letter("a", replace(CONTEXT, target="q2")))
    with setup.dlq() as dlq:
        dlq.redrive(allow_targets=["q2"])
    (back,) = setup.work.stored
    assert (back.value, back.key, back.id, back.destination) == (b"body", b"k", "a~1", "q2")
    assert back.headers[0] == ("mine", b"1")
    assert dialects.read(back) is None
    assert dialects.history(back) == dialects.DeliveryHistory(attempts_total=3, hops=1)


def test_over_many_lives_it_neither_grows_nor_forgets() -> None:
    first = letter("a")
    again, sizes = first, []
    for hop in range(1, 5):
        setup = DeadLetterSetup(again)
        with setup.dlq() as dlq:
            dlq.redrive()
        (back,) = setup.work.stored
        assert back.id == f"a~{hop}"
        sizes.append(back.nbytes)
        total = dialects.history(back).attempts_total
        assert total == 3 * hop
        context = replace(CONTEXT, attempts_total=total + 3, hops=hop)
        again = Letter(
            position="p", message=dialects.attach(back, context, dialect="json", limits=Limits(), prefix="ce-")
        )
    assert max(sizes) - sizes[0] <= 2, "only the digits of the counters may change"


def test_a_letter_that_its_destination_refuses_stays_where_it_is() -> None:
    setup = DeadLetterSetup(letter("a"), letter("b"))
    setup.work.script = {"a~1": ["permanent"]}
    with setup.dlq() as dlq:
        report = dlq.redrive()
    assert (report.redriven, report.failed) == (1, 1)
    assert [each.position for each in setup.place.letters] == ["p-a"]


def test_a_destination_that_cannot_be_used_leaves_every_letter_in_place() -> None:
    setup = DeadLetterSetup(letter("a"), letter("b"))
    setup.work.refuse = Fatal("denied")
    with setup.dlq() as dlq, pytest.raises(Fatal, match="denied"):
        dlq.redrive()
    assert len(setup.place.letters) == 2


@pytest.mark.parametrize("name", ["b", "p-b"])
def test_letters_are_picked_by_id_or_position(name: str) -> None:
    setup = DeadLetterSetup(letter("a"), letter("b"))
    with setup.dlq() as dlq:
        report = dlq.redrive([name])
    assert (report.considered, report.redriven) == (1, 1)
    assert [each.position for each in setup.place.letters] == ["p-a"]


def test_another_destination_may_be_named() -> None:
    setup = DeadLetterSetup(letter("a"))
    with setup.dlq() as dlq:
        dlq.redrive(to="scripted:other")
    assert setup.other.stored_ids() == {"a~1": 1}
    assert setup.work.stored == []


def test_the_place_of_the_letters_is_no_destination() -> None:
    setup = DeadLetterSetup(letter("a"))
    with setup.dlq() as dlq, pytest.raises(ConfigurationError, match="is the place that the letters are in"):
        dlq.redrive(to="scripted:native")


def test_letters_of_a_sink_go_back_to_the_destination_that_was_named(tmp_path: Path) -> None:
    """A sink that several destinations share has letters of others, which stay."""
    place = buried.Place(tmp_path)
    url = f"sqlite://{tmp_path / 'other.db'}?queue=orders"
    place.bury(2, destination=url)
    place.bury(1, first=2, destination=f"{url}-2")
    place.bury(1, first=3, destination="nothing:at all")
    place.bury(1, first=4)
    with dead_letters(url, sink=f"{place.url}-dead-letters") as letters:
        counted = letters.redrive(settings=RedriveSettings(dry_run=True))
        report = letters.redrive()
    assert (counted.selected, report.selected, report.redriven) == (3, 3, 3)
    assert [id_ for id_, _ in buried.stored(tmp_path / "other.db", "orders")] == ["n0~1", "n1~1", "n4~1"]
    assert [id_ for id_, _ in place.letters] == ["n2", "n3"]


def test_a_letter_of_another_destination_stays_though_nobody_signed_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = buried.Place(tmp_path)
    monkeypatch.setenv("KEY", "k" * 32)
    here, there = (f"sqlite://{tmp_path / 'other.db'}?queue={name}" for name in ("orders", "payments"))
    place.bury(1, destination=here)
    place.bury(1, first=1, destination=there)
    with dead_letters(here, sink=f"{place.url}-dead-letters", key="env:KEY") as letters:
        assert letters.redrive().redriven == 1
    assert [id_ for id_, _ in place.letters] == ["n1"]


def test_a_letter_that_had_no_room_to_say_where_it_failed_stays() -> None:
    context = replace(CONTEXT, destination="scripted:other")
    cut = dialects.attach(
        Message(value=b"v", id="a"), context, dialect="json", limits=Limits(headers_bytes=60), prefix="ce-"
    )
    assert dialects.is_cut(cut)
    assert (dialects.read(cut) or ErrorContext()).destination is None
    selection = Selection().failed_at("scripted:work", lambda _url: True)
    batch = LetterBatch.of([Letter(position="p", message=each) for each in (cut, Message(value=b"theirs"))])
    assert selection.admitted(batch, range(2), 0) == [1]


@pytest.mark.parametrize("url", ["amqp://h/%ff", "amqp://u:hostile-password@h/x?bogus=1", "kafka:", "nothing", "\0"])
def test_a_destination_that_a_letter_names_is_another_place_whatever_it_is(url: str, tmp_path: Path) -> None:
    """It is compared, and never opened: nothing of it is remembered, logged or raised."""
    place = buried.Place(tmp_path)
    here = f"sqlite://{tmp_path / 'other.db'}?queue=orders"
    place.bury(1, destination=url)
    place.bury(1, first=1, destination=here)
    with dead_letters(here, sink=f"{place.url}-dead-letters") as letters:
        assert letters.redrive().redriven == 1
    assert [id_ for id_, _ in place.letters] == ["n0"]
    assert secrets.redact("hostile-password") == "hostile-password"


def test_a_queue_of_letters_must_be_told_where_its_letters_go() -> None:
    setup = DeadLetterSetup(letter("a"))
    object.__setattr__(setup.work.capabilities, "dead_letter", Support.NONE)
    with setup.dlq() as dlq:
        with pytest.raises(ConfigurationError, match="say where its letters go"):
            dlq.redrive()
        assert dlq.redrive(to="scripted:other").redriven == 1


def test_a_letter_over_the_hop_limit_is_left_and_counted() -> None:
    tired = letter("a", replace(CONTEXT, hops=5))
    setup = DeadLetterSetup(tired, letter("b"))
    with setup.dlq() as dlq:
        report = dlq.redrive()
        assert report.left == {"it was sent back 5 times already": 1}
        assert report.redriven == 1
        assert dlq.redrive(hop_limit=6).redriven == 1


def test_a_row_that_never_became_a_message_is_left_to_be_mended() -> None:
    error = Permanent("no time", native_code="missing-time")
    bad = events.undeliverable({"x": 1}, id="a", error=error)
    setup = DeadLetterSetup(Letter(position="p", message=bad))
    with setup.dlq() as dlq:
        report = dlq.redrive()
    assert report.left == {"its row never became a message: mend it and write it again": 1}
    assert len(setup.place.letters) == 1


def test_a_column_that_somebody_else_wrote_into_the_context_keeps_no_letter_back() -> None:
    setup = DeadLetterSetup(letter("a", replace(CONTEXT, extra={"priority": "abc"})), letter("b"))
    object.__setattr__(setup.work.capabilities, "columns", {"priority": int})
    with setup.dlq() as dlq:
        assert dlq.redrive().redriven == 2
    assert [message.extra for message in setup.work.stored] == [{}, {}]


def test_iterating_gives_the_whole_context_whoever_knows_it() -> None:
    native = ErrorContext(kind="expired", code=Code.EXPIRED, reason="TTL", source_topic="orders")
    setup = DeadLetterSetup(
        replace(letter("a"), context=native), Letter(position="n", message=Message(value=b""), context=native)
    )
    with setup.dlq() as dlq:
        one, two = (context_of(each) for each in dlq)
    assert (one.kind, one.reason, one.source_topic) == ("expired", "TTL", "orders")
    assert one.native_code == "No", "what only the headers say stays"
    assert two == native
    assert len(setup.place.letters) == 2


def test_remove_and_purge_say_how_many() -> None:
    setup = DeadLetterSetup(letter("a"), letter("b"), letter("c"))
    with setup.dlq() as dlq:
        assert dlq.remove(["b", "p-c", "x"]) == 2
        assert dlq.purge() == 1


def test_a_place_without_one_of_its_own_must_be_told_where_its_letters_go() -> None:
    setup = DeadLetterSetup(letter("a"))
    object.__setattr__(setup.work.capabilities, "dead_letter", Support.NONE)
    with setup.dlq() as dlq, pytest.raises(ConfigurationError, match="say where its letters go"):
        dlq.redrive()
    assert len(setup.place.letters) == 1


def test_one_id_is_written_as_a_list() -> None:
    setup = DeadLetterSetup(letter("a"))
    with setup.dlq() as dlq, pytest.raises(ConfigurationError, match="ids is a list of ids"):
        dlq.redrive("a")


def test_letters_without_an_id_of_their_own_are_never_taken_for_one_another() -> None:
    context = replace(CONTEXT, message_id="same")
    messages = [Message(value=bytes([n])) for n in range(3)]
    letters = [
        Letter(position=f"{n}", message=dialects.attach(m, context, dialect="json", limits=Limits(), prefix="ce-"))
        for n, m in enumerate(messages)
    ]
    setup = DeadLetterSetup(*letters)
    object.__setattr__(setup.work.capabilities, "ids", Support.NATIVE)
    with setup.dlq() as dlq:
        dlq.redrive()
    assert setup.work.stored_ids() == {"same~0~1": 1, "same~1~1": 1, "same~2~1": 1}


def test_what_may_have_been_delivered_goes_back_under_the_id_that_it_was_sent_under() -> None:
    """Whoever has it already, at work or behind it, must see that it is the same."""
    maybe = replace(CONTEXT, maybe_delivered=True, message_id="named")
    unnamed = dialects.attach(Message(value=b"v"), maybe, dialect="json", limits=Limits(), prefix="ce-")
    setup = DeadLetterSetup(
        letter("a", maybe), letter("b"), letter("c~1", replace(maybe, hops=1)), Letter(position="p", message=unnamed)
    )
    with setup.dlq() as dlq:
        assert dlq.redrive().redriven == 4
    assert setup.work.stored_ids() == {"a": 1, "b~1": 1, "c~1": 1, "named": 1}
    hops = {message.id: dialects.history(message).hops for message in setup.work.stored}
    assert hops == {"a": 1, "b~1": 1, "c~1": 2, "named": 1}


def test_the_mark_of_a_hop_is_taken_off_only_where_it_is_ours() -> None:
    assert original_id("a~2", 2) == "a"
    assert original_id("a~2", 0) == "a~2"
    assert original_id("a~2", 1) == "a~2"


def test_a_redrive_holds_so_many_bytes_of_letters_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive, "_CHUNK_BYTES", 40_000)
    monkeypatch.setattr("redelivery.contract.letters.BATCH_BYTES", 40_000)
    large = [replace(each, message=replace(each.message, value=b"v" * 10_000)) for each in map(letter, "abcdefghijkl")]
    setup = DeadLetterSetup(*large)
    held: list[int] = []

    def browse() -> Iterator[Letter]:
        for shown, each in enumerate(list(setup.place.letters), 1):
            held.append(shown - len(setup.place.at_work_when_removed))
            yield each

    monkeypatch.setattr(setup.place, "browse", browse)
    with setup.dlq() as dlq:
        assert dlq.redrive(settings=RedriveSettings(max_returns=None)).removed == len(large)
    assert max(held) <= 4
