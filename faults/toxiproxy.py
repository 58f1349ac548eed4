"""toxiproxy's server in front of a broker, commanded by its HTTP API. Each proxy has its own server process."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Final

from faults.proxy import BYTES_PER_SECOND, CUT_AFTER, LATENCY, NetworkFault
from redelivery_conformance.containers import free_port

_NAME: Final = "broker"
_WAIT: Final = 10.0
_SLOW: Final = (
    ("latency", {"latency": int(LATENCY * 1000)}),
    ("bandwidth", {"rate": BYTES_PER_SECOND >> 10}),
)
#: Each fault as toxics: stream, type, attributes. A timeout of 0 drops bytes until the toxic is removed.
_TOXICS: Final[dict[str, tuple[tuple[str, str, dict[str, int]], ...]]] = {
    "reset": (("downstream", "reset_peer", {"timeout": 0}), ("upstream", "reset_peer", {"timeout": 0})),
    "answers-cut": (("downstream", "limit_data", {"bytes": CUT_AFTER}),),
    "black-hole": (("downstream", "timeout", {"timeout": 0}), ("upstream", "timeout", {"timeout": 0})),
    "black-hole-answers": (("downstream", "timeout", {"timeout": 0}),),
    "slow": tuple((stream, *toxic) for stream in ("downstream", "upstream") for toxic in _SLOW),
}


class Toxiproxy:
    """See `faults.proxy.NetworkProxy`. Raises RuntimeError: the server does not answer."""

    def __init__(self, server: str, port: int, host: str, target: int) -> None:
        self._api = free_port()
        command = [server, "-host", "127.0.0.1", "-port", str(self._api)]
        self._process = subprocess.Popen(  # noqa: S603 - the one that was found
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._toxics: list[str] = []
        try:
            self.kind = f"toxiproxy {self._version()}".removesuffix(" git")  # so says one that Go has built
            made = self._ask(
                "POST",
                "/proxies",
                {"name": _NAME, "listen": f"127.0.0.1:{port}", "upstream": f"{host}:{target}", "enabled": True},
            )
        except BaseException:
            self._stop()
            raise
        self.port = int(json.loads(made)["listen"].rpartition(":")[2])

    def begin(self, fault: NetworkFault) -> None:
        self.end()
        for stream, kind, attributes in _TOXICS[fault]:
            name = f"{stream}-{kind}"
            toxic = {"name": name, "type": kind, "stream": stream, "attributes": attributes}
            self._ask("POST", f"/proxies/{_NAME}/toxics", toxic)
            self._toxics.append(name)

    def end(self) -> None:
        while self._toxics:
            self._ask("DELETE", f"/proxies/{_NAME}/toxics/{self._toxics.pop()}")

    def close(self) -> None:
        with suppress(OSError, HTTPException, RuntimeError):
            self._ask("DELETE", f"/proxies/{_NAME}")
        self._stop()

    def _version(self) -> str:
        deadline = time.monotonic() + _WAIT
        while True:
            try:
                told = self._ask("GET", "/version").decode()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return told.strip() if told[:1] != "{" else str(json.loads(told)["version"])  # the first was before 2.3

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        connection = HTTPConnection("127.0.0.1", self._api, timeout=_WAIT)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            found = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:  # noqa: PLR2004 - HTTP's successes are below
            raise RuntimeError(f"toxiproxy answered {answer.status} to {method} {path}: {found.decode()}")
        return found

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
