"""Senders of letters: back to their destination over one send queue, or forward to a chain of sinks.

Each confirmed letter is reported, even where sending ends with an error.
"""

from __future__ import annotations

import random as random_module
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from redelivery.base.clock import Clock
from redelivery.contract.broker import Support
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import LetterBatch
from redelivery.contract.message import Batch
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Permanent
from redelivery.formats import identity
from redelivery.sending.engine import Engine, Flow
from redelivery.sending.group import Group, Origin, Owner
from redelivery.sending.send_queue import SendQueue

_ORIGIN: Final = Origin(run="redrive")


class LetterSender(ABC):
    """Sends letters, some at a time.

    Attributes:
        confirmed: of the letters sent last, the indices of those that have arrived; the reader clears it.
        refused: likewise, the indices of those that have surely not arrived, as far as known.
    """

    def __init__(self, engine: Engine) -> None:
        self.confirmed: list[int] = []
        self.refused: list[int] = []
        self._engine = engine

    @abstractmethod
    def carry(self, letters: LetterBatch, messages: Batch) -> None:
        """Send the messages of these letters, and return when each is confirmed or refused permanently.

        Args:
            letters: as stored.
            messages: as they are sent, one for each letter.

        Raises:
            BrokerError, DeliveryFailed: the destination takes no more messages.
        """

    def beat(self) -> None:
        """Keep the connections alive while nothing is sent. Raises BrokerError."""
        self._engine.turn(0.0)


class RedriveSender(LetterSender):
    """Sends letters back, as fresh messages of one destination."""

    def __init__(self, send_queue: SendQueue, spec: DeliverySpec, clock: Clock) -> None:
        self._rows: list[int] = []
        self._refused: list[int] = []
        # Letters come in the order of their deaths; a refusal must not reorder those of one key.
        flow = Flow(ordering="key" if send_queue.capabilities.order is Support.NATIVE else "none")
        super().__init__(
            Engine(
                [send_queue],
                spec,
                _ORIGIN,
                clock,
                random_module.random,
                flow,
                delivered=self._rows.extend,
                refused=self._refused.extend,
            )
        )

    def carry(self, letters: LetterBatch, messages: Batch) -> None:  # noqa: ARG002 - all that they say is in the messages
        first = self._engine.report.rows
        self._engine.take(messages)
        try:
            self._engine.drain()
        finally:
            self.confirmed += [row - first for row in self._rows]
            self.refused += [row - first for row in self._refused]
            self._rows.clear()
            self._refused.clear()


class RowSender:
    """Sends rows that letters have become, a batch at a time.

    Attributes:
        capabilities: the destination's.
    """

    def __init__(self, send_queue: SendQueue, spec: DeliverySpec, clock: Clock) -> None:
        self.capabilities = send_queue.capabilities
        self._rows: list[int] = []
        flow = Flow(ordering="key" if self.capabilities.order is Support.NATIVE else "none")
        self._engine = Engine(
            [send_queue], spec, _ORIGIN, clock, random_module.random, flow, delivered=self._rows.extend
        )

    def send(self, batch: Batch, confirmed: Callable[[list[int]], None]) -> None:
        """Send a batch, and return when each row is confirmed or refused permanently.

        Args:
            batch: the rows.
            confirmed: called at the end with the indices of the rows that have arrived, also where this raises.

        Raises:
            BrokerError, DeliveryFailed: the destination takes no more messages.
        """
        first = self._engine.report.rows
        self._engine.take(identity.identified(batch) if self.capabilities.deduplicate else batch)
        try:
            self._engine.drain()
        finally:
            rows = [row - first for row in self._rows]
            self._rows.clear()
            confirmed(rows)


class _Forwarded(Owner):
    """A letter on its way to a sink: its broker gave it up, and reports why."""

    def __init__(self, context: ErrorContext, handled: Callable[[], None]) -> None:
        self.context = context
        self._handled = handled

    def handled(self) -> None:
        self._handled()


class ForwardSender(LetterSender):
    """Sends letters to the first sink that takes them, in that sink's form, with the context that the broker knows.

    Args:
        place: where the letters are stored; nothing is sent there.
        sinks: tried in turn.
        spec: sets the format and the budgets.
    """

    def __init__(self, place: SendQueue, sinks: Sequence[SendQueue], spec: DeliverySpec, clock: Clock) -> None:
        super().__init__(Engine([place, *sinks], spec, _ORIGIN, clock, random_module.random))
        self._sinks = sinks
        self._skipped = 0

    def carry(self, letters: LetterBatch, messages: Batch) -> None:
        for index, message in enumerate(messages.rows()):
            said = letters.letter(index).context or ErrorContext()
            group = Group(rows=message, owner=_Forwarded(said, partial(self._handled, index)))
            self._engine.report.rows += 1
            error = Permanent(said.reason, code=said.code, native_code=said.native_code or said.kind)
            self._engine.give_up(group, [error], "its broker gave it up")
        self._engine.drain()
        first = self._sinks[0].broken
        if first is not None and all(sink.broken is not None for sink in self._sinks):
            raise first

    def _handled(self, index: int) -> None:
        """A sink has confirmed it; or none would take it, and it stays in place."""
        if self._engine.report.skipped > self._skipped:
            self._skipped = self._engine.report.skipped
        else:
            self.confirmed.append(index)
