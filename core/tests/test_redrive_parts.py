"""Processes that share a redrive: one leads, each notes what it sends, and the next run honours all their notes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from test_deadletters import CONTEXT, DeadLetterSetup, letter

from redelivery.contract.broker import Broker
from redelivery.contract.letters import WHOLE, Wanted
from redelivery.deadletters import parts
from redelivery.deadletters.journal import Journal, parts_folder
from redelivery.deadletters.parts import Leader, Part, PartJournal
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import INTERRUPTED, RedriveReport, RedriveSettings, digest
from redelivery.deadletters.selection import Selection
from redelivery.errors import JournalError, Retriable
from redelivery.kit.letters import undecodable

PLACE = "scripted:native"


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_ORPHANS", 0.1)


def part_of(leader: Leader, number: int = 0) -> Part:
    return Part(
        run="r",
        number=number,
        splits=[WHOLE],
        wanted=Wanted(),
        folder=leader.folder,
        earlier=dict(leader.earlier),
        now_ms=time.time_ns() // 1_000_000,
    )


def sends_and_dies(here: DeadLetterSetup, part: Part) -> None:
    """A part that was killed between the confirmation and the removal."""
    remove = here.place.remove

    def fails(positions: object) -> int:
        raise Retriable("killed here")

    here.place.remove = fails  # type: ignore[method-assign]
    with here.dlq() as dlq, PartJournal(part, dlq.place) as journal, pytest.raises(Retriable):
        dlq.redrive(journal=journal, part=part)
    here.place.remove = remove  # type: ignore[method-assign]


def test_what_a_killed_part_sent_is_removed_by_the_next_shared_run_and_not_sent_again(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"), letter("b"))
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        sends_and_dies(here, part_of(leader))
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        assert set(leader.earlier) == {"p-a", "p-b"}
        part = part_of(leader, number=7)
        with here.dlq() as dlq, PartJournal(part, dlq.place) as journal:
            report = dlq.redrive(journal=journal, part=part)
        assert (report.resumed, report.redriven) == (2, 0)
        leader.finish(journal.settled)
        with Journal(parts_folder(tmp_path / "journal") / "other", PLACE) as other:
            assert other.noted() == {}
    assert (here.work.stored_ids(), here.place.letters) == ({"a~1": 1, "b~1": 1}, [])
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        assert leader.earlier == {}, "nothing is left of it"


def test_what_a_killed_part_sent_is_honoured_by_a_run_of_one_process(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"))
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        sends_and_dies(here, part_of(leader))
    with here.dlq() as dlq:
        report = dlq.redrive(journal=tmp_path / "journal")
    assert (report.resumed, report.redriven, here.place.letters) == (1, 0, [])


def test_a_letter_that_cannot_be_removed_stays_noted_over_runs(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"))
    here.place.remove = lambda _positions: 0  # type: ignore[method-assign]
    for run in ("one", "two", "three"):
        with Leader(tmp_path / "journal", PLACE, run) as leader:
            part = replace(part_of(leader), run=run)
            with here.dlq() as dlq, PartJournal(part, dlq.place) as journal:
                dlq.redrive(journal=journal, part=part)
            leader.finish(journal.settled)
    assert here.work.stored_ids() == {"a~1": 1}


def test_two_redrives_of_one_place_at_once_are_refused(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"))
    with Leader(tmp_path / "journal", PLACE, "r"):
        with pytest.raises(JournalError, match="another redrive of this place is running"):
            Leader(tmp_path / "journal", PLACE, "other")
        with here.dlq() as dlq, pytest.raises(JournalError, match="another redrive"):
            dlq.redrive(journal=tmp_path / "journal")


def test_a_part_that_outlives_its_leader_keeps_the_next_one_waiting_and_stops(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"))
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        part = part_of(leader)
        orphan = PartJournal(part, PLACE)
    assert part.must_stop()
    with pytest.raises(JournalError, match="another redrive"):
        Leader(tmp_path / "journal", PLACE, "next")
    with here.dlq() as dlq, pytest.raises(JournalError, match="another redrive"):
        dlq.redrive(journal=tmp_path / "journal")
    orphan.close()
    with Leader(tmp_path / "journal", PLACE, "next"), pytest.raises(JournalError, match=r"another one of .* has begun"):
        PartJournal(part, PLACE)


def test_a_part_that_begins_after_its_leader_was_killed_gives_way_to_a_run_of_one_process(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"))
    leader = Leader(tmp_path / "journal", PLACE, "r")
    part = part_of(leader)
    leader._journal.close()  # killed: nothing else happens
    with Journal(tmp_path / "journal", PLACE) as journal:
        with here.dlq() as dlq:
            assert dlq.redrive(journal=journal).redriven == 1
        assert part.must_stop()
        with pytest.raises(JournalError, match=r"another one of .* has begun"):
            PartJournal(part, PLACE)


def test_a_part_is_in_one_process_only(tmp_path: Path) -> None:
    with Leader(tmp_path / "journal", PLACE, "r") as leader, PartJournal(part_of(leader), PLACE):
        with pytest.raises(JournalError, match="in use"):
            PartJournal(part_of(leader), PLACE)
        PartJournal(part_of(leader, number=1), PLACE).close()


def test_a_part_that_is_started_again_knows_how_many_it_has_sent(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"), letter("b"), letter("c"))
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        part = part_of(leader)
        with here.dlq() as dlq, PartJournal(part, dlq.place) as journal:
            dlq.redrive(journal=journal, part=part, settings=RedriveSettings(limit=2))
        with PartJournal(part, PLACE) as journal:
            assert journal.tally == 2


def test_what_parts_of_a_killed_redrive_have_sent_counts_as_sent_by_it(tmp_path: Path) -> None:
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        assert leader.began("mine") == 0
        with PartJournal(part_of(leader), PLACE) as journal:
            journal.sent({"1": "a", "2": "b"})
            journal.removed(["1"])
    with Leader(tmp_path / "journal", PLACE, "s") as leader:
        assert leader.began("mine") == 2
        leader.finish([])
        assert leader.began("mine") == 0


def test_a_shared_redrive_that_was_interrupted_goes_on_with_its_limit(tmp_path: Path) -> None:
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        assert leader.began("mine") == 0
        with PartJournal(part_of(leader), PLACE) as journal:
            journal.sent({"1": "a", "2": "b"})
        leader.stop(INTERRUPTED)
        leader.finish([])
    with Leader(tmp_path / "journal", PLACE, "s") as leader:
        assert leader.began("mine") == 2


def test_all_parts_stop_when_their_leader_says_so_and_it_sees_how_far_they_are(tmp_path: Path) -> None:
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        part = part_of(leader)
        assert not part.must_stop()
        part.reporter()(RedriveReport(considered=3, redriven=2, failed=1, left={"x": 1}))
        part_of(leader, number=1).reporter()(RedriveReport(considered=1, left={"x": 2}))
        seen = leader.progress()
        assert (seen.considered, seen.redriven, seen.failed, seen.left) == (4, 2, 1, {"x": 3})
        leader.stop("enough")
        assert part.must_stop()
        assert leader.stopped == "enough"
    assert not parts_folder(tmp_path / "journal").exists()


def test_what_a_part_has_read_and_then_sent_is_told_apart(tmp_path: Path) -> None:
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        part = part_of(leader)
        part.reporter("-read")(RedriveReport(considered=3, selected=3))
        part.reporter()(RedriveReport(considered=2, selected=2, redriven=2))
        assert (leader.progress().considered, leader.progress("-read").considered) == (2, 3)


def test_ages_are_computed_to_the_time_of_the_leader(tmp_path: Path) -> None:
    here = DeadLetterSetup(replace(letter("a"), dead_lettered_ms=1_000_000))
    with Leader(tmp_path / "journal", PLACE, "r") as leader, here.dlq() as dlq:
        for now_ms, redriven in ((1_000_000 + 60_000, 0), (1_000_000 + 60_001, 1)):
            part = replace(part_of(leader, number=now_ms), now_ms=now_ms)
            read = RedriveReport()
            older = Selection.parse("age>PT1M")
            assert sum(map(len, dlq.read(part, where=older, report=read))) == redriven
            with PartJournal(part, dlq.place) as journal:
                assert dlq.redrive(journal=journal, part=part, where=older).redriven == redriven


def test_a_digest_is_the_same_for_a_number_of_the_clients_own_kind() -> None:
    class Long(int):
        """As pika returns a timestamp."""

    stored = letter("a")
    plain, own = (replace(stored, message=replace(stored.message, timestamp_ms=kind(7))) for kind in (int, Long))
    assert digest(own) == digest(plain)


def test_a_note_of_a_part_holds_for_its_letter_only(tmp_path: Path) -> None:
    here = DeadLetterSetup(letter("a"))
    with Leader(tmp_path / "journal", PLACE, "r") as leader:
        part = replace(part_of(leader), earlier={"p-a": "of another letter"})
        with here.dlq() as dlq, PartJournal(part, dlq.place) as journal:
            assert dlq.redrive(journal=journal, part=part).redriven == 1
    assert digest(letter("a")) == digest(letter("a"))


class TwoBrokers(DeadLetterSetup):
    """Letters of one broker, whose destination is at another."""

    DESTINATION = "sqlite:/nowhere.db?queue=orders"

    @contextlib.contextmanager
    def connection_factory(self, url: str, options: Mapping[str, str]) -> Iterator[Broker]:
        yield self.other if url == self.DESTINATION else self.work


def read_to_be_mended(dlq: DeadLetterQueue, to: str | None = None) -> RedriveReport:
    """Reads all letters as a redrive does that mends them, and counts them."""
    report = RedriveReport()
    for _ in dlq.read(Part(run="r", number=0, splits=[WHOLE], wanted=Wanted(), now_ms=0), to=to, report=report):
        pass
    return report


@pytest.mark.parametrize("by_sink", [True, False])
def test_what_routes_at_the_destination_is_a_target_of_letters_that_are_mended(by_sink: bool) -> None:
    letters = [letter(name, replace(CONTEXT, extra={name: "victim"})) for name in ("exchange", "topic")]
    here = TwoBrokers(*letters)
    for broker, name in ((here.other, "exchange"), (here.work, "topic")):
        object.__setattr__(broker.capabilities, "columns", {name: str})
        object.__setattr__(broker.capabilities, "routes", frozenset({name}))
    url, sink = (here.DESTINATION, "scripted:sink") if by_sink else ("scripted:work", None)
    with dead_letters(url, sink=sink, connection_factory=here.connection_factory) as dlq:
        left = read_to_be_mended(dlq).left
        assert left == dlq.redrive(settings=RedriveSettings(dry_run=True)).left
    name = "exchange" if by_sink else "topic"
    assert left == {f"its target '{name}=victim' is not allowed (--allow-targets)": 1}


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_letter_that_cannot_be_read_whole_is_mended_only_for_a_broker_that_knows_the_rest(elsewhere: bool) -> None:
    damaged = replace(letter("a"), context=undecodable("scripted", "its annotations are damaged"))
    here = TwoBrokers(replace(damaged, message=replace(damaged.message, native={"a": 1})))
    with here.dlq() as dlq:
        report = read_to_be_mended(dlq, here.DESTINATION if elsewhere else None)
    assert report.selected == (not elsewhere)
    assert all("cannot be read whole" in why for why in report.left)
