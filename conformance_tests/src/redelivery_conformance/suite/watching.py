"""Watching: a look tells how many letters there are and how many came, and leaves them in place."""

from __future__ import annotations

import time
from collections.abc import Callable

from redelivery.base.clock import SystemClock
from redelivery.contract.broker import Support
from redelivery.deadletters.queue import dead_letters
from redelivery.formats import dialects
from redelivery.watch.looking import Looker, Watched
from redelivery.watch.rules import Snapshot
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import GRACE, Subject
from redelivery_conformance.suite.letters import CONTEXT
from redelivery_conformance.suite.receiving import numbered


class Watching(Statements):
    """`redelivery watch` over this broker's roles."""

    @broker_has("send", "browse", "dead_letter", "headers")
    def test_a_watch_counts_the_letters_that_come_and_leaves_them(self, subject: Subject) -> None:
        subject.provision()
        looker = _looker(subject)
        assert _until(looker, lambda found: found.count == 0).arrived == {}
        _bury(subject, 3)
        came = _until(looker, lambda found: found.count == 3)
        assert sum(looker.known.arrived.values()) == 3
        if subject.capabilities.browse is Support.NATIVE:
            assert came.groups is not None
            assert [each.count for each in came.groups] == [3]
            assert looker.known.by_code == looker.known.arrived
            assert came.oldest_ms is not None
        else:
            assert looker.known.only_counted
        _bury(subject, 2)
        _until(looker, lambda found: found.count == 5)
        assert sum(looker.known.arrived.values()) == 5
        assert len(subject.browse(direct=False)) == 5 or subject.capabilities.browse is Support.LOWER_BOUND

    @broker_has("browse")
    def test_a_watch_finds_a_place_that_cannot_be_reached(self, subject: Subject) -> None:
        """It is an answer like any other: nothing is raised."""
        found = _looker(subject, subject.place.unreachable()).look()
        assert found.failed
        assert found.count is None


def _looker(subject: Subject, url: str | None = None) -> Looker:
    url = url or subject.place.url
    place = Watched(label="orders", url=url, broker=subject.broker.name, options=subject.place.options)
    return Looker(
        place,
        SystemClock(),
        opened=lambda it: dead_letters(it.url, options=it.options, connection_factory=subject.connected),
    )


def _bury(subject: Subject, count: int) -> None:
    has = subject.capabilities
    letters = [
        dialects.attach(each, CONTEXT, dialect=has.context_dialect, limits=has.limits, prefix=has.cloudevents_prefix)
        for each in numbered(count)
    ]
    subject.deliver(*letters, url=subject.broker.native_sink())


def _until(looker: Looker, holds: Callable[[Snapshot], bool]) -> Snapshot:
    """Look until something holds: a broker may count late."""
    until = time.monotonic() + GRACE
    while True:
        found = looker.look()
        assert found.failed is None, found.failed
        if holds(found) or time.monotonic() > until:
            assert holds(found), found
            return found
