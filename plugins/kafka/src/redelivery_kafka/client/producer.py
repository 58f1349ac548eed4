"""One producer instance of the sender: its queue, the topics that it has seen, its errors, and whether it can go on."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from redelivery.errors import BrokerError, Permanent, Retriable
from redelivery.kit.errors import Code, quoted
from redelivery_kafka.address import DEAD_LETTER_NAMES, SHARE_PREFIX, Address, topic_fault
from redelivery_kafka.client import instances
from redelivery_kafka.client.internals import is_failed_connect
from redelivery_kafka.errors import GAP, PRODUCER_LOST, classify, is_refused
from redelivery_kafka.options import Settings

#: Seconds that one step of a wait takes.
STEP: Final = 0.1
#: Seconds for one request for metadata, so that a refused connection is noticed between two of them.
_REQUEST: Final = 1.0
#: Seconds for which a topic that was just created may be unknown to some brokers.
_PROPAGATION: Final = 1.0


class ProducerInstance:
    """One of librdkafka's producers, from its creation until it is closed.

    Attributes:
        client: the client's own producer.
        gapless: whether it sends nothing more once a broker has refused a request, so that nothing overtakes it.
        fatal_error: the error after which it can send nothing more.
        connection_lost: whether it has lost a connection: messages in its queue may have been sent before.
        last_error: the text of the last connection error.
    """

    def __init__(self, settings: Settings, address: Address, *, gapless: bool, last_error: str = "") -> None:
        self.gapless = gapless
        self.fatal_error: KafkaError | None = None
        self.connection_lost = False
        self.last_error = last_error
        self._address = address
        self._refused: KafkaError | None = None
        self._all_brokers_down = False
        self._seen: set[str] = set()  # topics, until one of them is missed
        self.client = instances.producer(settings, address, gapless=gapless, on_error=self.on_error)

    def __len__(self) -> int:
        """Messages in the queue or in flight."""
        return len(self.client)

    @property
    def stopped_at_gap(self) -> bool:
        """Whether a gapless producer has stopped at a refused request."""
        return self.fatal_error is not None and self.fatal_error.name() == GAP

    def poll(self, seconds: float) -> None:
        """Serve delivery reports and error callbacks. An error that ends the producer becomes its `fatal_error`."""
        try:
            self.client.poll(seconds)
        except KafkaException as error:
            self.on_error(error.args[0])

    def flush(self, seconds: float) -> None:
        """Wait until the queue is empty, serving callbacks, without librdkafka's delay for filling requests."""
        try:
            self.client.flush(seconds)
        except KafkaException as error:
            self.on_error(error.args[0])

    def drain(self, until: float) -> None:
        """Wait until the queue is empty, as `poll` does, at most until this monotonic time."""
        while len(self.client) and (left := until - time.monotonic()) > 0:
            self.poll(min(left, STEP))

    def on_error(self, error: KafkaError) -> None:
        """Note an error of a connection, or one after which the producer is of no more use."""
        text = str(error.str())
        if error.name() == "_ALL_BROKERS_DOWN":  # its text counts connections ("0/1"), and not the servers named
            self._all_brokers_down = True
        else:
            self.last_error = text
        self.connection_lost = self.connection_lost or (error.name() != GAP and not is_failed_connect(text))
        if not self.ends_by(error) and is_refused(error):
            self._refused = error

    def ends_by(self, error: KafkaError) -> bool:
        """Return whether an error ends this producer, and note the first that says why as its `fatal_error`."""
        ends = error.fatal() or error.name() in PRODUCER_LOST
        if ends and (self.fatal_error is None or self.fatal_error.name() == "_FATAL"):  # "_FATAL" gives no reason
            self.fatal_error = error
        return ends

    def missing_topics(self, names: set[str], deadline: float) -> dict[str, BrokerError]:
        """Return those of the topics to which rows cannot be sent, each with its error.

        Raises:
            BrokerError: the URL's own topic is one of them, or no broker answered.
        """
        own = self._address.topic
        found: dict[str, BrokerError] = {}
        for name in names - self._seen:
            if name != own and name in {DEAD_LETTER_NAMES.of(own), SHARE_PREFIX + own}:
                text = "this is the dead letter topic, and a row there would be read as a letter without a reason"
                error: BrokerError = Permanent(
                    f"kafka: storing in {quoted(name)}: {text}; name another topic", code=Code.INVALID_DESTINATION
                )
            else:
                seen = self.partition_count(name, deadline)
                if isinstance(seen, int):
                    continue
                if name == own:
                    raise seen
                error = seen
            found[name] = error
        return found

    def forget_topic(self, topic: str) -> None:
        """Ask the brokers for this topic again when it is next needed."""
        self._seen.discard(topic)

    def partition_count(self, topic: str, deadline: float) -> int | BrokerError:
        """Return how many partitions a topic has, or why no row can be sent to it.

        It asks the brokers: librdkafka itself would report a missing topic much later.

        Raises:
            BrokerError: no broker answered by the deadline, or the brokers refuse the connection.
        """
        doing = f"storing in {quoted(topic)}"
        fault = topic_fault(topic)
        if fault is not None:
            return Permanent(f"kafka: {doing}: {fault}", code=Code.INVALID_DESTINATION)
        own = topic == self._address.topic
        patience = time.monotonic() + (_PROPAGATION if own else 0)
        last: KafkaException | None = None
        code, why = Code.DEADLINE_EXCEEDED, "it had passed before a broker was asked"
        self._refused, self._all_brokers_down = None, False  # of now, and not of an earlier outage
        while (left := deadline - time.monotonic()) > 0:
            try:
                found = self.client.list_topics(topic, timeout=min(_REQUEST, left)).topics[topic]
            except KafkaException as failed:
                last, code, why = failed, Code.CONNECTION_LOST, ""
                self.poll(0)
                if self._refused is not None:
                    raise classify(self._refused, doing) from failed
                continue
            error = found.error
            if error is None:
                self._seen.add(topic)
                return len(found.partitions)
            answer = classify(error, doing, own=own)
            if time.monotonic() >= patience and not isinstance(answer, Retriable):
                return answer
            self.last_error, code, why = str(error.str()), answer.code, ""
            self.poll(STEP)
        known = filter(None, (self._address.unreached if self._all_brokers_down else "", self.last_error))
        why = why or ": ".join(known) or "the client reported no cause"
        raise Retriable(
            f"kafka: {doing}: no broker answered by the deadline, so nothing was sent; {why}", code=code
        ) from last

    def close(self) -> None:
        """Drop what is in the queue, and release the instance."""
        self.client.purge()
        self.flush(STEP)
        instances.release(self.client)
