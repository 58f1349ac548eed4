"""Names of dead letter queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.kit.names import DeadLetterNames

PLAIN = DeadLetterNames()
FIFO = DeadLetterNames(ending=".fifo")
LOOSE = DeadLetterNames(ignores_case=True)


@pytest.mark.parametrize(
    ("rule", "name", "expected"),
    [
        (PLAIN, "orders", "orders-dead-letters"),
        (PLAIN, "orders-dead-letters", "orders-dead-letters"),
        (PLAIN, "Orders-Dead-Letters", "Orders-Dead-Letters-dead-letters"),
        (LOOSE, "Orders-Dead-Letters", "Orders-Dead-Letters"),
        (FIFO, "orders.fifo", "orders-dead-letters.fifo"),
        (FIFO, "orders-dead-letters.fifo", "orders-dead-letters.fifo"),
        (FIFO, "orders", "orders-dead-letters"),
        (DeadLetterNames(suffix=".dlq"), "orders", "orders.dlq"),
    ],
)
def test_a_dead_letter_queue_is_named_by_its_suffix_and_has_none_of_its_own(
    rule: DeadLetterNames, name: str, expected: str
) -> None:
    assert rule.of(name) == expected
    assert rule.is_dead_letters(expected)


@pytest.mark.parametrize("rule", [PLAIN, FIFO, LOOSE])
@given(stem=st.text(min_size=1).filter(lambda stem: "-dead-letters" not in stem.lower()), ending=st.booleans())
def test_the_source_is_the_queue_that_the_name_was_made_of(rule: DeadLetterNames, stem: str, ending: bool) -> None:
    name = stem + rule.ending * ending
    assert rule.source(rule.of(name)) == name
    assert rule.source(name) == name


def test_a_name_that_is_the_suffix_alone_is_its_own_source() -> None:
    assert PLAIN.source("-dead-letters") == "-dead-letters"
