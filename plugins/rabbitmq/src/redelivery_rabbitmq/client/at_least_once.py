"""Whether the broker dead-letters at least once: keeps a message until the dead letter queue has confirmed it.

Before 3.12 this depends on a feature flag. If the flag is off, a queue with that strategy silently loses dead letters.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client.connection import open_connection
from redelivery_rabbitmq.options import Settings

FEATURE_FLAG: Final = "stream_queue"
#: The error text for a flag that is off, and the advice.
FLAG_IS_OFF: Final = f"the broker's feature flag {FEATURE_FLAG} is off, so it would lose dead letters; enable it first"
_NEEDED_BEFORE: Final = (3, 12)


def is_at_least_once(address: Address, settings: Settings, version: tuple[int, ...], queue: str) -> bool:
    """Return whether the broker dead-letters at least once.

    Declares a queue that the broker always refuses; the text of the refusal shows whether the flag is on.

    Args:
        address: what to connect to.
        settings: how to connect.
        version: the broker's.
        queue: name of a missing queue that the user may configure. Without that right the answer is True.
    """
    if not version or version >= _NEEDED_BEFORE:
        return True
    # A separate connection: the broker closes it if the flag is off.
    with suppress(ChannelClosedByBroker), open_connection(address, settings) as connection:
        try:
            with connection.channel() as channel:
                channel.queue_declare(queue, durable=False, arguments={"x-queue-type": "stream"})
        except ConnectionClosedByBroker as error:
            return "feature flag" not in error.reply_text
    return True
