"""The receiver of `sqlite:`: dead letters, limits, expiry, damage, several processes, kill -9 and forks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from redelivery.base.clock import SystemClock
from redelivery.contract.broker import Accept, Broker, Received, Release, Retry, Terminate
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import UNLIMITED, DeliverySpec
from redelivery.errors import Fatal, LeaseLost, NotSent, Permanent, Retriable
from redelivery.registry import connect

QUIET = {"sqlite.reserve": "0"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/q.db?queue=work"


@pytest.fixture
def broker(url: str) -> Broker:
    return connect(url, QUIET)


def send(broker: Broker, *messages: Message) -> None:
    with broker.sender() as sender:
        sender.send(Batch.of(messages), deadline=time.monotonic() + 10)
        (settled,) = sender.collect(0)
        assert not settled.failures
        assert settled.error is None


def numbered(count: int) -> list[Message]:
    return [Message(value=b"%d" % each, id=str(each)) for each in range(count)]


def values(received) -> list[bytes | None]:
    return [each.message.value for each in received]


def letters(broker: Broker):
    with broker.dead_letters() as role:
        return list(role.browse())


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, env=env)


# --- what a message is ---


def test_sqlite_a_message_is_received_as_it_was_sent(broker):
    sent = Message(value=b"\xff", key=b"", headers=(("a", b"1"), ("a", None), ("b", b"\xfe")), id="ü", timestamp_ms=-5)
    send(broker, sent, Message(value=None), Message(value=b""))
    with broker.receiver() as receiver:
        received = receiver.receive(5, wait=0)
    assert [each.message for each in received] == [sent, Message(value=None), Message(value=b"")]
    assert all(each.undecodable is None for each in received)
    assert len({each.lease.token for each in received}) == 3


@pytest.mark.parametrize("damage", ["'{oops'", "'[[1]]'", "'5'", "CAST(X'FF' AS TEXT)", '\'[["a",{"x":1}]]\''])
def test_sqlite_damaged_headers_are_told_of_and_the_value_is_kept(broker, damage):
    send(broker, Message(value=b"kept", headers=(("a", b"1"),)), Message(value=b"next"))
    with closing(sqlite3.connect(broker.address.path)) as connection, connection:
        connection.execute(f"UPDATE message_1 SET headers = {damage} WHERE seq = 1")  # noqa: S608 - ours
    with broker.dead_letters(direct=True) as role:
        assert [letter.message.value for letter in role.browse()] == [b"kept", b"next"]
    with broker.receiver() as receiver:
        bad, good = receiver.receive(5, wait=0)
        assert bad.message.value == b"kept"
        assert "headers are damaged" in (bad.undecodable or "")
        assert good.undecodable is None
        assert receiver.settle([(bad, Terminate(bad.message, "damaged")), (good, Accept())]) == [None, None]


def test_sqlite_a_letter_of_an_unknown_kind_is_shown_with_its_reason(broker):
    send(broker, Message(value=b"1", id="a"))
    with broker.receiver() as receiver:
        (received,) = receiver.receive(1, wait=0)
        assert receiver.settle([(received, Terminate(received.message, "why"))]) == [None]
    with closing(sqlite3.connect(broker.address.path)) as connection, connection:
        connection.execute("UPDATE reason_2 SET kind = 'of-a-later-version'")
    (letter,) = letters(broker)
    assert (letter.context.kind, letter.context.reason) == ("of-a-later-version", "why")


def test_sqlite_a_damaged_id_is_told_of(broker):
    send(broker, Message(value=b"kept", id="a"))
    with closing(sqlite3.connect(broker.address.path)) as connection, connection:
        connection.execute("UPDATE message_1 SET id = CAST(X'61FF' AS TEXT)")
    with broker.receiver() as receiver:
        (bad,) = receiver.receive(5, wait=0)
        assert "id is damaged" in (bad.undecodable or "")
        assert receiver.settle([(bad, Accept())]) == [None]


# --- waiting ---


def test_sqlite_receive_waits_for_the_first_message_and_no_longer(broker):
    with broker.admin() as admin:
        admin.provision(DeliverySpec())
    with broker.receiver() as receiver:
        begun = time.monotonic()
        assert not receiver.receive(1, wait=0.2)
        assert 0.2 <= time.monotonic() - begun < 2
        threading.Timer(0.1, send, (broker, Message(value=b"late"))).start()
        begun = time.monotonic()
        assert values(receiver.receive(10, wait=20)) == [b"late"]
        assert time.monotonic() - begun < 10


def test_sqlite_closing_ends_a_wait_and_an_empty_queue_needs_no_write_lock(broker):
    send(broker, Message(value=b"x"))
    with broker.receiver() as receiver:
        (received,) = receiver.receive(1, wait=0)
        receiver.settle([(received, Accept())])
        with closing(sqlite3.connect(broker.address.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert not receiver.receive(1, wait=0.05)
        threading.Timer(0.1, receiver.close).start()
        begun = time.monotonic()
        assert not receiver.receive(1, wait=30)
        assert time.monotonic() - begun < 10
        for act in (lambda: receiver.receive(1, wait=0), lambda: receiver.settle([]), lambda: receiver.extend([], 1)):
            with pytest.raises(Fatal, match="closed"):
                act()


@pytest.mark.parametrize("moment", ["begins", "looks", "takes"])
def test_sqlite_closing_ends_a_receive_that_is_under_way(broker, monkeypatch, moment):
    """By another thread, wherever it is: the file is not opened again, and the message stays."""

    class Closing(SystemClock):
        looks = 0

        def monotonic(self):
            if moment == "begins":
                receiver.close()
            return super().monotonic()

        def wall_ms(self):
            self.looks += 1
            if (moment, self.looks) in {("looks", 1), ("takes", 2)}:
                receiver.close()
            return super().wall_ms()

    send(broker, Message(value=b"x"))
    receiver = broker.receiver()
    monkeypatch.setattr(receiver, "_clock", Closing())
    assert list(receiver.receive(1, wait=0)) == []
    with broker.receiver() as other:
        assert [each.message.value for each in other.receive(1, wait=0)] == [b"x"]


def test_sqlite_a_busy_file_is_retriable_and_nothing_is_leased_or_settled(url):
    broker = connect(url, {**QUIET, "sqlite.busy_timeout": "0.05"})
    send(broker, *numbered(2))
    with broker.receiver() as receiver, closing(sqlite3.connect(broker.address.path, isolation_level=None)) as other:
        (first,) = receiver.receive(1, wait=0)
        other.execute("BEGIN IMMEDIATE")
        for act in (
            lambda: receiver.receive(1, wait=0),
            lambda: receiver.settle([(first, Accept())]),
            lambda: receiver.extend([first], 5),
        ):
            with pytest.raises(Retriable):
                act()
        other.execute("COMMIT")
        assert receiver.settle([(first, Accept())]) == [None]
        assert [each.attempt for each in receiver.receive(5, wait=0)] == [1]


@pytest.mark.parametrize("create", ["true", "false"])
def test_sqlite_a_mistyped_queue_is_told_of_and_never_looks_empty(broker, create):
    send(broker, Message(value=b"1"))
    typo = connect(broker.address.at("wrok").url, {**QUIET, "sqlite.create": create})
    told = r"no queue 'wrok' \(did you mean 'work'\?\); the file has work; .*redelivery apply '?sqlite:"
    with typo.receiver() as receiver, pytest.raises(Fatal, match=told):
        receiver.receive(1, wait=0)
    with typo.admin() as admin, pytest.raises(Fatal, match=told):
        admin.depth()
    for direct in (True, False):
        with typo.dead_letters(direct=direct) as letters:
            for look in (lambda: list(letters.browse()), letters.purge, lambda: letters.remove(["1"])):
                with pytest.raises(Fatal, match=told):
                    look()


def test_sqlite_the_dead_letter_place_of_a_known_queue_is_empty_before_its_first_letter(broker):
    send(broker, Message(value=b"1"))
    place = connect(broker.native_sink(), QUIET)
    with broker.dead_letters() as letters:
        assert (list(letters.browse()), letters.purge(), letters.remove(["1"])) == ([], 0, 0)
    with place.receiver() as receiver, place.admin() as admin:
        assert (receiver.receive(1, wait=0), admin.depth()) == ([], 0)


def test_sqlite_a_provisioned_queue_is_empty_before_its_first_message(broker):
    with broker.admin() as admin, broker.receiver() as receiver:
        admin.provision(DeliverySpec())
        assert (receiver.receive(1, wait=0), admin.depth()) == ([], 0)


def test_sqlite_receiving_from_a_missing_file_names_it_and_makes_none(tmp_path):
    told = r"typo\.db.*: there is no such file; correct the URL, or make it"
    with connect(f"sqlite://{tmp_path}/typo.db", QUIET).receiver() as receiver, pytest.raises(Fatal, match=told):
        receiver.receive(1, wait=0)
    assert not list(tmp_path.iterdir())


# --- ends ---


def test_sqlite_an_accepted_id_stays_remembered_and_its_redriven_form_is_another(broker):
    send(broker, Message(value=b"1", id="a"))
    with broker.receiver() as receiver:
        (received,) = receiver.receive(1, wait=0)
        receiver.settle([(received, Accept())])
        send(broker, Message(value=b"1", id="a"), Message(value=b"2", id="a~1"), Message(value=b"2", id="a~1"))
        assert values(receiver.receive(9, wait=0)) == [b"2"]


def test_sqlite_a_letter_is_moved_as_given_with_its_reason(broker):
    send(broker, *numbered(1))
    letter = Message(
        value=b"letter", key=b"k", headers=(("why", b"x"),), id="0", timestamp_ms=3, destination="elsewhere"
    )
    with broker.receiver() as receiver:
        (received,) = receiver.receive(1, wait=0)
        assert receiver.settle([(received, Terminate(letter, "bad \udc00", "very bad"))]) == [None]
        assert isinstance(receiver.settle([(received, Accept())])[0], LeaseLost)
    (found,) = letters(broker)
    assert (found.message.value, found.message.key, found.message.headers) == (b"letter", b"k", (("why", b"x"),))
    assert (found.message.id, found.message.timestamp_ms) == ("0", 3)
    assert found.context is not None
    assert (found.context.kind, found.context.reason) == ("terminated", "bad \\udc00")
    assert (found.context.attempts, found.context.first_failure_ms) == (1, received.first_ms)
    assert found.context.extra == {"description": "very bad"}
    assert found.context.destination == broker.address.url


def test_sqlite_a_letter_that_no_row_can_hold_is_refused_alone_and_stays_leased(broker):
    send(broker, *numbered(2))
    with broker.receiver() as receiver:
        bad, good = receiver.receive(2, wait=0)
        answers = receiver.settle([(bad, Terminate(Message(value=b"", id="\udc00"))), (good, Accept())])
        assert isinstance(answers[0], Permanent)
        assert answers[1] is None
        assert receiver.settle([(bad, Terminate(bad.message))]) == [None]


def test_sqlite_a_second_letter_of_one_id_is_kept_too(url):
    broker = connect(url, {**QUIET, "sqlite.deduplication_window": "0"})
    with broker.receiver() as receiver:
        for value in (b"1", b"2"):
            time.sleep(0.002)  # the window is counted by the wall clock, to the millisecond
            send(broker, Message(value=value, id="a"))
            (received,) = receiver.receive(1, wait=0)
            assert receiver.settle([(received, Terminate(received.message))]) == [None]
    found = letters(broker)
    assert [(each.message.value, each.message.id, each.context.message_id) for each in found] == [
        (b"1", "a", "a"),
        (b"2", "a", "a"),
    ]


def test_sqlite_a_letter_that_lies_in_its_place_already_is_that_very_letter(url):
    """And two that differ are two, whatever their ids; what the broker moves by itself is told apart from all."""
    broker = connect(url, {**QUIET, "sqlite.deduplication_window": "0"})
    places = []
    for value, name in ((b"1", "one"), (b"1", "one"), (b"2", "two"), (b"3", None)):
        time.sleep(0.002)
        send(broker, Message(value=value, id="a"))
        with broker.receiver() as receiver:
            (received,) = receiver.receive(1, wait=0)
            letter = Message(value=value, id="a", identity=name)
            assert receiver.settle([(received, Terminate(letter, "why"))]) == [None]
        places.append([(each.message.value, each.message.id, each.context.reason) for each in letters(broker)])
    assert places[1] == places[0] == [(b"1", "a", "why")]
    assert places[3] == [(each, "a", "why") for each in (b"1", b"2", b"3")]
    with closing(sqlite3.connect(broker.address.path)) as connection:
        assert connection.execute("SELECT count(*) FROM message_1").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM reason_2").fetchone() == (3,)
    send(connect(broker.native_sink(), QUIET), Message(value=b"1", id="a", identity="one"))
    assert [each.message.value for each in letters(broker)] == [b"1", b"2", b"3"], "sent, it is another"


def test_sqlite_a_dead_letter_queue_can_be_received_from_and_terminates_into_itself(url):
    options = {**QUIET, "sqlite.max_deliveries": "1", "sqlite.message_ttl": "0.001"}
    place = connect(connect(url, options).native_sink(), options)
    send(place, Message(value=b"old", id="a"))
    time.sleep(0.01)
    with place.receiver(lease=timedelta(milliseconds=1)) as receiver:
        attempts = [receiver.receive(1, wait=1)[0].attempt for _ in range(3)]
        assert attempts == [1, 2, 3], "neither expiry nor a limit counts there"
    with place.receiver() as receiver:
        (received,) = receiver.receive(1, wait=1)
        assert receiver.settle([(received, Terminate(Message(value=b"new", id="a"), "again"))]) == [None]
    assert [(each.message.value, each.message.id) for each in letters(place)] == [(b"new", "a")]


def test_sqlite_removing_leased_messages_leaves_nothing_behind(broker):
    send(broker, *numbered(3))
    with broker.receiver() as receiver, broker.dead_letters(direct=True) as role:
        received = receiver.receive(3, wait=0)
        assert role.purge() == 3
        assert all(isinstance(each, LeaseLost) for each in receiver.settle([(one, Accept()) for one in received]))
    with closing(sqlite3.connect(broker.address.path)) as connection:
        assert connection.execute("SELECT count(*) FROM lease_1").fetchone() == (0,)


def test_sqlite_old_ids_are_forgotten_as_messages_are_accepted(url):
    broker = connect(url, {**QUIET, "sqlite.deduplication_window": "0"})
    with broker.receiver() as receiver:
        for at in range(5):
            send(broker, *(Message(value=b"", id=f"{at}.{each}") for each in range(50)))
            assert not any(receiver.settle([(each, Accept()) for each in receiver.receive(50, wait=0)]))
            time.sleep(0.002)
    with closing(sqlite3.connect(broker.address.path)) as connection:
        assert connection.execute("SELECT count(*) FROM taken_1").fetchone() == (50,)


# --- expiry and limits ---


def test_sqlite_an_expired_message_is_found_in_the_dead_letters_though_nobody_receives(url):
    broker = connect(url, {**QUIET, "sqlite.message_ttl": "0.05"})
    send(broker, *numbered(2), Message(value=b"other", destination="other"))
    time.sleep(0.1)
    found = letters(broker)
    assert [(each.message.id, each.context.kind, each.context.attempts) for each in found] == [
        ("0", "expired", 0),
        ("1", "expired", 0),
    ]
    with broker.receiver() as receiver:
        assert not receiver.receive(9, wait=0)


def test_sqlite_more_expired_messages_than_one_transaction_moves_do_not_hide_a_live_one(url):
    mortal = connect(url, {**QUIET, "sqlite.message_ttl": "0.01"})
    send(mortal, *(Message(value=b"") for _ in range(2500)))
    broker = connect(url, QUIET)
    send(broker, Message(value=b"live"))
    time.sleep(0.02)
    with broker.receiver() as receiver:
        assert values(receiver.receive(1, wait=0)) == [b"live"]
    assert len(letters(broker)) == 2500


def test_sqlite_the_limit_of_deliveries_catches_what_is_never_settled(url):
    broker = connect(url, QUIET)
    with broker.admin() as admin:
        admin.provision(DeliverySpec(retry=0))
    send(broker, Message(value=b"poison", id="p"), Message(value=b"fine"))
    with broker.receiver() as receiver:
        for attempt in range(1, 12):
            (received,) = receiver.receive(1, wait=0)
            assert (received.message.id, received.attempt) == ("p", attempt)
            receiver.settle([(received, Retry())])
        assert values(receiver.receive(1, wait=5)) == [b"fine"]
    (letter,) = letters(broker)
    assert letter.message == Message(value=b"poison", id="p")
    assert (letter.context.kind, letter.context.attempts) == ("delivery-limit", 11)
    assert "limit is 11" in letter.context.reason


def test_sqlite_a_message_given_back_never_reaches_the_limit(url):
    broker = connect(url, {**QUIET, "sqlite.max_deliveries": "1"})
    send(broker, *numbered(1))
    with broker.receiver() as receiver:
        for _ in range(4):
            (received,) = receiver.receive(1, wait=0)
            assert received.attempt == 1
            receiver.settle([(received, Release())])
        (received,) = receiver.receive(1, wait=0)
        receiver.settle([(received, Retry())])
        assert not receiver.receive(1, wait=0)


def test_sqlite_provisioning_sets_a_limit_once_and_tells_of_another(broker):
    send(broker, Message(value=b""))  # a queue that was made by sending has no limit
    with broker.admin() as admin:
        assert [item.action for item in admin.plan(DeliverySpec(retry=3)).objects if item.kind == "limit"] == ["create"]
        admin.provision(DeliverySpec(retry=3))
        assert not admin.plan(DeliverySpec(retry=3)).drift
        assert not admin.plan(DeliverySpec()).drift, "nothing said of retries"
        for other, wanted in ((DeliverySpec(retry=4), "15"), (DeliverySpec(retry=UNLIMITED), "0")):
            (item,) = [item for item in admin.plan(other).objects if item.action == "differs"]
            assert [(each.attribute, each.wanted, each.found) for each in item.differences] == [
                ("max_deliveries", wanted, "14")
            ]
            with pytest.raises(Fatal, match="max_deliveries is '14'"):
                admin.provision(other)


# --- order ---


def test_sqlite_in_an_ordered_batch_rows_behind_a_failed_one_of_their_key_are_not_sent(broker):
    def row(value: bytes, key: bytes, id_: str | None = None) -> Message:
        return Message(value=value, key=key, id=id_)

    first = [row(b"1", b"a"), row(b"2", b"a", "\udc00"), row(b"3", b"b"), row(b"4", b"a")]
    with broker.sender() as sender:
        for number, rows in enumerate((first, [row(b"5", b"a"), row(b"6", b"b")], [row(b"7", b"a")])):
            sender.send(Batch.of(rows, number=number, ordered=True), deadline=time.monotonic() + 5)
        told = [[(f.index, type(f.error)) for f in settled.failures] for settled in sender.collect(0)]
        assert told == [[(1, Permanent), (3, NotSent)], [(0, NotSent)], [(0, NotSent)]]
        isolated = Batch.of([row(b"4", b"a"), row(b"5", b"a")], ordered=True, isolate=True)
        sender.send(isolated, deadline=time.monotonic() + 5)
        assert not sender.collect(0)[0].failures
    with broker.receiver() as receiver:
        assert values(receiver.receive(9, wait=0)) == [b"1", b"3", b"6", b"4", b"5"]


def test_sqlite_a_sibling_is_another_queue_of_the_same_file(broker):
    assert connect(broker.sibling("x/y")).address == broker.address.at("x/y")


# --- several processes ---

_DRAIN = """
import sys
from redelivery.contract.broker import Accept
from redelivery.registry import connect
with connect(sys.argv[1], {"sqlite.reserve": "0"}).receiver() as receiver:
    while received := receiver.receive(7, wait=0.3):
        assert receiver.settle([(each, Accept()) for each in received]) == [None] * len(received)
        print(*(each.message.id for each in received), sep="\\n", flush=True)
