"""Letters read as columns: whole, in splits that several readers read side by side, and as a stream of cursors."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from redelivery.contract.broker import DeadLetters, Letter, Support, Wanted
from redelivery.contract.letters import EVERYTHING
from redelivery.contract.message import Message
from redelivery.errors import ConfigurationError
from redelivery_conformance.forking import KILLED, in_a_fork
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import Subject

#: Not a split nor a cursor of any place.
NONSENSE = "no text of this place"
#: Letters that most statements read.
SOME = 40


class Reading(Statements):
    """Letters as columns. These statements read the URL's own target, so that no native place is needed."""

    @broker_has("send", "browse")
    def test_reading_shows_what_browsing_shows(self, subject: Subject) -> None:
        _fill(subject)
        shown = subject.browse(direct=True)
        partial = subject.capabilities.browse is Support.LOWER_BOUND
        assert len(shown) == SOME or (partial and shown)
        _same(_read_all(subject, EVERYTHING), shown)
        assert subject.browse(direct=True) == shown, "reading took something"

    @broker_has("send", "browse")
    def test_hints_of_what_is_wanted_hide_nothing_that_is_wanted(self, subject: Subject) -> None:
        """A plugin may use them to read less, or ignore them."""
        _fill(subject)
        shown = subject.browse(direct=True)
        some = shown[3:7]
        key = some[0].message.key
        since = some[0].dead_lettered_ms
        hints = [
            (Wanted(positions=frozenset(each.position for each in some)), some),
            (Wanted(key=key), [each for each in shown if key is not None and each.message.key == key]),
            (
                Wanted(since_ms=since),
                [each for each in shown if since and each.dead_lettered_ms and each.dead_lettered_ms >= since],
            ),
            (
                Wanted(until_ms=since),
                [each for each in shown if since and each.dead_lettered_ms and each.dead_lettered_ms < since],
            ),
            (Wanted(since_ms=0, until_ms=1), []),
        ]
        for wanted, wants in hints:
            found = {each.position: each for each in _read_all(subject, wanted)}
            assert found.keys() >= {each.position for each in wants}, wanted
            _same([found[each.position] for each in wants], wants)

    @broker_has("send", "browse", "headers")
    def test_columns_that_are_not_wanted_may_be_absent_and_the_others_are_whole(self, subject: Subject) -> None:
        _fill(subject)
        shown = {each.position: each for each in subject.browse(direct=True)}
        found = _read_all(subject, Wanted(columns=frozenset({"headers"})))
        assert [each.position for each in found] == [*shown] or Counter(e.position for e in found) == Counter(shown)
        assert all(each.message.headers == shown[each.position].message.headers for each in found)
        assert all(each.context == shown[each.position].context for each in found)

    @broker_has("browse", "provision")
    def test_an_empty_place_has_nothing_to_read(self, subject: Subject) -> None:
        subject.provision()
        assert _read_all(subject, Wanted(readers=8)) == []

    @broker_has("browse", "provision")
    def test_a_split_of_another_place_is_refused(self, subject: Subject) -> None:
        subject.provision()
        with subject.broker.dead_letters(direct=True) as letters, pytest.raises(ConfigurationError, match=r"\w"):
            list(letters.read(NONSENSE, EVERYTHING))


