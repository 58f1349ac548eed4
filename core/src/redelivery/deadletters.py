"""Dead letters of any broker: look at them, send them back, remove them.

Redrive sends a letter back, waits until the destination has confirmed it, and only then removes the letter: killed
between the two, it is in both places under one id, never in none. This file must not know any broker or dialect.
"""

from __future__ import annotations

import itertools
import random as random_module
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any, Final, Self

from redelivery import dialects, events
from redelivery.broker import Broker, DeadLetters, Letter
from redelivery.clock import SystemClock
from redelivery.context import ErrorContext
from redelivery.delivery.engine import Engine
from redelivery.delivery.lane import Bounds
from redelivery.delivery.opening import Borrow, Opening, connected
from redelivery.delivery.record import Origin
from redelivery.errors import ConfigurationError
from redelivery.message import Batch, Message
from redelivery.settings import redact
from redelivery.spec import DeliverySpec

#: Letters that are sent and then removed together.
_CHUNK: Final = 500
#: A letter that was sent back this often is not sent again unless told to.
HOP_LIMIT: Final = 5
#: Separates an id from the number of its hop.
HOP_MARK: Final = "~"
#: How a letter is sent back where nothing else is said.
_SPEC: Final = DeliverySpec(retry=3, tolerance="all", allow_skip=True, log_enable=False)
_ORIGIN: Final = Origin(run="redrive")


@dataclass(slots=True, kw_only=True)
class RedriveReport:
    """The account of a redrive. `considered == redriven + failed + sum(left.values())`.

    Attributes:
        considered: letters that the ids named, or all.
        redriven: confirmed at their destination.
        removed: of those, removed from the dead letter place; fewer only where somebody else was faster.
        failed: refused by the destination; they stay.
        left: letters that were not sent, by reason; they stay.
    """

    considered: int = 0
    redriven: int = 0
    removed: int = 0
    failed: int = 0
    left: dict[str, int] = field(default_factory=dict)

    def leave(self, why: str | None) -> bool:
        """Count a letter that is not sent; False where there is no reason for that."""
        if why is not None:
            self.left[why] = self.left.get(why, 0) + 1
        return why is not None


class LetterBox:
    """The dead letters of one destination. Use it as a context manager, or `close` it."""

    def __init__(self, opening: Opening, broker: Broker, letters: DeadLetters, *, direct: bool) -> None:
        self._opening = opening
        self._broker = broker
        self._letters = letters
        self._direct = direct

    def __iter__(self) -> Iterator[Letter]:
        """Oldest first, left in place, each with its whole context."""
        for letter in self._letters.browse():
            yield replace(letter, context=context_of(letter))

    def remove(self, ids: Collection[str]) -> int:
        """Remove letters by message id or position; returns how many."""
        positions = [letter.position for letter in self._letters.browse() if _is_named(letter, ids)]
        return self._letters.remove(positions)

    def purge(self) -> int:
        """Remove all; returns how many."""
        return self._letters.purge()

    def redrive(
        self,
        ids: Collection[str] | None = None,
        to: str | None = None,
        *,
        spec: DeliverySpec | None = None,
        hop_limit: int = HOP_LIMIT,
    ) -> RedriveReport:
        """Send letters back to work; each is removed once the destination has confirmed it.

        A letter starts again at attempt 1, under `<id>~<hop>`; its attempt total and hops survive, the error context
        that we wrote does not.

        Args:
            ids: message ids or positions; None: all that lie there now.
            to: another destination; None: where they failed.
            spec: how they are sent; a letter that fails for good stays where it is.
            hop_limit: letters sent back so often already are left.

        Raises:
            ConfigurationError: it is not clear where to, or that is the dead letter place itself.
            BrokerError: the destination or the place cannot be used; letters not removed are still there.
        """
        if to is None and self._direct:
            raise ConfigurationError("redrive: this is a sink named by its URL; say where its letters go, with `to`")
        if isinstance(ids, str):
            raise ConfigurationError(f"redrive: ids is a list of ids, not one text: write [{ids!r}]")
        report = RedriveReport()
        with ExitStack() as resources:
            opening = replace(self._opening, url=to or self._opening.url, spec=spec or _SPEC, resources=resources)
            if to is not None and to == self._place():
                raise ConfigurationError(f"redrive: {redact(to)} is the place that the letters are in")
            broker = opening.connect() if to is not None else self._broker
            lane = opening.destination(broker)
            columns = broker.capabilities.columns
            confirmed: list[int] = []
            engine = Engine(
                [lane], opening.spec, _ORIGIN, opening.clock, random_module.random, delivered=confirmed.extend
            )
            letters = (each for each in self._letters.browse() if ids is None or _is_named(each, ids))
            while chunk := list(itertools.islice(letters, _CHUNK)):
                report.considered += len(chunk)
                going = [letter for letter in chunk if not report.leave(why_left(letter, hop_limit))]
                if not going:
                    continue
                places = {engine.report.rows + n: letter.position for n, letter in enumerate(going)}
                engine.take(Batch.of([sent_back(letter, columns) for letter in going]))
                try:
                    engine.drain()
                finally:  # what is confirmed at work is removed, whatever becomes of its neighbours
                    report.redriven += len(confirmed)
                    report.failed += len(going) - len(confirmed)
                    report.removed += self._letters.remove([places[row] for row in confirmed])
                    confirmed.clear()
        return report

    def close(self) -> None:
        """Close the connection."""
        self._opening.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _place(self) -> str:
        return self._opening.url if self._direct else self._broker.native_sink()


