"""Mutants: the real code with one fault each, patched in while a run lasts. The simulation must find every one.

`MUTANTS` is the list. Each patch replaces one function of the library by one that does the wrong thing in the place of
the right one. `test_mutants.py` runs seeds until an invariant is violated, and the same seeds without the patch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

from redelivery import policy
from redelivery.contract.broker import Accept, LetterBatch, Retry
from redelivery.contract.message import Batch, Column, Message
from redelivery.deadletters import operations
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.redrive import Transfer
from redelivery.errors import Ambiguous, BrokerError
from redelivery.formats.dialects import again
from redelivery.policy import decisions
from redelivery.policy.breaker import Circuit
from redelivery.receiving.leases import LeasedMessage, Leases
from redelivery.receiving.running import RunningSubscription
from redelivery.sending import group as groups_of
from redelivery.sending import letters, send_queue
from redelivery.sending.engine import Engine
from redelivery.sending.group import Group
from redelivery.sending.letters import LetterWriter
from redelivery.sending.ordering import Admitted, KeyOrder
from redelivery.sending.send_queue import BatchResult, SendQueue
from simulation.world import MARKERS

_engine_settle = Engine._settle
_enter = Engine._enter
_begin_attempt = Group.begin_attempt
_send = SendQueue.send
_wait = SendQueue.wait
_give_up = RunningSubscription._give_up
_leases_settle = Leases._settle
_sent = Journal.sent
_account = Transfer._account
_decide = decisions.decide
_letters = LetterWriter.letters


# --- the engine ---


def acknowledged_when_sent(self: SendQueue, batch: Batch, groups: Sequence[Group] | None = None) -> None:
    """A batch counts as delivered once it was handed over."""
    _send(self, batch, groups)
    for number in list(self._in_flight):
        sent = self._in_flight.pop(number)
        self._refused.append(BatchResult(sent, {}))
        self._in_flight_records -= len(sent.batch)
        self._in_flight_bytes -= sent.batch.nbytes
        if self._sender is not None:
            self._sender.flights.clear()  # type: ignore[attr-defined]


def ambiguous_is_good_enough(self: Engine, index: int, queue: SendQueue, result: BatchResult) -> None:
    """A row without an answer counts as delivered."""
    kept = {row: error for row, error in result.failures.items() if not isinstance(error, Ambiguous)}
    _engine_settle(self, index, queue, replace(result, failures=kept))


def retried_under_another_id(groups: Sequence[Group]) -> Batch:
    """An attempt after the first one has a different id."""
    batch = _outgoing(groups)
    attempts = groups[0].attempts
    if batch.id is None or attempts < 2 or groups[0].render is not None:
        return batch
    return replace(batch, id=Column.of([f"{name}-{attempts}" for name in batch.id.values]))


_outgoing = groups_of.outgoing


def attempts_not_counted(self: Group, now: float) -> None:
    """A group never has more than one attempt."""
    _begin_attempt(self, now)
    self.attempts = min(1, self.attempts)


def retry_dropped(self: SendQueue, group: Group, until: float) -> None:
    """What should wait for its next attempt is forgotten."""
    if group.attempts == 0:
        _wait(self, group, until)


def retried_at_once(self: SendQueue, group: Group, until: float) -> None:
    """No backoff."""
    _wait(self, group, self._clock.monotonic())


def sink_failure_swallowed(self: Engine, group: Group, index: int) -> None:
    """A letter that no sink takes counts as dead-lettered."""
    if index >= len(self._send_queues) and self._spec.dead_letter_sink:
        self.report.dead_lettered += len(group)
        self._handled(group)
        return
    _send_to_sink(self, group, index)


_send_to_sink = Engine._send_to_sink


def neighbours_given_up(*args: Any, **named: Any) -> decisions.Decision:
    """A batch whose culprit is unknown is given up as a whole."""
    decision = _decide(*args, **named)
    return policy.GiveUp("it can never be delivered") if isinstance(decision, policy.Isolate) else decision


def letters_known_by_their_ids(group: Group, _contexts: object) -> list[str | None]:
    """Two letters of one id are one to a sink that recognises ids."""
    ids = group.messages.id
    return [None] * len(group) if ids is None else list(ids.values)


def letters_without_keys(self: LetterWriter, group: Group) -> Batch:
    """A letter loses its key."""
    return replace(_letters(self, group), key=None)


def keys_not_held(self: KeyOrder, batch: Batch) -> Admitted:
    """Fresh rows are sent whatever becomes of earlier ones of their key."""
    admitted = _admit(self, batch)
    return Admitted(sorted(admitted.now + admitted.later), [], admitted.parked)


_admit = KeyOrder.admit


def successors_not_parked(_self: KeyOrder, _group: Group) -> list[Group]:
    """Rows behind a dead one of their key are sent, although they should follow it."""
    return []


# --- the subscription ---


def settled_on_hope(self: RunningSubscription, leased: LeasedMessage, error: BrokerError, why: str) -> None:
    """The lease of a message that is given up ends before a sink has confirmed its letter."""
    self._leases.settle([(leased, Accept())])
    _give_up(self, leased, error, why)


def lost_lease_ignored(self: Leases, leased: LeasedMessage) -> None:
    """A lost lease is kept, and prolonged, and settled."""


def given_up_without_a_letter(self: RunningSubscription, leased: LeasedMessage, error: BrokerError, why: str) -> None:
    """A message that is given up is accepted, and no letter is sent."""
    leased.decided = leased.dead = True
    self._leases.settle([(leased, Accept())])


def every_delivery_is_the_first(*args: Any, **named: Any) -> decisions.Decision:
    """The attempts of earlier deliveries do not count."""
    return _decide(*args, **{**named, "attempts": 1})


def accepted_whatever_was_raised(
    self: RunningSubscription, said: Sequence[tuple[LeasedMessage, BaseException | None]]
) -> None:
    """An error that a handler raises is taken for success."""
    _take_results(self, [(leased, None) for leased, _ in said])


_take_results = RunningSubscription._take_results


def breaker_never_closes(self: Circuit, *, began: float) -> bool:
    """An outage has no end."""
    return self.since is None and _succeeded(self, began=began)


_succeeded = Circuit.succeeded


def permanent_errors_count(self: Circuit, error: BrokerError) -> bool:
    """A message's own fault counts as an outage."""
    return True