class Splits(Statements):
    """Readers that read side by side."""

    @broker_has("send", "browse", "splits")
    @pytest.mark.parametrize("readers", [1, 8])
    def test_splits_together_show_every_letter_once(self, subject: Subject, readers: int) -> None:
        """Each reader is at its own connection, and all read at the same time."""
        _fill(subject)
        shown = subject.browse(direct=True)
        wanted = Wanted(readers=readers)
        splits = _splits(subject, wanted)
        found = [letter for part in _side_by_side(subject, splits, wanted) for letter in part]
        _same(found, shown)

    @broker_has("send", "browse", "splits")
    def test_letters_of_a_split_come_oldest_first(self, subject: Subject) -> None:
        _fill(subject)
        ages = {letter.position: age for age, letter in enumerate(subject.browse(direct=True))}
        for split in _splits(subject, Wanted(readers=3)):
            found = [ages[each.position] for each in _read(subject, split)]
            # Letters of one moment may stand in either order in what browsing shows.
            assert _values_in_order(subject, found), f"{found} in a split"

    @broker_has("send", "browse", "splits")
    def test_a_split_is_read_again_after_its_reader_was_killed(self, subject: Subject) -> None:
        _fill(subject)
        shown = subject.browse(direct=True)
        splits = _splits(subject, Wanted(readers=2))

        def child() -> None:
            broker = subject.harness.connect(subject.place.url, subject.place.options)
            for _ in broker.dead_letters(direct=True).read(splits[0], Wanted(readers=2)):
                os._exit(KILLED)

        assert in_a_fork(subject, child) == KILLED, "the child saw no letter"
        _same([letter for split in splits for letter in _read(subject, split)], shown)

    @broker_has("send", "browse", "splits")
    def test_a_split_is_read_again_while_its_first_reader_still_has_it(self, subject: Subject) -> None:
        """Spark may begin a task again before it knows that the first is lost."""
        _fill(subject)
        shown = subject.browse(direct=True)
        splits = _splits(subject, Wanted(readers=2))
        first = [_letters(subject.dead_letters(direct=True), split, EVERYTHING) for split in splits]
        begun = [next(each) for each in first]
        _same([letter for split in splits for letter in _read(subject, split)], shown)
        _same([*begun, *(letter for each in first for letter in each)], shown)

    @broker_has("send", "browse", "splits")
    def test_what_comes_after_the_plan_is_in_no_split(self, subject: Subject) -> None:
        _fill(subject)
        splits = _splits(subject, Wanted(readers=3))
        subject.deliver(Message(value=b"late"), Message(value=b"late"))
        values = Counter(letter.message.value for split in splits for letter in _read(subject, split))
        assert values == Counter(_values())

    @broker_has("send", "browse", "splits", "remove")
    def test_what_was_removed_since_the_plan_is_gone(self, subject: Subject) -> None:
        _fill(subject)
        splits = _splits(subject, Wanted(readers=3))
        gone = subject.browse(direct=True)[::2]
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove([each.position for each in gone]) == len(gone)
        values = Counter(letter.message.value for split in splits for letter in _read(subject, split))
        assert values == Counter[bytes | None](_values()) - Counter(each.message.value for each in gone)

    @broker_has("send", "browse", "splits", "remove")
    def test_readers_that_remove_their_own_splits_disturb_nobody(self, subject: Subject) -> None:
        _fill(subject)
        wanted = Wanted(readers=8, removing=True)

        def work(split: str) -> int:
            with subject.connect().dead_letters(direct=True) as letters:
                count = 0
                for batch in letters.read(split, wanted):
                    for position in batch.position.values:  # one by one, so that removals meet
                        count += letters.remove([position])
                return count

        splits = _splits(subject, wanted)
        with ThreadPoolExecutor(max(1, len(splits))) as pool:
            assert sum(pool.map(work, splits)) == SOME
        assert subject.browse(direct=True) == []

    @broker_has("browse", "provision")
    @broker_lacks("splits")
    def test_without_splits_the_place_is_read_by_one(self, subject: Subject) -> None:
        subject.provision()
        assert len(_splits(subject, Wanted(readers=8))) <= 1


class Cursors(Statements):
    """Letters as a stream."""

    @broker_has("send", "browse", "cursors")
    def test_between_two_cursors_is_what_came_between(self, subject: Subject) -> None:
        """It is read again and again, whatever comes later."""
        _fill(subject)
        first = _cursor(subject)
        subject.deliver(*(Message(value=b"between") for _ in range(5)))
        second = _cursor(subject)
        for _ in range(2):
            between = _read_all(subject, Wanted(after=first, before=second, readers=3))
            assert Counter(each.message.value for each in between) == Counter({b"between": 5})
            subject.deliver(Message(value=b"later"))
        before = _read_all(subject, Wanted(before=first))
        assert Counter(each.message.value for each in before) == Counter(_values())
        assert _read_all(subject, Wanted(after=second, before=second)) == []

    @broker_has("send", "browse", "cursors")
    def test_cursors_step_through_a_place(self, subject: Subject) -> None:
        _fill(subject)
        steps: list[list[bytes | None]] = []
        at: str | None = None
        while (behind := _cursor(subject, after=at, most=5)) != at:
            steps.append([each.message.value for each in _read_all(subject, Wanted(after=at, before=behind))])
            at = behind
            assert len(steps) <= SOME + 1, "the cursor never comes to the end"
        assert Counter(value for step in steps for value in step) == Counter(_values())
        assert max(map(len, steps)) < SOME, "a step has no bound"

    @broker_has("send", "browse", "cursors", "remove")
    def test_removing_moves_no_cursor(self, subject: Subject) -> None:
        _fill(subject)
        first = _cursor(subject)
        subject.deliver(Message(value=b"a"), Message(value=b"b"))
        second = _cursor(subject)
        with subject.broker.dead_letters(direct=True) as letters:
            gone = [each.position for each in letters.browse() if each.message.value != b"b"]
            assert letters.remove(gone) == SOME + 1
        found = _read_all(subject, Wanted(after=first, before=second))
        assert [each.message.value for each in found] == [b"b"]
        assert _read_all(subject, Wanted(before=first)) == []
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove([each.position for each in found]) == 1
        empty = _cursor(subject)
        subject.deliver(Message(value=b"c"))
        for cursor in (second, empty):
            found = _read_all(subject, Wanted(after=cursor, before=_cursor(subject)))
            assert [each.message.value for each in found] == [b"c"]
        assert _read_all(subject, Wanted(after=empty, before=second)) == [], "an empty place has gone back"

    @broker_has("browse", "cursors", "provision")
    def test_a_cursor_of_another_place_is_refused(self, subject: Subject) -> None:
        subject.provision()
        with subject.broker.dead_letters(direct=True) as letters:
            with pytest.raises(ConfigurationError, match=r"\w"):
                letters.cursor(after=NONSENSE)
            with pytest.raises(ConfigurationError, match=r"\w"):
                letters.splits(Wanted(after=NONSENSE))

    @broker_has("browse")
    @broker_lacks("cursors")
    def test_without_cursors_asking_for_one_is_unsupported(self, subject: Subject) -> None:
        letters = subject.dead_letters(direct=True)
        subject.is_unsupported(letters.cursor)
        subject.is_unsupported(lambda: letters.splits(Wanted(after=NONSENSE)))


