"""Where a row is published to, and which rows a refusal of the broker is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pika.exceptions import ChannelClosedByBroker

from redelivery.codes import Code
from redelivery.contract.message import Batch, Column
from redelivery.errors import BrokerError, Fatal, Permanent
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.errors import TOO_LARGE

#: The error of a row, by its batch and index; None if the row is not to blame.
RowError = Callable[[Batch, int], BrokerError | None]

_ACCESS_REFUSED: Final = 403
_EXCHANGE: Final = re.compile(r"exchange '([^']*)'")
_TOPIC: Final = re.compile(r"topic '([^']*)' in exchange")
_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
_DEFAULT_EXCHANGE: Final = "amq.default"


class Route(NamedTuple):
    """The exchange and routing key that a row is published with.

    Attributes:
        by_row: whether the row itself names it.
    """

    exchange: str
    routing_key: str
    by_row: bool

    def __str__(self) -> str:
        if self.exchange:
            return f"exchange {self.exchange!r} with routing key {self.routing_key!r}"
        return f"queue {self.routing_key!r}"


class Router:
    """Finds the route of each row sent to one address.

    Attributes:
        default: the route of rows that name none.
    """

    def __init__(self, address: Address) -> None:
        self._exchange = address.exchange
        self.default = Route(address.exchange, address.routing_key, by_row=False)

    def columns(self, batch: Batch) -> tuple[list[Any] | None, ...] | None:
        """Return the columns for queue, exchange and routing key; None if no row names a route."""
        columns = (batch.destination, batch.extra.get("exchange"), batch.extra.get("routing_key"))
        return None if columns == (None, None, None) else tuple(map(values_of, columns))

    def route(self, batch: Batch, index: int) -> Route:
        """Return the route of a row. Raises Permanent: it names an impossible one."""
        columns = self.columns(batch)
        return self.default if columns is None else self._named(*(each[index] if each else None for each in columns))

    def _named(self, queue: str | None, exchange: str | None, routing_key: str | None) -> Route:
        if queue is None and exchange is None and routing_key is None:
            return self.default
        route = Route(self._exchange if exchange is None else exchange, routing_key or "", by_row=True)
        problem = ""
        if queue is not None:
            route = Route("", queue, by_row=True)
            if exchange is not None or routing_key is not None:
                problem = "it names a queue, and also an exchange or a routing key; name either"
        if not route.exchange and not route.routing_key:
            problem = "it names a queue with an empty name"
        if problem:
            raise Permanent(f"rabbitmq: this row cannot be sent: {problem}", code=Code.INVALID_DESTINATION)
        return route

    def blamed(self, error: BaseException) -> RowError | None:
        """Return what finds the rows to blame for a closed channel; None if the broker's text does not tell."""
        if not isinstance(error, ChannelClosedByBroker):
            return None
        text = f"rabbitmq: this row cannot be sent: {error.reply_text}"
        large, exchange = _TOO_LARGE.search(text), _EXCHANGE.search(text)
        if large:
            limit = int(large[1])
            return lambda batch, index: (
                Permanent(f"{text}; {TOO_LARGE.advice}", code=Code.TOO_LARGE)
                if len(batch.value.values[index] or b"") > limit
                else None
            )
        if error.reply_code != _ACCESS_REFUSED or not exchange:
            return None
        topic = _TOPIC.search(text)

        def forbidden(batch: Batch, index: int) -> BrokerError | None:
            route = self.route(batch, index)
            if (route.exchange or _DEFAULT_EXCHANGE) != exchange[1] or (topic and topic[1] != route.routing_key):
                return None
            kind = Permanent if route.exchange != self._exchange or topic else Fatal
            return kind(
                f"{text}; sending takes the write permission on it",
                code=Code.NOT_AUTHORIZED,
                native_code=str(_ACCESS_REFUSED),
            )

        return forbidden


def values_of(column: Column[Any] | None) -> list[Any] | None:
    """Return the values of a column, or None."""
    return None if column is None else column.values
