"""The redrive protocol keeps the invariants in every interleaving, and its mutants do not."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from simulation.invariants import INVARIANTS
from simulation.model import MUTANTS, SURROUNDINGS, Rules, search


def shown(rules: Rules) -> str:
    return " ".join(f"{name}={value}" for name, value in asdict(rules).items() if value is not False)


@pytest.mark.parametrize("rules", SURROUNDINGS, ids=shown)
def test_every_interleaving_keeps_the_invariants(rules: Rules) -> None:
    found = search(rules)
    assert found.violation is None, (found.violation, found.path)
    assert found.states > 1_000
    assert found.ends


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_protocol_breaks_an_invariant(mutant: str) -> None:
    found = [search(replace(rules, **{mutant: True})) for rules in SURROUNDINGS[:3]]
    numbers = {each.violation.number for each in found if each.violation is not None}
    assert MUTANTS[mutant] in numbers
    assert all("model" in INVARIANTS[number] for number in numbers)
