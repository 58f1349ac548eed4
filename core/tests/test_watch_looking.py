"""Looks at a place: what they find, what they cost, and what they leave alone."""

from __future__ import annotations

from pathlib import Path

from buried import Place

from redelivery.deadletters.queue import dead_letters
from redelivery.deadletters.selection import Selection


def test_only_letters_between_two_cursors_are_selected(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.bury(3)
    with dead_letters(place.url) as dlq:
        first = dlq.made()
        place.bury(2, first=3)
        second = dlq.made()
        place.bury(1, first=5)

        def found(after: str | None, before: str | None) -> list[str]:
            where = Selection.parse("kind=permanent").between(after, before)
            return [each for ids in dlq.scan(lambda batch: batch.messages.id.values, where) for each in ids]

        assert found(first, second) == ["n3", "n4"]
        assert found(None, first) == ["n0", "n1", "n2"]
        assert found(second, None) == ["n5"]


def test_a_broker_that_looks_without_taking_is_not_asked_for_a_depth(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.bury(3)
    with dead_letters(place.url) as dlq:
        assert (dlq.broker, dlq.looking_takes, dlq.depth()) == ("sqlite", False, None)
