"""A dead letter sink as a wrapper around any sender: it stores the messages that the sender could not send.

If a message is stored, the caller gets a success: the file is responsible for it now. If not, the caller gets the
primary error, with the sink's error as a note. The wrapper stores every message that the inner sender fails to send, so
wrap a sender that has done its retries.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError
from redelivery.kit.errors import redact
from redelivery_file import codec
from redelivery_file.client.folder import Folder
from redelivery_file.errors import TABLE

#: The variable that names the folder. No sink is used if it is unset or empty, or the folder cannot be written to.
VARIABLE = "REDELIVERY_DLQ_DIR"
logger = logging.getLogger("redelivery.file")


def from_env(sender: Sender) -> Sender:
    """Wrap a sender with the dead letter folder of `REDELIVERY_DLQ_DIR`. The variable is read once, here.

    Returns:
        The same sender if the variable is unset or empty, or (with a warning) if its folder cannot be used.
    """
    name = os.environ.get(VARIABLE, "")
    if not name:
        return sender
    try:
        folder = Folder(Path(name))
        try:
            folder.probe()
        except OSError:
            folder.close()
            raise
    except (OSError, ValueError) as error:
        logger.warning("%s=%r cannot be used, so there is no dead letter folder: %s", VARIABLE, name, error)
        return sender
    return WithDeadLetterFolder(sender, folder)


class WithDeadLetterFolder(Sender):
    """Sends with another sender, and writes messages that fail into a folder."""

    def __init__(self, sender: Sender, folder: Folder) -> None:
        self._sender = sender
        self._folder = folder
        self._in_flight: dict[int, Batch] = {}
        self._settled: list[Settled] = []

    def send(self, batch: Batch, *, deadline: float) -> None:
        try:
            self._sender.send(batch, deadline=deadline)
        except Exception as error:
            unwritten = self._keep(batch, ((index, error) for index in range(batch.length)))
            if len(unwritten) == batch.length or (unwritten and not isinstance(error, BrokerError)):
                raise
            failures = [Failure(index, error) for index in unwritten if isinstance(error, BrokerError)]
            self._settled.append(Settled(batch=batch.number, failures=failures))
        else:
            self._in_flight[batch.number] = batch

    def collect(self, wait: float) -> Sequence[Settled]:
        settled, self._settled = self._settled, []
        settled += [self._kept(each) for each in self._sender.collect(0 if settled else wait)]
        return settled

    def close(self) -> None:
        self._folder.close()
        self._sender.close()

    def _kept(self, settled: Settled) -> Settled:
        batch = self._in_flight.pop(settled.batch, None)
        if batch is None or not (settled.failures or settled.error):
            return settled
        failed: dict[int, BrokerError] = {}
        if settled.error is not None:
            failed = dict.fromkeys(range(batch.length), settled.error)
        failed |= {failure.index: failure.error for failure in settled.failures}
        unwritten = self._keep(batch, failed.items())
        failures = [Failure(index, failed[index]) for index in unwritten]
        return Settled(batch=settled.batch, failures=failures, duplicates=settled.duplicates)

    def _keep(self, batch: Batch, failed: Iterable[tuple[int, Exception]]) -> list[int]:
        """Write these rows; return the indexes of those that failed, and add a note to their errors."""
        written: list[tuple[int, str, Exception]] = []
        unwritten: list[int] = []
        for index, primary in failed:
            event_id = batch.row(index).id or ""
            try:
                event_id, line = codec.encode(batch.row(index), error=redact(str(primary)))
                self._folder.write(event_id, line)
            except Exception as error:  # noqa: BLE001 - on any failure to write, the primary error comes first
                unwritten.append(index)
                self._tell(event_id, primary, error)
            else:
                written.append((index, event_id, primary))
        try:
            if written:
                self._folder.sync()
        except OSError as error:
            for index, event_id, primary in written:
                unwritten.append(index)
                self._tell(event_id, primary, error)
        else:
            for _, event_id, primary in written:
                logger.warning("event %s: %s; written to %s", event_id, redact(str(primary)), self._folder.path)
        return sorted(unwritten)

    def _tell(self, event_id: str, primary: Exception, error: Exception) -> None:
        shown = TABLE.error(error, f"writing into {str(self._folder.path)!r}") if isinstance(error, OSError) else error
        note = f"the dead letter folder failed too: {shown}"
        if note not in getattr(primary, "__notes__", ()):
            primary.add_note(note)
        logger.warning("event %s: %s; %s", event_id, redact(str(primary)), note)