def given_up_in_an_outage(self: RunningSubscription, leased: LeasedMessage, failed: BrokerError, now: float) -> bool:
    """In an outage messages are settled as at any time."""
    _is_outage(self, leased, failed, now)
    leased.aside, leased.decided = False, True
    return False


_is_outage = RunningSubscription._is_outage


def tries_counted(self: Leases, leased: LeasedMessage, failure: BrokerError | None = None) -> None:
    """Each try in an outage is a retry."""
    if failure is not None:
        self.settle([(leased, Retry())])
    _put_aside(self, leased, failure)


_put_aside = Leases.put_aside


# --- the redrive ---


def noted_after_the_removal(self: Transfer, going: LetterBatch, confirmed: list[int], refused: Sequence[int]) -> None:
    """Letters are removed first, and noted then."""
    noted: list[tuple[Any, ...]] = []
    with mock.patch.object(Journal, "sent", lambda _, *args: noted.append(args)):
        _account(self, going, confirmed, refused)
    if self._journal is not None:
        for each in noted:
            _sent(self._journal, *each)


def journal_not_read(self: Journal) -> dict[str, str]:
    """A redrive does not ask what earlier ones have sent."""
    return {}


def never_noted(self: Journal, letters: object, removed: object = (), refused: object = ()) -> None:
    """Nothing is noted."""


def removed_unconfirmed(self: Transfer, going: LetterBatch, confirmed: list[int], refused: Sequence[int]) -> None:
    """All letters that were sent are removed, the refused ones too."""
    _account(self, going, confirmed if not confirmed else list(range(len(going))), refused)


def hop_not_added(messages: Batch) -> list[again.Again | None]:
    """A letter is sent back as if it had never been sent back."""
    return [
        None
        if each is None
        else replace(each, headers=tuple(h for h in each.headers if h[0] not in MARKERS), hops=each.hops - 1)
        for each in _plain(messages)
    ]


_plain = again.plain


def sent_in_two_forms(self: Journal) -> dict[str, tuple[str, str]]:
    """Nobody looks in which form a letter may have been sent before."""
    return {}


