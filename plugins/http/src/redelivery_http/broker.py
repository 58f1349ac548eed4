"""`HttpBroker`: one resource, and the sender that it makes. Imported when a URL is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from redelivery.contract.broker import Broker, Sender
from redelivery.errors import ConfigurationError
from redelivery.kit.address import is_local
from redelivery_http import BATCHED, CAPABILITIES
from redelivery_http.address import Address
from redelivery_http.client.tokens import check_token
from redelivery_http.options import Settings
from redelivery_http.sender import HttpSender


class HttpBroker(Broker):
    """One resource."""

    name = "http"

    def __init__(self, address: Address, settings: Settings) -> None:
        self.address, self.settings = address, settings
        self.canonical_url = address.url
        self.destination_name = address.authority
        self.hosts = (address.host,)
        if settings.proxy is not None:
            self.hosts = (address.host, urlsplit(settings.proxy).hostname or "")
        if settings.token is not None and address.scheme == "http" and not is_local(address.host):
            self.insecure = (f"the token goes to {address.host} in plain text; use https",)
        if settings.batch > 1:
            self.capabilities = replace(BATCHED, limits=replace(BATCHED.limits, batch_messages=settings.batch))
        else:
            limits = replace(CAPABILITIES.limits, headers_bytes=settings.max_header_bytes // 3)
            self.capabilities = replace(CAPABILITIES, limits=limits)

    def sender(self) -> Sender:
        return HttpSender(self.address, self.settings)


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker for a URL and this plugin's options, without I/O."""
    settings = Settings.parse(options)
    check_token(settings.token)
    address = Address.parse(url)
    if address.scheme == "http" and not (settings.proxy or "").startswith("https:") and settings.has_tls:
        raise ConfigurationError("http.ssl options, or a sink's CACerts, are for an https URL; correct one of both")
    return HttpBroker(address, settings)
