"""The dead letter folder: what is written, under which name, and what comes back."""

from __future__ import annotations

import base64
import errno
import json
import logging
import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redelivery import cli
from redelivery.contract.broker import Limits, Settled
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, DeliveryStatus
from redelivery.errors import (
    Ambiguous,
    BrokerError,
    ConfigurationError,
    Fatal,
    InvalidURL,
    Permanent,
    Retriable,
    UnknownOption,
    Unsupported,
)
from redelivery.formats import dialects
from redelivery.registry import connect
from redelivery_file.client import folder as folder_module
from redelivery_file.client.folder import Folder, file_name, is_letter
from redelivery_file.errors import BY_ERRNO, TABLE

EVENT = Message(
    value=b'{"delay": 3}',
    id="event-7",
    headers=(
        ("ce-specversion", b"1.0"),
        ("ce-id", b"event-7"),
        ("ce-type", b"flight"),
        ("ce-source", b"/flights"),
        ("content-type", b"application/json"),
    ),
)
CONTEXT = ErrorContext(
    reason="no such queue 'x'", kind="permanent", native_code="404", attempts=3, attempts_total=3, run="r1"
)


def letter_of(message: Message, context: ErrorContext = CONTEXT) -> Message:
    return dialects.attach(message, context, dialect="json", limits=Limits(), prefix="ce-")


def send(url: str, *messages: Message, seconds: float = 10.0) -> Settled:
    with connect(url).sender() as sender:
        sender.send(Batch.of(messages, number=7), deadline=time.monotonic() + seconds)
        (settled,) = sender.collect(0)
        assert not sender.collect(0)
    assert settled.batch == 7
    return settled


def lines(folder: Path) -> list[dict[str, object]]:
    texts = [path.read_text() for path in sorted(folder.iterdir())]
    assert all(text.count("\n") == 1 and text.endswith("\n") for text in texts)
    return [json.loads(text) for text in texts]


def test_file_a_letter_is_one_line_with_exactly_the_event_and_the_error(tmp_path):
    assert not send(f"file://{tmp_path}", letter_of(EVENT)).failures
    (line,) = lines(tmp_path)
    assert list(line) == ["event", "error"]
    assert line["error"] == "no such queue 'x'"
    event = line["event"]
    assert isinstance(event, dict)
    expected = {"id": "event-7", "type": "flight", "source": "/flights", "specversion": "1.0", "data": {"delay": 3}}
    assert {name: event[name] for name in expected} == expected


def test_file_a_third_member_only_where_asked_for(tmp_path):
    send(f"file://{tmp_path}?context=true", letter_of(EVENT))
    (line,) = lines(tmp_path)
    assert list(line) == ["event", "error", "context"]
    with connect(f"file://{tmp_path}").dead_letters() as letters:
        (letter,) = letters.browse()
    assert letter.context is not None
    assert (letter.context.native_code, letter.context.attempts, letter.context.run) == ("404", 3, "r1")


def test_file_the_third_member_holds_the_record_and_the_settings_where_they_were_asked_for(tmp_path):
    context = ErrorContext(reason="no", stage="TASK_PUT", native_code="404")
    asked = {"include_message": True, "configs": {"url": "x:y", "sasl.password": "hunter2"}}
    letter = dialects.attach(EVENT, context, dialect="json", limits=Limits(), prefix=None, **asked)
    send(f"file://{tmp_path}?context=true", letter)
    (line,) = lines(tmp_path)
    assert base64.b64decode(line["context"]["record"]["value"]["object"]) == EVENT.value
    assert line["context"]["stages"][line["context"]["index"]]["config"] == {"url": "x:y", "sasl.password": "***"}
    with connect(f"file://{tmp_path}").dead_letters() as letters:
        (found,) = letters.browse()
    assert found.context == context


