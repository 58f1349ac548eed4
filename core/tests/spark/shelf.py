"""A broker for tests: messages on a shelf, that is, pickled into a folder that all worker processes share.

`shelf:///folder?queue=name` can all that Spark can use. `tray:` can neither split nor stream its letters. `crate:` has
no keys, headers, destinations or null values, and is one host's. A queue `missing` is not there, one `asleep` is not
reached, one `unlocked` is insecure, and a password other than `open` is refused.
Except in `-dead-letters` and `-sink`, what a value begins with decides what happens to it:
`permanent` (so does a key), `fatal`, `flaky` (fails once).
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
    LetterBatch,
    Sender,
    Settled,
    Support,
    Wanted,
)
from redelivery.contract.hooks import hookimpl
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, Fatal, InvalidURL, Permanent, Retriable

Y = Support.NATIVE
SHELF = Capabilities(
    send=Y,
    browse=Y,
    dead_letter=Y,
    splits=Y,
    cursors=Y,
    keys=Y,
    headers=Y,
    ids=Y,
    timestamps=Y,
    null_value=Y,
    destinations=Y,
    columns={"row": int, "label": str},
)
#: As a broker that neither splits its letters nor reads them again from a point.
TRAY = replace(SHELF, splits=Support.NONE, cursors=Support.NONE)
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
        if value.startswith(b"permanent") or message.key == b"permanent":
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
    """A letter is named by its place on the shelf; one whose place is noted in the file `removed` is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def browse(self) -> Iterator[Letter]:
        note = self._folder / "removed"
        removed = note.read_text().split() if note.exists() else []
        for index, message in enumerate(stored(self._folder)):
            if str(index) not in removed:
                yield Letter(position=str(index), message=message, dead_lettered_ms=1_000)

    def splits(self, wanted: Wanted) -> Sequence[str]:
        if self._folder.name.startswith("asleep"):
            raise Retriable("the shelf is asleep", code=Code.UNAVAILABLE)
        start, end = int(wanted.after or 0), int(wanted.before or len(stored(self._folder)))
        size = -(-(end - start) // wanted.readers) or 1
        return [f"{each}-{min(each + size, end)}" for each in range(start, end, size)]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        start, end = map(int, split.split("-"))
        for letter in self.browse():
            if start <= int(letter.position) < end:
                message = letter.message if wanted.wants("value") else replace(letter.message, value=None)
                yield LetterBatch.of([replace(letter, message=message)])

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        end = len(stored(self._folder))
        if int(after or 0) > end:
            raise Fatal("these letters are of another shelf; begin a new query", code=Code.CONFLICT)
        return str(end if most is None else min(end, int(after or 0) + most))

    def remove(self, positions: Sequence[str]) -> int:
        raise NotImplementedError

    def purge(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        pass


class TrayDeadLetters(ShelfDeadLetters):
    splits = DeadLetters.splits
    read = DeadLetters.read
    cursor = DeadLetters.cursor


class ShelfBroker(Broker):
    def __init__(self, scheme: str, url: str, options: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if not parts.path:
            raise InvalidURL(f"{scheme}: the URL needs a folder, as in '{scheme}:///folder?queue=name'")
        self.name = scheme
        self.capabilities = {"shelf": SHELF, "tray": TRAY, "crate": CRATE}[scheme]
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
        kind = ShelfDeadLetters if self.name == "shelf" else TrayDeadLetters
        return kind(self._root / (self._queue if own else f"{self._queue}-dead-letters"))

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


class Tray:
    @staticmethod
    @hookimpl
    def redelivery_plugin() -> BrokerPlugin:
        return _plugin("tray", TRAY)


class Crate:
    @staticmethod
    @hookimpl
    def redelivery_plugin() -> BrokerPlugin:
        return _plugin("crate", CRATE)
