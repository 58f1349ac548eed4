"""Dead letters: a letter keeps the whole original and its context. Browsing never removes letters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from secrets import token_hex
from typing import Final

import pytest

from redelivery.codes import Code
from redelivery.contract.broker import DeadLetters, Wanted
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.deadletters.trust import context_of
from redelivery.errors import BrokerError, ConfigurationError, Fatal, RedeliveryError
from redelivery.formats import dialects, identity
from redelivery.sending import Delivery, Origin
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.suite.headers import ODD_HEADERS

#: The key that signs letters.
KEY = b"a key that signs letters"
#: More looks at a letter than any broker's default limit of deliveries.
LOOKS = 100
#: Seconds between letters of different age: a broker's clock may be as coarse as this.
TICK = 0.02

CONTEXT = ErrorContext(
    reason="the broker said no: größe",
    kind="permanent",
    code=Code.TOO_LARGE,
    native_code="413",
    exception="redelivery.errors.Permanent",
    stage="TASK_PUT",
    broker="carrier",
    destination="carrier://host/orders",
    message_id="id-1",
    attempts=3,
    attempts_total=7,
    hops=2,
    first_failure_ms=1_700_000_000_000,
    last_failure_ms=1_700_000_000_999,
    run="run-1",
    query="q",
    batch="5",
    partition=1,
    position=42,
)


_BYTES = bytes(range(256))
#: Rows that some brokers accept and others refuse.
HOSTILE: Mapping[str, Message] = {
    **{f"header {name}": Message(value=b"v", headers=headers) for name, headers in ODD_HEADERS.items()},
    "headers that some broker has for itself": Message(
        value=b"v", headers=tuple((name, b"evil") for name in ("CC", "BCC", "x-death", "content-type", "message-id"))
    ),
    "more headers than any limit": Message(value=b"v", headers=tuple((f"h{at}", b"%d" % at) for at in range(300))),
    "bytes in all of it": Message(value=_BYTES, key=_BYTES, headers=(("h", _BYTES),)),
    "a null value": Message(value=None, key=b"k", headers=(("h", None),)),
    "nothing in it": Message(value=b""),
    "a long id": Message(value=b"v", id="i" * 3000),
    "an id of controls": Message(value=b"v", id="a\0b\n\x1b[2J\u202e\uffff"),
    "a long key": Message(value=b"v", key=b"k" * 3000),
    "a time that is not valid": Message(value=b"v", timestamp_ms=2**62),
    "a time before all": Message(value=b"v", timestamp_ms=-(2**62)),
    "characters that XML has not": Message(value="\0\x0b\ufffe\uffff\U0001f4cf".encode()),
}


#: A trace context comes back as it was written, also when another process sends the message on.
_TRACED: Final = (
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tracestate", b"vendor=a:1,other=t61rcWkgMzE"),
    ("binary", b"\xfe\0"),
)


def original(subject: Subject) -> Message:
    """Return a message that uses all parts that this broker carries."""
    has = subject.capabilities
    return Message(
        value=b'{"n": 1}\0\xff',
        key=b"k\xff" if has.keys else None,
        headers=_TRACED if has.headers else (),
        id="id-1" if has.ids else None,
        timestamp_ms=1_700_000_000_123 if has.timestamps else None,
    )


class DeadLetterPlaces(Statements):
    """Letters sent to a sink come back complete."""

    @broker_has("send", "browse", "headers")
    @pytest.mark.parametrize("dialect", dialects.NAMES)
    def test_a_letter_sent_to_a_sink_by_url_comes_back_whole(self, subject: Subject, dialect: str) -> None:
        self._comes_back_whole(subject, subject.place.url, dialect, direct=True)

    @broker_has("send", "browse", "headers", "dead_letter")
    def test_a_letter_sent_to_the_native_place_comes_back_whole(self, subject: Subject) -> None:
        subject.provision()
        dialect = subject.capabilities.context_dialect
        self._comes_back_whole(subject, subject.broker.native_sink(), dialect, direct=False)

    @broker_has("send", "browse", "headers")
    def test_a_letter_of_connect_s_that_dies_again_says_why_and_goes_back_as_it_was(self, subject: Subject) -> None:
        """It has headers of the names that ours have; a broker may have each name once (`Limits.repeated_headers`)."""
        has = subject.capabilities
        old = tuple((f"__connect.errors.{name}", b"of its first death") for name in ("exception.message", "topic"))
        message = Message(value=b"v", headers=(("mine", b"1"), *old, ("its", b"2")))
        letter = dialects.attach(message, CONTEXT, dialect="connect", limits=has.limits, prefix=has.cloudevents_prefix)
        subject.deliver(letter)
        (found,) = subject.browse(direct=True)
        assert context_of(found).reason == CONTEXT.reason
        if found.context is None:  # the reason is in its headers
            shown = [value for name, value in found.message.headers if name == old[0][0]]
            assert shown[-1] == CONTEXT.reason.encode(), "readers of Connect's headers take the last"
        headers = dialects.strip(found.message).headers
        assert tuple(each for each in headers if each[0] not in dialects.MARKERS) == message.headers

    @broker_has("send", "browse", "headers")
    @pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in HOSTILE.items()])
    def test_what_any_broker_can_take_is_storable_here_wrapped(self, subject: Subject, row: Message) -> None:
        """A letter that the sink refuses is sent again, wrapped in an event, and comes back unchanged."""
        has = subject.capabilities
        letter = dialects.attach(
            row,
            CONTEXT,
            dialect=has.context_dialect,
            limits=has.limits,
            prefix=has.cloudevents_prefix,
            wrapped=True,
        )
        subject.deliver(letter)
        (found,) = subject.browse(direct=True)
        given = dialects.strip(found.message)
        # A broker may add its own columns, as the group of a row.
        assert replace(given, extra={}) == replace(dialects.strip(letter), extra={})
        assert (given.value, given.key, given.id, given.timestamp_ms) == (row.value, row.key, row.id, row.timestamp_ms)
        assert given.headers[: len(row.headers)] == row.headers
        context = dialects.read(found.message) or found.context
        assert context is not None, "the letter came without its context"
        assert (context.code, context.native_code) == (CONTEXT.code, CONTEXT.native_code)

    @broker_has("send", "browse", "headers", "dead_letter")
    @pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in HOSTILE.items()])
    def test_a_row_that_is_refused_for_what_it_holds_is_kept_at_the_native_place(
        self, subject: Subject, row: Message
    ) -> None:
        """If the broker accepts it, it is delivered. In both cases the job continues."""
        subject.provision()
        spec = DeliverySpec(tolerance="all", dead_letter_sink=(Sink(uri=NATIVE),))
        with Delivery.open(
            subject.place.url, spec, origin=Origin(run="r"), connection_factory=subject.connect
        ) as delivery:
            delivery.write(Batch.of([row, Message(value=b"after")]))
            report = delivery.finish()
        assert report.delivered + report.dead_lettered == 2
        assert subject.values()[b"after"] == 1
        if report.dead_lettered:
            (found,) = subject.browse(direct=False)
            given = dialects.strip(found.message)
            assert (given.value, given.key, given.id) == (row.value, row.key, row.id)
            kept = given.headers[: len(row.headers)]
            # A plugin may accept a letter by escaping the characters that its client cannot hold in a name.
            escaped = tuple((name.replace("\0", "\\0"), value) for name, value in row.headers)
            assert kept in (row.headers, escaped)

    @broker_has("send", "browse", "dead_letter")
    def test_the_native_place_is_apart_from_the_destination(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"letter"), url=subject.broker.native_sink())
        subject.deliver(Message(value=b"live"))
        assert subject.values() == Counter([b"live"])
        assert [letter.message.value for letter in subject.browse(direct=False)] == [b"letter"]

    @broker_has("send", "browse")
    def test_letters_of_one_id_sent_to_a_sink_by_url_are_all_kept(self, subject: Subject) -> None:
        """They come from two runs or two jobs. Each is the only trace of its row."""
        self._keeps_letters_of_one_id(subject, subject.place.url, direct=True)

    @broker_has("send", "browse", "dead_letter")
    def test_letters_of_one_id_sent_to_the_native_place_are_all_kept(self, subject: Subject) -> None:
        subject.provision()
        self._keeps_letters_of_one_id(subject, subject.broker.native_sink(), direct=False)

    @broker_has("send", "browse", "deduplicate")
    def test_the_very_same_letter_sent_again_is_one(self, subject: Subject) -> None:
        """A retried task sends it again, or a sender that never got an answer."""
        for _ in range(2):
            subject.deliver(self._letter_of_run(subject, b"v", "run-1"))
        assert [each.message.value for each in subject.browse(direct=True)] == [b"v"]

    @broker_has("send", "browse", "deduplicate")
    def test_a_place_of_letters_is_a_destination_for_others(self, subject: Subject) -> None:
        """A row and the letter of another row with the same id are not mistaken for each other."""
        row = Message(value=b"row", id=original(subject).id)
        subject.deliver(
            self._letter_of_run(subject, b"first", "run-1"), row, self._letter_of_run(subject, b"second", "run-1"), row
        )
        assert subject.values() == Counter([b"first", b"row", b"second"])

    @broker_has("dead_letter")
    def test_the_native_place_is_the_same_each_time(self, subject: Subject) -> None:
        subject.provision()
        place = subject.broker.native_sink()
        assert place == subject.broker.native_sink()
        assert place != subject.place.url

    @broker_has("send", "browse", "dead_letter")
    def test_a_native_place_opened_by_its_own_url_is_that_very_place(self, subject: Subject) -> None:
        """It has no further dead letter queue, which would have no reader."""
        subject.provision()
        place = subject.broker.native_sink()
        subject.deliver(Message(value=b"letter"), url=place)
        there = subject.connect(place)
        with there.dead_letters() as letters:
            assert [each.message.value for each in letters.browse()] == [b"letter"]
        assert there.native_sink() == place
        if subject.capabilities.provision:
            with there.admin() as admin, subject.broker.admin() as own:
                names, known = ({each.name for each in role.plan(DeliverySpec()).objects} for role in (admin, own))
            assert names <= known, "its plan has a place for the dead letters of dead letters"

    @broker_has("send", "browse", "dead_letter", "destinations")
    def test_a_native_place_that_is_not_there_is_told_before_any_row_or_takes_letters(self, subject: Subject) -> None:
        """`native_sink` reports it with the command that creates it, or the sender's check does. No letter is lost."""
        broker = subject.connect(subject.broker.sibling(subject.place.destination("not-provisioned")))
        try:
            place = broker.native_sink()
            with subject.connect(place).sender() as sender:
                sender.check(deadline=subject.deadline())
        except (ConfigurationError, Fatal):  # any other error would mean that a retry may help
            return
        subject.deliver(Message(value=b"letter"), url=place)
        with broker.dead_letters() as letters:
            assert [each.message.value for each in letters.browse()] == [b"letter"], "confirmed, and not found"

    @broker_lacks("dead_letter")
    def test_without_a_native_place_asking_for_it_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.broker.native_sink)

    def _keeps_letters_of_one_id(self, subject: Subject, url: str, *, direct: bool) -> None:
        sent = [(b"first", "run-1"), (b"second", "run-1"), (b"first", "run-2")]
        for value, run in sent:
            subject.deliver(self._letter_of_run(subject, value, run), url=url)
        found = [each.message for each in subject.browse(direct=direct)]
        assert Counter(each.value for each in found) == Counter(value for value, _ in sent)
        assert {each.id for each in found} == {original(subject).id}

    @staticmethod
    def _letter_of_run(subject: Subject, value: bytes, run: str) -> Message:
        """Return a letter as core sends it, without the headers that a broker may lack."""
        failed = replace(original(subject), value=value)
        return replace(failed, identity=identity.of_letter(failed, replace(CONTEXT, run=run), None))

    def _comes_back_whole(self, subject: Subject, url: str, dialect: str, *, direct: bool) -> None:
        there = subject.connect(url).capabilities
        sent = original(subject)
        prefix = there.cloudevents_prefix
        letter = dialects.attach(sent, CONTEXT, dialect=dialect, limits=there.limits, prefix=prefix, key=KEY)
        subject.deliver(letter, url=url)
        (found,) = subject.browse(direct=direct)
        message = found.message
        assert (message.value, message.key) == (sent.value, sent.key)
        assert [each for each in message.headers if each in sent.headers] == list(sent.headers)
        assert dialects.strip(message) == dialects.strip(letter), "what is redriven is not what was sent"
        context = dialects.read(message) or found.context
        assert context is not None, "the letter came without its context"
        assert context == dialects.read(letter)
        if dialects.read(message) is not None:
            assert dialects.is_signed(message, [KEY]), "what was signed has changed on its way"


