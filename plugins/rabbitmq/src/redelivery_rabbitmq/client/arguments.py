"""Read the arguments of existing queues, and declare new queues.

AMQP cannot read the arguments of a queue. But declaring an existing queue changes nothing, and is refused if an
argument differs; the refusal names the first such argument and its value. So a queue is declared with those values,
again and again, until nothing differs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from redelivery.codes import Code
from redelivery.contract.broker import Difference
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, Fatal
from redelivery_rabbitmq.client.queue_delays import SINCE, QueueDelay
from redelivery_rabbitmq.client.topology import Argument, Queue, work_queue
from redelivery_rabbitmq.errors import TABLE
from redelivery_rabbitmq.options import Settings

_PRECONDITION_FAILED: Final = 406
#: As in: inequivalent arg 'x' for queue 'q' in vhost '/': received none but current is the value '5' of type 'long'
_INEQUIVALENT: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for .*: received .* but current is "
    r"(?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?)$"
)
#: The broker's names of integers.
_INTEGERS: Final = frozenset(
    {"byte", "short", "signedint", "long"} | {f"unsigned{of}" for of in ("byte", "short", "int")}
)
#: In a `Difference`: an argument that is not set.
MISSING: Final = "none"
#: Properties of a declaration that are not arguments.
_FLAGS: Final[Mapping[str, Argument]] = {"durable": "true", "auto_delete": "false"}
#: No queue can be created with this, and a quorum queue does not compare it: so reading never creates a queue that was
#: deleted a moment ago. A classic queue names it as its first difference, and then is read without it.
_GUARD: Final[Mapping[str, Argument]] = {"x-max-priority": "never"}
#: More properties than a queue has; the broker names one at a time.
_MAX_DECLARATIONS: Final = 40
#: What tells, where arguments were to be read, that they cannot be: no permission, or an answer that says too little.
UNKNOWN: Final = (Code.NOT_AUTHORIZED, Code.CONFLICT)
#: Seconds for which the arguments of a queue are known.
_KNOWN: Final = 60.0


def create(connection: BlockingConnection, queue: Queue) -> None:
    """Create a missing queue."""
    _declare(connection, queue.name, {**_FLAGS, **queue.arguments})


def compared(connection: BlockingConnection, queue: Queue) -> tuple[list[Difference], dict[str, Argument]]:
    """Return the properties of an existing queue that differ, and all arguments that it has.

    Takes the configure permission. Only reads.

    Raises:
        ChannelClosedByBroker: also with 406, where the refusal cannot be read: the broker cuts it after 252 bytes, as
            with a long name, and a value may be of a type that is not known here.
    """
    properties = {**_FLAGS, **_GUARD, **queue.arguments}
    found = []
    for _ in range(_MAX_DECLARATIONS):
        try:
            _declare(connection, queue.name, properties)
        except ChannelClosedByBroker as error:
            told = _INEQUIVALENT.search(error.reply_text)
            if error.reply_code != _PRECONDITION_FAILED or told is None:
                raise
            name, text = told["name"], told["value"]
            ours = properties.pop(name, MISSING)
            value = None if text is None else _value(text, told["type"], ours)
            if value is None and text is not None:
                raise
            is_guard = ours == _GUARD.get(name)
            if name not in queue.unspecified and not (is_guard and text is None):
                wanted = MISSING if is_guard else str(ours)
                found.append(Difference(name, wanted, MISSING if text is None else text))
            if value is not None:
                properties[name] = value
        else:
            break
    return found, {name: value for name, value in properties.items() if name not in {*_FLAGS, *_GUARD}}


class KeptDelays:
    """Which delays an existing queue itself keeps.

    Without the configure permission, or where the broker's answer cannot be read, its arguments are unknown, and it
    counts as keeping none. A delay by a policy is not visible over AMQP. The option `rabbitmq.delays` settles all.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings
        self._probable: Mapping[str, Argument] | None = None  # the arguments that were found last
        self._delay: QueueDelay | None = None
        self._known_until = 0.0

    def read(self, connection: BlockingConnection, version: tuple[int, ...]) -> None:
        """Read the queue's arguments, if that was long ago: it may have been created again. Raises BrokerError."""
        if self._settings.delays == "native":
            refuse_native(version)
        if self._settings.delays != "auto" or version < SINCE or time.monotonic() < self._known_until:
            return
        provisioned = work_queue(self._name, DeliverySpec(), self._settings, version).arguments
        # Each is right for other queues, and an answer about what differs may be too long to be read.
        guesses = [self._probable or provisioned, {"x-queue-type": "quorum"}]
        self._probable = None
        while self._probable is None and guesses:
            try:
                with TABLE.while_doing(f"reading the arguments of queue {self._name!r}"):
                    self._probable = compared(connection, Queue(self._name, guesses.pop(0)))[1]
            except BrokerError as error:
                if error.code not in UNKNOWN:
                    raise
        self._delay = None if self._probable is None else QueueDelay.of_arguments(self._probable)
        self._known_until = time.monotonic() + _KNOWN

    def keep(self, delay: timedelta, failures: int) -> bool:
        """Return whether a message that is rejected, and so has failed this often, comes again after this delay."""
        if self._settings.delays == "native":
            return True
        return self._delay is not None and self._delay.keeps(delay, failures)


def refuse_native(version: tuple[int, ...]) -> None:
    """Raise Fatal if a broker of this version does not delay retries."""
    if version < SINCE:
        here, since = (".".join(map(str, each)) for each in (version, SINCE))
        text = f"the broker is of version {here}; queues delay from {since} on"
        raise Fatal(f"rabbitmq: rabbitmq.delays is 'native', but {text}", code=Code.MISCONFIGURED)


def _value(text: str, type_: str | None, ours: Argument) -> Argument | None:
    """Return the value that a refusal shows; None if it is of another type. Older brokers do not name the type."""
    if type_ == "bool":
        return text == "true"
    if type_ in _INTEGERS or (type_ is None and isinstance(ours, int)):
        return int(text)
    return text if type_ in {None, "longstr"} else None


def _declare(connection: BlockingConnection, name: str, properties: Mapping[str, Argument]) -> None:
    flags = {each: properties.get(each) == "true" for each in _FLAGS}
    arguments: dict[str, Any] = {each: value for each, value in properties.items() if each not in _FLAGS}
    # A refusal closes the channel, so each declaration has its own.
    with connection.channel() as channel:
        channel.queue_declare(name, **flags, arguments=arguments)
