"""The sender, de-duplication and dead letters of `sqlite:` beyond what every broker must do."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redelivery.codes import Code
from redelivery.contract.broker import Broker, Sender, Settled
from redelivery.contract.message import Batch, Column, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import ConfigurationError, Fatal, InvalidURL, Permanent, Retriable, UnknownOption
from redelivery.registry import connect
from redelivery_sqlite.address import Address
from redelivery_sqlite.codec import decode, encode_headers


def send(broker: Broker, *messages: Message, isolate: bool = False, seconds: float = 10.0) -> Settled:
    with broker.sender() as sender:
        sender.send(Batch.of(messages, number=7, isolate=isolate), deadline=time.monotonic() + seconds)
        (settled,) = sender.collect(0)
        assert settled.batch == 7
        assert not sender.collect(0)
    return settled


def stored(broker: Broker) -> list[Message]:
    with broker.dead_letters(direct=True) as letters:
        return [letter.message for letter in letters.browse()]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return connect(f"sqlite://{tmp_path}/q.db?queue=orders", {"sqlite.reserve": "0"})


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
any_headers = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=20)), max_size=4).map(tuple)


@given(any_headers)
def test_sqlite_headers_come_back_as_they_were(given_headers):
    encoded = encode_headers(given_headers)
    message, fault = decode(None, None, None, None if encoded is None else encoded.encode(), None)
    assert (message.headers, fault) == (given_headers, None)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.builds(
        Message,
        value=st.none() | st.binary(max_size=50),
        key=st.none() | st.binary(max_size=9),
        headers=any_headers,
        timestamp_ms=st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    any_text,
)
def test_sqlite_every_part_of_a_message_comes_back_as_it_was(broker, message, text):
    message = Message(
        value=message.value, key=message.key, headers=message.headers, timestamp_ms=message.timestamp_ms, id=text
    )
    fresh = connect(broker.address.at(f"q{time.time_ns()}").url, {"sqlite.reserve": "0"})
    assert not send(fresh, message).failures
    assert stored(fresh) == [message]


def test_sqlite_an_id_is_stored_once_and_the_repeats_are_counted(broker):
    a, b = Message(value=b"1", id="a"), Message(value=b"2", id="b")
    assert send(broker, a, a, b).duplicates == 1
    assert send(broker, b, Message(value=b"3"), Message(value=b"3")).duplicates == 1
    assert [m.value for m in stored(broker)] == [b"1", b"2", b"3", b"3"]


def test_sqlite_a_message_is_recognised_by_its_identity_where_it_has_one(broker):
    rows = [Message(value=b"1", id="a", identity="x"), Message(value=b"2", id="a", identity="y")]
    assert send(broker, *rows, Message(value=b"3", id="a"), rows[1]).duplicates == 1
    assert [(m.value, m.id) for m in stored(broker)] == [(b"1", "a"), (b"2", "a"), (b"3", "a")]
    with broker.dead_letters(direct=True) as letters:
        letters.purge()
    assert send(broker, rows[0], Message(value=b"4", id="x"), Message(value=b"5", id="b", identity="z")).duplicates == 2
    assert [m.value for m in stored(broker)] == [b"5"]


def test_sqlite_an_identity_with_a_lone_surrogate_fails_its_row_alone(broker):
    settled = send(broker, Message(value=b"1", id="a", identity="\ud800"), Message(value=b"2"))
    assert [(failure.index, failure.error.code) for failure in settled.failures] == [(0, Code.INVALID_MESSAGE)]
    assert [m.value for m in stored(broker)] == [b"2"]


def test_sqlite_an_id_is_known_per_queue(broker):
    assert send(broker, Message(value=b"1", id="a"), Message(value=b"1", id="a", destination="x")).duplicates == 0
    assert stored(connect(broker.address.at("x").url)) == [Message(value=b"1", id="a")]


def test_sqlite_a_removed_id_stays_remembered_within_the_window_and_not_beyond(tmp_path):
    url = f"sqlite://{tmp_path}/q.db"
    ours = connect(url, {"sqlite.reserve": "0"})
    send(ours, Message(value=b"1", id="a"), Message(value=b"2"))
    with ours.dead_letters(direct=True) as letters:
        assert letters.purge() == 2
    assert send(ours, Message(value=b"1", id="a"), Message(value=b"3", id="c")).duplicates == 1
    assert [m.id for m in stored(ours)] == ["c"]
    forgetful = connect(url, {"sqlite.reserve": "0", "sqlite.deduplication_window": "0"})
    time.sleep(0.002)  # the window is counted by the wall clock, to the millisecond
    assert send(forgetful, Message(value=b"1", id="a")).duplicates == 0
    assert [m.id for m in stored(ours)] == ["c", "a"]


def test_sqlite_positions_are_never_used_twice_though_the_queue_was_emptied(broker):
    positions = []
    for _ in range(3):
        send(broker, Message(value=b"x"))
        with broker.dead_letters(direct=True) as letters:
            positions += [letter.position for letter in letters.browse()]
            letters.purge()
    assert len(set(positions)) == 3


BAD = {
    "a lone surrogate": Message(value=b"", id="b\udc00ad"),
    "an empty name": Message(value=b"", destination=""),
    "of type str, not bytes": Message(value="text"),  # type: ignore[arg-type]
    "key is of type str": Message(value=b"", key="5"),  # type: ignore[arg-type]
    "no integer of 64 bits": Message(value=b"", timestamp_ms=2**63),
    "timestamp is no integer": Message(value=b"", timestamp_ms=float("nan")),  # type: ignore[arg-type]
    "destination holds a lone surrogate": Message(value=b"", destination="\udfff"),
}


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("why", BAD)
def test_sqlite_a_row_that_cannot_be_stored_is_permanent_and_its_neighbours_are_stored(broker, why, isolate):
    settled = send(broker, Message(value=b"before"), BAD[why], Message(value=b"after"), isolate=isolate)
    (failure,) = settled.failures
    assert failure.index == 1
    assert type(failure.error) is Permanent
    assert why in str(failure.error)
    assert settled.error is None
    assert [m.value for m in stored(broker)] == [b"before", b"after"]


@pytest.mark.parametrize("isolate", [False, True])
def test_sqlite_a_row_over_the_limit_is_permanent_and_its_neighbours_are_stored(broker, isolate):
    with broker.sender() as sender:
        sender.send(Batch.of([Message(value=b"0")]), deadline=time.monotonic() + 9)
        sender._store.connection().setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
        sender._message_bytes = 4000
        batch = Batch.of([Message(value=b"1"), Message(value=b"x" * 6000), Message(value=b"2")], isolate=isolate)
        sender.send(batch, deadline=time.monotonic() + 9)
        _, settled = sender.collect(0)
    (failure,) = settled.failures
    assert (failure.index, failure.error.code, type(failure.error)) == (1, Code.TOO_LARGE, Permanent)
    assert [m.value for m in stored(broker)] == [b"0", b"1", b"2"]


def test_sqlite_ten_mebibytes_and_no_bytes_and_null_are_three_bodies(broker):
    bodies = [b"\xff\x00" * (5 << 20), b"", None]
    assert not send(broker, *[Message(value=body) for body in bodies]).failures
    assert [m.value for m in stored(broker)] == bodies


def test_sqlite_columns_that_are_absent_are_null(broker):
    with broker.sender() as sender:
        batch = Batch(number=1, length=2, nbytes=2, value=Column.of([b"a", b"b"]))
        sender.send(batch, deadline=time.monotonic() + 9)
    assert stored(broker) == [Message(value=b"a"), Message(value=b"b")]


def test_sqlite_a_passed_deadline_stores_nothing(broker):
    with broker.sender() as sender, pytest.raises(Retriable, match="deadline had passed"):
        sender.send(Batch.of([Message(value=b"")]), deadline=time.monotonic() - 1)


def test_sqlite_native_letters_lie_in_a_queue_of_the_same_file(broker):
    sink = connect(broker.native_sink())
    assert broker.native_sink().endswith("?queue=orders-dead-letters")
    assert sink.native_sink() == broker.native_sink()
    send(sink, Message(value=b"dead"))
    for reader in (broker.dead_letters(), sink.dead_letters(), sink.dead_letters(direct=True)):
        with reader:
            assert [letter.message.value for letter in reader.browse()] == [b"dead"]


def test_sqlite_browsing_ends_at_what_was_there_and_does_not_keep_the_log_from_being_emptied(broker):
    send(broker, *[Message(value=b"x" * 100) for _ in range(450)])
    with broker.dead_letters(direct=True) as letters:
        reading = letters.browse()
        next(reading)
        send(broker, Message(value=b"late"))
        other = sqlite3.connect(broker.address.path)
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        other.close()
        assert busy == 0
        assert len(list(reading)) == 449
        assert letters.remove(["1", "2", "2", "99999"]) == 2
        with pytest.raises(ConfigurationError, match="not a position"):
            letters.remove(["../1"])


def test_sqlite_what_a_forked_process_stores_is_not_lost_when_the_parent_closes_first(broker):
    """While an inherited connection is open SQLite takes the parent's locks for this process's own."""

    def store(sender: Sender, value: bytes) -> None:
        sender.send(Batch.of([Message(value=value)]), deadline=time.monotonic() + 9)

    with broker.sender() as sender, broker.sender() as other:
        store(sender, b"parent")
        store(other, b"other")
        child_stored, parent_closed = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with pytest.raises(Fatal, match="opened by the parent of this process"):
                    store(sender, b"inherited")
                own = broker.sender()
                store(own, b"child")
                os.write(child_stored[1], b".")
                os.read(parent_closed[0], 1)
                store(own, b"child again")
            finally:
                os._exit(0)
        os.close(child_stored[1])
        assert os.read(child_stored[0], 1) == b".", "the child failed"
        store(sender, b"parent again")
    os.write(parent_closed[1], b".")
    os.waitpid(child, 0)
    for end in (child_stored[0], *parent_closed):
        os.close(end)
    assert [m.value for m in stored(broker)] == [b"parent", b"other", b"child", b"parent again", b"child again"]


def test_sqlite_without_create_a_missing_queue_is_fatal_and_a_rows_own_is_permanent(broker):
    strict = connect(broker.address.url, {"sqlite.create": "false", "sqlite.reserve": "0"})
    with pytest.raises(Fatal, match=r"no such file, and sqlite\.create is false; provision it"):
        send(strict, Message(value=b""))
    send(connect(broker.address.at("else").url), Message(value=b""))
    with pytest.raises(Fatal, match="there is no queue 'orders'"):
        send(strict, Message(value=b""))
    send(broker, Message(value=b"1"))
    settled = send(strict, Message(value=b"2"), Message(value=b"", destination="typo"))
    assert [(f.index, type(f.error)) for f in settled.failures] == [(1, Permanent)]
    assert "no queue 'typo'" in str(settled.failures[0].error)


@pytest.mark.parametrize("url", ["sqlite:a b/ü%23.db?queue=x%26y", "sqlite:///abs/q.db?queue=z", "sqlite:q.db"])
def test_sqlite_an_address_written_reads_as_the_same(url):
    address = Address.parse(url)
    assert Address.parse(address.url) == address


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sqlite:", "has no path"),
        ("sqlite:folder/", "names a folder, not a file"),
        ("sqlite::memory:", "would not be durable"),
        ("sqlite://q.db", "names the host 'q.db'"),
        ("sqlite:q#1.db", "write a '#' in a path as %23"),
        ("sqlite:q.db?queue=", "'queue' is empty"),
        ("sqlite:q.db?queue=a&queue=b", "given twice"),
    ],
)
def test_sqlite_a_wrong_url_is_refused_with_its_reason(url, text):
    with pytest.raises(InvalidURL, match=text):
        connect(url)


def test_sqlite_an_unknown_parameter_or_option_names_the_nearest():
    with pytest.raises(UnknownOption, match="did you mean 'queue'"):
        connect("sqlite:q.db?quue=a")
    with pytest.raises(UnknownOption, match=r"did you mean 'sqlite\.busy_timeout'"):
        connect("sqlite:q.db", {"sqlite.busytimeout": "1"})
    for name, value in (("busy_timeout", "soon"), ("reserve", "-1"), ("create", "maybe"), ("busy_timeout", "nan")):
        with pytest.raises(ConfigurationError, match=f"sqlite.{name}"):
            connect("sqlite:q.db", {f"sqlite.{name}": value})


def test_sqlite_an_event_that_fails_again_is_a_letter_again_once_its_first_one_is_gone(broker):
    """A work queue takes its id for a repetition; among dead letters that would lose a row that is counted as there."""
    with connect(broker.native_sink()) as dead:
        send(dead, Message(value=b"first", id="X"))
        assert send(dead, Message(value=b"again", id="X")).duplicates == 1, "while it lies there"
        with broker.dead_letters() as letters:
            assert letters.purge() == 1
        assert send(dead, Message(value=b"later", id="X")).duplicates == 0
        assert [message.value for message in stored(dead)] == [b"later"]
    send(broker, Message(value=b"first", id="X"))
    with broker.dead_letters(direct=True) as work:
        work.purge()
    assert send(broker, Message(value=b"again", id="X")).duplicates == 1


def test_sqlite_roles_are_opened_side_by_side(broker):
    with broker.admin() as admin:
        admin.provision(DeliverySpec())
    errors: list[BaseException] = []
    end = time.monotonic() + 1.5

    def open_some() -> None:
        try:
            while time.monotonic() < end:
                with broker.receiver() as receiver:
                    receiver.receive(1, wait=0)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    others = [broker.sender() for _ in range(200)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=open_some) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    for each in others:
        each.close()
    assert errors == []


@pytest.mark.parametrize("destination", ["", "\ud800"])
def test_sqlite_a_wrong_destination_is_found_among_good_rows_whatever_it_is(broker, destination):
    rows = [Message(value=b"1"), Message(value=b"2", destination=destination), Message(value=b"3")]
    with broker.sender() as sender:
        sender.send(Batch.of(rows), deadline=time.monotonic() + 10)
        (settled,) = sender.collect(0)
    assert [(each.index, type(each.error)) for each in settled.failures] == [(1, Permanent)]
