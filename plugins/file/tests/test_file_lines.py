"""Files of many letters: what is in them, killed and competing writers, removal, splits, cursors, hostile files."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from redelivery.contract.broker import Broker, DeadLetters, Sender, Wanted
from redelivery.contract.letters import EVERYTHING
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, ConfigurationError, Fatal, InvalidURL, Retriable
from redelivery.registry import connect
from redelivery_file.client import folder as folder_module
from redelivery_file.client import lines as lines_module
from redelivery_file.client.folder import Folder


@pytest.fixture
def broker(tmp_path) -> Broker:
    return opened(tmp_path)


def opened(path: Path, **options: str) -> Broker:
    return connect(f"file://{path}?format=jsonl", {f"file.{name}": value for name, value in options.items()})


def send(sender: Sender, *values: object, seconds: float = 30) -> list[type[Exception]]:
    batch = Batch.of([Message(value=str(value).encode(), id=f"id-{value}") for value in values])
    sender.send(batch, deadline=time.monotonic() + seconds)
    (settled,) = sender.collect(0)
    return [type(failure.error) for failure in settled.failures]


def fill(broker: Broker, *batches: range) -> None:
    with broker.sender() as sender:
        for values in batches:
            assert not send(sender, *values)


def files(path: Path) -> list[Path]:
    return sorted(path.glob("letters-*.jsonl"))


def shown(letters: DeadLetters) -> list[int]:
    return [int(letter.message.value or b"") for letter in letters.browse()]


def read(letters: DeadLetters, wanted: Wanted = EVERYTHING) -> list[list[int]]:
    return [
        [int(value or b"") for batch in letters.read(split, wanted) for value in batch.messages.value.values]
        for split in letters.splits(wanted)
    ]


def whole(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def test_each_batch_is_appended_as_lines_of_the_same_form_with_their_time(tmp_path, broker):
    began = time.time_ns() // 1_000_000
    fill(broker, range(3), range(3, 5))
    (path,) = files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [list(line) for line in found] == [["time", "event", "error"]] * 5
    assert [line["event"]["id"] for line in found] == [f"id-{n}" for n in range(5)]
    times = [line["time"] for line in found]
    assert times[0] == times[2] < times[3] == times[4]
    assert began <= times[0] <= began + 60_000
    with broker.dead_letters() as letters:
        found_letters = list(letters.browse())
    assert [letter.dead_lettered_ms for letter in found_letters] == times
    assert found_letters[0].position == f"{path.name}:0"


@pytest.mark.parametrize(
    ("option", "value"), [("rotate_bytes", "300"), ("rotate_letters", "2"), ("rotate_seconds", "1")]
)
def test_another_file_begins_when_one_is_large_full_or_old(tmp_path, monkeypatch, option, value):
    clock = [0.0]
    monkeypatch.setattr(lines_module.time, "monotonic", lambda: clock[0])
    with opened(tmp_path, **{option: value}).sender() as sender:
        for n in range(6):
            assert not send(sender, n)
            clock[0] += 0.6
    assert [len(path.read_text().splitlines()) for path in files(tmp_path)] == [2, 2, 2]
    with opened(tmp_path).dead_letters() as letters:
        assert shown(letters) == list(range(6))


@pytest.mark.parametrize(
    ("options", "text"), [({"rotate_bytes": "0"}, "rotate_bytes"), ({"rotate_letters": "x"}, "rotate_letters")]
)
def test_a_limit_that_is_none_is_refused(tmp_path, options, text):
    with pytest.raises(ConfigurationError, match=text):
        opened(tmp_path, **options)
    with pytest.raises(InvalidURL, match=r"letter .* or jsonl"):
        connect(f"file://{tmp_path}?format=json")


WRITER = """
import sys, time
from redelivery.contract.message import Batch, Message
from redelivery.registry import connect
with connect(sys.argv[1] + "?format=jsonl").sender() as sender:
    for at in range(100_000):
        rows = [Message(value=b"%d" % (at * 100 + n), id="i") for n in range(100)]
        sender.send(Batch.of(rows), deadline=time.monotonic() + 30)
        assert not sender.collect(0)[0].failures
        print(at, flush=True)