@pytest.mark.parametrize("query", ["", "?context=true"])
def test_file_an_event_under_another_type_comes_back_under_its_own(tmp_path, query):
    letter = dialects.attach(
        EVENT, ErrorContext(reason="no"), dialect="json", limits=Limits(), prefix=None, rename_type="dead"
    )
    send(f"file://{tmp_path}{query}", letter)
    assert lines(tmp_path)[0]["event"]["type"] == "dead"
    with connect(f"file://{tmp_path}").dead_letters() as letters:
        (found,) = letters.browse()
    back = dialects.redriven(found.message)
    assert (back.value, back.headers[:-1]) == (EVENT.value, EVENT.headers)


def test_file_a_name_is_millis_and_id_and_the_mode_0600(tmp_path):
    began = time.time_ns() // 1_000_000
    send(f"file://{tmp_path}", letter_of(EVENT))
    (path,) = tmp_path.iterdir()
    millis, _, rest = path.name.partition("-")
    assert rest == "event-7.jsonl"
    assert began <= int(millis) <= began + 60_000
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.text(max_size=400), st.integers(0, 10**14))
def test_file_a_name_never_leaves_the_folder_and_always_fits(text, millis):
    name = file_name(millis, text)
    assert is_letter(name)
    assert len(name) <= 255
    assert "/" not in name
    if len(text) < 200:
        assert name == f"{millis}-{re.sub(r'[^A-Za-z0-9._-]', '_', text)}.jsonl"


def test_file_over_long_ids_that_differ_at_the_end_have_different_names():
    assert file_name(1, "x" * 400 + "a") != file_name(1, "x" * 400 + "b")


@pytest.mark.parametrize("text", ["../../etc/passwd", "/abs", "..", ".", "", "a\0b", "*?[$(id)]", "x" * 300, "\udcff"])
def test_file_an_odd_id_stays_within_the_folder(tmp_path, text):
    place = tmp_path / "letters"
    place.mkdir()
    with_id = Folder(place)
    name = with_id.write(text, b"{}\n")
    with_id.close()
    assert [path.name for path in place.iterdir()] == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


