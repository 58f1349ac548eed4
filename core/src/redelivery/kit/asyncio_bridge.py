"""A client library that needs asyncio, used from the blocking roles of the contract.

::

    class Connection(LoopThread):
        def __init__(self, address):
            super().__init__("carrier", address.host)
            self._client = None

        def open(self, within):
            with TABLE.while_doing("connecting", safe=True):
                self._client = self.run("connecting to", lambda: carrier.connect(...), within)

        async def _close_client(self):
            await self._client.close()
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from redelivery.kit.roles import Resource

__all__ = ["LoopThread"]

T = TypeVar("T")

#: Seconds that closing may take: the client's own, and then that of its loop.
_CLOSE: Final = 5.0


class LoopThread(Resource):
    """An event loop in its own thread, started at first use. Any thread may use it.

    Args:
        broker: the plugin's name, with which errors and the thread's name begin.
        place: what it is connected to, for errors.
    """

    def __init__(self, broker: str, place: str) -> None:
        super().__init__(broker, place)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def run(self, what: str, make: Callable[[], Awaitable[T]], within: float) -> T:
        """Run a coroutine to its end.

        Args:
            what: for the error of a closed connection: "connecting to".
            make: makes the coroutine; called in the loop.
            within: seconds that it may take; then it is cancelled.

        Returns:
            The coroutine's result.

        Raises:
            TimeoutError: it took longer.
            Fatal: the loop is closed, or was opened by the parent of this process.
            Exception: any error of the coroutine itself.
        """
        future = self.start(what, make)
        try:
            return future.result(max(0.0, within))
        except concurrent.futures.CancelledError as error:  # closed by another thread
            raise TimeoutError("it was cancelled, as the connection was closed") from error
        except TimeoutError:
            if not future.done():
                future.cancel()
                raise TimeoutError(f"no answer within {within:g} s") from None
            raise

    def start(self, what: str, make: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        """Start a coroutine and return its future; the arguments are those of `run`."""
        self.check_open(what)

        async def work() -> T:
            return await make()

        return asyncio.run_coroutine_threadsafe(work(), self._running())

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call a function soon. Does nothing once this is closed."""
        with suppress(RuntimeError):  # the loop is closed
            if self._loop is not None and not self.is_inherited:
                self._loop.call_soon_threadsafe(function, *args)

    async def _close_client(self) -> None:
        """Close the client; called in the loop, once, and cancelled if it takes too long."""

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name=f"redelivery-{self._broker}-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _release(self) -> None:
        with self._starting:
            loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        ended = asyncio.run_coroutine_threadsafe(self._end(), loop)
        with suppress(TimeoutError):
            ended.result(2 * _CLOSE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSE)
        if not thread.is_alive():
            loop.close()

    async def _end(self) -> None:
        """Close the client, then cancel whatever still runs."""
        with suppress(Exception):  # it is of no more use
            await asyncio.wait_for(self._close_client(), _CLOSE)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=_CLOSE) if rest else None