def dead_letters(
    url: str,
    *,
    sink: str | None = None,
    options: Mapping[str, str] | None = None,
    borrow: Borrow | None = None,
) -> LetterBox:
    """The dead letters of a destination.

    Args:
        url: the destination; its native dead letter place is read.
        sink: URL of the sink that its letters went to, where that was not the native place.
        options: client options, with their plugin's prefix.
        borrow: how a connection is had; plainly, where not given.

    Raises:
        ConfigurationError, Unsupported, BrokerError
    """
    with ExitStack() as resources:
        opening = Opening(
            url=sink or url,
            spec=_SPEC,
            options=options or {},
            bounds=Bounds(),
            clock=SystemClock(),
            borrow=borrow or connected,
            resources=resources,
        )
        broker = opening.connect()
        # A destination without a dead letter place of its own is nothing but such a place itself.
        direct = sink is not None or not broker.capabilities.dead_letter
        letters = broker.dead_letters(direct=direct)
        resources.callback(letters.close)
        kept = resources.pop_all()
        return LetterBox(replace(opening, resources=kept), broker, letters, direct=direct)
    raise AssertionError("unreachable")


def context_of(letter: Letter) -> ErrorContext:
    """Why a letter is there: what its headers say, and what only its broker knows."""
    written, native = dialects.read(letter.message), letter.context
    if written is None or native is None:
        return written or native or ErrorContext()
    empty = ErrorContext()
    unsaid = [each.name for each in fields(ErrorContext) if getattr(written, each.name) == getattr(empty, each.name)]
    return replace(written, **{name: getattr(native, name) for name in unsaid})


def sent_back(letter: Letter, columns: Mapping[str, type]) -> Message:
    """The message of a letter as it is sent again: without our context, one hop further, to its own target.

    Args:
        letter: as it lies.
        columns: the destination's own columns; what of them the message had is restored.
    """
    context = context_of(letter)
    message = dialects.redriven(letter.message)
    hop = dialects.lives(message).hops
    name = message.id
    if name is None and context.message_id is not None:
        # Not the letter's own: another letter may have it, and must not be taken for the same message.
        name = f"{context.message_id}{HOP_MARK}{letter.position}"
    extra: dict[str, Any] = {
        each: columns[each](value)
        for each, value in context.extra.items()
        if each in columns and columns[each] is not bytes
    }
    return replace(
        message,
        id=None if name is None else f"{original_id(name, hop - 1)}{HOP_MARK}{hop}",
        destination=message.destination or context.target,
        extra={**extra, **message.extra},
    )


def original_id(name: str, hop: int) -> str:
    """An id without the mark of its last hop."""
    return name.removesuffix(f"{HOP_MARK}{hop}") if hop > 0 else name


def _is_named(letter: Letter, ids: Collection[str]) -> bool:
    return letter.position in ids or (letter.message.id is not None and letter.message.id in ids)


def why_left(letter: Letter, hop_limit: int) -> str | None:
    """Why a letter is not sent back; None where it is."""
    if dialects.lives(letter.message).hops >= hop_limit:
        return f"it was sent back {hop_limit} times already"
    if events.to_event(letter.message).get_type() == events.UNDELIVERABLE:
        return "its row never became a message: mend it and write it again"
    return None
