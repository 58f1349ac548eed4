"""Contexts of letters that nobody of ours wrote."""

import pytest

from redelivery.codes import Code
from redelivery.contract.context import sound
from redelivery.kit.letters import given_up, undecodable


def test_what_cannot_be_decoded_is_invalid_and_says_why() -> None:
    context = undecodable("carrier", "its headers are damaged")
    assert (context.kind, context.code, context.broker) == ("invalid", Code.UNDECODABLE, "carrier")
    assert context.reason == "its headers are damaged"
    assert sound(context) is context


@pytest.mark.parametrize(
    ("code", "kind"),
    [(Code.EXPIRED, "expired"), (Code.DELIVERY_LIMIT, "delivery-limit"), (Code.TERMINATED, "terminated"),
     (Code.FULL, "full"), (Code.TOO_LARGE, "too-large")],
)  # fmt: skip
def test_what_the_broker_gave_up_has_one_kind_and_code_everywhere(code: Code, kind: str) -> None:
    context = given_up("carrier", code, "too old", attempts=3)
    assert (context.kind, context.code, context.attempts) == (kind, code, 3)
    assert sound(context) is context
