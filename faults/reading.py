"""What an independent client reads at the end of a cell, compared with the plan row by row."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from faults.broker import BrokerUnderTest
from faults.history import Recorder
from faults.plan import Plan, Row, number_of
from redelivery.contract.message import Message

#: The two places of a broker: its queue or topic, and where its dead letters are.
NativePlace: TypeAlias = Literal["queue", "dead"]
#: What each native place is for a workload: `destination`, `letters` or `source`.
Reads: TypeAlias = Mapping[NativePlace, str]
_CONTEXT: Final = "redelivery-context"
_MARKER: Final = "redelivery-letter"
_MESSAGE: Final = "__connect.errors.exception.message"
_LOOK: Final = 0.5


def read(under_test: BrokerUnderTest, plan: Plan, reads: Reads, recorder: Recorder, *, hidden: float = 0.0) -> None:
    """Write all messages of both places as `read` events.

    Args:
        under_test: the broker.
        plan: what was to be written.
        reads: what each place is.
        recorder: gets the events.
        hidden: seconds for which leases of killed processes may still hide messages. It reads again until as many
            messages as rows are found, or until then.
    """
    deadline = time.monotonic() + hidden
    while True:
        found = {place: _stored(under_test, place) for place in reads}
        if sum(map(len, found.values())) >= plan.rows or time.monotonic() >= deadline:
            break
        time.sleep(_LOOK)
    for native, messages in found.items():
        for message in messages:
            recorder.write("read", place=reads[native], **_told(message, plan))


def _stored(under_test: BrokerUnderTest, place: NativePlace) -> Sequence[Message]:
    return under_test.stored() if place == "queue" else under_test.dead()


def _told(message: Message, plan: Plan) -> dict[str, Any]:
    number = number_of(message.value)
    known = number is not None and number < plan.rows
    headers = dict(message.headers)
    told: dict[str, Any] = {"row": number if known else None, "id": message.id, "differs": []}
    if known and number is not None:
        told["differs"] = _differs(message, plan.row(number))
    if _MARKER in headers or _CONTEXT in headers:
        told |= {"attempts": _attempts(headers), "reason": _reason(headers)}
    return told


def _differs(message: Message, row: Row) -> list[str]:
    headers = dict(message.headers)
    return [
        name
        for name, same in (
            ("value", message.value == row.value),
            ("key", message.key == row.key),
            ("headers", all(headers.get(name) == value for name, value in row.headers)),
        )
        if not same
    ]


def _attempts(headers: Mapping[str, bytes | None]) -> int | None:
    found = _json(headers, _MARKER).get("attempts_total")
    return found if isinstance(found, int) else None


def _reason(headers: Mapping[str, bytes | None]) -> str:
    ours = _json(headers, _CONTEXT).get("redelivery", {})
    text = headers.get(_MESSAGE) or b""
    return str(ours.get("reason") or text.decode(errors="replace") or ours.get("code") or "")[:200]


def _json(headers: Mapping[str, bytes | None], name: str) -> dict[str, Any]:
    found: Any = {}
    with suppress(ValueError):
        found = json.loads(headers.get(name) or b"{}")
    return found if isinstance(found, dict) else {}