def test_file_millis_always_rise_so_that_names_sort_as_letters_came(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_last_millis", 0)
    times = iter([1000, 400, 400, 2000, 1999])
    place = Folder(tmp_path, clock=lambda: next(times))
    names = [place.write(event_id, b"") for event_id in ("a", "a", "b", "a", "a")]
    place.close()
    assert names == ["1000-a.jsonl", "1001-a.jsonl", "1002-b.jsonl", "2000-a.jsonl", "2001-a.jsonl"]


def test_file_what_is_there_is_never_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_last_millis", 0)
    (tmp_path / "5-a.jsonl").symlink_to(tmp_path / "elsewhere")
    place = Folder(tmp_path, clock=lambda: 5)
    assert place.write("a", b"mine") == "6-a.jsonl"
    place.close()
    assert not (tmp_path / "elsewhere").exists()


messages = st.builds(
    Message,
    value=st.none() | st.binary(max_size=40),
    key=st.none() | st.binary(max_size=9),
    headers=st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
    id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    timestamp_ms=st.none() | st.integers(0, 2**41),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(messages)
def test_file_a_message_comes_back_as_it_was(tmp_path, message):
    url = f"file://{tmp_path}"
    assert not send(url, message).failures
    with connect(url).dead_letters() as letters:
        assert [letter.message for letter in letters.browse()] == [message]
        assert letters.purge() == 1


def test_file_letters_are_browsed_in_the_order_of_their_names_and_removed_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_PAGE", 3)
    url = f"file://{tmp_path}"
    for n in range(8):
        send(url, Message(value=b"%d" % n, id=str(n)))
    with connect(url).dead_letters() as letters:
        found = list(letters.browse())
        assert all(a.position < b.position for a, b in pairwise(found))
        assert sorted(letter.message.value or b"" for letter in found) == [b"%d" % n for n in range(8)]
        assert letters.remove([found[0].position, found[0].position, "1-gone.jsonl"]) == 1
        with pytest.raises(ConfigurationError, match="not a position"):
            letters.remove(["../" + found[1].position])
        with connect(url).admin() as admin:
            assert admin.depth() == 7
        assert letters.purge() == 7
        assert letters.purge() == 0


def test_file_torn_and_foreign_files_are_left_alone_with_a_warning(tmp_path, caplog):
    url = f"file://{tmp_path}"
    send(url, letter_of(EVENT))
    (tmp_path / "1-torn.jsonl").write_bytes(b'{"event": {"id"')
    (tmp_path / "2-list.jsonl").write_bytes(b"[]")
    (tmp_path / "3-event.jsonl").write_bytes(b'{"event": {"id": 5}, "error": ""}')
    (tmp_path / "4-bytes.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "5-link.jsonl").symlink_to("/dev/null")
    (tmp_path / "6-folder.jsonl").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".1-0.tmp").write_text("left by a killed writer")
    with caplog.at_level(logging.WARNING, "redelivery.file"), connect(url).dead_letters() as letters:
        assert [letter.message.id for letter in letters.browse()] == ["event-7"]
    for name in ("1-torn", "2-list", "3-event", "4-bytes", "5-link", "6-folder", "notes.txt"):
        assert name in caplog.text
    with connect(url).dead_letters() as letters:
        letters.remove([f"{n}-{name}.jsonl" for n, name in enumerate(("torn", "list", "event", "bytes", "link"), 1)])
        (tmp_path / "6-folder.jsonl").rmdir()
        assert letters.purge() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".1-0.tmp", "notes.txt"]


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_file_every_error_of_the_system_has_a_class_and_advice(code):
    found = TABLE.error(OSError(code, os.strerror(code)), "writing")
    assert found.native_code == errno.errorcode[code]
    assert os.strerror(code) in str(found)
    assert isinstance(found, BrokerError)


def test_file_every_error_that_these_calls_may_raise_is_mapped():
    # ERRORS of open(2), write(2), fsync(2), link(2), unlink(2), getdents(2) and read(2).
    named = (
        "EACCES EAGAIN EBADF EBUSY EDQUOT EEXIST EFAULT EFBIG EINTR EINVAL EIO EISDIR ELOOP EMFILE EMLINK ENAMETOOLONG "
        "ENFILE ENODEV ENOENT ENOMEM ENOSPC ENOTDIR ENXIO EOPNOTSUPP EPERM EROFS EXDEV"
    )
    assert {getattr(errno, name) for name in named.split()} <= set(BY_ERRNO)


def test_file_a_path_that_the_system_refuses_is_told_by_a_plan(tmp_path):
    """As one that this user may not look into is."""
    with connect(f"file://{tmp_path}/{'x' * 300}").admin() as admin, pytest.raises(BrokerError, match="looking for"):
        admin.plan(DeliverySpec())


def test_file_a_missing_folder_is_fatal_and_provisioning_makes_it(tmp_path):
    url = f"file://{tmp_path}/a/b"
    broker = connect(url)
    with pytest.raises(Fatal, match=r"folder is missing: make it, or provision it, or correct the URL"):
        broker.sender()
    with pytest.raises(Fatal, match="folder is missing"):
        broker.dead_letters()
    with broker.admin() as admin:
        assert [item.action for item in admin.plan(DeliverySpec()).objects] == ["create"]
        for _ in range(2):
            assert admin.provision(DeliverySpec()) == DeliveryStatus()
        assert [item.action for item in admin.plan(DeliverySpec()).objects] == ["keep"]
    assert not send(url, EVENT).failures


def test_file_a_file_in_place_of_the_folder_is_fatal(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Fatal, match="not that of a folder"):
        connect(f"file://{tmp_path}/file").sender()
    with connect(f"file://{tmp_path}/file").admin() as admin, pytest.raises(Fatal, match="its kind is not folder"):
        admin.provision(DeliverySpec())


def failing(call: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(folder_module.os, call, fail)


@pytest.mark.parametrize(
    ("call", "code", "expected"),
    [
        ("fsync", errno.ENOSPC, (Retriable, "make room")),
        ("link", errno.EDQUOT, (Retriable, "make room")),
        ("link", errno.EROFS, (Fatal, "read-only")),
        ("link", errno.EACCES, (Fatal, "write and search permission")),
        ("link", errno.EOPNOTSUPP, (Fatal, "no hard links")),
        ("fsync", errno.EIO, (Retriable, "the disk failed")),
    ],
)
def test_file_what_cannot_be_written_is_classified_and_leaves_nothing(tmp_path, monkeypatch, call, code, expected):
    kind, text = expected
    with connect(f"file://{tmp_path}").sender() as sender:
        with monkeypatch.context() as patch:
            failing(call, code, patch)
            sender.send(Batch.of([EVENT, EVENT]), deadline=time.monotonic() + 9)
        (settled,) = sender.collect(0)
    assert [(failure.index, type(failure.error)) for failure in settled.failures] == [(0, kind), (1, kind)]
    assert text in str(settled.failures[0].error)
    assert isinstance(settled.failures[0].error.__cause__, OSError)
    assert not list(tmp_path.iterdir())


def test_file_a_folder_that_cannot_be_synced_leaves_its_letters_ambiguous(tmp_path, monkeypatch):
    with connect(f"file://{tmp_path}").sender() as sender:
        monkeypatch.setattr(sender._folder, "sync", lambda: os.fsync(10**6))
        sender.send(Batch.of([EVENT, EVENT]), deadline=time.monotonic() + 9)
        (settled,) = sender.collect(0)
    assert [(failure.index, type(failure.error)) for failure in settled.failures] == [(0, Ambiguous), (1, Ambiguous)]


def test_file_the_folder_is_synced_after_the_last_link_and_before_the_batch_is_settled(tmp_path, monkeypatch):
    calls: list[str] = []
    with connect(f"file://{tmp_path}").sender() as sender:
        for name in ("link", "fsync"):
            real = getattr(os, name)
            monkeypatch.setattr(
                folder_module.os, name, lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1]
            )
        two = [Message(value=b"", id="a"), Message(value=b"", id="b")]
        sender.send(Batch.of(two), deadline=time.monotonic() + 9)
        assert calls == ["fsync", "fsync", "link", "link", "fsync"]


def test_file_rows_past_the_deadline_are_retriable_and_unwritten(tmp_path):
    settled = send(f"file://{tmp_path}", EVENT, seconds=-1)
    assert [type(failure.error) for failure in settled.failures] == [Retriable]
    assert not list(tmp_path.iterdir())


def test_file_a_row_with_a_destination_is_permanent_and_its_neighbours_are_written(tmp_path):
    settled = send(f"file://{tmp_path}", EVENT, Message(value=b"", destination="x"), EVENT)
    assert [(failure.index, type(failure.error)) for failure in settled.failures] == [(1, Permanent)]
    assert len(lines(tmp_path)) == 2


def test_file_a_full_disk_is_retriable_and_leaves_no_torn_letter(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, timeout=10, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs (root); the same by injection is tested above")
    try:
        settled = send(f"file://{place}", *[Message(value=b"x" * 30_000, id=str(n)) for n in range(20)])
        assert 0 < len(settled.failures) < 20
        assert {type(failure.error) for failure in settled.failures} == {Retriable}
        assert "make room on the disk" in str(settled.failures[0].error)
        assert len(lines(place)) == 20 - len(settled.failures)
    finally:
        subprocess.run(["umount", str(place)], capture_output=True, timeout=10, check=True)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("file:", "has no path"),
        ("file://host/x", "names the host 'host'"),
        ("file:x#y", "as %23"),
        ("file:x?context=yes", "context is true or false"),
    ],
)
def test_file_a_wrong_url_is_refused_with_its_reason(url, text):
    with pytest.raises(InvalidURL, match=text):
        connect(url)


