"""Brokers with faults in dead letters, provisioning, opening and closing. See `broken.py`."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from broken import Broken, Rewriting

from redelivery.codes import Code
from redelivery.contract.broker import DeadLetters, Letter, Plan, Sender, Settled, Support
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import NATIVE, DeliverySpec, DeliveryStatus, Ref, Sink
from redelivery.errors import Fatal, Retriable, Throttled
from redelivery_conformance.memory import (
    BARE,
    DEAD_LETTERS,
    READ_ONLY,
    MemoryAdmin,
    MemoryBroker,
    MemoryDeadLetters,
    MemorySender,
    Store,
)

# --- dead letters --------------------------------------------------------------------------------------------------


class PurgesOnBrowse(Broken):
    caught_by = "browsing_leaves_all_in_place_and_shows_the_same_twice"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            yield from super().browse()
            self.messages().clear()


class TakesWhatItShows(Broken):
    """Puts back what was read to the end, and only then."""

    caught_by = "browsing_part_of_the_letters_takes_nothing"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            kept = dict(self.messages())
            for letter in super().browse():
                del self.messages()[int(letter.position)]
                yield letter
            later = dict(self.messages())
            self.messages().clear()
            self.messages().update(kept | later)


class BrowsesNewestFirst(Broken):
    caught_by = "browsing_shows_the_oldest_first"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            return reversed(list(super().browse()))


class BrowsesForEver(Broken):
    caught_by = "browsing_ends_at_what_was_there_when_it_began"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            shown: set[int] = set()
            while new := [each for each in self.messages() if each not in shown]:
                shown.add(new[0])
                yield Letter(position=str(new[0]), message=self.messages()[new[0]])


class ShowsTheFirstPage(Broken):
    caught_by = "many_letters_are_each_shown_once"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            for number, letter in enumerate(super().browse()):
                if number < 500:
                    yield letter


class RemovesNeighbours(Broken):
    """Cumulative: what is older goes too."""

    caught_by = "removing_takes_exactly_what_was_named"

    class LettersRole(MemoryDeadLetters):
        def remove(self, positions: Sequence[str]) -> int:
            older = [each for each in self.messages() if positions and each < max(map(int, positions))]
            removed = super().remove(positions)
            for each in older:
                self.messages().pop(each, None)
            return removed


class CountsWhatItWasAsked(Broken):
    caught_by = "removing_counts_only_what_was_there"

    class LettersRole(MemoryDeadLetters):
        def remove(self, positions: Sequence[str]) -> int:
            super().remove(positions)
            return len(positions)


class PurgesTheDestination(Broken):
    caught_by = "purging_the_native_place_leaves_the_destination"

    class LettersRole(MemoryDeadLetters):
        def purge(self) -> int:
            if self.queue != self.broker.queue:
                self.broker.store().queue(self.broker.queue).messages.clear()
            return super().purge()


class LosesTheContext(Broken):
    """What looks like one of our headers does not reach the native place."""

    caught_by = "a_letter_sent_to_the_native_place_comes_back_whole"

    class SenderRole(Rewriting):
        def rewrite(self, message: Message) -> Message:
            return replace(message, headers=tuple(each for each in message.headers if each[0] != "redelivery-context"))


class SendsLettersToTheDestination(Broken):
    caught_by = "the_native_place_is_apart_from_the_destination"

    def native_sink(self) -> str:
        return f"memory://{self.host}/{self.queue}"


class HasDeadLettersOfDeadLetters(Broken):
    """Opened by its own URL, a dead letter place gets another place in its turn."""

    caught_by = "a_native_place_opened_by_its_own_url_is_that_very_place"

    @property
    def dead_letter_queue(self) -> str:
        return self.queue + DEAD_LETTERS


class NamesAPlaceWithoutAsking(Broken):
    """Its `native_sink` is only a name. It accepts letters also where it was not provisioned, and then loses them."""

    caught_by = "a_native_place_that_is_not_there_is_told_before_any_row_or_takes_letters"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if self.broker.queue.endswith(DEAD_LETTERS) and self.broker.queue not in store.queues:
                return Settled(batch=batch.number)
            return super().store_batch(store, batch)


class FindsNoPlaceAtTheFirstLetter(Broken):
    """Its `native_sink` names a missing queue, and opening it checks nothing: a job starts that cannot dead-letter."""

    caught_by = "a_native_place_that_is_not_there_is_told_before_any_row_or_takes_letters"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if self.broker.queue.endswith(DEAD_LETTERS) and self.broker.queue not in store.queues:
                return Settled(
                    batch=batch.number, error=Fatal("memory: there is no such queue", code=Code.NO_SUCH_DESTINATION)
                )
            return super().store_batch(store, batch)


# --- provisioning --------------------------------------------------------------------------------------------------


class PlansByDoing(Broken):
    caught_by = "planning_only_reads"

    class AdminRole(MemoryAdmin):
        def plan(self, spec: DeliverySpec) -> Plan:
            plan = super().plan(spec)
            for item in plan.objects:
                self.broker.store().queue(item.name)
            return plan


class ProvisionsHalf(Broken):
    caught_by = "provisioning_makes_what_was_planned"

    class AdminRole(MemoryAdmin):
        def provision(self, spec: DeliverySpec) -> DeliveryStatus:
            status = super().provision(spec)
            if not self.broker.store().queue(self.broker.queue).messages:
                del self.broker.store().queues[self.broker.dead_letter_queue]
            return status


class ProvisionsAnew(Broken):
    """Deletes and makes again."""

    caught_by = "provisioning_again_changes_nothing"

    class AdminRole(MemoryAdmin):
        def provision(self, spec: DeliverySpec) -> DeliveryStatus:
            status = super().provision(spec)
            self.broker.store().queue(self.broker.queue).messages.clear()
            return status


class AltersWhatDiffers(Broken):
    caught_by = "what_differs_is_told_and_never_altered"

    class AdminRole(MemoryAdmin):
        def provision(self, spec: DeliverySpec) -> DeliveryStatus:
            for queue in self.broker.store().queues.values():
                queue.altered = False
            return super().provision(spec)


class CountsDeadLettersAsWaiting(Broken):
    caught_by = "depth_leaves_dead_letters_out"

    class AdminRole(MemoryAdmin):
        def depth(self) -> int:
            return sum(len(queue.messages) for queue in self.broker.store().queues.values())


class HeedsNoPartitions(Broken):
    caught_by = "the_partitions_that_a_spec_asks_for_are_made_and_compared"

    class AdminRole(MemoryAdmin):
        def plan(self, spec: DeliverySpec) -> Plan:
            return super().plan(replace(spec, sink_partitions=None))


class MakesOneReplicaWhateverIsAsked(Broken):
    """And compares with what was asked."""

    caught_by = "the_replicas_that_a_spec_asks_for_are_made_and_compared"

    class AdminRole(MemoryAdmin):
        def provision(self, spec: DeliverySpec) -> DeliveryStatus:
            return super().provision(replace(spec, sink_replication_factor=7))


class CallsTheNativePlaceASink(Broken):
    """Though the spec has none."""

    caught_by = "a_spec_without_a_sink_has_none_in_its_status"

    class AdminRole(MemoryAdmin):
        def _status(self, spec: DeliverySpec) -> DeliveryStatus:
            return super()._status(replace(spec, dead_letter_sink=(Sink(uri=NATIVE),)))


class TakesAnotherSinkForTheNativePlace(Broken):
    caught_by = "the_status_of_a_sink_elsewhere_is_not_the_native_place"

    class AdminRole(MemoryAdmin):
        def _status(self, spec: DeliverySpec) -> DeliveryStatus:
            return super()._status(
                spec if not spec.dead_letter_sink else DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))
            )


class HasNoWordForTheNativePlace(Broken):
    caught_by = "the_status_names_the_native_place_where_that_is_the_sink"

    class AdminRole(MemoryAdmin):
        def _status(self, spec: DeliverySpec) -> DeliveryStatus:
            return replace(super()._status(spec), dead_letter_channel=None)


class NamesTheQueueAsItsDeadLetters(Broken):
    caught_by = "the_status_as_a_reference_is_resolved_to_the_native_place_again"

    class AdminRole(MemoryAdmin):
        def _status(self, spec: DeliverySpec) -> DeliveryStatus:
            found = super()._status(spec)
            channel = found.dead_letter_channel
            return replace(found, dead_letter_channel=channel and replace(channel, name=self.broker.queue))


# --- opening, closing, what is not there ---------------------------------------------------------------------------


class LeaksThePassword(Broken):
    """In its repr."""

    caught_by = "a_password_in_a_url_shows_nowhere_when_all_fails[memory-unreachable]"

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url, options)
        self.url = url

    def __repr__(self) -> str:
        return f"<broker {self.url}>"


class ConnectsAtOnce(Broken):
    caught_by = "nothing_is_touched_before_a_role_is_asked_for"

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url, options)
        if self.host in Store.by_name:
            Store.by_name[self.host].queue(self.queue + "-connections")


class TakesAnyOption(Broken):
    caught_by = "an_unknown_option_is_refused_and_the_nearest_named"
    open_options = True

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url, {})


class LetsAValueErrorOut(Broken):
    """A port that is not a number ends in a ValueError."""

    caught_by = "an_odd_url_is_opened_or_refused_by_an_error_of_ours[memory-//host:port/q]"

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        int(url.partition("host:")[2].partition("/")[0] or 0)
        super().__init__(url, options)


class TakesAServiceForAQueue(Broken):
    caught_by = "a_reference_to_what_is_not_known_is_refused[memory-kind]"

    def resolve(self, ref: Ref) -> str:
        return super().resolve(replace(ref, kind="Queue"))


class LooksAtNoGroup(Broken):
    caught_by = "a_reference_to_what_is_not_known_is_refused[memory-group]"

    def resolve(self, ref: Ref) -> str:
        return super().resolve(replace(ref, api_version=""))


class LooksAtNoNamespace(Broken):
    caught_by = "a_reference_to_what_is_not_known_is_refused[memory-namespace]"

    def resolve(self, ref: Ref) -> str:
        return super().resolve(replace(ref, namespace=""))


class KnowsOneVersion(Broken):
    caught_by = "a_reference_of_a_known_kind_names_another_place"

    def resolve(self, ref: Ref) -> str:
        return super().resolve(ref) + ref.api_version.removeprefix("memory.example")


class ResolvesThoughItSaysNoKind(Broken):
    caught_by = "without_kinds_every_reference_is_refused"
    capabilities = BARE

    def resolve(self, ref: Ref) -> str:
        return self.sibling(ref.name)


class AnswersForARoleItHasNot(Broken):
    """None, where it should raise Unsupported."""

    caught_by = "without_browsing_asking_for_dead_letters_is_unsupported"
    capabilities = BARE

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return None


class RemovesThoughItSaysNone(Broken):
    caught_by = "without_removing_asking_for_it_is_unsupported"
    capabilities = READ_ONLY

    class LettersRole(MemoryDeadLetters):
        def remove(self, positions: Sequence[str]) -> int:
            return 0


class RaisesNotImplemented(Broken):
    caught_by = "without_an_admin_asking_for_one_is_unsupported"
    capabilities = BARE

    def admin(self) -> MemoryAdmin:
        raise NotImplementedError


class CountsThoughItSaysNone(Broken):
    caught_by = "without_depth_asking_for_it_is_unsupported"
    capabilities = replace(MemoryBroker.capabilities, depth=Support.NONE)


class SendsAfterItsClose(Broken):
    caught_by = "a_closed_sender_takes_nothing"

    class SenderRole(MemorySender):
        def close(self) -> None:
            pass


class ClosesOnce(Broken):
    caught_by = "closing_twice_does_nothing"

    class SenderRole(MemorySender):
        def close(self) -> None:
            if self.closed:
                raise RuntimeError("already closed")
            super().close()


class ClosesAllItsSenders(Broken):
    caught_by = "a_sender_outlives_another_of_the_same_broker"

    def sender(self) -> Sender:
        sender = super().sender()
        self.__dict__.setdefault("senders", []).append(sender)
        sender.close = lambda: [setattr(each, "closed", True) for each in self.senders]
        return sender


class ClosesItsParentsConnection(Broken):
    """A forked child says goodbye on the connection that it has inherited."""

    caught_by = "closing_an_inherited_role_in_a_fork_does_not_disturb_its_owner"

    class SenderRole(MemorySender):
        def __init__(self, broker: MemoryBroker) -> None:
            super().__init__(broker)
            self.connection, self.server = socket.socketpair()

        def send(self, batch: Batch, *, deadline: float) -> None:
            if select.select([self.server], [], [], 0)[0]:
                raise Retriable("memory: the server has closed the connection, as it was asked to")
            super().send(batch, deadline=deadline)

        def close(self) -> None:
            if not self.closed:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.connection.close()
            super().close()


class HangsOnClose(Broken):
    """Closing waits for a result that was never collected."""

    caught_by = "closing_with_work_in_flight_does_not_hang"

    class SenderRole(MemorySender):
        def close(self) -> None:
            if self.settled:
                time.sleep(0.9)
            super().close()


class BelongsToAThread(Broken):
    """As a connection of some client libraries does."""

    caught_by = "a_broker_used_in_another_thread_serves_it"

    class SenderRole(MemorySender):
        def __init__(self, broker: MemoryBroker) -> None:
            super().__init__(broker)
            self.local = threading.local()
            self.local.mine = True

        def send(self, batch: Batch, *, deadline: float) -> None:
            if not hasattr(self.local, "mine"):
                raise Throttled("memory: made in another thread")
            super().send(batch, deadline=deadline)
