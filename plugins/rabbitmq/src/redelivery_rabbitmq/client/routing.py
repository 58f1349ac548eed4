"""Where a row goes, and which rows a refusal of the broker is of. This file must not do I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pika.exceptions import ChannelClosedByBroker

from redelivery.contract.message import Batch, Column
from redelivery.errors import BrokerError, Fatal, Permanent
from redelivery_rabbitmq.address import Address

#: What blames a row, by its batch and index: its error, or None.
Blame = Callable[[Batch, int], BrokerError | None]

_REFUSED: Final = 403
_EXCHANGE: Final = re.compile(r"exchange '([^']*)'")
_TOPIC: Final = re.compile(r"topic '([^']*)' in exchange")
_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
_DEFAULT_EXCHANGE: Final = "amq.default"


class Target(NamedTuple):
    """Where a row goes.

    Attributes:
        exchange, routing_key: as it is published.
        own: the row itself named it.
    """

    exchange: str
    routing_key: str
    own: bool

    def __str__(self) -> str:
        if self.exchange:
            return f"exchange {self.exchange!r} with routing key {self.routing_key!r}"
        return f"queue {self.routing_key!r}"


class Targets:
    """Where the rows sent to one address go.

    Attributes:
        default: where those go that name no target of their own.
    """

    def __init__(self, address: Address) -> None:
        self._exchange = address.exchange
        self.default = Target(address.exchange, address.routing_key, own=False)

    def columns(self, batch: Batch) -> tuple[list[Any] | None, ...] | None:
        """The columns that name targets; None where no row names one."""
        columns = (batch.destination, batch.extra.get("exchange"), batch.extra.get("routing_key"))
        return None if columns == (None, None, None) else tuple(map(values_of, columns))

    def of(self, batch: Batch, index: int) -> Target:
        """Where a row goes. Raises Permanent: it names what cannot be."""
        columns = self.columns(batch)
        return self.default if columns is None else self.named(*(each[index] if each else None for each in columns))

    def named(self, queue: str | None, exchange: str | None, routing_key: str | None) -> Target:
        """Where a row goes that names these. Raises Permanent: it names what cannot be."""
        if queue is None and exchange is None and routing_key is None:
            return self.default
        target = Target(self._exchange if exchange is None else exchange, routing_key or "", own=True)
        problem = ""
        if queue is not None:
            target = Target("", queue, own=True)
            if exchange is not None or routing_key is not None:
                problem = "it names a queue, and an exchange or routing key besides"
        if not target.exchange and not target.routing_key:
            problem = "the queue that it names has an empty name"
        if problem:
            raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", native_code="DESTINATION")
        return target

    def blame(self, error: BaseException) -> Blame | None:
        """What blames rows for a channel that the broker closed, where its words tell which can be meant."""
        if not isinstance(error, ChannelClosedByBroker):
            return None
        text = f"rabbitmq: this row cannot be sent: {error.reply_text}"
        large, exchange = _TOO_LARGE.search(text), _EXCHANGE.search(text)
        if large:
            most = int(large[1])
            return lambda batch, index: (
                Permanent(text, native_code="TOO_LARGE") if len(batch.value.values[index] or b"") > most else None
            )
        if error.reply_code != _REFUSED or not exchange:
            return None
        topic = _TOPIC.search(text)

        def forbidden(batch: Batch, index: int) -> BrokerError | None:
            target = self.of(batch, index)
            if (target.exchange or _DEFAULT_EXCHANGE) != exchange[1] or (topic and topic[1] != target.routing_key):
                return None
            kind = Permanent if target.exchange != self._exchange or topic else Fatal
            return kind(f"{text}; sending takes the write permission on it", native_code=str(_REFUSED))

        return forbidden


def values_of(column: Column[Any] | None) -> list[Any] | None:
    """The values of a column, where there is one."""
    return None if column is None else column.values
