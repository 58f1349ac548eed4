"""`from_env`: a dead letter folder behind any sender."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, Permanent, Retriable
from redelivery_file import from_env


class Scripted(Sender):
    """Fails as told."""

    def __init__(self, *, raises: Exception | None = None, settles: Settled | None = None) -> None:
        self.raises = raises
        self.settles = settles
        self.closed = False

    def send(self, batch: Batch, *, deadline: float) -> None:
        if self.raises is not None:
            raise self.raises

    def collect(self, wait: float) -> Sequence[Settled]:
        settled, self.settles = self.settles, None
        return [] if settled is None else [settled]

    def close(self) -> None:
        self.closed = True


BATCH = Batch.of([Message(value=b"1", id="a"), Message(value=b"2", id="b")], number=7)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("REDELIVERY_DLQ_DIR", str(tmp_path))
    return tmp_path


def deliver(sender: Sender) -> Settled:
    sender.send(BATCH, deadline=time.monotonic() + 9)
    (settled,) = sender.collect(0)
    return settled


def errors(place: Path) -> list[str]:
    return sorted(json.loads(path.read_text())["error"] for path in place.iterdir())


@pytest.mark.parametrize("value", [None, ""])
def test_file_unset_or_empty_gives_the_same_sender_without_a_word(monkeypatch, caplog, value):
    monkeypatch.delenv("REDELIVERY_DLQ_DIR", raising=False)
    if value is not None:
        monkeypatch.setenv("REDELIVERY_DLQ_DIR", value)
    sender = Scripted()
    assert from_env(sender) is sender
    assert not caplog.records


@pytest.mark.parametrize("what", ["missing", "a file", "a NUL"])
def test_file_an_unusable_folder_gives_the_same_sender_with_a_warning(monkeypatch, caplog, tmp_path, what):
    (tmp_path / "a file").write_text("")
    monkeypatch.setattr("os.environ", {"REDELIVERY_DLQ_DIR": str(tmp_path / what) + "\0" * (what == "a NUL")})
    sender = Scripted()
    with caplog.at_level(logging.WARNING):
        assert from_env(sender) is sender
    assert "cannot be used" in caplog.text


def test_file_an_unwritable_folder_gives_the_same_sender_with_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("REDELIVERY_DLQ_DIR", "/proc/self")  # not even root may make files there
    sender = Scripted()
    assert from_env(sender) is sender
    assert "cannot be used" in caplog.text


def test_file_the_folder_is_decided_on_once(place, monkeypatch):
    sender = from_env(Scripted(raises=Retriable("down")))
    monkeypatch.delenv("REDELIVERY_DLQ_DIR")
    deliver(sender)
    assert errors(place) == ["down", "down"]


def test_file_what_was_sent_is_not_written(place):
    assert deliver(from_env(Scripted(settles=Settled(batch=7)))) == Settled(batch=7)
    assert not list(place.iterdir())


def test_file_a_refused_batch_is_written_and_called_a_success(place, caplog):
    settled = deliver(from_env(Scripted(raises=Retriable("down"))))
    assert (settled.batch, settled.failures, settled.error) == (7, [], None)
    assert errors(place) == ["down", "down"]
    assert "event a: down" in caplog.text


def test_file_only_the_failed_rows_of_a_batch_are_written(place):
    one = Settled(batch=7, failures=[Failure(1, Permanent("bad row"))], duplicates=1)
    assert deliver(from_env(Scripted(settles=one))) == Settled(batch=7, failures=[], duplicates=1)
    assert errors(place) == ["bad row"]


def test_file_a_lost_connection_writes_every_row_under_its_own_error(place):
    lost = Settled(batch=7, failures=[Failure(0, Permanent("bad row"))], error=Retriable("lost"))
    assert deliver(from_env(Scripted(settles=lost))) == Settled(batch=7, failures=[])
    assert errors(place) == ["bad row", "lost"]


@pytest.mark.parametrize("kind", [Retriable, OSError])
def test_file_where_the_folder_fails_too_the_same_error_comes_out_with_a_note(place, caplog, kind):
    primary = kind("down")
    sender = from_env(Scripted(raises=primary))
    place.rmdir()
    with pytest.raises(kind) as caught:
        sender.send(BATCH, deadline=time.monotonic() + 9)
    assert caught.value is primary
    assert len(primary.__notes__) == 1
    assert primary.__notes__[0].startswith("the dead letter folder failed too")
    assert "event a: down; the dead letter folder failed too" in caplog.text
    assert not sender.collect(0)


def test_file_where_the_folder_fails_too_the_same_failure_is_told(place):
    primary: BrokerError = Permanent("bad row")
    sender = from_env(Scripted(settles=Settled(batch=7, failures=[Failure(1, primary)])))
    place.rmdir()
    (failure,) = deliver(sender).failures
    assert failure.index == 1
    assert failure.error is primary
    assert primary.__notes__


def test_file_no_secret_of_an_error_is_written_or_logged(place, caplog):
    deliver(from_env(Scripted(raises=Retriable("cannot reach amqp://u:hunter2@h/"))))
    assert "hunter2" not in caplog.text
    assert not any("hunter2" in error for error in errors(place))


def test_file_closing_the_wrapper_closes_the_sender(place):
    inner = Scripted()
    sender = from_env(inner)
    sender.close()
    sender.close()
    assert inner.closed
    assert place.exists()
