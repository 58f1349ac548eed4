"""A private node of a locally installed RabbitMQ, with its data in a scratch folder. Never touches another node."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from redelivery_conformance.containers import free_port
from redelivery_conformance.harness import NotHere

_STOP: Final = 30.0
_LOOK: Final = 0.2


class Node:
    """A node that listens on free ports of this host. Raises NotHere: RabbitMQ is not installed."""

    def __init__(self, scratch: Path) -> None:
        program = shutil.which("rabbitmq-server") or shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin")
        if program is None:
            raise NotHere("install RabbitMQ, so that rabbitmq-server is on the PATH")
        self.program = program
        self.port = free_port()
        self._log = scratch / "node.log"
        enabled = scratch / "enabled_plugins"
        enabled.write_text("[].\n")
        self._environment = {
            **os.environ,
            "HOME": str(scratch),
            "RABBITMQ_NODENAME": f"redelivery-{secrets.token_hex(4)}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(scratch / "data"),
            "RABBITMQ_LOG_BASE": str(scratch / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(enabled),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the program that was found above
                [program], env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, ready: Callable[[], object], seconds: float) -> None:
        """Wait until `ready()` is true. Raises NotHere."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(Exception):  # a node that starts may answer anything
                if ready():
                    return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LOOK)
        self.close()
        raise NotHere(f"{self.program} did not come up; the end of its log:\n{self._log.read_text()[-2000:]}")

    def execute(self, *command: str) -> str:
        """Run one of the broker's tools, which are in the same folder."""
        beside = Path(self.program).with_name(command[0])
        found = [str(beside) if beside.exists() else command[0], *command[1:]]
        done = subprocess.run(found, env=self._environment, check=True, capture_output=True, text=True)  # noqa: S603 - ours
        return done.stdout

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze it while entered."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it and its child processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_STOP)
        with suppress(OSError, subprocess.CalledProcessError):
            self.execute("epmd", "-kill")  # of its own port
