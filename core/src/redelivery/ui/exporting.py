"""An export: letters as JSON Lines, read in a thread and sent as the browser takes them, so that memory is bounded."""

from __future__ import annotations

import asyncio
import json
import math
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, cast

from redelivery.base.rendering import text_of
from redelivery.contract.broker import LetterBatch
from redelivery.contract.message import Message
from redelivery.deadletters.export import as_json
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.trust import context_of
from redelivery.errors import RedeliveryError
from redelivery.ui.reading import Letters
from redelivery.ui.showing import Mask

#: Pieces that wait for the browser, and bytes of a piece.
_WAITING: Final = 8
_PIECE: Final = 256 * 1024
_NAP: Final = 0.5

Read = Callable[[Callable[[Letters], Any]], Any]


class Export:
    """Letters on their way to a file of the operator.

    Args:
        read: calls a function with the letters of a place.
        where: which letters.
        mask: hides parts of them.
    """

    def __init__(self, read: Read, where: Selection, mask: Mask) -> None:
        self._read = read
        self._where = where
        self._mask = mask
        self._pieces: queue.Queue[bytes | BaseException | None] = queue.Queue(_WAITING)
        self._over = threading.Event()
        threading.Thread(target=self._run, name="redelivery-export", daemon=True).start()

    async def first(self, seconds: float) -> bytes | None:
        """Return the first piece; None: no letter.

        Args:
            seconds: to wait for it. Where the first letter takes longer to find, the piece is empty, and others follow.

        Raises:
            RedeliveryError: it cannot be read at all.
        """
        return await self._next(seconds)

    def end(self) -> None:
        """End it: the reader wants no more."""
        self._over.set()

    async def rest(self, first: bytes | None) -> AsyncIterator[bytes]:
        """Return all pieces. Raises where reading fails: the file is then cut, and the browser says so."""
        try:
            piece = first
            while piece is not None:
                yield piece
                piece = await self._next()
        finally:
            self.end()

    async def _next(self, seconds: float = math.inf) -> bytes | None:
        try:
            found = await asyncio.to_thread(self._wait, time.monotonic() + seconds)
        except asyncio.CancelledError:  # the page ends, and would wait for this thread
            self.end()
            raise
        if isinstance(found, BaseException):
            raise found
        return found

    def _wait(self, ends: float) -> bytes | BaseException | None:
        while not self._over.is_set():
            if time.monotonic() > ends:
                return b""
            try:
                return self._pieces.get(timeout=_NAP)
            except queue.Empty:
                continue
        return None

    def _put(self, piece: bytes | BaseException | None) -> bool:
        while not self._over.is_set():
            try:
                self._pieces.put(piece, timeout=_NAP)
            except queue.Full:
                continue
            return True
        return False

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            self._read(self._send)
        except RedeliveryError as error:
            end = error
        except Exception as error:  # noqa: BLE001 - raised where the answer is made
            end = error
        self._put(end)

    def _send(self, letters: Letters) -> None:
        found = cast("Generator[LetterBatch, None, None]", letters.scan(lambda batch: batch, self._where))
        with closing(found):
            for batch in found:
                if not self._batch(batch):
                    return

    def _batch(self, batch: LetterBatch) -> bool:
        """Send a batch; return False where the reader wants no more."""
        piece: list[bytes] = []
        size = 0
        for index in range(len(batch)):
            letter = batch.letter(index)
            whole = replace(letter, context=context_of(letter))
            if self._mask:
                whole = replace(whole, message=self._masked_message(whole.message))
            said = as_json(whole)
            piece.append(json.dumps(self._masked(said) if self._mask else said).encode() + b"\n")
            size += len(piece[-1])
            if size >= _PIECE:
                if not self._put(b"".join(piece)):
                    return False
                piece, size = [], 0
        return not piece or self._put(b"".join(piece))

    def _masked_message(self, message: Message) -> Message:
        headers = tuple((name, self._masked_bytes(value)) for name, value in message.headers)
        return replace(
            message, value=self._masked_bytes(message.value), key=self._masked_bytes(message.key), headers=headers
        )

    def _masked_bytes(self, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        text = text_of(value, cut=False)
        return self._mask.of_bytes(value) if text is None else self._mask(text).encode()

    def _masked(self, said: Any) -> Any:
        if isinstance(said, str):
            return self._mask(said)
        if isinstance(said, dict):
            return {self._mask(str(name)): self._masked(each) for name, each in said.items()}
        return [self._masked(each) for each in said] if isinstance(said, list) else said
