"""What librdkafka's mock cluster does otherwise than Kafka: statements that are run there and must fail.

This file must not excuse anything of a real cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_UNPROVISIONED: Final = "the mock cluster has no controller, so nothing can be provisioned or its settings be read"

#: Statements that provision, or that ask the admin role.
_PROVISIONING: Final = """
    planning_only_reads
    provisioning_makes_what_was_planned
    provisioning_again_changes_nothing
    a_destination_that_was_sent_to_is_provisioned_without_loss
    what_differs_is_told_and_never_altered
    the_status_names_the_native_place
    depth_counts_what_waits
    depth_leaves_dead_letters_out
    depth_counts_what_is_in_hand
    closing_twice_does_nothing

    a_letter_sent_to_the_native_place_comes_back_whole
    the_native_place_is_apart_from_the_destination
    the_native_place_is_the_same_each_time
    an_empty_place_has_no_letters
    purging_the_native_place_leaves_the_destination
    purging_letters_leaves_what_is_in_hand

    an_empty_queue_gives_nothing_by_its_wait
    receiving_wakes_when_something_arrives
    a_message_that_cannot_be_decoded_is_told_and_harms_no_neighbour
    settling_twice_is_a_lost_lease
    what_a_handler_raises_for_is_retried_and_then_a_letter
    what_a_handler_gives_up_is_a_letter_at_once
    a_subscription_killed_as_it_dead_letters_loses_nothing

    a_terminated_message_is_a_letter_whole_with_its_context
    a_terminated_message_is_gone_when_its_letter_is_there
    a_lost_lease_leaves_no_letter
    terminating_twice_leaves_one_letter
    a_letter_that_cannot_be_stored_is_refused_alone_and_its_message_kept
    without_a_reason_of_its_own_the_letter_alone_holds_it

    a_redriven_letter_is_back_at_work_and_gone_from_its_place
    a_redriven_letter_starts_again_at_the_first_attempt
    totals_and_hops_survive_each_redrive
    a_letter_is_removed_only_after_it_was_stored
    killed_before_it_removes_a_redrive_leaves_the_letter_in_both_places
    a_killed_redrive_goes_on_by_its_ledger_and_sends_nothing_twice
    only_the_letters_that_a_selection_means_are_redriven
    a_second_redrive_finds_nothing
    a_redrive_of_some_leaves_the_others
    a_letter_sent_back_too_often_stays
    many_letters_are_redriven_each_once
"""

GAPS: Final[Mapping[str, str]] = {
    **{f"{name}[[]*": _UNPROVISIONED for name in _PROVISIONING.split()},
    "a_receiver_that_closes_leaves_its_partitions_to_the_next[[]*": (
        "the mock coordinator gave a waiting member nothing within 10 s of the other one's leaving"
    ),
}