def test_file_unknown_parameters_and_options_are_refused_and_roles_that_are_not_there_too():
    with pytest.raises(UnknownOption, match="did you mean 'context'"):
        connect("file:x?contxt=true")
    with pytest.raises(UnknownOption):
        connect("file:x", {"file.mode": "1"})
    for role in ("receiver", "native_sink"):
        with pytest.raises(Unsupported):
            getattr(connect("file:x"), role)()


PLANTED = {
    "nested deep": b'{"event": ' + b"[" * 100_000 + b"]" * 100_000 + b', "error": ""}',
    "not an object": b"[]",
    "an event without a type": b'{"event": {"specversion": "1.0"}, "error": "x"}',
    "a number of 5,000 digits": b'{"event": {"data": ' + b"9" * 5000 + b'}, "error": "x"}',
}


@pytest.mark.parametrize("data", PLANTED.values(), ids=PLANTED)
def test_a_planted_file_hides_no_letter(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "1-planted.jsonl").write_bytes(data)
    send(f"file:{tmp_path}", EVENT)
    with connect(f"file:{tmp_path}").dead_letters() as letters:
        assert EVENT.id in [each.message.id for each in letters.browse()]


def test_a_time_that_no_date_holds_is_no_time(tmp_path: Path) -> None:
    send(f"file:{tmp_path}", EVENT)
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / f"{'9' * 20}-planted.jsonl")
    with connect(f"file:{tmp_path}").dead_letters() as letters:
        (letter,) = letters.browse()
    assert letter.dead_lettered_ms is None


