"""The summary of a dead letter queue: one pass, bounded memory, whatever the letters say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.broker import Letter
from redelivery.contract.context import LAST_MS, ErrorContext
from redelivery.contract.letters import LetterBatch, batches
from redelivery.contract.message import Batch, Message
from redelivery.deadletters.groups import fingerprint
from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.summary import NAMES, OTHERS, Summary, summarise
from redelivery.deadletters.trust import context_of
from redelivery.formats import dialects
from redelivery.registry import connect

NOW = 1_800_000_000_000
MINUTE = 60_000


class Queue:
    """In place of a dead letter queue."""

    def __init__(self, letters: list[Letter], size: int = 10_000) -> None:
        self._letters = letters
        self._size = size

    def now_ms(self) -> int:
        return NOW

    def scan(self, each: Callable[[LetterBatch], Any], where: object = None, *, threads: int = 1) -> Iterator[Any]:
        assert where is None
        assert threads == 1
        for first in range(0, len(self._letters), self._size):
            yield from map(each, batches(self._letters[first : first + self._size]))


def summary(letters: list[Letter], size: int = 10_000, **more: Any) -> Summary:
    return summarise(Queue(letters, size), **more)  # type: ignore[arg-type]


def letter(at: int, reason: str = "full", dead_ms: int | None = None) -> Letter:
    context = ErrorContext(reason=reason, kind="retriable")
    return Letter(
        position=str(at), message=Message(value=b"vv", id=f"m{at}"), context=context, dead_lettered_ms=dead_ms
    )


def test_groups_are_counted_with_their_times_and_an_example() -> None:
    letters = [letter(at, f"order {at} is late", NOW - at * MINUTE) for at in range(5)]
    letters += [letter(9, "full"), letter(10, "full", NOW - 99 * MINUTE), letter(11, "full", NOW)]
    for size in (1, 3, 100):
        found = summary(letters, size)
        assert (found.count, found.nbytes, found.undated) == (8, summary(letters).nbytes, 1)
        assert (found.oldest_ms, found.newest_ms) == (NOW - 99 * MINUTE, NOW)
        late, full = found.groups
        assert (late.count, late.message, late.example_id, late.example_position) == (5, "order <*> is late", "m0", "0")
        assert (late.oldest_ms, late.newest_ms, late.kind, late.code) == (NOW - 4 * MINUTE, NOW, "retriable", "")
        assert late.fingerprint == fingerprint(ErrorContext(reason="order 7 is late", kind="retriable"))
        assert (full.count, full.oldest_ms, full.newest_ms) == (3, NOW - 99 * MINUTE, NOW)
        assert found.others == 0
        assert found.by_code == {"unknown": 8}
        assert found.by["age"] == {"unknown": 1, "under a minute": 2, "under an hour": 4, "under a day": 1}


def test_the_largest_groups_are_found_among_any_number_of_small_ones() -> None:
    words = [f"{chr(97 + a)}{chr(97 + b)}{chr(97 + c)}" for a in range(26) for b in range(26) for c in range(10)]
    letters = [letter(at, f"junk {word}") for at, word in enumerate(words[:3000])]
    letters += [letter(at, "true cause") for at in range(500)]
    letters += [letter(at, f"more {word}") for at, word in enumerate(words[3000:])]
    found = summary(letters, 100, groups=10)
    assert found.count == len(letters)
    assert (found.groups[0].message, found.groups[0].count) == ("true cause", 500)
    assert len(found.groups) == 10
    assert found.others + sum(each.count for each in found.groups) == len(letters)


def test_names_that_others_choose_are_bounded() -> None:
    letters = [
        Letter(position=str(at), message=Message(value=b"v"), context=ErrorContext(native_code=f"E{at}" + "x" * 9999))
        for at in range(6 * NAMES)
    ]
    names = summary(letters, 500, groups=0).by["native_code"]
    assert len(names) <= 4 * NAMES + 1
    assert max(map(len, names)) <= 500
    assert sum(names.values()) == len(letters)
    assert names[OTHERS] > 0


@given(
    st.lists(st.one_of(st.none(), st.integers(0, LAST_MS), st.integers(NOW - 10**8, NOW + 10**6)), max_size=60),
    st.integers(1, 70),
    st.integers(1, 20),
)
def test_each_letter_is_in_one_bin_or_told_elsewhere(times: list[int | None], bins: int, size: int) -> None:
    found = summary([letter(at, dead_ms=each) for at, each in enumerate(times)], size, bins=bins)
    starts = [start for start, _ in found.arrivals]
    assert starts == list(range(starts[0], starts[-1] + 1, found.bin_ms)) if starts else not found.arrivals
    assert len(starts) <= bins
    told = sum(count for _, count in found.arrivals)
    assert told + found.earlier + found.later + found.undated == len(times)
    dated = [each for each in times if each is not None]
    for start, count in found.arrivals:
        assert count == sum(start <= each < start + found.bin_ms for each in dated)


def test_one_impossible_time_does_not_stretch_the_plot() -> None:
    letters = [letter(at, dead_ms=NOW - at * 1000) for at in range(1000)]
    letters += [letter(1, dead_ms=5), letter(2, dead_ms=LAST_MS)]
    found = summary(letters)
    assert (found.bin_ms, found.earlier, found.later) == (MINUTE, 1, 1)
    assert len(found.arrivals) in {17, 18}


def test_years_of_letters_are_few_bins() -> None:
    found = summary([letter(at, dead_ms=NOW - at * 3600_000 * 5) for at in range(9000)], 50)
    assert len(found.arrivals) <= 60
    assert sum(count for _, count in found.arrivals) + found.earlier == 9000


def test_it_can_be_stopped_and_tells_how_far_it_is() -> None:
    told: list[int] = []
    found = summary([letter(at) for at in range(100)], 10, stop=lambda: len(told) == 3, on_progress=told.append)
    assert (found.count, told) == (30, [10, 20, 30])


def test_by_threads_and_by_column_it_is_the_same_as_one_by_one(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/q.db?queue=orders"
    context = ErrorContext(kind="permanent", attempts=3, first_failure_ms=5, last_failure_ms=NOW)
    with connect(url) as broker, connect(broker.native_sink()) as sink, sink.sender() as sender:
        for at in range(30):
            said = replace(context, reason=f"{'late' if at % 3 else 'lost'}: order {at}", maybe_delivered=at % 2 == 0)
            rows = [Message(value=b"v" * at, id=f"{at}.{n}") for n in range(50)]
            limits = broker.capabilities.limits
            stored = [dialects.attach(each, said, dialect="json", limits=limits, prefix="ce-") for each in rows]
            sender.send(Batch.of(stored), deadline=time.monotonic() + 10)
            assert [len(settled.failures) for settled in sender.collect(1.0)] == [0]
    with dead_letters(url) as dlq:
        found = [summarise(dlq, threads=threads) for threads in (1, 3)]
        assert found[0] == found[1]
        each = Counter(fingerprint(context_of(letter)) for letter in dlq)
        assert {group.fingerprint: group.count for group in found[0].groups} == each
        assert found[0].maybe_delivered == 750
        largest = found[0].groups[0]
        some = summarise(dlq, Selection.parse(f"group={largest.fingerprint}"))
        assert (some.count, len(some.groups)) == (largest.count, 1) == (1000, 1)
        assert summarise(dlq, groups=0).groups == []


def test_a_secret_in_a_message_does_not_show() -> None:
    found = summary([letter(1, "login failed: password=hunter22x")])
    assert "hunter22x" not in repr(found)


@pytest.mark.parametrize("groups", [0, 10])
def test_an_empty_queue_has_an_empty_summary(groups: int) -> None:
    found = summary([], groups=groups)
    assert (found.count, found.groups, found.arrivals, found.oldest_ms) == (0, [], [], None)
