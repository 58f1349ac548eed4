"""What we use of nats-py that is not public; a test pins each name.

nats-py gives a message to a subscription's queue and its task, and parses the headers of each: more than all else that
a confirmation costs. `Client` hands messages over at once, as bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from nats import errors
from nats.aio.client import Client as NatsClient

#: What a message is given to: subject, reply subject, payload, block of headers or None.
OnMessage = Callable[[bytes, bytes, bytes, bytes | None], None]
#: Bytes of a seed: its prefix, the key, a checksum.
_SEED: Final = 36
#: Names of nats-py's client that are used here.
NAMES: Final = (
    *("_process_msg", "_process_info", "_process_err", "_ps"),
    *("_transport", "_public_nkey", "_server_info", "_auth_configured", "_close", "_pending", "_pending_data_size"),
)


class Client(NatsClient):
    """nats-py's client, with messages handed over as bytes, and without a way to send a login unencrypted.

    Args:
        on_message: called in the loop with every message of every subscription.
        needs_tls: refuse a server that does not encrypt.
    """

    def __init__(self, on_message: OnMessage, *, needs_tls: bool) -> None:
        super().__init__()
        self._on_message = on_message
        self._needs_tls = needs_tls
        #: The server's last error, as it wrote it.
        self.said = ""

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:  # noqa: ARG002
        self._on_message(bytes(subject), bytes(reply), data, headers)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002
        if self._needs_tls and initial_connection and not info.get("tls_required"):
            if not info.get("tls_available"):
                raise errors.SecureConnWantedError
            self._server_info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        """Keep the line, at the front of what is parsed: the text is in small letters, and subjects differ by case."""
        self.said = self._ps.buf[: self._ps.buf.find(b"\r\n")].decode("utf-8", "replace")
        await super()._process_err(err_msg)

    async def drop(self) -> None:
        """End a connection that was not made, or only in part; nobody is told."""
        with suppress(Exception):
            await self._close(self.CLOSED, do_cbs=False)

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002
        """Close it at once. nats-py first waits until the rest is written: forever, if the server is frozen."""
        self._pending, self._pending_data_size = [], 0
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._close(status, do_cbs)

    def write(self, data: bytes) -> None:
        """Write whole commands; call it in the loop."""
        if self._transport is not None and not self.is_closed:
            self._transport.write(data)

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server said of itself."""
        return self._server_info

    def log_in_with(self, seed: str) -> None:
        """Log in by the nkey of a seed."""
        self._public_nkey = Nkey(seed).public
        self._auth_configured = True


class Nkey:
    """A user's key. A seed is base32 of two bytes of prefix, the key's 32, and a checksum of two.

    Raises:
        InvalidUserCredentialsError: this is not a seed, or the package cryptography is missing.
    """

    def __init__(self, seed: str) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415
        except ImportError:
            raise _BadLoginError(
                "an nkey needs the package cryptography: pip install 'redelivery-nats[nkeys]'"
            ) from None
        seed = seed.strip()
        try:
            raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
        except ValueError:
            raw = b""
        if not seed.startswith("SU") or len(raw) != _SEED or _crc(raw[:-2]) != raw[-2:]:
            raise _BadLoginError("the seed of a user's nkey begins with SU, and has 58 characters")
        self._key = Ed25519PrivateKey.from_private_bytes(raw[2:34])
        raw = bytes([20 << 3]) + self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = base64.b32encode(raw + _crc(raw)).decode().rstrip("=")

    def signed(self, nonce: str) -> bytes:
        """Return the signature of the server's nonce, as the client sends it."""
        return base64.b64encode(self._key.sign(nonce.encode()))


class _BadLoginError(errors.InvalidUserCredentialsError):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def __str__(self) -> str:
        return self.text


def credentials_in(text: str) -> tuple[str, str]:
    """Return the JWT and the seed of a .creds file's contents. Raises InvalidUserCredentialsError."""
    parts = [
        "".join(line.strip() for line in part.splitlines()[1:])
        for part in text.replace("\r", "").split("-----BEGIN ")[1:]
        for part in [part.split("-----END ")[0].rstrip("- \n")]
    ]
    if len(parts) != 2 or not all(parts):  # noqa: PLR2004 - the JWT and the seed
        raise _BadLoginError("a .creds file has a block of the user's JWT and one of its seed")
    return parts[0], parts[1]


def _crc(data: bytes) -> bytes:
    """CRC-16/XMODEM, little-endian, as nkeys end."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc.to_bytes(2, "little")
