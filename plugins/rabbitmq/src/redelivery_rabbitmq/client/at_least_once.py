"""Whether the broker keeps what it dead-letters until the other queue has confirmed it ("at least once").

Before 3.12 that rests on a feature flag; where it is off, such a queue loses dead letters without a word. This file
must not make anything at the broker.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from redelivery_rabbitmq.address import Address, Settings
from redelivery_rabbitmq.client.publisher import opened

#: The feature flag.
FLAG: Final = "stream_queue"
#: What to do where it is off.
OFF: Final = f"the broker's feature flag {FLAG} is off, so it would lose dead letters; enable it first"
_NEEDED_BEFORE: Final = (3, 12)


def keeps(address: Address, settings: Settings, version: tuple[int, ...], name: str) -> bool:
    """Whether it does: it is asked for what it never makes, and says why not.

    Args:
        address: where to ask.
        settings: how to connect.
        version: the broker's.
        name: of a queue that is not there, and that the user may configure; who may not is told nothing: yes.
    """
    if not version or version >= _NEEDED_BEFORE:
        return True
    # A connection of its own: it is closed where the flag is off.
    with suppress(ChannelClosedByBroker), opened(address, settings) as connection:
        try:
            with connection.channel() as channel:
                channel.queue_declare(name, durable=False, arguments={"x-queue-type": "stream"})
        except ConnectionClosedByBroker as error:
            return "feature flag" not in error.reply_text
    return True
