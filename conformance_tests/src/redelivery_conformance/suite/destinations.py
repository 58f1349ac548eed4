"""Destinations: a row may name another target than the URL's."""

from __future__ import annotations

from collections import Counter

from redelivery.contract.message import Message
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import NotApplicable, Subject


class Destinations(Statements):
    """Rows go to the destination that they name."""

    @broker_has("send", "destinations")
    def test_each_row_goes_to_its_own_destination(self, subject: Subject) -> None:
        first, second = subject.place.destination("first"), subject.place.destination("second")
        targets = (None, first, second, first, None)
        subject.deliver(*(Message(value=b"%d" % at, destination=name) for at, name in enumerate(targets)))
        assert subject.values() == Counter([b"0", b"4"])
        assert subject.values(first) == Counter([b"1", b"3"])
        assert subject.values(second) == Counter([b"2"])

    @broker_has("send", "destinations")
    def test_a_row_whose_destination_cannot_be_is_refused_alone(self, subject: Subject) -> None:
        """A missing target of one row is Permanent; only the URL's missing target is Fatal."""
        nowhere = subject.place.impossible_destination()
        if nowhere is None:
            raise NotApplicable("any destination can be")
        subject.refuses_alone(Message(value=b"v", destination=nowhere))

    @broker_has("send")
    @broker_lacks("destinations")
    def test_without_destinations_a_row_that_names_one_is_refused_alone(self, subject: Subject) -> None:
        subject.refuses_alone(Message(value=b"v", destination="elsewhere"))
