"""Ids and deduplication: an id comes back unchanged, and a duplicate within the window is not stored again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from redelivery.contract.message import Message
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import Subject

ODD_IDS = {
    "plain": "b1d3c0de-0001",
    "path": "../../etc/passwd",
    "spaces": " a b ",
    "beyond-ascii": "größe-大きさ-📏",
    "300-characters": "x" * 300,
    "controls": "a\nb",
    "case": "AbC",
}
#: Identities that differ in one place only must differ. A broker that refuses such an id may accept the identity.
ODD_IDENTITIES = ("größe-大きさ-📏", "x" * 2_000 + "a", "x" * 2_000 + "b", "a b", "a\nb", "case", "CASE", "../i", "i")


class Ids(Statements):
    """Ids travel and prevent duplicates."""

    @broker_has("send", "ids")
    @pytest.mark.parametrize("name", ODD_IDS)
    def test_an_id_comes_back_as_it_was_or_the_row_is_refused_alone(self, subject: Subject, name: str) -> None:
        message = Message(value=b"v", id=ODD_IDS[name])
        if name == "plain":
            subject.deliver(message)
            subject.returns(message)
        else:
            subject.kept_or_refused(message)

    @broker_has("send", "ids")
    def test_ids_that_differ_are_different_messages(self, subject: Subject) -> None:
        messages = [Message(value=b"%d" % at, id=id_) for at, id_ in enumerate(("a", "A", "a ", "b", None, None))]
        subject.deliver(*messages)
        subject.returns(*messages)

    @broker_has("send")
    @broker_lacks("ids")
    def test_without_ids_a_row_with_one_is_stored(self, subject: Subject) -> None:
        """An id is metadata: if it cannot travel, the row is stored without it."""
        subject.deliver(Message(value=b"v", id="i"))
        assert subject.values() == Counter([b"v"])

    @broker_has("send", "deduplicate")
    def test_an_id_that_was_taken_is_taken_again_but_not_stored_again(self, subject: Subject) -> None:
        """Another sender may send it too: retried tasks and resent ambiguous batches rely on this."""
        subject.deliver(Message(value=b"first", id="i"))
        settled = subject.send(Message(value=b"new", id="j"), Message(value=b"first", id="i"))
        assert settled.error is None
        assert not settled.failures, "a known id is not a failure"
        told = 1 if subject.capabilities.reports_duplicates else 0
        assert settled.duplicates == told, "duplicates counts rows that were not stored again, where the broker tells"
        assert subject.values() == Counter([b"first", b"new"])

    @broker_has("send", "deduplicate")
    def test_the_same_id_twice_in_one_batch_is_stored_once(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"v", id=id_) for id_ in ("i", "i", "j", "i")))
        assert subject.values() == Counter({b"v": 2})

    @broker_has("send", "deduplicate")
    def test_a_refused_row_leaves_its_id_free(self, subject: Subject) -> None:
        """Only a stored id counts as taken. Otherwise a corrected row would be lost."""
        poison = subject.poison()
        if poison.id is not None:
            raise CannotShow("a refused row with its own id: its harness's poison is the id")
        subject.send(replace(poison, id="i"), isolate=True)
        subject.deliver(Message(value=b"mended", id="i"))
        assert subject.values() == Counter([b"mended"])

    @broker_has("send", "deduplicate")
    def test_rows_without_an_id_are_never_duplicates(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"), Message(value=b"v"))
        subject.deliver(Message(value=b"v"))
        assert subject.values() == Counter({b"v": 3})

    @broker_has("send", "deduplicate")
    def test_messages_of_one_id_and_different_identity_are_all_stored_under_that_id(self, subject: Subject) -> None:
        """Examples are letters of one row, or events with one id and different sources. Their ids stay as they were."""
        names = ("a", "b", None)
        messages = [Message(value=b"%d" % at, id="the-same", identity=name) for at, name in enumerate(names)]
        subject.deliver(*messages)
        subject.returns(*messages)

    @broker_has("send", "deduplicate")
    def test_an_identity_that_was_taken_is_taken_again_but_not_stored_again(self, subject: Subject) -> None:
        """The id does not matter. This holds within one batch and for another sender."""
        subject.deliver(*(Message(value=b"v", id=id_, identity="one") for id_ in ("i", "i", "j")))
        settled = subject.send(*(Message(value=b"v", id=id_, identity="one") for id_ in ("i", None)))
        assert settled.error is None
        assert not settled.failures, "a known identity is not a failure"
        subject.deliver(Message(value=b"other", id="i", identity="another"))
        assert subject.values() == Counter([b"v", b"other"])

    @broker_has("send", "deduplicate")
    def test_an_identity_may_be_any_text_of_any_length(self, subject: Subject) -> None:
        """It need not come back, so a plugin replaces an identity that the broker cannot hold by a digest."""
        messages = [Message(value=b"%d" % at, id="i", identity=name) for at, name in enumerate(ODD_IDENTITIES)]
        subject.deliver(*messages)
        subject.deliver(*messages)
        subject.returns(*messages)

    @broker_has("send", "deduplicate", "destinations")
    def test_an_id_taken_at_one_destination_is_free_at_another(self, subject: Subject) -> None:
        there = subject.place.destination("elsewhere")
        subject.deliver(Message(value=b"here", id="i"))
        subject.deliver(Message(value=b"there", id="i", destination=there))
        assert subject.values() == Counter([b"here"])
        assert subject.values(there) == Counter([b"there"])

    @broker_has("send", "deduplicate", "browse", "remove")
    def test_an_id_stays_taken_when_its_message_is_removed(self, subject: Subject) -> None:
        """Within the window a consumed message must not arrive a second time."""
        subject.deliver(Message(value=b"v", id="i"))
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove([letter.position for letter in letters.browse()]) == 1
        subject.deliver(Message(value=b"v", id="i"))
        assert not subject.values()

    @broker_has("send")
    @broker_lacks("deduplicate")
    def test_without_deduplication_the_same_id_twice_is_stored_twice(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v", id="i"), Message(value=b"v", id="i"))
        assert subject.values() == Counter({b"v": 2})
