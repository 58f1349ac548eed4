"""A proxy between clients and a broker that makes the faults of a network: toxiproxy where it is found, else our own.

Both keep one interface and one behaviour; `faults/tests/test_proxy.py` holds them to it. A record names its proxy.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias, get_args

#: reset: every connection, also new ones, ends at once (RST).
#: answers-cut: every connection ends in the middle of its next answers; the requests have arrived.
#: black-hole: connections stay open, and nothing passes in either direction; bytes are lost.
#: black-hole-answers: requests arrive, and answers are lost.
#: slow: 100 ms more in each direction, and 200 KiB/s.
#: half-open: the connections of this moment have lost their peer and are not told; new ones work.
NetworkFault: TypeAlias = Literal["reset", "answers-cut", "black-hole", "black-hole-answers", "slow", "half-open"]
NETWORK_FAULTS: Final[tuple[NetworkFault, ...]] = get_args(NetworkFault)

#: Bytes of answers that pass each connection before `answers-cut` ends it.
CUT_AFTER: Final = 40
LATENCY: Final = 0.1
BYTES_PER_SECOND: Final = 200 << 10
#: Names another program of toxiproxy's server; empty: our own proxy.
VARIABLE: Final = "REDELIVERY_TOXIPROXY"


class NetworkProxy(Protocol):
    """Forwards a port of this host to a broker.

    Attributes:
        kind: for the record, with its version.
        port: clients connect to it, at 127.0.0.1.
    """

    kind: str
    port: int

    def begin(self, fault: NetworkFault) -> None:
        """Start a fault for all connections, unless it says otherwise. It ends one that has not ended."""

    def end(self) -> None:
        """Heal: new connections work. Connections from which bytes were lost end; those that were slow go on."""

    def close(self) -> None:
        """End all connections, and refuse new ones."""


def toxiproxy_server() -> str | None:
    """Return the path of toxiproxy's server; None: it is not here, or not wanted."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return named or None
    beside = Path(__file__).parents[1] / ".nox" / "toxiproxy" / "server"
    return shutil.which("toxiproxy-server") or (str(beside) if beside.exists() else None)


def network_proxy(port: int, host: str, target: int, *, fault: str = "") -> NetworkProxy:
    """Listen on a port of 127.0.0.1 in front of `target` on `host`, with the proxy that can make this fault."""
    from faults.own_proxy import OwnProxy  # noqa: PLC0415 - both know the names above
    from faults.toxiproxy import Toxiproxy  # noqa: PLC0415

    server = toxiproxy_server()
    if server is None or fault in OwnProxy.alone:
        return OwnProxy(port, host, target)
    return Toxiproxy(server, port, host, target)
