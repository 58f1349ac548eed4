"""Jobs and subscriptions whose rows share ids: no letter is taken for another one, and each once for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from redelivery.contract.broker import Accept, Broker
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.deadletters.queue import dead_letters
from redelivery.errors import Retriable
from redelivery.receiving.subscription import Subscription
from redelivery.registry import connect
from redelivery.sending import Delivery
from redelivery.sending.group import Origin
from redelivery.sending.report import DeliveryReport

QUIET = {"sqlite.reserve": "0"}
EVENT = Message(
    value=b"{}",
    id="1",
    headers=(("ce-specversion", b"1.0"), ("ce-type", b"t"), ("ce-source", b"/a"), ("ce-id", b"1")),
)


class Killed(BaseException):
    """Stands for a process that ends here."""


@pytest.fixture
def file(tmp_path):
    return f"sqlite://{tmp_path}/q.db"


def job(url: str, *rows: Message, sink: str = NATIVE, run: str = "job") -> DeliveryReport:
    """Write rows; one that names the queue "" is refused for good."""
    spec = DeliverySpec(dead_letter_sink=(Sink(uri=sink),), tolerance="all")
    with Delivery.open(url, spec, options=QUIET, origin=Origin(run=run)) as delivery:
        delivery.write(Batch.of(rows))
        return delivery.finish()


def bad(value: bytes) -> Message:
    return Message(value=value, id="1", destination="")


def lies(url: str) -> list[tuple[bytes | None, str | None]]:
    with connect(url, QUIET) as broker, broker.dead_letters(direct=True) as letters:
        return [(each.message.value, each.message.id) for each in letters.browse()]


@pytest.mark.parametrize("sink", [NATIVE, "?queue=graves"], ids=["native", "by-url"])
def test_rows_of_one_id_that_die_in_two_jobs_leave_two_letters_under_that_id(file, sink):
    url, sink = f"{file}?queue=a", sink if sink == NATIVE else file + sink
    for run, value in (("first", b"x"), ("second", b"y"), ("third", b"y")):
        report = job(url, bad(value), sink=sink, run=run)
        assert (report.rows, report.dead_lettered) == (1, 1)
    place = f"{file}?queue=a-dead-letters" if sink == NATIVE else sink
    assert lies(place) == [(b"x", "1"), (b"y", "1"), (b"y", "1")]


def test_rows_of_one_id_that_die_in_one_job_leave_two_letters_and_a_replayed_job_no_more(file):
    """A retried task and a replayed micro-batch send the very same letters again."""
    url, sink = f"{file}?queue=a", f"{file}?queue=graves"
    for _ in range(2):
        assert job(url, bad(b"x"), bad(b"y"), sink=sink).dead_lettered == 2
    assert lies(sink) == [(b"x", "1"), (b"y", "1")]


def test_letters_of_one_id_are_named_selected_and_removed_by_that_id(file):
    for run in ("first", "second"):
        job(f"{file}?queue=a", bad(run.encode()), Message(value=b"other", id="2", destination=""), run=run)
    with dead_letters(f"{file}?queue=a", options=QUIET) as box:
        assert [letter.context.message_id for letter in box] == ["1", "2", "1", "2"]
        assert box.remove(["1"]) == 2
        assert [letter.message.id for letter in box] == ["2", "2"]


def test_a_queue_may_hold_the_letters_of_one_job_and_the_rows_of_another(file):
    url, shared = f"{file}?queue=a", f"{file}?queue=shared"
    assert job(url, bad(b"dead"), sink=shared).dead_lettered == 1
    for run in ("other", "again"):
        assert job(shared, Message(value=b"row", id="1"), run=run).delivered == 1
    assert job(url, bad(b"dead, too"), sink=shared, run="later").dead_lettered == 1
    assert lies(shared) == [(b"dead", "1"), (b"row", "1"), (b"dead, too", "1")]


@pytest.mark.parametrize("sink", [NATIVE, "?queue=graves"], ids=["native", "by-url"])
def test_each_subscriber_of_an_event_leaves_a_letter_of_its_own(file, sink):
    sink = sink if sink == NATIVE else file + sink
    for name in ("billing", "shipping"):
        job(f"{file}?queue={name}", EVENT)
        assert subscribe(f"{file}?queue={name}", sink, name=name).dead_lettered == 1
    places = [f"{file}?queue={name}-dead-letters" for name in ("billing", "shipping")] if sink == NATIVE else [sink]
    assert [each for place in places for each in lies(place)] == [(b"{}", "1"), (b"{}", "1")]


def test_a_subscription_killed_between_letter_and_accept_leaves_one_letter(file):
    url, sink = f"{file}?queue=a", f"{file}?queue=graves"
    job(url, EVENT)
    with pytest.raises(Killed):
        subscribe(url, sink, dies=True)
    assert len(lies(sink)) == len(lies(url)) == 1
    assert subscribe(url, sink).dead_lettered == 1
    assert (len(lies(sink)), lies(url)) == (1, [])


def test_a_message_that_is_sent_again_by_hand_and_dies_again_is_another_letter(file):
    url, sink = f"{file}?queue=a", f"{file}?queue=graves"
    options = {"sqlite.deduplication_window": "0"}
    for _ in range(2):
        with connect(url, {**QUIET, **options}) as broker, broker.sender() as sender:
            sender.send(Batch.of([EVENT]), deadline=float("inf"))
        subscribe(url, sink, options=options)
    assert len(lies(sink)) == 2


def subscribe(url, sink, *, name="one", dies=False, options=None):
    """Handle what is there; the handler gives everything up."""

    @contextmanager
    def borrow(of: str, given) -> Iterator[Broker]:
        with connect(of, {**QUIET, **given}) as broker:
            if dies and of == url:
                receiver = broker.receiver

                def dying(**more):
                    made = receiver(**more)
                    settle = made.settle

                    def settling(outcomes):
                        if any(isinstance(outcome, Accept) for _, outcome in outcomes):
                            raise Killed
                        return settle(outcomes)

                    made.settle = settling
                    return made

                broker.receiver = dying
            yield broker

    def fail(_message):
        raise ValueError("never")

    spec = DeliverySpec(retry=0, tolerance="all", dead_letter_sink=(Sink(uri=sink),))
    given = {**QUIET, **(options or {})}
    return Subscription(url, fail, name=name, spec=spec, options=given, connection_factory=borrow).run(until_empty=True)


def test_events_of_one_id_and_different_source_are_two_and_one_sent_again_is_one(file):
    other = replace(EVENT, headers=tuple((n, b"/b" if n == "ce-source" else v) for n, v in EVENT.headers))
    raw = Message(value=b"raw", id="1")
    for _ in range(2):
        assert job(f"{file}?queue=a", EVENT, other, raw).delivered == 3
    assert lies(f"{file}?queue=a") == [(b"{}", "1"), (b"{}", "1"), (b"raw", "1")]


def test_letters_of_one_id_that_differ_are_all_redriven_and_one_that_was_sent_before_is_not_doubled(file):
    url = f"{file}?queue=a"
    for run, value in (("first", b"x"), ("second", b"y")):
        job(url, bad(value), run=run)
    with dead_letters(url, options=QUIET) as box:
        box._letters.remove = lambda _: (_ for _ in ()).throw(Retriable("killed"))
        with pytest.raises(Retriable, match="killed"):
            box.redrive(to=f"{file}?queue=mended")
    with dead_letters(url, options=QUIET) as box:
        assert box.redrive(to=f"{file}?queue=mended").redriven == 2
    assert lies(f"{file}?queue=mended") == [(b"x", "1~1"), (b"y", "1~1")]
