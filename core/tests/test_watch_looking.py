"""Looks at a place: what they find, what they cost, and what they leave alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from buried import Place
from buried import stored as letters_of

from redelivery.base.clock import SystemClock
from redelivery.contract.broker import Support
from redelivery.contract.context import ErrorContext
from redelivery.deadletters.groups import fingerprint
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.summary import Summary, summarise
from redelivery.deadletters.triage import Triage, default_path
from redelivery.errors import Retriable
from redelivery.watch.looking import Looker, Stopped, Watched
from redelivery.watch.memory import Memory
from redelivery.watch.rules import Rule, Rules
from redelivery.watch.watcher import PlaceWatch


class Clock(SystemClock):
    """Time passes only when it is set; the time of day is the machine's, and so much later."""

    now = 1_000.0
    later_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.later_ms

    def monotonic(self) -> float:
        return self.now


class Reading:
    """Reads letters, and counts how many, and how often the whole place was read. Each letter takes so many seconds."""

    def __init__(self, clock: Clock | None = None, seconds: float = 0.0) -> None:
        self.read: list[int] = []
        self.clock = clock
        self.seconds = seconds

    def __call__(self, dlq: DeadLetterQueue, where: Selection | None = None, **more: Any) -> Summary:
        found = summarise(dlq, where, **more)
        self.read.append(found.count)
        if self.clock is not None:
            self.clock.now += self.seconds * found.count
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Place(tmp_path)


def watched(place: Place) -> Watched:
    return Watched(label="orders", url=place.url, broker="sqlite")


def test_only_letters_between_two_cursors_are_selected(place: Place) -> None:
    place.bury(3)
    with dead_letters(place.url) as dlq:
        first = dlq.made()
        place.bury(2, first=3)
        second = dlq.made()
        place.bury(1, first=5)

        def found(after: str | None, before: str | None) -> list[str]:
            where = Selection.parse("kind=permanent").between(after, before)
            return [each for ids in dlq.scan(lambda batch: batch.messages.id.values, where) for each in ids]

        assert found(first, second) == ["n3", "n4"]
        assert found(None, first) == ["n0", "n1", "n2"]
        assert found(second, None) == ["n5"]


def test_a_broker_that_looks_without_taking_is_not_asked_for_a_depth(place: Place) -> None:
    place.bury(3)
    with dead_letters(place.url) as dlq:
        assert (dlq.broker, dlq.looking_takes, dlq.depth()) == ("sqlite", False, None)


def test_the_first_look_finds_all_and_nothing_has_arrived(place: Place) -> None:
    place.bury(3, code="FULL")
    looker = Looker(watched(place), SystemClock())
    found = looker.look()
    assert (found.count, found.arrived, found.since_ms, found.whole) == (3, {}, None, True)
    (group,) = found.groups or ()
    assert (group.count, group.code) == (3, "FULL")
    assert looker.known.by_code == {"FULL": 3}
    assert len(letters_of(place.file, "orders-dead-letters")) == 3


def test_a_later_look_reads_only_what_came_since(place: Place) -> None:
    clock = Clock()
    reading = Reading(clock, seconds=0.1)
    place.bury(30, code="FULL")
    looker = Looker(watched(place), clock, summarised=reading)
    looker.look()  # 3 s: the next look at the whole place is 150 s later
    place.bury(2, first=30, code="BUG")
    clock.now += 30
    found = looker.look()
    assert reading.read == [30, 2]
    assert (found.count, found.arrived, found.whole) == (32, {"BUG": 2}, False)
    assert looker.known.by_code == {"FULL": 30, "BUG": 2}
    clock.now += 30
    assert looker.look().arrived == {}
    assert reading.read == [30, 2]  # nothing came, and nothing was read
    clock.now += 100
    assert looker.look().whole
    assert reading.read == [30, 2, 32]
    assert looker.known.arrived == {"BUG": 2}


def test_looks_at_a_large_place_take_a_small_part_of_the_time(place: Place) -> None:
    clock = Clock()
    reading = Reading(clock, seconds=1.0)
    place.bury(100)
    looker = Looker(watched(place), clock, summarised=reading)
    began = clock.now
    while clock.now < began + 12 * 3600:
        looker.look()
        clock.now += 240
    assert sum(reading.read) * reading.seconds / (clock.now - began) < 0.03
    assert len(reading.read) >= 12  # and once an hour at least


def test_what_was_removed_is_known_after_a_look_at_the_whole_place(place: Place) -> None:
    clock = Clock()
    place.bury(5, code="FULL")
    looker = Looker(watched(place), clock)
    looker.look()
    with dead_letters(place.url) as dlq:
        dlq.remove(["n0", "n1"])
    found = looker.look(whole=True)
    assert (found.count, found.arrived, looker.known.by_code) == (3, {}, {"FULL": 3})


def test_codes_are_those_of_the_closed_list(place: Place) -> None:
    place.bury(1, code="FULL")
    place.bury(1, first=1)
    place.bury(1, first=2, code="MADE_UP_BY_ANYBODY")
    looker = Looker(watched(place), SystemClock())
    looker.look()
    assert looker.known.by_code == {"FULL": 1, "UNKNOWN": 2}


