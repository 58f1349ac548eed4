"""What is true of all brokers together: their letters are one DataFrame, and go back mended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.errors import TerminalNack
from redelivery.formats import dialects
from redelivery.receiving.subscription import Subscription
from redelivery_conformance.subject import Subject
from redelivery_conformance.suite.spark import session

SPEC = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),), retry=0)
NEEDS = ("send", "receive", "terminate", "dead_letter", "browse", "headers")


def consume(subject: Subject) -> dict[bytes | None, int]:
    """Handle what is there; the hops of what was handled, by value."""
    handled: dict[bytes | None, int] = {}

    def handle(message: Message) -> None:
        if message.value == b"bad":
            raise TerminalNack("it is bad")
        assert message.value not in handled, "handled twice"
        handled[message.value] = dialects.history(message).hops

    Subscription(subject.place.url, handle, name="test", spec=SPEC, options=subject.place.options).run(until_empty=True)
    return handled


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_letters_of_all_brokers_are_one_dataframe_and_go_back_mended(subjects: list[Subject]) -> None:
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    from redelivery.spark import dead_letters  # noqa: PLC0415 - an extra

    good, bad = Message(value=b"good"), Message(value=b"bad", headers=(("mine", b"1"),))
    all_ = [each for each in subjects if each.capabilities.send and each.capabilities.browse]
    names = {each.harness.name for each in all_}
    assert len(names) > 1, f"with {names} alone this shows nothing"
    work = [each for each in all_ if all(getattr(each.capabilities, name) for name in NEEDS)]
    for each in all_:
        each.provision()
        if each in work:
            each.deliver(good, bad)
            assert consume(each) == {b"good": 0}
        else:  # a mere place for letters of others
            context = ErrorContext(
                reason="it is bad", kind="terminated", attempts=1, attempts_total=1, hops=0, broker=each.harness.name
            )
            has = each.capabilities
            each.deliver(
                dialects.attach(
                    bad, context, dialect=has.context_dialect, limits=has.limits, prefix=has.cloudevents_prefix
                )
            )

    options: dict[str, Any] = {name: value for each in all_ for name, value in each.place.options.items()}
    letters = dead_letters(session(), *(each.place.url for each in all_), **options).cache()
    told = ("broker", "message", "kind", "attempts", "attempts_total", "hops")
    rows = letters.select("value", "headers", *(f"_error.{name}" for name in told)).collect()
    assert Counter(row["broker"] for row in rows) == Counter(names)
    for row in rows:
        assert (bytes(row["value"]), row["message"]) == (b"bad", "it is bad"), row
        assert (row["kind"], row["attempts"], row["attempts_total"], row["hops"]) == ("terminated", 1, 1, 0), row
        assert ("mine", b"1") in [(each["key"], bytes(each["value"])) for each in row["headers"]], row

    mended = letters.withColumn("value", f.lit(b"mended"))
    for each in work:
        own = session().read.format("redelivery").options(url=each.place.url, deadLetters="true", **each.place.options)
        back = mended.where(f.col("_error.broker") == each.harness.name).select(*own.load().columns)
        writer = back.drop("_error", "_position").write.format("redelivery").mode("append")
        writer.options(url=each.place.url, **each.place.options).save()
        assert consume(each) == {b"mended": 1}
