"""The roles of a dead letter folder: sender, dead letters, admin.

This file must not know how a letter is written (`letter.py`) nor how a file is put in place (`folder.py`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from redelivery.contract.broker import (
    Admin,
    DeadLetters,
    Difference,
    Failure,
    Letter,
    NativeObject,
    Plan,
    Sender,
    Settled,
)
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, DeliveryStatus
from redelivery.errors import BrokerError, ConfigurationError, Fatal, Permanent, Retriable
from redelivery_file import letter
from redelivery_file.errors import classify, classify_unconfirmed
from redelivery_file.folder import Folder, is_letter

logger = logging.getLogger("redelivery.file")


def open_folder(path: Path) -> Folder:
    """The folder, opened.

    Raises:
        BrokerError
    """
    try:
        return Folder(path)
    except OSError as error:
        raise classify(error, f"opening the folder {str(path)!r}") from error


class FileSender(Sender):
    """Writes one file a message."""

    def __init__(self, path: Path, *, context: bool) -> None:
        self._folder = open_folder(path)
        self._context = context
        self._doing = f"writing a letter into {str(path)!r}"
        self._settled: list[Settled] = []
        try:
            self._folder.probe()
        except OSError as error:
            self._folder.close()
            raise classify(error, f"trying the folder {str(path)!r}") from error

    def send(self, batch: Batch, *, deadline: float) -> None:
        failures: list[Failure] = []
        stop: BrokerError | None = None
        for index, message in enumerate(batch.rows()):
            if stop is None and time.monotonic() >= deadline:
                stop = Retriable(
                    f"file: {self._doing}: the deadline passed; it was not written", native_code="deadline"
                )
            error = stop or self._write(message)
            if error is not None:
                failures.append(Failure(index, error))
                stop = error if isinstance(error, Fatal) else stop
        if len(failures) < batch.length:
            failures += self._sync({failure.index for failure in failures}, batch.length)
        self._settled.append(Settled(batch=batch.number, failures=failures))

    def collect(self, wait: float) -> Sequence[Settled]:  # noqa: ARG002 - nothing is ever waited for
        settled, self._settled = self._settled, []
        return settled

    def close(self) -> None:
        self._folder.close()

    def _write(self, message: Message) -> BrokerError | None:
        if message.destination is not None:
            text = f"file: {self._doing}: the row names the destination {message.destination!r}, but a folder has none"
            return Permanent(text, native_code="DESTINATION")
        try:
            event_id, line = letter.write(message, context=self._context)
            self._folder.write(event_id, line)
        except OSError as error:
            found = classify(error, self._doing)
            found.__cause__ = error
            return found
        except Permanent as error:
            return error
        return None

    def _sync(self, failed: set[int], length: int) -> list[Failure]:
        try:
            self._folder.sync()
        except OSError as error:
            found = classify_unconfirmed(error, self._doing)
            found.__cause__ = error
            return [Failure(index, found) for index in range(length) if index not in failed]
        return []


class FileDeadLetters(DeadLetters):
    """The letters in a folder. What is no letter is left alone, with a warning."""

    def __init__(self, path: Path) -> None:
        self._folder = open_folder(path)

    def browse(self) -> Iterator[Letter]:
        for name in self._names():
            try:
                message, context = letter.read(self._folder.read(name))
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                raise classify(error, f"reading the letter {name!r} in {str(self._folder.path)!r}") from error
            except (ValueError, RecursionError) as error:
                logger.warning("%s: left out, it is torn or no letter of ours: %s", self._folder.path / name, error)
                continue
            dead_ms = int(name.partition("-")[0])
            yield Letter(position=name, message=message, context=context, dead_lettered_ms=dead_ms)

    def remove(self, positions: Sequence[str]) -> int:
        for name in positions:
            if not is_letter(name):
                raise ConfigurationError(f"file: not a position in this folder: {name!r}; it is a letter's file name")
        return self._remove(iter(positions))

    def purge(self) -> int:
        return self._remove(self._names())

    def close(self) -> None:
        self._folder.close()

    def _names(self) -> Iterator[str]:
        try:
            for name in self._folder.names():
                if is_letter(name):
                    yield name
                else:
                    logger.warning("%s: left alone, it is not named as a letter", self._folder.path / name)
        except OSError as error:
            raise classify(error, f"reading the folder {str(self._folder.path)!r}") from error

    def _remove(self, names: Iterator[str]) -> int:
        try:
            count = sum(self._folder.remove(name) for name in names)
            self._folder.sync()
        except OSError as error:
            raise classify(error, f"removing letters from {str(self._folder.path)!r}") from error
        return count


class FileAdmin(Admin):
    """Makes the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def plan(self, spec: DeliverySpec) -> Plan:  # noqa: ARG002 - a folder has no part of a spec
        try:
            is_folder = self._path.is_dir()
        except OSError as error:
            raise classify(error, f"looking for the folder {str(self._path)!r}") from error
        action: Literal["create", "keep", "differs"] = "keep" if is_folder else "create"
        differences = []
        if action == "create" and os.path.lexists(self._path):
            action = "differs"
            differences = [Difference("kind", "folder", "another kind of file")]
        item = NativeObject(kind="folder", name=str(self._path), action=action, differences=differences)
        return Plan(objects=[item], status=DeliveryStatus())

    def provision(self, spec: DeliverySpec) -> DeliveryStatus:  # noqa: ARG002 - a folder has no part of a spec
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise Fatal(
                f"file: {str(self._path)!r} exists, but its kind is not folder: correct the URL",
                native_code="EEXIST",
            ) from error
        except OSError as error:
            raise classify(error, f"making the folder {str(self._path)!r}") from error
        return DeliveryStatus()

    def depth(self) -> int:
        folder = open_folder(self._path)
        try:
            return sum(1 for name in folder.names() if is_letter(name))
        except OSError as error:
            raise classify(error, f"reading the folder {str(self._path)!r}") from error
        finally:
            folder.close()

    def close(self) -> None:
        """Nothing is held."""
