"""HTTP's faults: a server that is overloaded. It is a server of this process, so it is neither frozen nor restarted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from faults.actions import Fault, Make
from faults.broker import BrokerUnderTest
from redelivery_http.testing.server import Reply


def _throttled(under_test: BrokerUnderTest) -> Fault:
    runtime: Any = under_test.runtime
    path = under_test.place.destination("")
    refusal = Reply(status=503, headers={"Retry-After": "1"}, keep=False)
    return Fault(
        "throttled",
        lambda: runtime.server.always(path, refusal),
        lambda: runtime.server.always(path, None),
    )


FAULTS: Final[Mapping[str, Make]] = {"throttled": _throttled}
