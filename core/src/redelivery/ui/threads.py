"""Blocking calls to a broker, in threads: a few at a time, and no caller waits longer than asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from redelivery.errors import RedeliveryError

T = TypeVar("T")


class TooSlow(RedeliveryError):
    """A place did not answer in time. Its thread may still wait; nothing else does."""


class Lane:
    """Runs the blocking calls of one place.

    The threads are daemons: one that hangs in a client does not keep the process from ending.

    Args:
        name: of the place, for errors.
        width: calls at a time. Later ones wait for their turn, within their own time.
    """

    def __init__(self, name: str, width: int = 2) -> None:
        self._name = name
        self._slots = threading.BoundedSemaphore(width)

    async def call(self, work: Callable[[], T], seconds: float) -> T:
        """Return what a blocking function returns.

        Args:
            work: the function.
            seconds: how long the caller waits.

        Raises:
            TooSlow: it has not returned in time. It goes on, and its result is dropped.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # a None is `work`'s own
            else:
                done.set_exception(error)

        def run() -> None:
            if not self._slots.acquire(timeout=seconds):
                return
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
                error = RuntimeError("no more") if isinstance(raised, StopIteration) else raised
            finally:
                self._slots.release()
            with suppress(RuntimeError):  # the page has ended
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=run, name="redelivery-page", daemon=True).start()
        try:
            return await asyncio.wait_for(done, seconds)
        except TimeoutError:
            raise TooSlow(f"{self._name} has not answered within {seconds:g} s; try again later") from None
