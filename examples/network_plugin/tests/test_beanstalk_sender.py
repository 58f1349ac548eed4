"""What the suite's servers never do: refuse a message in the middle of a batch, or read nothing of it."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest
from redelivery_beanstalk import connect

from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable


@contextmanager
def serving(serve):
    """A sender at a server that answers as `serve(listener)` does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with connect(f"beanstalk://127.0.0.1:{listener.getsockname()[1]}/orders", {}).sender() as sender:
            yield sender
        thread.join(10)


def answer_with(listener, *answers):
    """Answer `use`, and then each message, on one connection."""
    there, _ = listener.accept()
    with there, there.makefile("rb") as lines:
        lines.readline()
        there.sendall(b"USING orders\r\n")
        for each in answers:
            lines.readline()
            lines.readline()
            there.sendall(each + b"\r\n")
        lines.readline()


def outcome(sender, *values, seconds=10.0, number=1):
    batch = Batch.of([Message(value=value) for value in values], number=number)
    sender.send(batch, deadline=time.monotonic() + seconds)
    (settled,) = sender.collect(10)
    assert (settled.batch, settled.error) == (number, None)
    return {each.index: type(each.error) for each in settled.failures}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(b"DRAINING", Retriable), (b"BURIED 1", Ambiguous), (b"JOB_TOO_BIG", Permanent), (b"HTTP/1.1 400", Fatal)],
)
def test_a_refusal_of_one_message_is_told_of_that_one(answer, expected):
    with serving(lambda listener: answer_with(listener, b"INSERTED 1", answer)) as sender:
        assert outcome(sender, b"a", b"b") == {1: expected}


def test_a_connection_on_which_half_a_message_was_written_is_not_used_again():
    def serve(listener):
        there, _ = listener.accept()  # and reads nothing
        answer_with(listener, b"INSERTED 1")
        there.close()

    large = [bytes(60_000)] * 300  # more than the buffers of a socket hold
    with serving(serve) as sender:
        assert set(outcome(sender, *large, seconds=0.5).values()) <= {Ambiguous, Retriable}
        assert outcome(sender, b"next", number=2) == {}
