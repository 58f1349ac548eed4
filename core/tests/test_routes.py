"""Columns that say where a row goes: its letter goes to the sink, and not there again."""

from redelivery.broker import Capabilities, Support
from redelivery.context import ErrorContext
from redelivery.delivery.record import Record
from redelivery.message import Message
from redelivery.spec import DeliverySpec

COLUMNS = {"exchange": str, "priority": int}


def test_a_letter_keeps_the_sinks_columns_but_those_that_route():
    message = Message(value=b"v", destination="there", extra={"exchange": "shop", "priority": 3, "other": 1})
    there = Capabilities(send=Support.NATIVE, headers=Support.NATIVE, columns=COLUMNS, routes=frozenset({"exchange"}))
    letter = Record(message=message, outgoing=message).letter(ErrorContext(), DeliverySpec(), there, {})
    assert (letter.destination, letter.extra) == (None, {"priority": 3})
