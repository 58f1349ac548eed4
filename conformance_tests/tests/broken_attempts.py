"""Brokers whose receiver counts deliveries wrongly, or gives a message at the wrong time. See `broken.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from broken import Broken

from redelivery.contract.broker import Outcome, Received, Release, Retry, Support
from redelivery.errors import LeaseLost
from redelivery_conformance.memory import FULL, PLAIN, MemoryReceiver, Store
from redelivery_conformance.memory_store import Queue, State

# --- attempts and delays -------------------------------------------------------------------------------------------


class ForgetsAttempts(Broken):
    caught_by = "attempts_count_the_deliveries[memory-retry]"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            return replace(super().give(store, queue, position, state), attempt=1)


class CountsInItsReceiver(Broken):
    """A restart begins again, so a crash loop is never seen."""

    caught_by = "attempts_count_the_deliveries[memory-restart]"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            counts = self.__dict__.setdefault("counts", {})
            counts[position] = counts.get(position, 0) + 1
            return replace(super().give(store, queue, position, state), attempt=counts[position])


class BoundsAttemptsFromAbove(Broken):
    """Calls it a lower bound."""

    caught_by = "attempts_count_the_deliveries[memory-lease-ran-out]"
    capabilities = replace(FULL, attempts=Support.LOWER_BOUND)

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            return replace(super().give(store, queue, position, state), attempt=state.attempts + 1)


class TakesEachDeliveryForTheFirst(Broken):
    caught_by = "the_first_delivery_is_told_and_stays_the_first"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            return replace(super().give(store, queue, position, state), first_ms=time.time_ns() // 1_000_000)


class IgnoresTheDelay(Broken):
    caught_by = "a_retry_is_never_early_and_not_much_later"

    class ReceiverRole(MemoryReceiver):
        def again(self, state: State, outcome: Retry | Release) -> None:
            super().again(state, Retry() if isinstance(outcome, Retry) else outcome)


class ComesTooEarly(Broken):
    """Waits a tenth of a delay; more would be hidden by a machine that is slow to look."""

    caught_by = "a_retry_is_never_early_and_not_much_later"

    class ReceiverRole(MemoryReceiver):
        def again(self, state: State, outcome: Retry | Release) -> None:
            super().again(state, outcome)
            if isinstance(outcome, Retry):
                state.visible -= 0.9 * outcome.delay.total_seconds()


class ComesMuchLater(Broken):
    """Looks for what is due once in a while."""

    caught_by = "a_delay_outlives_its_receiver"

    class ReceiverRole(MemoryReceiver):
        def again(self, state: State, outcome: Retry | Release) -> None:
            super().again(state, outcome)
            state.visible += 5.0


class HoldsAllUpBehindALongDelay(Broken):
    """A queue of delays, oldest first."""

    caught_by = "each_retry_keeps_its_own_delay"

    class ReceiverRole(MemoryReceiver):
        def take(self, store: Store, most: int) -> list[Received]:
            states = store.queue(self.broker.queue).states.values()
            if any(not each.lease and each.visible > time.monotonic() for each in states):
                return []
            return super().take(store, most)


class ForgetsDelaysAtItsClose(Broken):
    caught_by = "a_delay_outlives_its_receiver"

    class ReceiverRole(MemoryReceiver):
        def close(self) -> None:
            for state in self.broker.store().queue(self.broker.queue).states.values():
                state.visible = state.visible if state.lease else 0.0
            super().close()


class TakesALongDelayForNone(Broken):
    """It overflows."""

    caught_by = "a_delay_over_the_longest_is_refused_or_kept_as_far_as_it_can_be"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | None:
            if isinstance(outcome, Retry) and outcome.delay > timedelta(hours=1):
                outcome = Retry()
            return super().settle_one(store, received, outcome)


class DelaysThoughItSaysNone(Broken):
    """Takes the delay, and gives the message at once."""

    caught_by = "without_delays_asking_for_one_is_unsupported"
    capabilities = PLAIN

    class ReceiverRole(MemoryReceiver):
        def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | None]:
            plain = [(each, Retry() if isinstance(outcome, Retry) else outcome) for each, outcome in outcomes]
            return super().settle(plain)
