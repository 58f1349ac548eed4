"""An asyncio client from blocking roles: bounded calls, closing, and what a fork may not do."""

import asyncio
import concurrent.futures
import multiprocessing
import threading

import pytest

from redelivery.errors import Fatal
from redelivery.kit.asyncio_bridge import LoopThread


class Connection(LoopThread):
    def __init__(self) -> None:
        super().__init__("carrier", "host")
        self.closed_in = ""

    async def _close_client(self) -> None:
        self.closed_in = threading.current_thread().name


async def answer(value: str) -> str:
    await asyncio.sleep(0)
    return f"{value} in {threading.current_thread().name}"


async def hang() -> None:
    await asyncio.Event().wait()


def test_a_coroutine_runs_in_a_thread_of_its_own_and_its_result_comes_back() -> None:
    with Connection() as connection:
        assert connection.run("asking", lambda: answer("yes"), 30) == "yes in redelivery-carrier-loop"
    assert connection.closed_in == "redelivery-carrier-loop"


def test_what_it_raises_comes_back() -> None:
    async def fail() -> None:
        raise KeyError("x")

    async def late() -> None:
        raise TimeoutError("the client's own")

    with Connection() as connection:
        with pytest.raises(KeyError):
            connection.run("asking", fail, 30)
        with pytest.raises(TimeoutError, match="the client's own"):
            connection.run("asking", late, 30)


def test_a_call_that_takes_too_long_is_cancelled() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await hang()
        finally:
            ended.set()

    with Connection() as connection:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
            connection.run("asking", work, 0.05)
        assert ended.wait(30)


def test_closing_ends_what_still_runs() -> None:
    connection = Connection()
    future = connection.start("asking", hang)
    threading.Timer(0.05, connection.close).start()
    with pytest.raises(TimeoutError, match="closed"):
        connection.run("asking", hang, 30)
    concurrent.futures.wait([future], 30)
    assert future.cancelled()
    connection.call(print)
    with pytest.raises(Fatal, match="is closed"):
        connection.run("asking", hang, 30)


def test_closing_one_that_never_ran_starts_nothing() -> None:
    connection = Connection()
    connection.close()
    assert connection.closed_in == ""


def test_a_function_is_called_in_the_loop() -> None:
    called = threading.Event()
    with Connection() as connection:
        connection.call(called.set)
        assert not called.is_set()
        connection.run("asking", lambda: answer("x"), 30)
        connection.call(called.set)
        assert called.wait(30)


def test_a_child_of_a_fork_may_not_use_it_and_closing_it_there_harms_nothing() -> None:
    connection = Connection()
    connection.run("asking", lambda: answer("x"), 30)
    ours, theirs = multiprocessing.get_context("fork").Pipe()

    def child() -> None:
        try:
            connection.run("asking", lambda: answer("x"), 1)
        except Fatal as error:
            connection.close()
            theirs.send((str(error), connection.closed_in))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert ours.poll(30)
    text, closed_in = ours.recv()
    process.join(30)
    assert "opened by the parent of this process" in text
    assert closed_in == ""
    assert connection.run("asking", lambda: answer("still"), 30).startswith("still")
    connection.close()