class Browsing(Statements):
    """The dead letters role. It browses the URL's own target, so that no native place is needed."""

    @broker_has("browse")
    def test_the_letters_of_a_destination_that_does_not_exist_are_an_error_and_not_none(self, subject: Subject) -> None:
        """A mistyped name must not look like a queue without dead letters. Looking creates nothing.

        Where sending to a name creates it, a name is all that a destination is: such a broker may have no error.
        """
        try:
            nowhere = subject.broker.sibling(f"never-made-{token_hex(4)}")
        except RedeliveryError as error:
            raise NotApplicable("no other destination has a name") from error
        ways: list[Callable[[DeadLetters], object]] = [lambda letters: list(letters.browse())]
        if subject.capabilities.splits:
            ways.append(lambda letters: letters.splits(Wanted()))
        if not subject.capabilities.send or self._comes_by_sending(subject, ways[0]):
            raise NotApplicable("a destination needs no more than a name")
        for look in (*ways, ways[0]):  # the first look must not have created it
            with subject.connect(nowhere).dead_letters() as letters, pytest.raises(Fatal) as caught:
                look(letters)
            assert caught.value.code == Code.NO_SUCH_DESTINATION

    @staticmethod
    def _comes_by_sending(subject: Subject, look: Callable[[DeadLetters], object]) -> bool:
        """Whether another such name can be looked at without an error, and sent to."""
        other = subject.broker.sibling(f"never-made-{token_hex(4)}")
        try:
            with subject.connect(other).dead_letters() as letters:
                look(letters)
            subject.deliver(Message(value=b"v"), url=other)
        except BrokerError:
            return False
        return True

    @broker_has("send", "browse")
    def test_browsing_shows_the_oldest_first(self, subject: Subject) -> None:
        values = [b"%d" % at for at in (3, 1, 2, 9, 0)]
        sender = subject.sender()
        for value in values:
            subject.send(Message(value=value), sender=sender)
            time.sleep(TICK)
        assert [letter.message.value for letter in subject.browse(direct=True)] == values

    @broker_has("send", "browse")
    def test_browsing_leaves_all_in_place_and_shows_the_same_twice(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"%d" % at) for at in range(5)))
        before = subject.values()
        first, second = subject.browse(direct=True), subject.browse(direct=True)
        assert len(first) == 5
        assert first == second
        assert subject.values() == before, "browsing took something"

    @broker_has("send", "browse")
    def test_browsing_part_of_the_letters_takes_nothing(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"%d" % at) for at in range(5)))
        with subject.broker.dead_letters(direct=True) as letters:
            assert len(list(islice(letters.browse(), 2))) == 2
        assert len(subject.browse(direct=True)) == 5

    @broker_has("send", "browse")
    def test_looking_many_times_costs_no_letter_its_life(self, subject: Subject) -> None:
        """Also where another application has left the broker's default limit of deliveries."""
        url = subject.place.limited()
        if url is None:
            raise NotApplicable("nothing is dropped here for being delivered too often, unless that is asked for")
        values = [b"%d" % at for at in range(5)]
        subject.deliver(*(Message(value=value) for value in values), url=url)
        with subject.connect(url).dead_letters(direct=True) as letters:
            positions = [letter.position for letter in letters.browse()]
            for look in range(LOOKS):
                found = list(islice(letters.browse(), 1 + look % len(values)))
                assert [letter.message.value for letter in found] == values[: len(found)], f"after {look} looks"
            assert [letter.position for letter in letters.browse()] == positions
            assert letters.remove(positions) == len(values)

    @broker_has("send", "browse")
    def test_browsing_ends_at_what_was_there_when_it_began(self, subject: Subject) -> None:
        """Otherwise a redrive that fails into the same place would never end."""
        subject.deliver(*(Message(value=b"%d" % at) for at in range(5)))
        sender = subject.sender()
        shown = 0
        for letter in subject.dead_letters(direct=True).browse():
            assert letter.message.value != b"late"
            subject.send(Message(value=b"late"), sender=sender)
            shown += 1
            assert shown <= 5
        assert shown == 5

    @broker_has("send", "browse")
    def test_many_letters_are_each_shown_once(self, subject: Subject) -> None:
        count = min(1_000, subject.place.many)
        values = [b"%d" % at for at in range(count)]
        keys = subject.capabilities.keys  # letters that wait behind others share one key
        subject.deliver(*(Message(value=value, key=value if keys else None) for value in values))
        found = subject.browse(direct=True)
        assert Counter(letter.message.value for letter in found) == Counter(values)
        assert len({letter.position for letter in found}) == count, "positions must differ"

    @broker_has("send", "browse", "remove")
    def test_removing_what_is_shown_again_and_again_empties_a_place(self, subject: Subject) -> None:
        """This includes letters of one key that wait behind each other. Older letters are shown first."""
        values = [b"%d" % at for at in range(25)]
        key = b"k" if subject.capabilities.keys else None
        for value in values:
            subject.deliver(Message(value=value, key=key))
        shown: list[bytes | None] = []
        while page := subject.browse(direct=True):
            shown += [letter.message.value for letter in page]
            with subject.broker.dead_letters(direct=True) as letters:
                assert letters.remove([letter.position for letter in page]) == len(page)
        assert shown == values
        assert not subject.values()

    @broker_has("browse", "provision")
    def test_an_empty_place_has_no_letters(self, subject: Subject) -> None:
        subject.provision()
        assert subject.browse(direct=True) == []

    @broker_has("send", "browse", "remove")
    def test_removing_takes_exactly_what_was_named(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"%d" % at) for at in range(5)))
        by_value = {letter.message.value: letter.position for letter in subject.browse(direct=True)}
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove([by_value[b"1"], by_value[b"3"]]) == 2
        assert subject.values() == Counter([b"0", b"2", b"4"])

    @broker_has("send", "browse", "remove")
    def test_removing_counts_only_what_was_there(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"a"), Message(value=b"b"))
        positions = [letter.position for letter in subject.browse(direct=True)]
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.remove([]) == 0
            assert letters.remove(positions[:1]) == 1
            assert letters.remove(positions) == 1
        assert not subject.values()

    @broker_has("send", "browse", "purge")
    def test_purging_takes_all_and_says_how_many(self, subject: Subject) -> None:
        subject.deliver(*(Message(value=b"%d" % at) for at in range(5)))
        with subject.broker.dead_letters(direct=True) as letters:
            assert letters.purge() == 5
            assert letters.purge() == 0
        assert not subject.values()

    @broker_has("send", "browse", "purge", "dead_letter")
    def test_purging_the_native_place_leaves_the_destination(self, subject: Subject) -> None:
        subject.provision()
        subject.deliver(Message(value=b"letter"), url=subject.broker.native_sink())
        subject.deliver(Message(value=b"live"))
        with subject.broker.dead_letters() as letters:
            assert letters.purge() == 1
        assert subject.values() == Counter([b"live"])

    @broker_lacks("browse")
    def test_without_browsing_asking_for_dead_letters_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.broker.dead_letters)
        subject.is_unsupported(lambda: subject.broker.dead_letters(direct=True))

    @broker_has("browse")
    @broker_lacks("remove")
    def test_without_removing_asking_for_it_is_unsupported(self, subject: Subject) -> None:
        letters = subject.dead_letters(direct=True)
        subject.is_unsupported(lambda: letters.remove(["1"]))

    @broker_has("browse")
    @broker_lacks("purge")
    def test_without_purging_asking_for_it_is_unsupported(self, subject: Subject) -> None:
        subject.is_unsupported(subject.dead_letters(direct=True).purge)
