"""Messages travel as CloudEvents."""

import json

import pytest

from redelivery.contract.message import Message
from redelivery.kit.events import from_json, to_json


def test_a_message_comes_back_from_its_event() -> None:
    message = Message(value=b"\xff", key=b"k", headers=(("a", None), ("a", b"1")), id="7", timestamp_ms=5)
    event = json.loads(json.dumps(to_json(message)))
    assert event["id"] == "7"
    assert from_json(event) == message


def test_what_is_not_an_event_is_told() -> None:
    with pytest.raises(ValueError, match="not a CloudEvent"):
        from_json({"id": 7})
