"""A spec written in Python is checked where it is made."""

from __future__ import annotations

from typing import Any

import pytest

from redelivery.contract.spec import DeliverySpec
from redelivery.errors import InvalidSpec


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dead_letter_sink": "native"}, "deadLetterSink: must be a tuple of Sink"),
        ({"dead_letter_sink": ("native",)}, "deadLetterSink: must be a tuple of Sink"),
        ({"backoff_delay": "PT1S"}, "backoffDelay: must be a timedelta, not str"),
        ({"timeout": 5}, "timeout: must be a timedelta, not int"),
        ({"retry": "3"}, "retry: must be an int, not str"),
        ({"retry": True}, "retry: must be an int, not bool"),
        ({"retry": -2}, "retry: must be -1 or more"),
        ({"dead_letter_type": ""}, "deadLetterType: must be text"),
        ({"dead_letter_dialects": ()}, "deadLetterDialects: must be a tuple of connect, knative"),
        ({"dead_letter_dialects": "json"}, "deadLetterDialects: must be a tuple"),
        ({"dead_letter_dialects": ("smoke",)}, "not .'smoke',"),
        ({"dead_letter_dialects": ("json", "json")}, "each once"),
        ({"tolerance": "some"}, "tolerance: must be one of none, all, not 'some'"),
        ({"backoff_policy": "expo"}, "backoffPolicy: must be one of linear, exponential"),
        ({"tolerance": "all"}, "would lose rows"),
    ],
)
def test_what_is_wrong_is_named_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        DeliverySpec(**wrong)
