"""Splits and cursors as text, and how partitions are cut; the log itself is in `test_kafka_splits.py`."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery_kafka.client import ranges
from redelivery_kafka.client.offset_map import OffsetMap
from redelivery_kafka.client.ranges import Cursor, Range, advance, cut, parse_split, split_text, worth_reading

SIZES = st.lists(st.integers(0, 100_000), max_size=8)


def partitions(sizes: list[int]) -> list[Range]:
    return [Range(number, 7 * number, 7 * number + size) for number, size in enumerate(sizes) if size]


@given(SIZES, st.integers(1, 40))
def test_the_pieces_of_a_cut_are_the_whole_without_a_gap(sizes: list[int], readers: int) -> None:
    whole = partitions(sizes)
    found = cut(whole, readers)
    for each in whole:
        pieces = sorted(piece for piece in found if piece.number == each.number)
        assert (pieces[0].low, pieces[-1].high) == (each.low, each.high)
        assert all(left.high == right.low for left, right in itertools.pairwise(pieces))
        assert len({piece.high - piece.low for piece in pieces}) <= 2, "pieces of different sizes"
        assert min(piece.high - piece.low for piece in pieces) >= min(ranges.LEAST // 2, each.high - each.low)
    assert len(found) <= len(whole) + readers


def test_one_large_partition_is_cut_for_all_readers_oldest_first() -> None:
    pieces = cut([Range(0, 0, 80_000), Range(1, 0, 10)], 8)
    assert len(pieces) == 9
    assert pieces[:2] == [Range(0, 0, 10_000), Range(1, 0, 10)]
    assert cut([Range(0, 5, 4_000)], 8) == [Range(0, 5, 4_000)], "a reader for hardly anything"


def test_a_split_is_read_again_from_its_text() -> None:
    part = Range(3, 17, 2**62)
    text = split_text("orders-dead-letters", part)
    assert parse_split(text, "orders-dead-letters") == part
    for other in (
        text + "0" * 30,
        text + "\n",
        "x" + text,
        "",
        "orders-dead-letters/3/17",
        "orders-dead-letters/-3/1-2",
    ):
        assert parse_split(other, "orders-dead-letters") is None


@given(st.sets(st.integers(0, 300)), st.none() | st.sets(st.integers(0, 300)), st.integers(1, 50))
def test_what_is_read_holds_all_that_is_wanted_and_no_long_rest(
    removed: set[int], only: set[int] | None, jump: int
) -> None:
    offsets = OffsetMap(0)
    for each in removed:
        offsets.settle(each)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_JUMP", jump)
        runs, listed = offsets.runs(), None if only is None else sorted(only)
        found = worth_reading(offsets.base, 250, runs, listed)
    read = [at for part in found for at in range(part.low, part.high)]
    wanted = {at for at in range(offsets.base, 250) if only is None or at in only} - (
        removed if only is None else set()
    )
    assert wanted <= set(read)
    assert read == sorted(set(read))
    assert all(right.low - left.high >= jump for left, right in itertools.pairwise(found))
    assert not found or {found[0].low, found[-1].high - 1} <= wanted, "it begins or ends with what nobody wants"


@given(SIZES, st.none() | st.integers(1, 300_000))
def test_a_cursor_goes_on_by_as_many_as_it_was_asked(sizes: list[int], most: int | None) -> None:
    whole = partitions(sizes)
    ends = advance(whole, most)
    assert set(ends) == {each.number for each in whole}
    assert all(each.low <= ends[each.number] <= each.high for each in whole)
    total = sum(each.high - each.low for each in whole)
    went = sum(ends[each.number] - each.low for each in whole)
    assert went == (total if most is None else min(most, total))


def test_a_cursor_is_read_again_from_its_text() -> None:
    cursor = Cursor("some-id", {0: 5, 12: 2**62})
    assert Cursor.parse(str(cursor)) == cursor
    for text in (
        "",
        "[]",
        "7",
        "{}",
        '{"topic_id":"","offsets":[1]}',
        '{"topic_id":"","offsets":{"0":-1}}',
        '{"topic_id":"","offsets":{"0":true}}',
        '{"topic_id":"","offsets":{"a":1}}',
        '{"topic_id":1,"offsets":{}}',
    ):
        with pytest.raises(ValueError, match=r"."):
            Cursor.parse(text)
