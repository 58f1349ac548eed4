"""A broker in a container, for a harness: the mechanism only; which image, ports and readiness is the plugin's to say.

`REDELIVERY_<BROKER>_IMAGE` names another image. This file must not know any broker's image.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import secrets
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from redelivery_conformance.harness import NotHere

#: Seconds between two looks whether a broker is ready.
_LOOK: Final = 0.2
#: How often a container is asked to freeze. An engine gives up at once where a process is just writing to the disk or
#: starting another: of 397 such moments 26 wanted a second try, none more than five.
_FREEZES: Final = 40
#: Ports that are below those which systems give to outgoing connections (Linux: from 32768, others: from 49152).
_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 100


class Container:
    """One container with its ports on fixed free ports of the host, so that they outlive a stop; removed by `close`.

    Args:
        broker: the plugin's name; its variable may name another image.
        image: the one that is used otherwise.
        ports: inside the container.
        environment: of the container.
        command: in place of the image's own.
        bind: inside port -> host port, where the broker must advertise the very port it is reached by (`free_port`).
        files: path in the container -> what is written there before it starts.

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
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self.image = image_for(broker, image)
        self._ports = {**{inside: free_port() for inside in ports}, **(bind or {})}
        self._was_ready = False
        try:
            core: Any = importlib.import_module("testcontainers.core.container")
        except ImportError:
            raise NotHere("pip install testcontainers, and have a container engine running") from None
        self._container = _described(core.DockerContainer, self.image)
        for name, value in (environment or {}).items():
            self._container.with_env(name, value)
        for inside, outside in self._ports.items():
            self._container.with_bind_ports(inside, outside)
        for path, data in (files or {}).items():
            self._container.with_copy_into_container(data, path)
        if command is not None:
            self._container.with_command(command)
        self._closed = False
        atexit.register(self.close)
        try:
            self._container.start()
            self.host = str(self._container.get_container_host_ip())
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            raise NotHere(
                f"no container of {self.image!r} ({_brief(error)}); pull or build the image, or name one that can be "
                f"had here by {_variable(broker)}"
            ) from error

    def port(self, inside: int) -> int:
        """The host's port for one of the container's; the same for as long as there is the container."""
        return self._ports[inside]

    def wait(self, ready: Callable[[], object], seconds: float) -> None:
        """Ask `ready` again and again until it returns what is true; meanwhile it may raise.

        That the port accepts a connection says nothing: the engine's own proxy does, long before the broker.

        Raises:
            NotHere: it never was, within so many seconds, or the container ended; it is closed then.
            RuntimeError: it was before; the container is kept, so that it can be looked into.
        """
        began = time.monotonic()
        deadline = began + seconds
        said: object = None
        while time.monotonic() < deadline and self._status() not in {"exited", "dead"}:
            try:
                said = ready()
            except Exception as error:  # noqa: BLE001 - a broker that starts may answer anything
                said = _brief(error)
            else:
                if said:
                    self._was_ready = True
                    return
            time.sleep(_LOOK)
        text = (
            f"the container of {self.image!r} is {self._status()} and not ready after {time.monotonic() - began:.0f} s "
            f"(last answer: {said!r}); the end of its log:\n{self.log()}"
        )
        if self._was_ready:
            raise RuntimeError(text)
        self.close()
        raise NotHere(text)

    def execute(self, *command: str) -> str:
        """Run a command inside (the broker's own tools) and return what it wrote. Raises RuntimeError if it fails."""
        done = self._container.exec(list(command))
        text = done.output.decode(errors="replace")
        if done.exit_code:
            raise RuntimeError(f"{command[0]} ended with {done.exit_code} in the container of {self.image!r}: {text}")
        return str(text)

    def log(self, lines: int = 30) -> str:
        """The end of what it wrote to its log."""
        with suppress(Exception):
            return str(self._container.get_wrapped_container().logs(tail=lines).decode(errors="replace"))
        return "(none)"

    def pause(self) -> None:
        """Freeze it: connections stay and nothing answers, as behind a black hole.

        Raises:
            RuntimeError: the engine could not, however often it was asked; chained to what it said last.
        """
        container = self._container.get_wrapped_container()
        for _ in range(_FREEZES):
            try:
                container.pause()
            except Exception as error:  # noqa: BLE001 - the engine's client is loaded by testcontainers, not here
                refused = error
                time.sleep(_LOOK / 2)
            else:
                return
        raise RuntimeError(f"the container of {self.image!r} does not freeze ({_brief(refused)})") from refused

    def unpause(self) -> None:
        """Let it go on."""
        self._container.get_wrapped_container().unpause()

    def stop(self, grace: int = 0) -> None:
        """Stop it and keep it; it is killed after `grace` seconds."""
        self._container.get_wrapped_container().stop(timeout=grace)

    def start(self) -> None:
        """Start it again, with its files and its ports; `wait` tells when it is ready."""
        self._container.get_wrapped_container().start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While entered, it is frozen."""
        self.pause()
        try:
            yield
        finally:
            self.unpause()

    @contextmanager
    def stopped(self, ready: Callable[[], object], seconds: float, *, grace: int = 0) -> Iterator[None]:
        """While entered, it is stopped; afterwards it is started and waited for."""
        self.stop(grace)
        try:
            yield
        finally:
            self.start()
            self.wait(ready, seconds)

    def close(self) -> None:
        """Stop and remove it, whatever its state; once."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self._container.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _status(self) -> str:
        self._container.reload()
        return str(self._container.status)


def _described(container: Any, image: str) -> Any:
    """A container that is not started yet. Raises NotHere: the engine is looked for here."""
    try:
        return container(image)
    except Exception as error:  # noqa: BLE001 - whatever stands in the engine's place, the next kind is tried
        why = _brief(error)
    with warnings.catch_warnings():  # the client leaves its socket open, and a warning of it would fail some later test
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    raise NotHere(
        f"no container engine answers ({why}); install and start one, as Docker or Podman, and let DOCKER_HOST name it "
        "if it is not at the usual place"
    )


def free_port() -> int:
    """A port of this host that nothing listens on now, and that no outgoing connection is given in the meantime.

    Raises:
        OSError: none was found.
    """
    refused: OSError | None = None
    for _ in range(_TRIES):
        port = _PORTS.start + secrets.randbelow(len(_PORTS))
        try:
            with socket.socket() as free:
                free.bind(("", port))
        except OSError as error:
            refused = error
        else:
            return port
    raise OSError(f"no free port among {_PORTS}") from refused


def image_for(broker: str, default: str) -> str:
    """The image to run: the broker's variable, else the default."""
    return os.environ.get(_variable(broker)) or default


def _variable(broker: str) -> str:
    return f"REDELIVERY_{broker.upper()}_IMAGE"


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]
