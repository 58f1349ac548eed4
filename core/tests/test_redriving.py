"""A redrive keeps to its limit and rate, stops when it does harm, and leaves every letter in a place."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from test_deadletters import CONTEXT, DeadLetterSetup, letter

from redelivery.contract.broker import Broker, Letter, Limits, Support
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.deadletters import returned
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.deadletters.selection import Selection
from redelivery.errors import ConfigurationError, JournalError, Retriable
from redelivery.formats import dialects, events


def setup(count: int) -> DeadLetterSetup:
    return DeadLetterSetup(*(letter(f"n{at}") for at in range(count)))


def test_a_dry_run_sends_and_removes_nothing_and_says_what_would_go() -> None:
    here = DeadLetterSetup(letter("a"), letter("b", replace(CONTEXT, hops=9)))
    with here.dlq() as dlq:
        report = dlq.redrive(settings=RedriveSettings(dry_run=True))
    assert (report.considered, report.selected, report.redriven) == (2, 1, 0)
    assert sum(report.left.values()) == 1
    assert not here.work.stored
    assert len(here.place.letters) == 2


@pytest.mark.parametrize("sent", [2, 3])
def test_a_limit_holds_for_a_run_that_failed_and_the_next_one_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    monkeypatch.setattr("redelivery.deadletters.redrive._CHUNK", sent)
    here = DeadLetterSetup(*(letter(name) for name in "abcdef"))
    remove, journal, settings = here.place.remove, tmp_path / "journal", RedriveSettings(limit=3)

    def fails(_positions: object) -> int:
        raise Retriable("killed here")

    here.place.remove = fails  # type: ignore[method-assign]
    with here.dlq() as dlq, pytest.raises(Retriable):
        dlq.redrive(journal=journal, settings=settings)
    here.place.remove = remove  # type: ignore[method-assign]
    assert len(here.work.stored_ids()) == sent
    with here.dlq() as dlq:
        report = dlq.redrive(journal=journal, settings=settings)
        assert (report.redriven, report.resumed) == (3 - sent, sent)
        assert report.stopped == f"the limit of 3 letters is reached, {sent} of them by the run that this one continued"
        report = dlq.redrive(journal=journal, settings=settings)
        assert (report.redriven, report.resumed) == (3, 0), "the one before has given its account"
        assert report.stopped == "the limit of 3 letters is reached"
    assert sorted(here.work.stored_ids()) == [f"{name}~1" for name in "abcdef"]


def test_a_limit_holds_for_a_run_that_was_interrupted_and_the_next_one_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redelivery.deadletters.redrive._CHUNK", 2)
    here, journal = setup(8), tmp_path / "journal"
    stopped = RedriveSettings(limit=3, stop=lambda: len(here.work.stored) >= 2)
    with here.dlq() as dlq:
        assert dlq.redrive(journal=journal, settings=stopped).stopped == "it was interrupted"
        report = dlq.redrive(journal=journal, settings=RedriveSettings(limit=3))
        assert (report.redriven, len(here.work.stored)) == (1, 3)
        assert dlq.redrive(journal=journal, settings=RedriveSettings(limit=3)).redriven == 3


def test_another_redrive_has_its_own_limit(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", "scripted:native") as journal:
        assert journal.began("one") == 0
        journal.sent({"1": "a", "2": "b"})
        assert journal.began("one") == 2
        assert journal.began("two") == 0
        assert journal.began("one") == 0
        journal.sent({"3": "a"})
        journal.finished()
        assert journal.began("one") == 0


def test_no_more_than_the_limit_are_sent() -> None:
    here = setup(5)
    with here.dlq() as dlq:
        report = dlq.redrive(settings=RedriveSettings(limit=2))
    assert (report.redriven, len(here.work.stored), len(here.place.letters)) == (2, 2, 3)
    assert report.stopped == "the limit of 2 letters is reached"


def test_letters_go_no_faster_than_the_rate() -> None:
    here = setup(6)
    began = time.monotonic()
    with here.dlq() as dlq:
        assert dlq.redrive(settings=RedriveSettings(rate=20)).redriven == 6
    assert time.monotonic() - began >= 0.19, "six letters at twenty a second, in pieces of two"


def test_an_interrupted_run_settles_what_is_in_flight_and_accounts_for_it() -> None:
    here = setup(600)
    asked = iter([False, True])
    with here.dlq() as dlq:
        report = dlq.redrive(settings=RedriveSettings(stop=lambda: next(asked, True), rate=2_000))
    assert report.stopped == "it was interrupted"
    assert report.considered == report.selected == report.redriven == report.removed == len(here.work.stored)
    assert len(here.place.letters) == 600 - report.redriven


def test_it_stops_when_too_many_are_refused() -> None:
    here = setup(30)
    here.work.script = {f"n{at}~1": ["permanent"] for at in range(30)}
    with here.dlq() as dlq:
        report = dlq.redrive(settings=RedriveSettings(max_returns=3, rate=50))
    assert report.stopped is not None
    assert "mend the cause first" in report.stopped
    assert 3 < report.failed < 30
    assert len(here.place.letters) == 30, "what is refused stays"


def test_it_stops_when_too_many_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returned, "_WHOLE", 0.1)
    here = setup(60)

    def bounce(report: RedriveReport) -> None:
        """A consumer that fails again on everything."""
        while len(here.work.stored) > bounce.seen:  # type: ignore[attr-defined]
            message = here.work.stored[bounce.seen]  # type: ignore[attr-defined]
            bounce.seen += 1  # type: ignore[attr-defined]
            again = dialects.attach(message, replace(CONTEXT, hops=1), dialect="json", limits=Limits(), prefix="ce-")
            here.place.letters.append(
                Letter(position=f"back-{bounce.seen}", message=again, dead_lettered_ms=time.time_ns() // 1_000_000)  # type: ignore[attr-defined]
            )

    bounce.seen = 0  # type: ignore[attr-defined]
    with here.dlq() as dlq:
        report = dlq.redrive(settings=RedriveSettings(max_returns=5, rate=20, on_progress=bounce))
    assert report.returned > 5
    assert report.stopped is not None
    assert report.redriven < 60


def test_progress_is_told_as_it_is_made() -> None:
    here = setup(3)
    seen: list[int] = []
    with here.dlq() as dlq:
        dlq.redrive(settings=RedriveSettings(on_progress=lambda report: seen.append(report.redriven)))
    assert seen[-1] == 3


def test_with_a_ledger_what_was_sent_is_not_sent_again(tmp_path: Path) -> None:
    here = setup(2)
    remove, journal = here.place.remove, tmp_path / "journal"

    def fails(positions: object) -> int:
        raise Retriable("the place is down")

    here.place.remove = fails  # type: ignore[method-assign]
    with here.dlq() as dlq, pytest.raises(Retriable):
        dlq.redrive(journal=journal)
    here.place.remove = remove  # type: ignore[method-assign]
    with here.dlq() as dlq:
        report = dlq.redrive(journal=journal)
    assert (report.resumed, report.redriven) == (2, 0)
    assert (len(here.work.stored), here.place.letters) == (2, [])


def test_a_ledger_serves_one_place_and_one_run_at_a_time(tmp_path: Path) -> None:
    here = setup(2)
    with here.dlq() as dlq:
        dlq.redrive(journal=tmp_path / "journal")
    with here.dlq(sink="scripted:sink") as other, pytest.raises(ConfigurationError, match="belongs to scripted:"):
        other.redrive(to="scripted:other", journal=tmp_path / "journal")

    def again(_: RedriveReport) -> None:
        with here.dlq() as second, pytest.raises(JournalError, match="another redrive"):
            second.redrive(journal=tmp_path / "journal")

    here.place.letters.append(letter("late"))
    with here.dlq() as dlq:
        assert dlq.redrive(journal=tmp_path / "journal", settings=RedriveSettings(on_progress=again)).redriven == 1


def test_what_the_broker_itself_gave_up_is_forwarded_with_its_context() -> None:
    native = Letter(
        position="p-native",
        message=Message(value=b"old", id="old", headers=(("mine", b"1"),)),
        context=ErrorContext(kind="expired", reason="its time to live had run out"),
    )
    here = DeadLetterSetup(letter("ours"), native)
    with here.dlq() as dlq:
        report = dlq.forward("scripted:other")
    assert (report.redriven, report.removed) == (1, 1)
    assert [each.position for each in here.place.letters] == ["p-ours"]
    (there,) = here.other.stored
    context = dialects.read(there)
    assert (there.value, there.headers[0]) == (b"old", ("mine", b"1"))
    assert context is not None
    assert (context.kind, context.reason) == ("expired", "its time to live had run out")


def test_without_a_target_it_is_forwarded_to_the_first_sink_of_the_spec_that_is_another_place() -> None:
    here = DeadLetterSetup(Letter(position="p", message=Message(value=b"old"), context=ErrorContext(kind="expired")))
    with here.dlq() as dlq:
        for spec in (None, DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))):
            with pytest.raises(ConfigurationError, match="say where to"):
                dlq.forward(spec=spec)
        assert [each.position for each in here.place.letters] == ["p"]
        sinks = (Sink(uri=NATIVE), Sink(uri="scripted:other"))
        # A spec's own tolerance is of rows; a letter that fails stays, and fails nothing.
        assert dlq.forward(spec=DeliverySpec(dead_letter_sink=sinks, tolerance="none")).removed == 1
    assert [each.value for each in here.other.stored] == [b"old"]


def test_a_sink_of_the_spec_is_opened_with_the_options_that_were_given_for_its_broker() -> None:
    here = DeadLetterSetup(Letter(position="p", message=Message(value=b"old"), context=ErrorContext(kind="expired")))
    work, sink = "sqlite:/nowhere.db?queue=work", "sqlite:/nowhere.db?queue=kept"
    seen: list[tuple[str, Mapping[str, str]]] = []

    @contextmanager
    def connection_factory(url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        seen.append((url, options))
        yield here.work if url == work else here.other

    with dead_letters(work, options={"sqlite.create": "false"}, connection_factory=connection_factory) as dlq:
        assert dlq.forward(spec=DeliverySpec(dead_letter_sink=(Sink(uri=sink),))).removed == 1
    assert seen == [(work, {"sqlite.create": "false"}), (sink, {"sqlite.create": "false"})]


def test_what_is_confirmed_is_removed_also_where_it_could_not_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = setup(3)

    def full(*_: object) -> None:
        raise JournalError("the journal cannot be written")

    monkeypatch.setattr(Journal, "sent", full)
    with here.dlq() as dlq, pytest.raises(JournalError, match="cannot be written"):
        dlq.redrive(journal=tmp_path / "journal")
    assert (len(here.work.stored), here.place.letters) == (3, [])


def test_a_later_failure_of_the_same_message_is_another_letter_at_its_place(tmp_path: Path) -> None:
    here, journal = DeadLetterSetup(letter("a")), tmp_path / "journal"
    remove = here.place.remove
    here.place.remove = lambda _: 0  # type: ignore[method-assign]
    with here.dlq() as dlq:
        assert dlq.redrive(journal=journal).removed == 0
    here.place.remove = remove  # type: ignore[method-assign]
    here.place.letters[:] = [letter("a", replace(CONTEXT, last_failure_ms=1_700_000_000_000))]
    with here.dlq() as dlq:
        assert dlq.redrive(journal=journal).redriven == 1


def test_a_letter_that_was_sent_and_could_not_be_removed_is_removed_later_and_not_sent_again(tmp_path: Path) -> None:
    """A dead process hides it for a while, or holds its lock: nothing is removed then, and nothing raised."""
    here, journal = setup(2), tmp_path / "journal"
    remove = here.place.remove
    here.place.remove = lambda positions: 0  # type: ignore[method-assign]
    with here.dlq() as dlq:
        report = dlq.redrive(journal=journal)
    assert (report.redriven, report.removed, len(here.place.letters)) == (2, 0, 2)
    with here.dlq() as dlq:
        report = dlq.redrive(journal=journal)
    assert (report.redriven, report.resumed, len(here.work.stored)) == (0, 0, 2)
    here.place.remove = remove  # type: ignore[method-assign]
    with here.dlq() as dlq:
        report = dlq.redrive(journal=journal)
    assert (report.redriven, report.resumed, len(here.work.stored)) == (0, 2, 2)
    assert not here.place.letters


def test_a_ledger_speaks_of_a_letter_and_not_of_whatever_lies_at_its_place_later(tmp_path: Path) -> None:
    here, journal = setup(1), tmp_path / "journal"
    with here.dlq() as dlq, Journal(journal, dlq.place) as book:
        book.sent({"p-n0": "of another letter"})
    with here.dlq() as dlq:
        report = dlq.redrive(journal=journal)
    assert (report.resumed, report.redriven, len(here.work.stored)) == (0, 1, 1)


TARGETED = replace(CONTEXT, target="victim")


@pytest.mark.parametrize("destination", ["scripted:work", "scripted:other", None])
def test_under_to_no_target_of_a_letter_is_followed_whatever_its_headers_say(destination: str | None) -> None:
    here = DeadLetterSetup(letter("a", replace(TARGETED, destination=destination)))
    object.__setattr__(here.other.capabilities, "columns", {"exchange": str})
    object.__setattr__(here.other.capabilities, "routes", frozenset({"exchange"}))
    routed = letter("b", replace(TARGETED, extra={"exchange": "victim"}))
    here.place.letters.append(replace(routed, message=replace(routed.message, extra={"exchange": "victim"})))
    with here.dlq() as dlq:
        assert dlq.redrive(to="scripted:other").removed == 2
    assert [(each.destination, dict(each.extra)) for each in here.other.stored] == [(None, {})] * 2


def test_a_target_that_only_a_header_names_keeps_a_letter_where_it_is_unless_it_is_allowed() -> None:
    letters = [letter("a", TARGETED), letter("b", replace(CONTEXT, target="orders-eu")), letter("c")]
    here = DeadLetterSetup(*letters)
    with here.dlq() as dlq:
        dry = dlq.redrive(settings=RedriveSettings(dry_run=True), allow_targets=["orders-*"])
        report = dlq.redrive(allow_targets=["orders-*"])
    for each in (dry, report):
        assert each.left == {"its target 'victim' is not allowed (--allow-targets)": 1}
        assert each.targets == {"orders-eu": 1}
    assert report.redriven == 2
    assert [each.destination for each in here.work.stored] == ["orders-eu", None]
    assert [each.position for each in here.place.letters] == ["p-a"]


def test_a_column_that_routes_is_a_target_too() -> None:
    here = DeadLetterSetup(letter("a", replace(CONTEXT, extra={"exchange": "victim", "priority": "5"})))
    object.__setattr__(here.work.capabilities, "columns", {"exchange": str, "priority": int})
    object.__setattr__(here.work.capabilities, "routes", frozenset({"exchange"}))
    with here.dlq() as dlq:
        assert dlq.redrive().left == {"its target 'exchange=victim' is not allowed (--allow-targets)": 1}
        assert dlq.redrive(allow_targets=["exchange=vic*"]).redriven == 1
    assert [dict(each.extra) for each in here.work.stored] == [{"exchange": "victim", "priority": 5}]


def test_an_event_that_stands_for_a_message_names_no_target_either() -> None:
    wrapped = events.from_event(events.to_event(Message(value=b"v", id="w", destination="victim")))
    here = DeadLetterSetup(Letter(position="p-w", message=wrapped))
    with here.dlq() as dlq:
        assert dlq.redrive().left == {"its target 'victim' is not allowed (--allow-targets)": 1}


def test_names_of_targets_fill_no_memory() -> None:
    here = DeadLetterSetup(*(letter(str(n), replace(CONTEXT, target=f"victim{n}")) for n in range(150)))
    with here.dlq() as dlq:
        report = dlq.redrive()
    assert sum(report.left.values()) == 150
    assert len(report.left) == 101


def test_a_letter_written_while_it_runs_is_left_for_the_next_run() -> None:
    here = setup(2)

    def late(_: RedriveReport) -> None:
        here.place.letters.append(letter(f"late{len(here.place.letters)}"))

    with here.dlq() as dlq:
        report = dlq.redrive(settings=RedriveSettings(on_progress=late))
    assert report.considered == 2
    assert here.place.letters


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"rate": 0.0}, {"rate": -1.0}, {"rate": math.inf}, {"rate": math.nan}, {"max_returns": -1}]
)
def test_a_pace_that_cannot_be_kept_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        RedriveSettings(**wrong)  # type: ignore[arg-type]


def test_two_messages_of_one_id_both_arrive_where_ids_are_de_duplicated() -> None:
    letters = [letter("a"), letter("a"), letter("b")]
    other = replace(letter("a"), position="other", message=replace(letter("a").message, value=b"another body"))
    here = DeadLetterSetup(*letters[:1], other, *letters[1:])
    object.__setattr__(here.work.capabilities, "deduplicate", Support.NATIVE)
    with here.dlq() as dlq:
        dlq.redrive()
    assert [each.id for each in here.work.stored] == ["a~1", "a~1", "a~1", "b~1"]
    first, second, copy, last = (each.identity for each in here.work.stored)
    assert first == copy, "copies stay copies"
    assert len({first, second, last, None}) == 4


def test_letters_of_one_key_keep_their_order_where_the_destination_keeps_it() -> None:
    here = setup(4)
    here.work.script = {"n1~1": ["retriable"]}
    object.__setattr__(here.work.capabilities, "order", Support.NATIVE)
    with here.dlq() as dlq:
        assert dlq.redrive(spec=DeliverySpec(retry=2, backoff_delay=timedelta(milliseconds=1))).redriven == 4
    assert [each.id for each in here.work.stored] == ["n0~1", "n1~1", "n2~1", "n3~1"]


def test_a_selection_and_ids_must_both_hold() -> None:
    here = DeadLetterSetup(letter("a"), letter("b"), letter("c"))
    with here.dlq() as dlq:
        assert dlq.redrive(["a", "b"], where=Selection.parse("id~[bc]")).redriven == 1
    assert [each.id for each in here.work.stored] == ["b~1"]


def test_letters_that_lie_behind_others_go_too_and_each_is_counted_once() -> None:
    """A place may show the first ones only, until those are gone; those that stay are shown again each time."""
    here = setup(10)
    here.work.script = {"n1~1": ["permanent"]}
    object.__setattr__(here.work.capabilities, "browse", Support.LOWER_BOUND)
    here.place.browse = lambda: iter(list(here.place.letters[:4]))  # type: ignore[method-assign]
    with here.dlq() as dlq:
        report = dlq.redrive()
    assert (report.considered, report.redriven, report.removed, report.failed) == (10, 9, 9, 1)
    assert len(here.place.letters) == 1


def test_letters_behind_those_that_an_earlier_run_has_sent_come_too(tmp_path: Path) -> None:
    """What that run could not remove is removed first, and only then do they appear."""
    here, journal = setup(4), tmp_path / "journal"
    object.__setattr__(here.work.capabilities, "browse", Support.LOWER_BOUND)
    here.place.browse = lambda: iter(list(here.place.letters[:2]))  # type: ignore[method-assign]
    remove = here.place.remove
    here.place.remove = lambda _: 0  # type: ignore[method-assign]
    with here.dlq() as dlq:
        assert dlq.redrive(journal=journal).removed == 0
    here.place.remove = remove  # type: ignore[method-assign]
    with here.dlq() as dlq:
        report = dlq.redrive(journal=journal)
    assert (report.resumed, report.redriven, len(here.work.stored)) == (2, 2, 4)
    assert here.place.letters == []


def test_what_may_have_arrived_is_recognised_as_what_was_sent_first() -> None:
    """By its id, or by what it was recognised by beside it; anything else goes as another message."""
    contexts = [replace(CONTEXT, maybe_delivered=True), replace(CONTEXT, maybe_delivered=True, identity="2 /s b")]
    here = DeadLetterSetup(letter("a", contexts[0]), letter("b", contexts[1]), letter("c"))
    with here.dlq() as dlq:
        dlq.redrive()
    assert [(each.id, each.identity) for each in here.work.stored[:2]] == [("a", None), ("b", "2 /s b")]
    assert here.work.stored[2].id == "c~1"
    assert here.work.stored[2].identity not in {None, "c"}