def test_a_file_of_any_size_is_not_read_into_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (tmp_path / "1-planted.jsonl").open("wb") as file:
        file.truncate(folder_module.MOST_BYTES + 1)
    with connect(f"file:{tmp_path}").dead_letters() as letters:
        assert not list(letters.browse())
    assert "are the most that are read" in caplog.text


def test_a_folder_that_everybody_may_write_to_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o777)
    for _ in range(2):
        Folder(tmp_path).close()
    assert caplog.text.count("chmod o-w") == 1


HOSTILE_CONTEXTS = (
    *('{"partition": 1e400}', '{"hops": "3"}', '{"attempts": 99999999999, "extra": [1]}', '{"last_failure_ms": 1e30}'),
    *('{"first_failure_ms": -9e18, "kind": null}', '{"reason": {"a": NaN}}', '{"stage": []}', '{"extra": {"a": 1}}'),
    *('{"dead_lettered": 1}', '{"last_failure_ms": 99999999999999999999}', "[]", '"text"', '{"target": "\\ud800"}'),
)


@pytest.mark.parametrize(
    "command", ["list", "list --json", "stats", "export", "show good", "redrive --dry-run", "redrive"]
)
def test_planted_files_end_no_command_and_hide_no_letter(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "letters"
    place.mkdir(mode=0o700)
    event = '{"specversion": "1.0", "id": "i", "source": "s", "type": "t", "data": 1e400, "x": %s}'
    for at, context in enumerate(HOSTILE_CONTEXTS):
        line = f'{{"event": {event % (10**300)}, "error": "why", "context": {context}}}'
        (place / f"{at}-planted.jsonl").write_text(line)
    for at, data in enumerate(("[" * 100_000, '{"event": {}, "error": ""}', "9" * 5000, "\0", "", '{"event": NaN}')):
        (place / f"100{at}-torn.jsonl").write_text(data)
    os.mkfifo(place / "2000-fifo.jsonl")
    (place / "2001-folder.jsonl").mkdir()
    (place / "2002-link.jsonl").symlink_to("/etc/passwd")
    os.close(os.open(os.fsencode(place) + b"/\xff\x1b[2J.jsonl", os.O_CREAT))
    with (place / "2003-huge.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    send(f"file:{place}", letter_of(Message(value=b"v", id="good")))
    (tmp_path / "work").mkdir(mode=0o700)
    url = f"file:{tmp_path}/work"
    name, *options = command.split()
    options += ["--to", url] if name == "redrive" else []
    status = cli.main(["dead-letters", name, url, "--sink", f"file:{place}", *options])
    out, err = capsys.readouterr()
    assert status == 0, err
    assert "Traceback" not in err
    if name in {"list", "export"}:
        assert "good" in out
    if command == "redrive":
        assert not list(place.glob("*-good.jsonl"))


def test_the_name_of_a_planted_file_drives_no_terminal(tmp_path):
    os.close(os.open(os.fsencode(tmp_path) + b"/\x1b[2J\nforged.jsonl", os.O_CREAT))
    place = ["file:/none", "--sink", f"file:{tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "redelivery", "dead-letters", "list", *place],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "left alone" in done.stderr
    assert "\x1b" not in done.stderr
    assert not any(line.startswith("forged") for line in done.stderr.splitlines())
