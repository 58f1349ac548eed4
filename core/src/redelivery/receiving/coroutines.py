"""`CoroutineWorkers`: handlers that are coroutine functions, side by side on one event loop in one thread.

One that overruns its time, or still runs when the subscription ends, is cancelled. A handler that blocks the loop
delays all others; leases are prolonged by another thread and stay.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
from collections.abc import Awaitable, Callable
from typing import Any, cast

from redelivery.base.clock import Clock
from redelivery.codes import Code
from redelivery.contract.message import Message
from redelivery.errors import Retriable
from redelivery.kit.asyncio_bridge import LoopThread
from redelivery.receiving.leases import LeasedMessage
from redelivery.receiving.workers import Workers, refuse_awaitable
from redelivery.telemetry.handling import HandlingObserver


def is_coroutine_function(handler: Callable[[Message], object]) -> bool:
    """Whether a handler is written with `async def`: a function, a method, a partial, or an object's `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


class CoroutineWorkers(Workers):
    """A fixed number of tasks that run one coroutine function.

    Args:
        handler, count, name, clock, observer: as `Workers` has them.
    """

    def __init__(
        self,
        handler: Callable[[Message], object],
        count: int,
        name: str,
        clock: Clock,
        observer: HandlingObserver | None = None,
    ) -> None:
        self._loop = LoopThread("subscription", name)
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: dict[LeasedMessage, asyncio.Task[Any]] = {}
        self._dismissed = False
        super().__init__(handler, count, name, clock, observer)

    def submit(self, leased: LeasedMessage) -> None:
        super().submit(leased)
        self._loop.call(self._wake)

    def replace(self, leased: LeasedMessage) -> bool:
        """Cancel a handler that has overrun its time, and add a task in its place."""
        task = self._tasks.get(leased)
        if not super().replace(leased):
            return False
        if task is not None:
            self._loop.call(task.cancel)
        return True

    def start_worker(self) -> None:
        self._threads += 1
        self._loop.start("handling messages of", self._serve)

    def dismiss(self) -> None:
        """Cancel what still runs. Waits a few seconds: a handler may clean up, or never end."""
        self.drop()
        self._dismissed = True
        self._loop.close()

    def _wake(self) -> None:
        """Have one idle task look for work; called in the loop."""
        while self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def _serve(self) -> None:
        while not self._dismissed:
            try:
                leased = self._todo.get_nowait()
            except queue.Empty:
                waiting = asyncio.get_running_loop().create_future()
                self._idle.append(waiting)
                await waiting
                continue
            if leased is None or (self._begins(leased) and not await self._handle(leased)):
                return

    async def _handle(self, leased: LeasedMessage) -> bool:
        """Run the handler and tell its result; return whether this task goes on."""
        self._tasks[leased] = cast("asyncio.Task[Any]", asyncio.current_task())
        handler = cast("Callable[[Message], Awaitable[object]]", self._handler)
        said: BaseException | None = None
        try:
            if self._observer is None:
                refuse_awaitable(await handler(leased.received.message), "await it in the handler")
            else:
                with self._observer.process(leased.received, leased):
                    refuse_awaitable(await handler(leased.received.message), "await it in the handler")
        except asyncio.CancelledError as error:  # its own, or ours: then the result is not used
            said = Retriable("the handler was cancelled", code=Code.HANDLER_FAILED, native_code="CancelledError")
            said.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - told to the loop of the subscription, which decides what follows
            said = error
        if os.getpid() != self._pid:  # a handler that forked returns twice; only the parent settles
            os._exit(0 if said is None else 1)
        del self._tasks[leased]
        return self._ended(leased, said)
