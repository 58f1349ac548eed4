"""Letters in splits and by column: equal splits over gaps, exact hints, cursors, and headers as `json` reads them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.codes import Code
from redelivery.contract.broker import Broker, DeadLetters, Wanted
from redelivery.contract.letters import EVERYTHING
from redelivery.contract.message import Batch, Message
from redelivery.errors import ConfigurationError, Fatal
from redelivery.kit.packing import from_portable
from redelivery.registry import connect
from redelivery_sqlite import codec, dead_letters
from redelivery_sqlite.client import pages, removal

DEADLINE = 1e12


@pytest.fixture
def broker(tmp_path) -> Iterator[Broker]:
    with connect(f"sqlite://{tmp_path}/q.db?queue=q-dead-letters", {"sqlite.reserve": "0"}) as broker:
        yield broker


@pytest.fixture
def letters(broker) -> Iterator[DeadLetters]:
    with broker.dead_letters() as letters:
        yield letters


def fill(broker: Broker, count: int) -> None:
    with broker.sender() as sender:
        for first in range(0, count, 1000):
            rows = range(first, min(first + 1000, count))
            sender.send(Batch.of([Message(value=b"%d" % at, key=b"%d" % (at % 10)) for at in rows]), deadline=DEADLINE)


def sql(broker: Broker, text: str) -> None:
    with closing(sqlite3.connect(broker.address.path)) as connection:  # type: ignore[attr-defined]
        connection.execute(text)
        connection.commit()


def values(letters: DeadLetters, wanted: Wanted = EVERYTHING) -> list[list[int]]:
    return [
        [int(value or b"0") for batch in letters.read(split, wanted) for value in batch.messages.value.values]
        for split in letters.splits(wanted)
    ]


def whole(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


@pytest.mark.parametrize("gaps", ["seq % 7", "seq < 3000", "seq > 100 AND seq < 4900", "seq % 1000 > 200"])
def test_splits_have_about_as_many_letters_each_whatever_was_removed(broker, letters, gaps):
    fill(broker, 5000)
    sql(broker, f"DELETE FROM message_1 WHERE {gaps}")  # noqa: S608 - the test's own
    found = values(letters, Wanted(readers=8))
    total = sum(map(len, found))
    assert whole(found) == [int(each.message.value or b"") for each in letters.browse()]
    assert len(found) == 8
    assert max(map(len, found)) <= total / 8 * 1.2 + 5, list(map(len, found))


def test_few_letters_are_in_few_splits(broker, letters):
    fill(broker, 3)
    assert values(letters, Wanted(readers=8)) == [[0, 1, 2]]


def test_pages_are_bounded_in_letters_and_in_bytes(broker, letters, monkeypatch):
    fill(broker, 500)
    monkeypatch.setattr(pages, "BATCH_LETTERS", 100)
    (split,) = letters.splits(EVERYTHING)
    assert [len(batch) for batch in letters.read(split, EVERYTHING)] == [100] * 5
    monkeypatch.setattr(pages, "BATCH_BYTES", 50)
    assert all(sum(map(len, each.messages.value.values)) < 60 for each in letters.read(split, EVERYTHING))
    assert values(letters) == [list(range(500))]


@pytest.mark.parametrize("span", [3, 100_000])
def test_hints_are_exact(broker, letters, monkeypatch, span):
    monkeypatch.setattr(pages, "_SPAN", span)
    monkeypatch.setattr(pages, "BATCH_LETTERS", 7)
    fill(broker, 100)
    sql(broker, "UPDATE message_1 SET enqueued_ms = seq * 10")
    sql(broker, "UPDATE message_1 SET enqueued_ms = -1 WHERE seq = 100")
    assert whole(values(letters, Wanted(key=b"3"))) == list(range(3, 100, 10))
    assert whole(values(letters, Wanted(since_ms=500, until_ms=600))) == [*range(49, 59), 99]
    some = frozenset({"5", "77", "5000", "no number", "9" * 30})
    for readers in (1, 8):
        assert whole(values(letters, Wanted(positions=some, readers=readers))) == [4, 76]
    assert values(letters, Wanted(positions=frozenset())) == []


def test_only_wanted_columns_are_fetched(broker, letters):
    fill(broker, 3)
    (split,) = letters.splits(EVERYTHING)
    (batch,) = letters.read(split, Wanted(columns=frozenset({"key"})))
    assert batch.messages.key is not None
    assert batch.messages.key.values == [b"0", b"1", b"2"]
    assert batch.messages.value.values == [None, None, None]
    assert batch.messages.headers is None
    assert batch.position.values == ["1", "2", "3"]


def test_an_open_reader_does_not_hold_the_log(broker, letters, monkeypatch):
    fill(broker, 100)
    monkeypatch.setattr(pages, "BATCH_LETTERS", 10)
    (split,) = letters.splits(EVERYTHING)
    reader = letters.read(split, EVERYTHING)
    next(reader)
    with closing(sqlite3.connect(broker.address.path)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


@pytest.mark.parametrize("most", [1, 3, 10, 1000])
def test_cursors_step_by_as_many_letters_as_asked(broker, letters, most):
    fill(broker, 10)
    sql(broker, "DELETE FROM message_1 WHERE seq IN (2, 3, 10)")
    at, steps = None, []
    while (behind := letters.cursor(after=at, most=most)) != at:
        steps.append(whole(values(letters, Wanted(after=at, before=behind))))
        at = behind
    assert whole(steps) == [0, 3, 4, 5, 6, 7, 8]
    assert all(len(step) == most for step in steps[: 7 // most])


def test_a_queue_that_is_created_again_has_other_cursors_and_splits(broker, letters):
    fill(broker, 10)
    cursor, (split,) = letters.cursor(), letters.splits(EVERYTHING)
    letters.close()
    sql(broker, "DELETE FROM queue")
    fill(broker, 20)
    with broker.dead_letters() as again:
        for ask in (
            lambda: again.cursor(after=cursor),
            lambda: again.splits(Wanted(after=cursor)),
            lambda: again.splits(Wanted(before=cursor)),
            lambda: again.read(split, EVERYTHING),
        ):
            with pytest.raises(Fatal, match="created again") as caught:
                ask()
            assert caught.value.code is Code.CONFLICT
        assert values(again) == [list(range(20))]


def test_a_cursor_from_before_the_queue_is_one_of_its_beginning(tmp_path):
    with connect(f"sqlite://{tmp_path}/q.db?queue=q", {"sqlite.reserve": "0"}) as source:
        fill(source, 1)
        with source.dead_letters() as letters:
            before = letters.cursor(most=5)
            assert letters.splits(Wanted(after=before)) == []
            assert letters.cursor(after=before) == before
            with connect(source.native_sink(), {"sqlite.reserve": "0"}) as place:
                fill(place, 5)
            assert values(letters, Wanted(after=before, before=letters.cursor(after=before))) == [list(range(5))]


@pytest.mark.parametrize("text", ["", "1.2", "1.2.3.4", "1.2.x", "-1.2.3", "1.2.3-", "1.2." + "9" * 40, "1.2.٣"])
def test_what_is_no_cursor_or_split_is_refused(broker, letters, text):
    fill(broker, 1)
    with pytest.raises(ConfigurationError, match="not a cursor"):
        letters.cursor(after=text)
    with pytest.raises(ConfigurationError, match="not a split"):
        letters.read(text, EVERYTHING)


ODD = st.sampled_from(['"],["', '","', '"', "\\", "],[", "[[", "]]", "", "é", "\0", '\\"],["', "{", "null", ","])
TEXT = st.one_of(ODD, st.text(max_size=5), st.lists(ODD, max_size=3).map("".join))
HEADERS = st.lists(
    st.tuples(TEXT, st.one_of(st.none(), st.binary(max_size=3), TEXT.map(lambda text: text.encode(errors="ignore")))),
    max_size=4,
)


@given(st.lists(HEADERS, max_size=3))
def test_headers_come_back_as_they_were_stored(rows):
    rows = [tuple((name.encode(errors="ignore").decode(), value) for name, value in row) for row in rows]
    stored = [codec.encode_headers(row) for row in rows]
    assert codec.encode_headers_of([*rows, *rows]) == [*stored, *stored]
    faults: dict[int, str] = {}
    assert codec.decode_headers([None if each is None else each.encode() for each in stored], faults) == rows
    assert not faults


@given(
    st.lists(st.sampled_from([b'[["', b'"]]', b'"],["', b'","', b'"', b"\\", b"a", b"n", b"null", b"1", b"]", b","]))
)
def test_damaged_headers_are_read_as_json_reads_them(parts: Sequence[bytes]):
    """Anyone may have written the file."""
    data = b"".join(parts)
    try:
        wanted = tuple((name, from_portable(value)) for name, value in json.loads(data))
        is_damaged = not all(isinstance(name, str) for name, _ in wanted)
    except (ValueError, TypeError, KeyError, AttributeError):
        is_damaged = True
    faults: dict[int, str] = {}
    (found,) = codec.decode_headers([data], faults)
    assert (0 in faults) == is_damaged
    assert found == (() if is_damaged else wanted)


def test_headers_nested_without_end_are_damaged():
    faults: dict[int, str] = {}
    assert codec.decode_headers([b"[" * 100_000], faults) == [()]
    assert "damaged" in faults[0]


def test_letters_are_removed_in_bounded_transactions_and_are_not_remembered(broker, letters, monkeypatch):
    """One that is sent again is stored again, so that its identity needs no room."""
    monkeypatch.setattr(dead_letters, "_REMOVED", 7)
    with broker.sender() as sender:
        batch = Batch.of([Message(value=b"", id=str(at)) for at in range(50)])
        sender.send(batch, deadline=DEADLINE)
        removals: list[int] = []
        remove = removal.remove
        monkeypatch.setattr(
            removal, "remove", lambda c, n, seqs, *a, **k: (removals.append(len(seqs)), remove(c, n, seqs, *a, **k))[1]
        )
        assert letters.remove(["50", "1", "2", "3", "3", "9", "11", "77"]) == 6
        assert [len(part) for part in values(letters)] == [44]
        assert letters.purge() == 44
        assert max(removals) == 7
        sender.send(batch, deadline=DEADLINE)
    assert letters.purge() == 50
    with closing(sqlite3.connect(broker.address.path)) as connection:
        assert connection.execute("SELECT count(*) FROM taken_1").fetchone() == (0,)
