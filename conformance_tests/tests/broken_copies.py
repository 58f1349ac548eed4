"""Brokers with faults in named subscriptions. See `broken.py`."""

from __future__ import annotations

from broken import Broken

from redelivery.contract.broker import Outcome, Received, Retry, Terminate
from redelivery.errors import BrokerError, LeaseLost
from redelivery_conformance.memory import COPY, PLAIN, MemoryBroker
from redelivery_conformance.memory_receiver import MemoryReceiver
from redelivery_conformance.memory_store import State, Store


class SubscribersCompete(Broken):
    """All names have one copy between them."""

    caught_by = "each_name_receives_every_message"

    def subscription(self, name: str) -> str:
        return super().subscription("all") if super().subscription(name) else ""


class EachReceiverHasACopy(Broken):
    """Asked again, a name is another place."""

    caught_by = "a_name_always_means_the_same_place_and_another_name_another"
    asked = 0

    def subscription(self, name: str) -> str:
        type(self).asked += 1
        return f"{super().subscription(name)}{self.asked}"


class GivesEachReceiverAll(Broken):
    """A broadcast: receivers of one name do not share."""

    caught_by = "receivers_of_one_name_share_its_messages"

    class ReceiverRole(MemoryReceiver):
        def __init__(self, broker: MemoryBroker, lease: float) -> None:
            super().__init__(broker, lease)
            queue = broker.store().queue(broker.queue)
            given = broker.store().__dict__.setdefault("given", {}).setdefault(broker.queue, dict(queue.messages))
            queue.messages.update(given)


class GivesUpForAll(Broken):
    """What one name gives up, the others never get."""

    caught_by = "what_one_name_gives_up_does_not_disturb_the_other"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            super().terminate(store, position, state, outcome)
            for name, queue in store.queues.items():
                if COPY in name and not name.endswith("-dead-letters"):
                    queue.messages.clear()


class RetriesForAll(Broken):
    """A delayed retry is a copy that is sent to the destination."""

    caught_by = "what_one_name_retries_comes_again_to_it_alone"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | BrokerError | None:
            answer = super().settle_one(store, received, outcome)
            source, copy, _ = self.broker.queue.rpartition(COPY)
            if answer is None and copy and isinstance(outcome, Retry):
                store.queue(self.broker.queue).drop(received.lease[0])
                store.put(source, received.message)
            return answer


class SubscribesByReceiving(Broken):
    """A mistyped name gathers copies for ever."""

    caught_by = "receiving_makes_no_subscription"

    class ReceiverRole(MemoryReceiver):
        def open_store(self) -> Store:
            store = super().open_store()
            source, copy, _ = self.broker.queue.rpartition(COPY)
            if copy:
                store.copies.setdefault(source, {})[self.broker.queue] = None
            return store


class CutsNames(Broken):
    """Takes any name, and makes of it what fits."""

    caught_by = "a_name_that_cannot_be_is_refused[memory-]"

    def subscription(self, name: str) -> str:
        return super().subscription("".join(filter(str.isalnum, name))[:50] or "default")


class HasACopyForNobody(Broken):
    """Says that it has no subscriptions, and answers as if each name had one."""

    caught_by = "without_subscriptions_asking_for_one_is_unsupported"
    capabilities = PLAIN

    def subscription(self, name: str) -> str:
        return self.sibling(self.queue)
