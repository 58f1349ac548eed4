"""`Workers`: handlers side by side, each on its own thread.

Runs them and returns their results; decides nothing.
"""

from __future__ import annotations

import inspect
import os
import queue
import threading
from collections.abc import Callable

from redelivery.base.clock import Clock
from redelivery.codes import Code
from redelivery.contract.message import Message
from redelivery.errors import Fatal
from redelivery.receiving.leases import LeasedMessage
from redelivery.telemetry.handling import HandlingObserver


class Workers:
    """A fixed number of threads that run one handler.

    Args:
        handler: called with each message; `CoroutineWorkers` run one that is a coroutine function.
        count: how many at a time.
        name: of the threads.
        observer: records each run of the handler.
    """

    def __init__(
        self,
        handler: Callable[[Message], object],
        count: int,
        name: str,
        clock: Clock,
        observer: HandlingObserver | None = None,
    ) -> None:
        self._observer = observer
        self.count = count
        self._handler = handler
        self._name = name
        self._clock = clock
        self._pid = os.getpid()
        self._threads = 0
        self._lock = threading.Lock()
        self._stopped = False
        self.overrun = 0
        self._todo: queue.SimpleQueue[LeasedMessage | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[LeasedMessage, BaseException | None]] = queue.SimpleQueue()
        for _ in range(count):
            self.start_worker()

    @property
    def have_work(self) -> bool:
        """Whether a message waits for a thread."""
        return not self._todo.empty()

    def submit(self, leased: LeasedMessage) -> None:
        """Have a message handled as soon as a thread is free."""
        self._todo.put(leased)

    def results(self, wait: float = 0.0) -> list[tuple[LeasedMessage, BaseException | None]]:
        """Return the new results of handlers, waiting up to `wait` seconds for the first of them."""
        said = []
        try:
            said.append(self._done.get(timeout=wait) if wait > 0 else self._done.get_nowait())
            while True:
                said.append(self._done.get_nowait())
        except queue.Empty:
            return said

    def recall(self) -> list[LeasedMessage]:
        """Take back the messages whose handlers have not begun, and return them."""
        recalled = []
        try:
            while True:
                if (leased := self._todo.get_nowait()) is not None:
                    recalled.append(leased)
        except queue.Empty:
            return recalled

    def drop(self) -> None:
        """Start no more handlers."""
        with self._lock:
            self._stopped = True
        self.recall()

    def replace(self, leased: LeasedMessage) -> bool:
        """Add a thread in place of one whose handler has overrun its time; that one ends when its handler returns.

        Returns:
            False: the handler has returned just now, and its result counts.
        """
        with self._lock:
            if leased.ended:
                return False
            leased.overran = True
            self.overrun += 1
        self.start_worker()
        return True

    def start_worker(self) -> None:
        """Add a thread."""
        self._threads += 1
        threading.Thread(target=self._work, name=f"redelivery-{self._name}", daemon=True).start()

    def dismiss(self) -> None:
        """Let every thread end when it is free. Does not wait: a handler may never return."""
        self.drop()
        for _ in range(self._threads):
            self._todo.put(None)

    def _begins(self, leased: LeasedMessage) -> bool:
        """Note that a handler begins; return False where it must not any more."""
        with self._lock:
            if leased.decided or self._stopped:
                return False
            leased.began = self._clock.monotonic()
            return True

    def _ended(self, leased: LeasedMessage, said: BaseException | None) -> bool:
        """Tell the result of a handler; return whether its worker goes on: another has replaced one that overran."""
        with self._lock:
            leased.ended = True
            self.overrun -= leased.overran
            self._threads -= leased.overran
        overran = leased.overran  # the message may be handled again as soon as its result is known
        self._done.put((leased, said))
        return not overran

    def _work(self) -> None:
        while (leased := self._todo.get()) is not None:
            if not self._begins(leased):
                continue
            said: BaseException | None = None
            try:
                if self._observer is None:
                    self._run(leased.received.message)
                else:
                    with self._observer.process(leased.received, leased):
                        self._run(leased.received.message)
            except BaseException as error:  # noqa: BLE001 - told to the loop, which decides what follows
                said = error
            if os.getpid() != self._pid:  # a handler that forked returns twice; only the parent settles
                os._exit(0 if said is None else 1)
            if not self._ended(leased, said):
                return

    def _run(self, message: Message) -> None:
        refuse_awaitable(self._handler(message), "pass the `async def` function itself")


def refuse_awaitable(returned: object, hint: str) -> None:
    """Refuse a returned value that the handler should have awaited. Raises Fatal."""
    if returned is None or not inspect.isawaitable(returned):
        return
    if inspect.iscoroutine(returned):
        returned.close()
    raise Fatal(f"the handler returned an awaitable, so nothing was done; {hint}", code=Code.MISCONFIGURED)
