"""Stores the letters of terminated records in the dead letter topic, and returns the errors of those not stored.

Each letter is a batch by itself, so that one which the broker refuses takes no other with it. A letter goes to the
partition that its record came from, where the topic has that partition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Final

from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, BrokerError, Permanent, Retriable
from redelivery.kit.errors import Code
from redelivery_kafka.address import Address
from redelivery_kafka.client.known_settings import NOT_FOR_LETTERS
from redelivery_kafka.codec import letter_headers, record_timestamp
from redelivery_kafka.options import Settings
from redelivery_kafka.sender import KafkaSender

#: Seconds in which all letters of a call must be stored.
_STORED: Final = 15.0
#: Seconds that the sender's answer may come after its deadline.
_LATE: Final = 1.0
#: A batch per letter, confirmed by all replicas.
_OWN: Final = {"acks": "all", "enable.idempotence": "true", "batch.num.messages": "1", "linger.ms": "0"}


class LetterProducer:
    """Stores letters in one dead letter topic."""

    def __init__(self, address: Address, settings: Settings) -> None:
        self._sender = KafkaSender(address, Settings({**settings.without(NOT_FOR_LETTERS), **_OWN}))
        self._partitions = 0  # of the topic; 0: not known
        self._numbers = count()

    def store(self, letters: Mapping[int, tuple[int, Message]]) -> dict[int, BrokerError]:
        """Store letters, each with its record's partition; return the errors of those not, or perhaps not, stored."""
        if not letters:
            return {}
        deadline = time.monotonic() + _STORED
        try:
            self._partitions = self._partitions or self._sender.partitions(deadline=deadline)
            rows = [self._row(*each) for each in letters.values()]
            number = next(self._numbers)
            self._sender.send(Batch.of(rows, number=number), deadline=deadline)
            settled = None
            while settled is None:  # a call that was interrupted may have left another batch
                if time.monotonic() > deadline + _LATE:
                    raise Ambiguous("kafka: no answer says whether the letters are stored", code=Code.UNCONFIRMED)
                settled = next((each for each in self._sender.collect(1.0) if each.batch == number), None)
        except BrokerError as error:
            failed = dict.fromkeys(letters, error)
        else:
            places = list(letters)
            failed = {places[each.index]: _of_letter(each.error) for each in settled.failures}
        if failed:
            self._partitions = 0  # the topic may have changed
        return failed

    def close(self) -> None:
        """Release the producer."""
        self._sender.close()

    def _row(self, number: int, letter: Message) -> Message:
        """Return a letter without the parts that Kafka cannot store."""
        return replace(
            letter,
            headers=tuple(letter_headers(letter.headers)),
            timestamp_ms=record_timestamp(letter.timestamp_ms) or None,
            destination=None,
            extra={"partition": number if number < self._partitions else None},
        )


def _of_letter(error: BrokerError) -> BrokerError:
    """Return the error of a letter: it named its partition from what the topic was, which is not the letter's fault."""
    if not isinstance(error, Permanent) or error.code is not Code.NO_SUCH_DESTINATION:
        return error
    found = error.reclassified(Retriable)
    found.__cause__ = error
    return found