def _values() -> list[bytes]:
    return [b"%d" % number for number in range(SOME)]


def _fill(subject: Subject) -> None:
    """Send letters: in several requests, some with a key and headers where the broker has them."""
    has = subject.capabilities
    sender = subject.sender()
    for start in range(0, SOME, 10):
        messages = [
            Message(
                value=value,
                key=b"key-%d" % (number % 3) if has.keys else None,
                headers=(("number", b"%d" % number),) if has.headers else (),
            )
            for number, value in enumerate(_values()[start : start + 10], start)
        ]
        settled = subject.send(*messages, sender=sender)
        assert settled.error is None
        assert not settled.failures
        time.sleep(0.02)


def _splits(subject: Subject, wanted: Wanted) -> Sequence[str]:
    with subject.broker.dead_letters(direct=True) as letters:
        splits = letters.splits(wanted)
    assert all(isinstance(split, str) for split in splits)
    return splits


def _cursor(subject: Subject, *, after: str | None = None, most: int | None = None) -> str:
    with subject.broker.dead_letters(direct=True) as letters:
        return letters.cursor(after=after, most=most)


def _read(subject: Subject, split: str, wanted: Wanted = EVERYTHING) -> list[Letter]:
    with subject.broker.dead_letters(direct=True) as letters:
        return list(_letters(letters, split, wanted))


def _letters(letters: DeadLetters, split: str, wanted: Wanted) -> Iterator[Letter]:
    for batch in letters.read(split, wanted):
        assert len(batch) == len(batch.position), "columns of different length"
        yield from batch.letters()


def _read_all(subject: Subject, wanted: Wanted) -> list[Letter]:
    return [letter for split in _splits(subject, wanted) for letter in _read(subject, split, wanted)]


def _side_by_side(subject: Subject, splits: Sequence[str], wanted: Wanted) -> list[list[Letter]]:
    brokers = [subject.connect() for _ in splits]

    def work(at: int) -> list[Letter]:
        with brokers[at].dead_letters(direct=True) as letters:
            return list(_letters(letters, splits[at], wanted))

    with ThreadPoolExecutor(max(1, len(splits))) as pool:
        return list(pool.map(work, range(len(splits))))


def _values_in_order(subject: Subject, ages: Sequence[int]) -> bool:
    shown = subject.browse(direct=True)
    times = [shown[age].dead_lettered_ms or shown[age].message.timestamp_ms or 0 for age in ages]
    return list(ages) == sorted(ages) or (all(times) and times == sorted(times))


def _same(found: Sequence[Letter], wanted: Sequence[Letter]) -> None:
    """Assert that these are the same letters, in any order, each once."""
    assert Counter(each.position for each in found) == Counter(each.position for each in wanted)
    by_position = {each.position: each for each in wanted}
    for each in found:
        there = by_position[each.position]
        assert each.message == there.message, f"{each.message!r:.500} in place of {there.message!r:.500}"
        assert (each.context, each.dead_lettered_ms) == (there.context, there.dead_lettered_ms)
