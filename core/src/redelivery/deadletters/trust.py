"""Which claims of a letter are believed: why it was dead-lettered, and which target it names.

Anyone who can write a letter can write its headers.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from redelivery.contract.broker import Capabilities, Letter, LetterBatch
from redelivery.contract.context import DEFAULTS, ErrorContext
from redelivery.formats import dialects

#: The kind of a letter that none of the reader's keys has signed.
UNSIGNED: Final = "unsigned"
#: The column of a row that says where it goes, at any broker.
_DESTINATION: Final = "destination"


def context_of(letter: Letter) -> ErrorContext:
    """Return why a letter was dead-lettered: from its headers, and from what only its broker knows.

    The headers of a letter that none of the reader's keys has signed do not count. Where the broker itself gave the
    message up, its report counts more than any header: a header may be forged.
    """
    native = letter.context
    if letter.signed is False:
        return native or ErrorContext(kind=UNSIGNED, reason="no key that was given has signed what its headers say")
    written = dialects.read(letter.message)
    if written is None or native is None:
        return written or native or ErrorContext()
    empty = ErrorContext()
    own_word = native.kind not in {"", "terminated", written.kind}
    first, second = (native, written) if own_word else (written, native)
    unsaid = [each.name for each in fields(ErrorContext) if getattr(first, each.name) == getattr(empty, each.name)]
    return replace(first, **{name: getattr(second, name) for name in unsaid})


def contexts_of(letters: LetterBatch, names: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Return fields of `context_of` each letter, by name, one value per letter.

    Args:
        letters: as stored.
        names: of the fields; None: all fields of `ErrorContext`.
    """
    signed = [None] * len(letters) if letters.signed is None else letters.signed.values
    single = [row for row, each in enumerate(signed) if each is False or row in letters.contexts]
    if not single:
        return dialects.read_all(letters.messages, names)
    columns = {name: [value] * len(letters) for name, value in DEFAULTS.items() if names is None or name in names}
    others = sorted(set(range(len(letters))).difference(single))
    for name, values in dialects.read_all(letters.messages.take(others), names).items() if others else ():
        for row, value in zip(others, values, strict=True):
            columns[name][row] = value
    for row in single:
        context = context_of(letters.letter(row))
        for name, column in columns.items():
            column[row] = getattr(context, name)
    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Which targets of letters are followed, by a redrive and by a row that is read to be written again.

    A header never chooses where a message goes, unless one of the reader's keys has signed it. A target is a place
    other than the destination itself: a letter's own destination, and each of the broker's text columns that route
    (`Capabilities.routes`), written `column=value`.

    Attributes:
        allowed: names, or patterns as in a shell (`orders-*`).
        is_own: whether a destination of this name is the redrive's own.
        none: targets are not followed, and hold no letter back: the operator has named the destination.
    """

    allowed: tuple[str, ...] = ()
    is_own: Callable[[str], bool] = lambda _name: False
    none: bool = False

    def of(self, letter: Letter, there: Capabilities, context: ErrorContext | None = None) -> str | None:
        """Return the targets of a letter that count, as one text; None where it has none.

        Args:
            letter: as stored.
            there: the destination's capabilities.
            context: `context_of` the letter, where the caller has it.
        """
        return ", ".join(_written(*each) for each in self._named(letter, there, context).items()) or None

    def refused(self, letter: Letter, there: Capabilities, context: ErrorContext | None = None) -> str | None:
        """Return a target of a letter that may not be followed; None where no such target exists. Arguments as `of`."""
        named = self._named(letter, there, context).items()
        signed = _signed_targets(letter) if named else set()
        return next((_written(*each) for each in named if each not in signed and not self._admits(*each)), None)

    def columns(
        self, letter: Letter, there: Capabilities, context: ErrorContext | None = None
    ) -> dict[str, str | None]:
        """Return the targets of a letter by the row's column they belong to; one that is not allowed is None."""
        named = self._named(letter, there, context).items()
        signed = _signed_targets(letter)
        unsaid = dict.fromkeys((_DESTINATION, *_text_routes(there)))
        return unsaid | {
            column: name if (column, name) in signed or self._admits(column, name) else None for column, name in named
        }

    def _named(self, letter: Letter, there: Capabilities, context: ErrorContext | None = None) -> dict[str, str]:
        if self.none:
            return {}
        context = context or context_of(letter)
        name = letter.message.destination or context.target
        named = {} if not name or self.is_own(name) else {_DESTINATION: name}
        return named | _routed(letter, there, context)

    def _admits(self, column: str, name: str) -> bool:
        return any(fnmatch.fnmatchcase(_written(column, name), pattern) for pattern in self.allowed)


def _signed_targets(letter: Letter) -> set[tuple[str, str]]:
    """Return the targets that one of the reader's keys has signed: holders of a key may choose where a message goes."""
    context = dialects.read(letter.message) if letter.signed else None
    if context is None:
        return set()
    return {*context.extra.items()} | ({(_DESTINATION, context.target)} if context.target else set())


def _written(column: str, name: str) -> str:
    """Return a target as people write it."""
    return name if column == _DESTINATION else f"{column}={name}"


def _routed(letter: Letter, there: Capabilities, context: ErrorContext) -> dict[str, str]:
    """Return the broker's text columns of a letter that route it, wherever they were stored."""
    given = {**context.extra, **letter.message.extra}
    return {name: str(given[name]) for name in _text_routes(there) if given.get(name) not in {None, ""}}


def _text_routes(there: Capabilities) -> list[str]:
    return sorted(name for name in there.routes if there.columns.get(name) is str)
