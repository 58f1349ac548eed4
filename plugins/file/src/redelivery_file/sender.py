"""The sender role: `send` stores one file per message, or appends all messages of a batch to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.errors import Code
from redelivery.kit.in_flight import SettledBatches, time_left
from redelivery.kit.roles import Resource
from redelivery_file import codec
from redelivery_file.address import Address
from redelivery_file.client.folder import open_folder
from redelivery_file.client.lines import LinesWriter
from redelivery_file.errors import TABLE, unconfirmed
from redelivery_file.options import Settings

#: Files that are written between two looks at the deadline.
_SLICE: Final = 256


class FileSender(Resource, Sender):
    """Writes letters into the folder of `address`, which must exist."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("file", address.place)
        self._folder = open_folder(address)
        self._context = address.context
        self._lines = LinesWriter(self._folder, settings) if address.many else None
        self._doing = self.doing("writing letters into" if address.many else "writing a letter into")
        self._settled = SettledBatches()
        try:
            with TABLE.while_doing(self.doing("trying")):
                self._folder.probe()
        except BrokerError:
            self._folder.close()
            raise

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("writing a letter into")
        failures: dict[int, BrokerError] = {}
        letters: dict[int, tuple[str, bytes]] = {}
        for index, found in enumerate(codec.encode_all(batch, context=self._context)):
            if isinstance(found, Permanent):
                failures[index] = found
            else:
                letters[index] = found
        if batch.destination is not None:
            for index, name in enumerate(batch.destination.values):
                if name is not None:
                    letters.pop(index, None)
                    failures[index] = self._no_destination(name)
        failures |= self._store(letters, deadline) if self._lines is None else self._append(letters, deadline)
        self._settled.add(batch, failures)

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - it never waits
        return self._settled.take()

    def _release(self) -> None:
        if self._lines is not None:
            with suppress(OSError):  # every batch is settled
                self._lines.close()
        self._folder.close()

    def _no_destination(self, name: str) -> Permanent:
        text = f"file: {self._doing}: the row names the destination {name!r}, but a folder has none"
        return Permanent(text, code=Code.INVALID_DESTINATION)

    def _append(self, letters: Mapping[int, tuple[str, bytes]], deadline: float) -> dict[int, BrokerError]:
        """Append letters to a file of many; return why some were not stored."""
        if self._lines is None or not letters:
            return {}
        try:
            wait = time_left(deadline, f"file: {self._doing}")
            self._lines.write([line for _, line in letters.values()], wait)
        except OSError as error:
            return dict.fromkeys(letters, TABLE.error(error, self._doing))
        except Retriable as error:
            return dict.fromkeys(letters, error)
        try:
            self._lines.sync()
        except OSError as error:
            return dict.fromkeys(letters, unconfirmed(error, self._doing))
        return {}

    def _store(self, letters: Mapping[int, tuple[str, bytes]], deadline: float) -> dict[int, BrokerError]:
        """Store a file per letter; return why some were not stored."""
        failures: dict[int, BrokerError] = {}
        rest = list(letters)
        while rest:
            some, rest = rest[:_SLICE], rest[_SLICE:]
            try:
                wait = time_left(deadline, f"file: {self._doing}")
                stored = self._folder.store([letters[index] for index in some], wait)
            except (OSError, Retriable) as error:
                stop = TABLE.error(error, self._doing) if isinstance(error, OSError) else error
                failures |= dict.fromkeys(some + rest, stop)
                break
            found = {
                index: TABLE.error(each, self._doing)
                for index, each in zip(some, stored, strict=True)
                if isinstance(each, OSError)
            }
            failures |= found
            fatal = next((each for each in found.values() if isinstance(each, Fatal)), None)
            if fatal is not None:
                failures |= dict.fromkeys(rest, fatal)
                break
        if len(failures) < len(letters):
            try:
                self._folder.sync()
            except OSError as error:
                failures = {**dict.fromkeys(letters, unconfirmed(error, self._doing)), **failures}
        return failures