"""


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.11])
def test_a_killed_writer_loses_nothing_that_was_confirmed(tmp_path, wait):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, f"file://{tmp_path}"], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(wait)
        writer.send_signal(signal.SIGKILL)
        confirmed = [int(line) for line in [first, *writer.stdout] if line.endswith("\n")]
    (path,) = files(tmp_path)
    with opened(tmp_path).dead_letters() as letters:
        found = shown(letters)
        assert found == list(range(len(found)))
        assert len(found) >= 100 * len(confirmed) > 0
        fill(opened(tmp_path), range(len(found), len(found) + 10))
        assert shown(letters) == list(range(len(found) + 10))
        assert path in files(tmp_path)
        assert letters.purge() == len(found) + 10
    assert not files(tmp_path)


@pytest.mark.parametrize("keep", [1, 30, 200])
def test_a_torn_end_is_no_letter_and_nothing_is_appended_to_it(tmp_path, broker, keep):
    fill(broker, range(3))
    (path,) = files(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data + data[:keep])
    fill(broker, range(3, 5))
    with broker.dead_letters() as letters, broker.admin() as admin:
        assert shown(letters) == [0, 1, 2, 3, 4]
        assert whole(read(letters)) == [0, 1, 2, 3, 4]
        assert admin.depth() == 5
        assert letters.remove([f"{path.name}:{len(data)}"]) == 0
        assert letters.remove([letter.position for letter in letters.browse()]) == 5
    assert not list(tmp_path.glob("*letters*"))
    assert len(files(tmp_path)) == 0


def test_writers_at_the_same_time_write_their_own_files_and_are_browsed_in_turn(tmp_path, broker):
    with broker.sender() as one, broker.sender() as two:
        for n in range(0, 10, 2):
            assert not send(one, n)
            assert not send(two, n + 1)
    assert [len(path.read_text().splitlines()) for path in files(tmp_path)] == [5, 5]
    with broker.dead_letters() as letters:
        assert shown(letters) == list(range(10))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: fill(opened(tmp_path), *(range(at, at + 10) for _ in range(20))), range(10, 50, 10)))
    with broker.dead_letters() as letters:
        assert Counter(shown(letters)) == Counter([*range(10), *([*range(10, 50)] * 20)])


def test_both_formats_in_one_folder_are_shown_in_their_order(tmp_path, broker):
    fill(broker, range(2))
    fill(connect(f"file://{tmp_path}"), range(2, 4))
    fill(broker, range(4, 6))
    for form in ("jsonl", "letter"):
        with connect(f"file://{tmp_path}?format={form}").dead_letters() as letters:
            assert shown(letters) == list(range(6))
            assert Counter(whole(read(letters, Wanted(readers=3)))) == Counter(range(6))
            assert letters.remove([letter.position for letter in letters.browse()][1:5]) == 4
            assert shown(letters) == [0, 5]
            fill(connect(f"file://{tmp_path}"), range(1))
            assert letters.purge() == 3
            fill(broker, range(2))
            fill(connect(f"file://{tmp_path}"), range(2, 4))
            fill(broker, range(4, 6))


def test_a_file_is_deleted_with_its_last_letter_and_not_while_its_writer_has_it(tmp_path, broker):
    with broker.dead_letters() as letters:
        with broker.sender() as sender:
            assert not send(sender, 0, 1)
            assert letters.remove([each.position for each in letters.browse()]) == 2
            assert len(files(tmp_path)) == 1
            assert letters.purge() == 0
            assert not send(sender, 2)
            assert shown(letters) == [2]
            (position,) = [each.position for each in letters.browse()]
            assert letters.remove([position, position]) == 1
            assert letters.remove([position]) == 0
            assert len(files(tmp_path)) == 1
        assert not list(tmp_path.iterdir())  # its writer deletes it


def test_removed_letters_are_listed_before_remove_returns(tmp_path, broker, monkeypatch):
    fill(broker, range(10))
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(lines_module.os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), real(fd))[1])
    with broker.dead_letters() as letters:
        position = next(iter(letters.browse())).position
        assert letters.remove([position, "letters-1-0000000000000000.jsonl:5"]) == 1
    (listed,) = tmp_path.glob(".letters-*.removed")
    assert listed.read_text() == "0;\n"
    assert 3 in synced


@pytest.mark.parametrize("torn", [b"1", b"12", b"0;\n1", b"x;\n99999999999999999;\n", b";\n\n"])
def test_a_torn_list_of_removed_letters_removes_no_other(tmp_path, broker, torn):
    fill(broker, range(20))
    (path,) = files(tmp_path)
    (tmp_path / f".{path.name}.removed").write_bytes(torn)
    starts = [0] if b"0;" in torn else []
    with broker.dead_letters() as letters:
        kept = list(letters.browse())
        assert len(kept) == 20 - len(starts)
        assert letters.remove([kept[5].position]) == 1
        assert letters.remove([kept[6].position]) == 1
    with broker.dead_letters() as letters:
        assert [each.position for each in letters.browse()] == [
            e.position for at, e in enumerate(kept) if at not in (5, 6)
        ]


def test_removers_at_the_same_time_remove_each_letter_once(tmp_path, broker):
    fill(broker, *(range(n, n + 50) for n in range(0, 500, 50)))
    with broker.dead_letters() as letters:
        positions = [letter.position for letter in letters.browse()]

    def work(at: int) -> int:
        with opened(tmp_path).dead_letters() as mine:
            return sum(mine.remove(positions[first : first + 20]) for first in range(at * 10, 500, 20))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 500
    assert not files(tmp_path)


@pytest.mark.parametrize("at", [-1, 1, 5, 10**11])
def test_a_position_within_a_line_removes_nothing(tmp_path, broker, at):
    fill(broker, range(3))
    (path,) = files(tmp_path)
    with broker.dead_letters() as letters:
        if at < 0:
            with pytest.raises(ConfigurationError, match="not a position"):
                letters.remove([f"{path.name}:{at}"])
        else:
            assert letters.remove([f"{path.name}:{at}"]) == 0
        assert shown(letters) == [0, 1, 2]
        for name in (f"../{path.name}:0", "letters-1-x.jsonl:0", f"{path.name}", f"{path.name}:٣"):
            with pytest.raises(ConfigurationError, match="not a position"):
                letters.remove([name])


def test_splits_are_of_about_the_same_size(tmp_path):
    fill(opened(tmp_path, rotate_letters="100"), *(range(n, n + 50) for n in range(0, 1000, 50)))
    with opened(tmp_path).dead_letters() as letters:
        for readers in (1, 3, 8):
            found = read(letters, Wanted(readers=readers))
            assert whole(found) == list(range(1000))
            assert len(found) in {readers, readers + 1}
            assert max(map(len, found)) < 1000 / readers * 1.2
        some = [each.position for each in letters.browse()][10:900:100]
        found = read(letters, Wanted(positions=frozenset(some), readers=3))
        assert whole(found) == list(range(10, 900, 100))


@pytest.mark.parametrize(
    "split",
    [
        *(
            "",
            "[]",
            '["files", "a"]',
            "[" * 10_000,
            '["lines", ["../x", 0, 1]]',
            '["lines", ["letters-1-0.jsonl", 0, 1]]',
        ),
        '["lines", ["letters-1-0000000000000000.jsonl", -1, 1]]',
        '["lines", ["letters-1-0000000000000000.jsonl", "0", 1]]',
    ],
)
def test_what_is_no_split_is_refused(broker, split):
    with broker.dead_letters() as letters, pytest.raises(ConfigurationError, match="not a split"):
        letters.read(split, EVERYTHING)


def test_what_comes_after_a_cursor_is_behind_it_whatever_the_clock_says(tmp_path, broker, monkeypatch):
    fill(broker, range(5))
    with broker.dead_letters() as letters:
        first = letters.cursor()
        monkeypatch.setattr(folder_module, "_last_millis", 0)
        monkeypatch.setattr(Folder.__init__, "__kwdefaults__", {"clock": lambda: 1_000})
        fill(broker, range(5, 7))
        fill(connect(f"file://{tmp_path}"), range(7, 9))
        second = letters.cursor(after=first)
        assert whole(read(letters, Wanted(before=first))) == list(range(5))
        assert Counter(whole(read(letters, Wanted(after=first, before=second)))) == Counter(range(5, 9))
        assert letters.cursor(after=second) == second


def test_letters_between_two_cursors_are_found_in_large_files_without_reading_them(tmp_path, broker, monkeypatch):
    monkeypatch.setattr(lines_module, "_CHUNK", 256)
    fill(broker, *(range(n, n + 10) for n in range(0, 300, 10)))
    with broker.dead_letters() as letters:
        at, found = None, []
        while (behind := letters.cursor(after=at, most=25)) != at:
            found.append(whole(read(letters, Wanted(after=at, before=behind))))
            at = behind
        assert whole(found) == list(range(300))
        assert {len(each) for each in found} == {30}
        assert shown(letters) == list(range(300))
        assert len(read(letters, Wanted(readers=7))) == 7


def test_hostile_files_hide_no_letter_and_end_no_reader(tmp_path, broker, caplog, monkeypatch):
    monkeypatch.setattr(lines_module, "MOST_BYTES", 3_000)
    monkeypatch.setattr(lines_module, "_CHUNK", 500)

    def name(at: int) -> Path:
        return tmp_path / f"letters-{at}-{at:016x}.jsonl"

    good = b'{"event": {"specversion": "1.0", "id": "%d", "source": "s", "type": "t"}, "error": "x"}\n'
    name(1).write_bytes(b"x" * 20_000 + b"\n" + good % 1 + b"y" * 9_000 + b"\n" + b"\0" * 700)
    name(2).write_bytes(b"\n\n{}\n[]\n\xff\n" + b"[" * 2_000 + b"\n" + good % 2)
    name(3).symlink_to("/etc/passwd")
    name(4).mkdir()
    os.mkfifo(name(5))
    with name(6).open("wb") as file:
        file.truncate(1 << 40)
    name(7).write_bytes(b"")
    name(8).write_bytes(b'{"time": 99999999999999999999, ' + good[1:] % 8 + b'{"time": 1, ' + good[1:] % 9)
    (tmp_path / f".{name(8).name}.removed").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / f".{name(2).name}.removed")
    (tmp_path / ".cursor").symlink_to("/etc/passwd")
    fill(broker, range(5))
    with caplog.at_level(logging.WARNING, "redelivery.file"), broker.dead_letters() as letters:
        ids = {letter.message.id for letter in letters.browse()}
        assert ids >= {"1", "2", "8", "9", *(f"id-{n}" for n in range(5))}
        for wanted in (EVERYTHING, Wanted(readers=8)):
            splits = letters.splits(wanted)
            found = {
                id_ for s in splits for b in letters.read(s, wanted) for id_ in (b.messages.id or b.position).values
            }
            assert found == ids
        assert letters.cursor(most=2)
        with broker.admin() as admin:
            assert admin.depth() >= 5
        assert letters.purge() >= 6
    for at in (3, 4, 5, 6):
        assert name(at).name in caplog.text
    assert Path("/etc/passwd").read_bytes().startswith(b"root:")
    assert not (tmp_path / ".cursor").is_file() or (tmp_path / ".cursor").is_symlink()


def test_what_cannot_be_written_leaves_nothing_of_its_batch(tmp_path, broker, monkeypatch):
    real, calls = os.write, []

    def write(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[: len(data) // 2])

    with broker.sender() as sender:
        assert not send(sender, 0, 1)
        with monkeypatch.context() as patch:
            patch.setattr(lines_module.os, "write", write)
            assert send(sender, 2, 3) == [Retriable] * 2
            calls.clear()
            assert send(sender, 2, 3) == [Retriable] * 2
        assert len(files(tmp_path)) == 1
        assert not send(sender, 4, 5)
    with broker.dead_letters() as letters:
        assert shown(letters) == [0, 1, 4, 5]


def test_letters_that_were_seen_of_a_torn_batch_share_no_position_with_later_ones(tmp_path, broker, monkeypatch):
    real, seen = os.write, []

    def write(fd: int, data: bytes) -> int:
        if seen:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(fd, bytes(data)[: bytes(data).index(b"\n") + 9])
        seen.extend(letters.browse())
        return written

    with broker.dead_letters() as letters:
        for kept in ([], [0]):
            with broker.sender() as sender:
                assert not kept or not send(sender, *kept)
                with monkeypatch.context() as patch:
                    patch.setattr(lines_module.os, "write", write)
                    assert send(sender, 1, 2) == [Retriable] * 2
                assert not send(sender, 3)
            assert b"1" in [each.message.value for each in seen]
            assert letters.remove([each.position for each in seen if each.message.value == b"1"]) == 0
            assert shown(letters) == [*kept, 3]
            letters.purge()
            seen.clear()


def test_a_batch_that_cannot_be_synced_is_ambiguous_and_the_next_goes_to_another_file(tmp_path, broker, monkeypatch):
    with broker.sender() as sender:
        assert not send(sender, 0)
        with monkeypatch.context() as patch:
            patch.setattr(lines_module.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
            assert send(sender, 1) == [Ambiguous]
        assert not send(sender, 2)
    assert len(files(tmp_path)) == 2


def test_a_file_that_somebody_moves_or_deletes_gets_no_more_letters(tmp_path, broker):
    with broker.sender() as sender:
        assert not send(sender, 0)
        (path,) = files(tmp_path)
        path.rename(tmp_path / "moved")
        assert not send(sender, 1)
        (path,) = files(tmp_path)
        path.unlink()
        assert not send(sender, 2)
    with broker.dead_letters() as letters:
        assert shown(letters) == [2]
    assert (tmp_path / "moved").read_text().count("\n") == 1


def test_a_folder_that_another_process_holds_is_waited_for_until_the_deadline(tmp_path, broker):
    other = Folder(tmp_path)
    with broker.sender() as sender:
        with other.locked():
            began = time.monotonic()
            assert send(sender, 0, seconds=0.3) == [Retriable]
            assert time.monotonic() - began < 3
            assert send(connect(f"file://{tmp_path}").sender(), 0, seconds=0.3) == [Retriable]
        assert not send(sender, 1)
    other.close()


def test_a_missing_folder_is_fatal_in_this_format_too(tmp_path):
    with pytest.raises(Fatal, match="folder is missing"):
        opened(tmp_path / "none").sender()