def test_a_place_that_is_made_again_is_looked_at_as_a_new_one(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.bury(5)
    looker = Looker(watched(place), SystemClock())
    looker.look()
    place.file.unlink()
    place.bury(2)
    found = looker.look()
    assert (found.failed, found.count, found.arrived, found.since_ms) == (None, 2, {}, None)
    assert "was made again" in caplog.text


def test_a_restart_counts_what_came_while_nobody_looked(place: Place) -> None:
    place.bury(5)
    first = Looker(watched(place), SystemClock())
    before = first.look()
    place.bury(2, first=5, code="BUG")
    second = Looker(watched(place), SystemClock())
    second.remember(first.to_dict())
    found = second.look()
    assert (found.count, found.arrived, found.since_ms, found.whole) == (7, {"BUG": 2}, before.at_ms, True)


@pytest.mark.parametrize("said", [{"cursor": 5}, {"since_ms": "x"}, {"count": [1]}])
def test_a_damaged_memory_is_refused(place: Place, said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not what was remembered"):
        Looker(watched(place), SystemClock()).remember(said)


def test_a_cursor_of_another_place_is_no_obstacle(place: Place) -> None:
    place.bury(2)
    looker = Looker(watched(place), SystemClock())
    looker.remember({"cursor": "of another place", "since_ms": 1, "count": None})
    assert (looker.look().count, looker.look().failed) == (2, None)


def test_a_place_that_does_not_exist_is_found_so_and_later_found(place: Place) -> None:
    looker = Looker(watched(place), SystemClock())
    found = looker.look()
    assert found.missing
    assert "redelivery apply" in (found.failed or "")
    place.bury(1)
    assert (looker.look().failed, looker.known.count) == (None, 1)


def test_a_place_that_cannot_be_read_is_found_so(place: Place) -> None:
    place.file.write_bytes(b"not a database, by no means" * 100)
    found = Looker(watched(place), SystemClock()).look()
    assert found.failed
    assert not found.missing


def test_a_defect_is_found_and_not_raised(place: Place) -> None:
    place.bury(1)

    def broken(*_: Any, **__: Any) -> Summary:
        raise KeyError("x")

    assert Looker(watched(place), SystemClock(), summarised=broken).look().failed == "a defect: KeyError"


def test_a_watch_that_ends_gives_a_look_up(place: Place) -> None:
    place.bury(1)
    with pytest.raises(Stopped):
        Looker(watched(place), SystemClock(), stop=lambda: True).look()


def test_parked_groups_have_no_age_and_their_letters_are_counted(place: Place) -> None:
    place.bury(2, code="FULL")
    place.bury(1, first=2, code="BUG")
    place.bury(2, first=3, code="FULL")
    with dead_letters(place.url) as dlq:
        letters = list(dlq)
        with Triage(default_path(dlq.place), dlq.place) as triage:
            triage.park("group", [fingerprint(letters[0].context or ErrorContext())], "wait for the fix")
    found = Looker(watched(place), SystemClock()).look()
    assert (found.count, found.parked, found.oldest_ms) == (5, 4, letters[2].dead_lettered_ms)


class Counted:
    """A place whose letters cannot be looked at without taking them."""

    looking_takes = True
    place = "carrier://orders"

    def __init__(self, depths: list[int]) -> None:
        self.depths = depths

    def depth(self) -> int:
        if not self.depths:
            raise Retriable("refused")
        return self.depths.pop(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_where_looking_takes_letters_they_are_only_counted(place: Place) -> None:
    def opened(_: Watched) -> Any:
        return there

    there = Counted([5, 9, 2, 4])
    looker = Looker(watched(place), SystemClock(), opened=opened)
    found = [looker.look() for _ in range(4)]
    assert [each.count for each in found] == [5, 9, 2, 4]
    assert [sum(each.arrived.values()) for each in found] == [0, 4, 0, 2]
    assert looker.known.arrived == Counter({"UNKNOWN": 6})  # at least so many
    assert looker.known.only_counted
    assert all(each.groups is None and each.oldest_ms is None for each in found)
    assert looker.look().failed == "refused"


def test_the_operator_allows_a_look_that_takes(place: Place) -> None:
    place.bury(3)
    read = Reading()

    def opened(it: Watched) -> DeadLetterQueue:
        dlq = it.open()
        broker = dlq._broker
        broker.capabilities = replace(
            broker.capabilities, browse=Support.EMULATED, cursors=Support.NONE, splits=Support.NONE
        )
        return dlq

    looker = Looker(replace(watched(place), takes=True), SystemClock(), opened=opened, summarised=read)
    assert looker.look().whole
    place.bury(2, first=3, code="BUG")
    found = looker.look(whole=True)
    assert (found.count, found.arrived, read.read) == (5, {"BUG": 2}, [3, 5])


def old(place: Place, tmp_path: Path, clock: Clock, reading: Reading) -> PlaceWatch:
    """A watch that alerts letters of an hour."""
    looker = Looker(watched(place), clock, summarised=reading)
    return PlaceWatch(
        watched(place), Rules(older_than=timedelta(hours=1)), clock, Memory("it", tmp_path), looker=looker
    )


def test_a_letter_that_was_removed_before_it_was_old_is_not_alerted(place: Place, tmp_path: Path) -> None:
    clock = Clock()
    reading = Reading()
    place.bury(3)
    watch = old(place, tmp_path, clock, reading)
    assert watch.turn() == []
    with dead_letters(place.url) as dlq:
        dlq.purge()
    clock.later_ms = 3_700_000
    clock.now += 1.0
    assert watch.turn() == []
    assert watch.figures().known.count == 0


def test_an_alert_by_age_waits_for_a_look_that_would_take_too_much_of_the_time(place: Place, tmp_path: Path) -> None:
    clock = Clock()
    reading = Reading(clock, seconds=1.0)
    place.bury(30)
    watch = old(place, tmp_path, clock, reading)
    assert watch.turn() == []
    clock.later_ms = 3_700_000
    for _ in range(10):
        clock.now += 29.0  # 290 s after a look that took 30 s
        assert watch.turn() == []
    assert reading.read == [30]
    clock.now += 29.0
    assert [each.alert.rule for each in watch.turn()] == [Rule.OLDEST]
    assert reading.read == [30, 30]
