"""Columns that say where a row goes: its letter goes to the sink, and not there again."""

from redelivery.contract.broker import Capabilities, Support
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Permanent
from redelivery.sending.group import Group, Origin
from redelivery.sending.letters import LetterWriter, Reporter

COLUMNS = {"exchange": str, "priority": int}


def test_a_letter_keeps_the_sinks_columns_but_those_that_route():
    message = Message(value=b"v", destination="there", extra={"exchange": "shop", "priority": 3, "other": 1})
    there = Capabilities(send=Support.NATIVE, headers=Support.NATIVE, columns=COLUMNS, routes=frozenset({"exchange"}))
    reporter = Reporter(origin=Origin(run="r"), broker="b", component="c", destination="d:")
    writer = LetterWriter(spec=DeliverySpec(), capabilities=there, configs={}, reporter=lambda: reporter)
    (letter,) = writer.letters(Group(rows=message, errors=[Permanent("never")])).rows()
    assert (letter.destination, letter.extra) == (None, {"priority": 3})