def limit_ignored(self: Transfer) -> bool:
    """A redrive does not stop at its limit."""
    self._limit = None
    return _must_stop(self)


_must_stop = Transfer._must_stop


def removed_before_it_is_sent(self: Transfer, letter_sender: Any, going: LetterBatch, messages: Batch) -> None:
    """A letter is removed before it is sent."""
    self._letters.remove(going.position.values)
    _transfer_send(self, letter_sender, going, messages)


_transfer_send = Transfer._send


def targets_followed(*_: object, **__: object) -> None:
    """A header of a letter decides where it goes."""


def native_part_dropped(*args: Any, **named: Any) -> Message:
    """What only its broker understands of another application's message is left behind."""
    return replace(_sent_back(*args, **named), native=None)


_sent_back = operations.sent_back


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault.

    Attributes:
        world: in which it is looked for.
        where: the owner of what is replaced, and its name there.
        wrong: what replaces it.
        invariants: the numbers of the invariants that may find it.
    """

    world: str
    where: tuple[Any, str]
    wrong: Callable[..., Any]
    invariants: tuple[int, ...]

    @property
    def name(self) -> str:
        """For people."""
        return self.wrong.__name__.replace("_", " ")


MUTANTS: Final = (
    Mutant("engine", (SendQueue, "send"), acknowledged_when_sent, (2, 5, 15)),
    Mutant("engine", (Engine, "_settle"), ambiguous_is_good_enough, (1, 2, 5, 15)),
    Mutant("engine", (send_queue, "outgoing"), retried_under_another_id, (3, 4)),
    Mutant("engine", (Group, "begin_attempt"), attempts_not_counted, (4, 7, 10)),
    Mutant("engine", (SendQueue, "wait"), retry_dropped, (2, 5, 7)),
    Mutant("engine", (SendQueue, "wait"), retried_at_once, (10,)),
    Mutant("engine", (Engine, "_send_to_sink"), sink_failure_swallowed, (1, 2, 5)),
    Mutant("engine", (policy, "decide"), neighbours_given_up, (8,)),
    Mutant("engine", (letters, "_identities"), letters_known_by_their_ids, (11,)),
    Mutant("engine", (LetterWriter, "letters"), letters_without_keys, (4,)),
    Mutant("engine", (KeyOrder, "admit"), keys_not_held, (15,)),
    Mutant("engine", (KeyOrder, "given_up"), successors_not_parked, (15,)),
    Mutant("subscription", (RunningSubscription, "_give_up"), settled_on_hope, (1, 5)),
    Mutant("subscription", (RunningSubscription, "_give_up"), given_up_without_a_letter, (1, 5)),
    Mutant("subscription", (Leases, "lose"), lost_lease_ignored, (2, 7)),
    Mutant("subscription", (policy, "decide"), every_delivery_is_the_first, (7, 10)),
    Mutant("subscription", (RunningSubscription, "_take_results"), accepted_whatever_was_raised, (1, 5)),
    Mutant("subscription", (Circuit, "succeeded"), breaker_never_closes, (5, 7)),
    Mutant("subscription", (Circuit, "counts"), permanent_errors_count, (10,)),
    Mutant("subscription", (RunningSubscription, "_is_outage"), given_up_in_an_outage, (8,)),
    Mutant("subscription", (Leases, "put_aside"), tries_counted, (10,)),
    Mutant("redrive", (Transfer, "_account"), noted_after_the_removal, (3,)),
    Mutant("redrive", (Journal, "pending"), journal_not_read, (3,)),
    Mutant("redrive", (Journal, "sent"), never_noted, (3,)),
    Mutant("redrive", (Journal, "unsure"), sent_in_two_forms, (3,)),
    Mutant("redrive", (Transfer, "_account"), removed_unconfirmed, (1, 5)),
    Mutant("redrive", (again, "plain"), hop_not_added, (4,)),
    Mutant("redrive", (Transfer, "_must_stop"), limit_ignored, (10,)),
    Mutant("redrive", (Transfer, "_send"), removed_before_it_is_sent, (1, 5)),
    Mutant("redrive", (operations, "why_left"), targets_followed, (8, 13)),
    Mutant("redrive", (operations, "sent_back"), native_part_dropped, (12,)),
    Mutant("two-redrives", (Journal, "sent"), never_noted, (3,)),
)
