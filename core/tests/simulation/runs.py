"""Runs of one seed: `run` is the whole simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from simulation.choices import Choices, Recorded
from simulation.engine_world import EngineWorld
from simulation.redrive_world import RedriveWorld, TwoRedrivesWorld
from simulation.scheduler import Violated
from simulation.subscription_world import SubscriptionWorld
from simulation.threads import installed
from simulation.world import World

#: By name, as `--only` takes it.
WORLDS: Final[Mapping[str, type[World]]] = {
    each.name: each for each in (EngineWorld, SubscriptionWorld, RedriveWorld, TwoRedrivesWorld)
}


@dataclass(frozen=True, slots=True)
class Run:
    """The account of a run.

    Attributes:
        world: its name.
        seed: its seed.
        violation: the invariant that does not hold; None: all hold.
        history: time, thread, what.
        recorded: its decisions.
        reached: rare states, and how often.
        digest: of the history.
    """

    world: str
    seed: int
    violation: Violated | None
    history: list[tuple[float, str, str]]
    recorded: Recorded
    reached: Mapping[str, int]
    digest: str


def run(world: str, seed: int, replayed: Recorded | None = None) -> Run:
    """Run one world by one seed: make it, let it run to its end, and check the invariants at every step."""
    choices = Choices(seed, replayed)
    there = WORLDS[world](choices)
    violation: Violated | None = None
    with _unlogged(), there.network.open(), installed(there.scheduler, there.journal_is_full):
        try:
            there.run()
        except Violated as found:
            violation = there.scheduler.violation or found
        finally:
            there.scheduler.end()
    scheduler = there.scheduler
    return Run(world, seed, violation, scheduler.history, choices.recorded, scheduler.reached, scheduler.digest)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Log nothing in the `with` block: what fails here is meant to fail."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
