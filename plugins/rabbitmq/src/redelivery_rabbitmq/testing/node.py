"""A private node of a locally installed RabbitMQ, with its data in a scratch folder. Never touches another node."""

from __future__ import annotations

import secrets
import subprocess
from contextlib import suppress
from pathlib import Path

from redelivery_conformance.containers import free_port
from redelivery_conformance.processes import Process, program


class Node(Process):
    """A node that listens on free ports of this host. Raises NotHere: RabbitMQ is not installed."""

    def __init__(self, scratch: Path) -> None:
        self.program = program("rabbitmq-server", "/usr/lib/rabbitmq/bin")
        self.port = free_port()
        enabled = scratch / "enabled_plugins"
        enabled.write_text("[].\n")
        environment = {
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
        super().__init__([self.program], scratch / "node.log", environment)

    def execute(self, *command: str) -> str:
        """Run one of the broker's tools, which are in the same folder."""
        beside = Path(self.program).with_name(command[0])
        found = [str(beside) if beside.exists() else command[0], *command[1:]]
        done = subprocess.run(found, env=self.environment, check=True, capture_output=True, text=True)  # noqa: S603 - ours
        return done.stdout

    def close(self) -> None:
        super().close()
        with suppress(OSError, subprocess.CalledProcessError):
            self.execute("epmd", "-kill")  # the epmd on this node's port
