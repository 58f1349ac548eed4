"""A broker in a container, for a harness: the mechanism only; which image, ports and readiness is the plugin's to say.

`REDELIVERY_<BROKER>_IMAGE` names another image. This file must not know any broker's image.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from redelivery_conformance.harness import NotHere


class Container:
    """One container with its ports mapped, stopped by `close`.

    Args:
        broker: the plugin's name; its variable may name another image.
        image: the one that is used otherwise.
        ports: inside the container.
        environment: of the container.
        command: in place of the image's own.
        bind: inside port -> host port, where the broker must advertise the very port it is reached by.

    Raises:
        NotHere: no testcontainers, no container engine, or the image cannot be had; says what to install.
    """

    def __init__(
        self,
        broker: str,
        image: str,
        *,
        ports: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        command: str | None = None,
        bind: Mapping[int, int] | None = None,
    ) -> None:
        self.image = image_for(broker, image)
        try:
            core: Any = importlib.import_module("testcontainers.core.container")
        except ImportError:
            raise NotHere("pip install testcontainers, and have a container engine running") from None
        try:
            # The engine is looked for as soon as a container is described.
            container = core.DockerContainer(self.image).with_exposed_ports(*ports)
            for name, value in (environment or {}).items():
                container = container.with_env(name, value)
            for inside, outside in (bind or {}).items():
                container = container.with_bind_ports(inside, outside)
            if command is not None:
                container = container.with_command(command)
            self._container = container.start()
        except Exception as error:  # whatever engine and registry answer, the next kind is tried
            variable = _variable(broker)
            raise NotHere(
                f"no container of {self.image!r} ({type(error).__name__}); start a container engine, or name an image "
                f"that can be had here by {variable}"
            ) from error

    @property
    def host(self) -> str:
        """Where it is reached."""
        return str(self._container.get_container_host_ip())

    def port(self, inside: int) -> int:
        """The host's port for one of the container's."""
        return int(self._container.get_exposed_port(inside))

    def close(self) -> None:
        """Stop and remove it."""
        self._container.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def image_for(broker: str, default: str) -> str:
    """The image to run: the broker's variable, else the default."""
    return os.environ.get(_variable(broker)) or default


def _variable(broker: str) -> str:
    return f"REDELIVERY_{broker.upper()}_IMAGE"
