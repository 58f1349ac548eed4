"""The dead letters role: the letters in a folder. It warns of other files and leaves them alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from redelivery.contract.broker import DeadLetters, Letter
from redelivery.errors import ConfigurationError
from redelivery.kit.roles import Resource
from redelivery_file import codec
from redelivery_file.address import Address
from redelivery_file.client.folder import is_letter, open_folder
from redelivery_file.errors import TABLE

logger = logging.getLogger("redelivery.file")


class FileDeadLetters(Resource, DeadLetters):
    """The letters in the folder of `address`."""

    def __init__(self, address: Address) -> None:
        super().__init__("file", address.place)
        self._folder = open_folder(address)

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        for name in self._names():
            try:
                with TABLE.while_doing(f"reading the letter {name!r} in {str(self._folder.path)!r}"):
                    data = self._read(name)
                if data is None:
                    continue  # removed since
                message, context = codec.decode(data)
            except (ValueError, RecursionError) as error:
                logger.warning("%s: left out, it is torn or no letter of ours: %s", self._folder.path / name, error)
                continue
            dead_ms = int(name.partition("-")[0])
            yield Letter(position=name, message=message, context=context, dead_lettered_ms=dead_ms)

    def remove(self, positions: Sequence[str]) -> int:
        self.check_open("removing letters from")
        for name in positions:
            if not is_letter(name):
                raise ConfigurationError(f"file: not a position in this folder: {name!r}; it is a letter's file name")
        return self._remove(iter(positions))

    def purge(self) -> int:
        self.check_open("removing letters from")
        return self._remove(self._names())

    def _release(self) -> None:
        self._folder.close()

    def _read(self, name: str) -> bytes | None:
        try:
            return self._folder.read(name)
        except FileNotFoundError:
            return None

    def _names(self) -> Iterator[str]:
        with TABLE.while_doing(self.doing("reading")):
            for name in self._folder.names():
                if is_letter(name):
                    yield name
                else:
                    logger.warning("%s: left alone, it is not named as a letter", self._folder.path / name)

    def _remove(self, names: Iterator[str]) -> int:
        with TABLE.while_doing(self.doing("removing letters from")):
            count = sum(self._folder.remove(name) for name in names)
            self._folder.sync()
        return count
