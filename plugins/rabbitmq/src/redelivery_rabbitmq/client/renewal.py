"""Write the letters of a queue again, so that the broker counts their deliveries from 0.

RabbitMQ 4.0 to 4.2 gives each quorum queue a limit of 20 deliveries, and each look at a letter is one: the 21st look
would make the broker drop the letter. A copy begins with 0. It is confirmed before its original is acknowledged: if
this is killed between the two, both exist.
"""

from __future__ import annotations

import time
from typing import Final

from pika.adapters.blocking_connection import BlockingConnection
from pika.exceptions import NackError

from redelivery.errors import BrokerError
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client import broker_headers
from redelivery_rabbitmq.client.arguments import UNKNOWN, compared
from redelivery_rabbitmq.client.connection import ConnectionAbandoned
from redelivery_rabbitmq.client.consumer import NACK_IS_FREE, RELEASED_FIRST, Consumer
from redelivery_rabbitmq.client.parameters import user_of
from redelivery_rabbitmq.client.publisher import Publisher
from redelivery_rabbitmq.client.topology import Queue
from redelivery_rabbitmq.errors import TABLE
from redelivery_rabbitmq.options import Settings

#: Looks after which letters are written again: half of the default limit.
LOOKS: Final = 10
_LIMIT: Final = "x-delivery-limit"
ADVICE: Final = "give the queue the argument x-delivery-limit=-1, or the policy delivery-limit: -1"


def counts_looks(version: tuple[int, ...]) -> bool:
    """Whether this version limits the deliveries of a queue that asks for no limit, and counts what is given back."""
    return RELEASED_FIRST <= version < NACK_IS_FREE


def is_limitless(connection: BlockingConnection, queue: str) -> bool:
    """Whether a queue has no delivery limit; False where its arguments cannot be read."""
    wanted = Queue(queue, {"x-queue-type": "quorum", _LIMIT: -1})
    try:
        with TABLE.while_doing(f"reading the arguments of queue {queue!r}"):
            return compared(connection, wanted)[1].get(_LIMIT) == -1
    except BrokerError as error:
        if error.code not in UNKNOWN:
            raise
        return False


def renew(consumer: Consumer, address: Address, settings: Settings) -> None:
    """Copy all ready letters of a queue behind one another, and remove the originals, page by page.

    Raises:
        BrokerError: a copy was not confirmed; its original and the letters after its page are unchanged.
    """
    user = user_of(address, settings)
    originals: dict[int, int] = {}  # delivery tags by the numbers of copies that are not confirmed
    confirmed: list[int] = []
    refused: list[int] = []
    returned: list[object] = []

    def confirm(number: int, multiple: bool, is_ack: bool) -> None:  # noqa: FBT001 - as Publisher calls it
        numbers = [each for each in originals if each <= number] if multiple else [number]
        (confirmed if is_ack else refused).extend(originals.pop(each) for each in numbers)

    def limit() -> float:
        return time.monotonic() + settings.blocked_connection_timeout

    publisher = Publisher(address, settings, limit(), on_confirm=confirm, on_return=lambda *_: returned.append(_))
    try:
        sent = 0
        for page in consumer.pages():
            for delivery in page:
                sent += 1
                originals[sent] = delivery.tag
                properties = broker_headers.uncounted(delivery.properties, user, publisher.frame_max)
                publisher.channel.basic_publish("", address.queue, delivery.body, properties, mandatory=True)
            try:
                with TABLE.while_doing(f"writing letters again to queue {address.queue!r}"):
                    if not publisher.until(lambda: not originals or returned, limit()):
                        raise publisher.error or ConnectionAbandoned("no confirm in time")
                    if refused or returned:
                        raise NackError([])
            finally:
                if not returned:  # what is returned is confirmed, too
                    consumer.ack(confirmed)
                    confirmed.clear()
        consumer.sync()
    finally:
        publisher.close()