"""

_HOLD = """
import sys, time
from datetime import timedelta
from redelivery.registry import connect
with connect(sys.argv[1], {"sqlite.reserve": "0"}).receiver(lease=timedelta(seconds=float(sys.argv[2]))) as receiver:
    print(*(f"{each.message.id}:{each.attempt}" for each in receiver.receive(3, wait=5)), flush=True)
    time.sleep(60)
"""


def test_sqlite_two_processes_share_a_queue_and_no_message_is_given_to_both(broker, url):
    send(broker, *numbered(400))
    both = [run(_DRAIN, url) for _ in range(2)]
    said = [each.communicate(timeout=60)[0].split() for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert sorted(map(int, said[0] + said[1])) == list(range(400))


def test_sqlite_what_a_killed_process_held_comes_back_with_its_attempts(broker, url):
    send(broker, *numbered(3))
    lease = 0.4
    for attempt in (1, 2):
        begun = time.monotonic()
        child = run(_HOLD, url, str(lease))
        assert child.stdout is not None
        assert child.stdout.readline().split() == [f"{each}:{attempt}" for each in range(3)]
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        with broker.admin() as admin:
            assert admin.depth() == 3
    with broker.receiver() as receiver:
        received = []
        while len(received) < 3:
            received += receiver.receive(9, wait=10)
        assert time.monotonic() - begun >= lease
        assert [(each.message.id, each.attempt) for each in received] == [("0", 3), ("1", 3), ("2", 3)]
        assert all(each.first_ms < received[0].first_ms + 1000 for each in received)


def test_sqlite_a_fork_must_not_settle_what_its_parent_leased(broker):
    send(broker, *numbered(2))
    with broker.receiver() as receiver:
        (received,) = receiver.receive(1, wait=0)
        pid = os.fork()
        if pid == 0:
            try:
                with pytest.raises(Fatal, match="opened by the parent of this process"):
                    receiver.settle([(received, Accept())])
                receiver.close()
                with broker.receiver() as own:
                    answers = [*own.settle([(received, Accept())]), *own.extend([received], 5)]
                    mine = own.receive(5, wait=0)
                    good = all(isinstance(each, LeaseLost) for each in answers) and values(mine) == [b"1"]
                    os._exit(0 if good and own.settle([(mine[0], Accept())]) == [None] else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert receiver.settle([(received, Accept())]) == [None]
        assert not receiver.receive(5, wait=0)


def test_sqlite_a_foreign_lease_is_lost_whatever_it_is(broker):
    send(broker, *numbered(1))
    with broker.receiver() as receiver:
        odd = Received(message=Message(value=b""), attempt=1, lease=("1", "x"))
        assert isinstance(receiver.settle([(odd, Accept())])[0], LeaseLost)
        assert isinstance(receiver.extend([odd], 1)[0], LeaseLost)
