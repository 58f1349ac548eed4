"""Keys of letters: which letters of a queue were signed with one of them.

`dialects/` makes the signatures. A delivery spec's `letterKey`, and an option of readers, gives the reference of a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from redelivery.base.secrets import is_reference, resolve_secret
from redelivery.contract.broker import DeadLetters, Letter, LetterBatch, Wanted
from redelivery.contract.message import Column
from redelivery.errors import ConfigurationError
from redelivery.formats import dialects

#: A shorter key can be guessed.
SHORTEST: Final = 16


@lru_cache(maxsize=64)
def key(reference: str) -> bytes:
    """Return the key behind a reference, read once per process.

    Raises:
        MissingSecret: it is not on this machine.
        ConfigurationError: it is not a reference, is too short, or this deployment does not allow it.
    """
    _check(reference)
    found = resolve_secret(reference).encode()
    if len(found) < SHORTEST:
        raise ConfigurationError(f"letterKey: the key {reference!r} has fewer than {SHORTEST} bytes; make a longer one")
    return found


def references(text: str | None) -> tuple[str, ...]:
    """Split references separated by commas, as readers give them. Raises ConfigurationError; no value is shown."""
    found = tuple(each.strip() for each in (text or "").split(",") if each.strip())
    for each in found:
        _check(each)
    return found


def _check(reference: str) -> None:
    if not is_reference(reference):
        raise ConfigurationError("letterKey: write references, as in 'env:NAME' or 'file:PATH', and never a key itself")


class Verified(DeadLetters):
    """The letters of a queue, each marked by whether one of these keys has signed it.

    Args:
        letters: the queue.
        keys: as `key` returns them; without keys, letters are not marked.
    """

    def __init__(self, letters: DeadLetters, keys: Sequence[bytes]) -> None:
        self._letters = letters
        self._keys = keys

    def browse(self) -> Iterator[Letter]:
        for letter in self._letters.browse():
            yield replace(letter, signed=dialects.is_signed(letter.message, self._keys)) if self._keys else letter

    def splits(self, wanted: Wanted) -> Sequence[str]:
        return self._letters.splits(wanted)

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        # A signature covers value and key.
        for batch in self._letters.read(split, replace(wanted, columns=None) if self._keys else wanted):
            yield self._marked(batch) if self._keys else batch

    def _marked(self, batch: LetterBatch) -> LetterBatch:
        signed: Column[bool | None] = Column(len(batch), lambda: [*dialects.are_signed(batch.messages, self._keys)])
        return replace(batch, signed=signed)

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        return self._letters.cursor(after=after, most=most)

    def remove(self, positions: Sequence[str]) -> int:
        return self._letters.remove(positions)

    def purge(self) -> int:
        return self._letters.purge()

    def move_back(self, *, wait: float) -> int:
        return self._letters.move_back(wait=wait)

    def close(self) -> None:
        self._letters.close()
