"""The simulation finds faults: each mutant of the real code is found by one of its first seeds."""

from __future__ import annotations

from unittest import mock

import pytest

from simulation.mutants import MUTANTS, Mutant
from simulation.results import BOUND, first_seed
from simulation.runs import run
from simulation.shrink import shrunk


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{each.world}: {each.name}" for each in MUTANTS])
def test_a_mutant_is_found(mutant: Mutant) -> None:
    seed, _ = first_seed(mutant)
    assert run(mutant.world, seed).violation is None, "without the fault the seed passes"


def test_a_failure_is_shown_by_a_short_history() -> None:
    mutant = next(each for each in MUTANTS if each.name == "noted after the removal")
    with mock.patch.object(*mutant.where, mutant.wrong):
        runs = (run(mutant.world, seed) for seed in range(BOUND))
        failed = next(each for each in runs if each.violation is not None and len(each.history) > 9)
        shortest = shrunk(failed)
        again = run(mutant.world, failed.seed, shortest.recorded)
    assert shortest.violation is not None
    assert again.digest == shortest.digest
    assert len(shortest.history) < len(failed.history)
    assert len(shortest.history) <= 10, shortest.history
