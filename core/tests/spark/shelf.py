"""A broker for tests: messages on a shelf, that is, pickled into a folder that all worker processes share.

`shelf:///folder?queue=name` can all that Spark can use; `crate:` has no keys, headers, destinations or null values, and
is one host's. A queue `missing` is not there, one `asleep` is not reached, one `unlocked` is insecure, and a password
other than `open` is refused.
Except in `-dead-letters` and `-sink`, what a value begins with decides what happens to it:
`permanent`, `fatal`, `flaky` (fails once).
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from redelivery.codes import Code
from redelivery.contract.broker import (
    Broker,
    BrokerPlugin,
    Capabilities,
    DeadLetters,
    Failure,
    Letter,
    Sender,
    Settled,
    Support,
)
from redelivery.contract.hooks import hookimpl
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, Fatal, InvalidURL, Permanent, Retriable

Y = Support.NATIVE
SHELF = Capabilities(
    send=Y,
    browse=Y,
    dead_letter=Y,
    keys=Y,
    headers=Y,
    ids=Y,
    timestamps=Y,
    null_value=Y,
    destinations=Y,
    columns={"row": int, "label": str},
)
CRATE = Capabilities(send=Y, ids=Y, networked=False, cloudevents_prefix=None)


class ShelfSender(Sender):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settled: list[Settled] = []

    def check(self, *, deadline: float) -> None:
        error = self._of_place()
        if error is not None:
            raise error

    def _of_place(self) -> BrokerError | None:
        if self._folder.name == "missing":
            return Fatal("the shelf has no queue 'missing'; make it, or correct the URL", code=Code.NO_SUCH_DESTINATION)
        if self._folder.name == "asleep":
            return Retriable("the shelf is asleep", code=Code.UNAVAILABLE)
        return None

    def send(self, batch: Batch, *, deadline: float) -> None:
        error = self._of_place()
        if error is not None:
            raise error
        failures: list[Failure] = []
        stored: list[Message] = []
        for index, message in enumerate(batch.rows()):
            error = self._error(message)
            if error is None:
                stored.append(message)
            else:
                failures.append(Failure(index, error))
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.time_ns()}-{os.getpid()}-{uuid.uuid4().hex}"
        (self._folder / f"{name}.part").write_bytes(pickle.dumps(stored))
        (self._folder / f"{name}.part").rename(self._folder / f"{name}.pickle")
        self._settled.append(Settled(batch=batch.number, failures=failures))

    def _error(self, message: Message) -> BrokerError | None:
        value = message.value or b""
        if self._folder.name.endswith(("-dead-letters", "-sink")):
            return None
        if value.startswith(b"permanent"):
            return Permanent("the shelf refuses this", code=Code.REJECTED, native_code="REFUSED")
        if value.startswith(b"large"):
            return Permanent("the shelf has no room so wide", code=Code.TOO_LARGE)
        if value.startswith(b"fatal"):
            return Fatal("the shelf has fallen down", code=Code.CONNECTION_LOST)
        if value.startswith(b"flaky"):
            mark = self._folder.parent / f"tried-{value.hex()[:100]}"
            if not mark.exists():
                mark.touch()
                return Retriable("the shelf shakes", code=Code.UNAVAILABLE)
        return None

    def collect(self, wait: float) -> Sequence[Settled]:
        settled, self._settled = self._settled, []
        return settled

    def close(self) -> None:
        pass


class ShelfDeadLetters(DeadLetters):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def browse(self) -> Iterator[Letter]:
        for index, message in enumerate(stored(self._folder)):
            yield Letter(position=str(index), message=message, dead_lettered_ms=1_000)

    def remove(self, positions: Sequence[str]) -> int:
        raise NotImplementedError

    def purge(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass


class ShelfBroker(Broker):
    def __init__(self, scheme: str, url: str, options: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if not parts.path:
            raise InvalidURL(f"{scheme}: the URL needs a folder, as in '{scheme}:///folder?queue=name'")
        self.name = scheme
        self.capabilities = SHELF if scheme == "shelf" else CRATE
        self._base = f"{scheme}://{parts.path}"
        self._root = Path(parts.path)
        self._password = options.get("password", "open")
        self._queue = parse_qs(parts.query).get("queue", ["default"])[0]
        self.insecure = ("anybody can take from it; lock it",) if self._queue == "unlocked" else ()

    def sender(self) -> Sender:
        if self._password != "open":  # noqa: S105 - of a lock that is none
            raise Fatal("the lock does not take this password; correct shelf.password", code=Code.NOT_AUTHENTICATED)
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / "opened").open("a") as log:
            log.write(f"{os.getpid()} {id(self)}\n")
        return ShelfSender(self._root / self._queue)

    def native_sink(self) -> str:
        return f"{self._base}?queue={self._queue}-dead-letters"

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        own = direct or self._queue.endswith("-dead-letters")
        return ShelfDeadLetters(self._root / (self._queue if own else f"{self._queue}-dead-letters"))

    def close(self) -> None:
        pass


def stored(folder: Path) -> list[Message]:
    """What lies in a queue, in the order in which it came."""
    return [m for path in sorted(folder.glob("*.pickle")) for m in pickle.loads(path.read_bytes())]  # noqa: S301 - our own


def _plugin(scheme: str, capabilities: Capabilities) -> BrokerPlugin:
    def connect(url: str, options: Mapping[str, str]) -> Broker:
        return ShelfBroker(scheme, url, options)

    return BrokerPlugin(
        name=scheme,
        schemes=(scheme,),
        version="1",
        capabilities=capabilities,
        connect=connect,
        options={"maxWeight": "kilograms", "password": "of the lock"},
    )


class Shelf:
    @staticmethod
    @hookimpl
    def redelivery_plugin() -> BrokerPlugin:
        return _plugin("shelf", SHELF)


class Crate:
    @staticmethod
    @hookimpl
    def redelivery_plugin() -> BrokerPlugin:
        return _plugin("crate", CRATE)
