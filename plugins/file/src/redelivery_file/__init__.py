"""redelivery's dead letter sink of plain files: one JSON line per letter, in one file each or in files of many.

This module is the plugin: its capabilities, and the broker that opens the roles. `from_env` puts the same folder behind
any sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities, Support
from redelivery.contract.hooks import hookimpl
from redelivery_file.options import Settings

if TYPE_CHECKING:
    from redelivery_file.client.wrapper import from_env

__all__ = ["CAPABILITIES", "from_env", "redelivery_plugin"]

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.NATIVE,
    remove=Support.NATIVE,
    purge=Support.NATIVE,
    splits=Support.NATIVE,
    cursors=Support.NATIVE,
    keys=Support.EMULATED,
    headers=Support.EMULATED,
    ids=Support.EMULATED,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    networked=False,
    context_dialect="json",
)


def __getattr__(name: str) -> Any:
    if name != "from_env":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from redelivery_file.client.wrapper import from_env as found  # noqa: PLC0415 - takes long, and few need it

    return found


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL, without I/O. Raises InvalidURL, UnknownOption, ConfigurationError."""
    from redelivery_file.broker import connect as opened  # noqa: PLC0415 - to list plugins takes none of it

    return opened(url, options)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return this distribution's plugin."""
    return BrokerPlugin(
        name="file",
        schemes=("file",),
        version=version("redelivery-file"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
