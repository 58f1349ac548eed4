"""Run a broker in a container, for a harness. The plugin chooses the image, the ports and the check for readiness.

`REDELIVERY_<BROKER>_IMAGE` names another image, `REDELIVERY_<BROKER>_IMAGES` several, oldest first.
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

#: Seconds between two checks whether a broker is ready.
_LOOK: Final = 0.2
#: Tries to freeze a container. The engine gives up at once if a process is writing to the disk or starting another
#: process at that moment: of 397 freezes 26 needed a second try, and none needed more than five.
_FREEZES: Final = 40
#: Ports below the range that systems use for outgoing connections (Linux: from 32768, others: from 49152).
_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 100


class Container:
    """One container. Its ports are mapped to fixed free ports of the host, so they stay after a restart.

    `close` removes it.

    Args:
        broker: the plugin's name; the broker's environment variable may name another image.
        image: the default image.
        ports: inside the container.
        environment: environment variables of the container.
        command: replaces the image's command.
        bind: container port -> host port, for a broker that advertises its own port (`free_port`).
        files: path in the container -> content, written before the container starts.

    Raises:
        NotHere: testcontainers, a container engine or the image is missing; the text says what to install.
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
        """Return the host's port for a port of the container. It stays the same as long as the container exists."""
        return self._ports[inside]

    def wait(self, ready: Callable[[], object], seconds: float) -> None:
        """Call `ready` until it returns a true value. It may raise until then.

        An open port proves nothing: the engine's own proxy accepts connections long before the broker does.

        Raises:
            NotHere: the broker did not become ready within this many seconds, or the container ended. It is closed.
            RuntimeError: the same, but the broker was ready before. The container is kept for inspection.
        """
        began = time.monotonic()
        deadline = began + seconds
        said: object = None
        while time.monotonic() < deadline and self._status() not in {"exited", "dead"}:
            try:
                said = ready()
            except Exception as error:  # noqa: BLE001 - a starting broker may answer anything
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
        """Run one of the broker's tools in the container and return its output. Raises RuntimeError if it fails."""
        done = self._container.exec(list(command))
        text = done.output.decode(errors="replace")
        if done.exit_code:
            raise RuntimeError(f"{command[0]} ended with {done.exit_code} in the container of {self.image!r}: {text}")
        return str(text)

    def log(self, lines: int = 30) -> str:
        """Return the end of the container's log."""
        with suppress(Exception):
            return str(self._container.get_wrapped_container().logs(tail=lines).decode(errors="replace"))
        return "(none)"

    def pause(self) -> None:
        """Freeze the container: connections stay open and nothing answers.

        Raises:
            RuntimeError: the engine failed at every try; chained to its last error.
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
        """Resume the container."""
        self._container.get_wrapped_container().unpause()

    def stop(self, grace: int = 0) -> None:
        """Stop the container without removing it. The engine kills it after `grace` seconds."""
        self._container.get_wrapped_container().stop(timeout=grace)

    def kill(self) -> None:
        """Kill the container's processes, without a chance to write anything. Its files stay."""
        self._container.get_wrapped_container().kill()

    def start(self) -> None:
        """Start the container again, with the same files and ports. Call `wait` until it is ready."""
        self._container.get_wrapped_container().start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze the container for the length of the `with` block."""
        self.pause()
        try:
            yield
        finally:
            self.unpause()

    @contextmanager
    def stopped(self, ready: Callable[[], object], seconds: float, *, grace: int = 0) -> Iterator[None]:
        """Stop the container for the length of the `with` block; then start it and wait until it is ready."""
        self.stop(grace)
        try:
            yield
        finally:
            self.start()
            self.wait(ready, seconds)

    def close(self) -> None:
        """Stop and remove the container in any state. A second call does nothing."""
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
    """Return a container that is not started yet. Raise NotHere if no engine is found."""
    try:
        return container(image)
    except Exception as error:  # noqa: BLE001 - on any error of the engine the next kind is tried
        why = _brief(error)
    with warnings.catch_warnings():  # the client leaves its socket open, and a warning would fail a later test
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    raise NotHere(
        f"no container engine answers ({why}); install and start one, as Docker or Podman, and let DOCKER_HOST name it "
        "if it is not at the usual place"
    )


def free_port() -> int:
    """Return a free port of this host, outside the range for outgoing connections.

    Raises:
        OSError: no free port was found.
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
    """Return the image to run: that of the broker's variable, else the newest of several, else the default."""
    several = os.environ.get(f"{_variable(broker)}S", "").split()
    return os.environ.get(_variable(broker)) or (several[-1] if several else default)


def _variable(broker: str) -> str:
    return f"REDELIVERY_{broker.upper()}_IMAGE"


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]
