"""redelivery over HTTP: CloudEvents, as Knative's eventing sends them, and webhooks.

This module has the plugin's capabilities and the hook.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Final

from redelivery.contract.broker import Broker, BrokerPlugin, Capabilities, Limits, Support
from redelivery.contract.hooks import hookimpl
from redelivery.kit.clients import find_client
from redelivery_http.options import BATCH_BYTES, HEADER_BYTES, HEADERS, MOST_EVENTS, Settings

CAPABILITIES: Final = Capabilities(
    send=Support.NATIVE,
    keys=Support.EMULATED,
    headers=Support.EMULATED,
    ids=Support.EMULATED,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    depth=Support.NONE,
    context_dialect="json",
    cloudevents_prefix="ce-",
    limits=Limits(headers_bytes=HEADER_BYTES // 3, header_count=HEADERS, repeated_headers=False),
)
#: Headers are inside of the events of a batch, so that no limit of HTTP applies to them.
BATCHED: Final = replace(CAPABILITIES, limits=Limits(batch_messages=MOST_EVENTS, batch_bytes=BATCH_BYTES))


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Return the broker of a URL with this plugin's options. No I/O; imports the client: to list plugins takes none."""
    from redelivery_http.broker import connect as opened  # noqa: PLC0415 - the client takes long to import

    return opened(url, options)


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin of this distribution."""
    find_client("httpx2")
    return BrokerPlugin(
        name="http",
        schemes=("http", "https"),
        version=version("redelivery-http"),
        capabilities=CAPABILITIES,
        modes={"batched events": BATCHED},
        connect=connect,
        options=Settings.help(),
    )
