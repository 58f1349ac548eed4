"""The places that a page shows, fixed at its start: their names in its URLs, and how each is opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from redelivery import registry
from redelivery.base.urls import redact
from redelivery.contract.broker import Capabilities, Support
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters

_LONGEST: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A place that the page shows.

    Attributes:
        slug: its name in the page's URLs: letters, digits, `.`, `_`, `-`.
        name: its name for people: that of `redelivery.toml`, else its redacted URL.
        url: the destination whose dead letters are meant.
        sink: where they went, if not to the native place.
        options: client options, with their plugin's prefix; secrets as references.
        key: references of the keys that letters were signed with.
        subscription: of the destination, the subscription of this name.
        spec: the file of the delivery spec that the destination is compared with.
    """

    slug: str
    name: str
    url: str
    sink: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    subscription: str | None = None
    spec: Path | None = None

    @property
    def shown(self) -> str:
        """The redacted URL of where its letters are."""
        return redact(self.sink or self.url)

    def destination(self) -> str:
        """Return the URL of the destination, or of its subscription. Raises ConfigurationError, Unsupported."""
        if self.subscription is None:
            return self.url
        return registry.subscription_url(self.url, self.subscription, registry.own_options(self.url, self.options))

    @property
    def shown_destination(self) -> str:
        """The redacted URL of the destination."""
        return redact(self.url)

    def with_options_of(self, other: Source) -> Source:
        """Return this place, opened with what another one's client needs too: its own options come first."""
        return replace(self, options={**other.options, **self.options})

    def open(self) -> DeadLetterQueue:
        """Open its letters. Raises ConfigurationError, Unsupported, BrokerError."""
        return dead_letters(self.destination(), sink=self.sink, options=self.options, key=self.key)

    def capabilities(self) -> Capabilities:
        """Return what its broker can do, without I/O. Raises ConfigurationError."""
        url = self.sink or self.url
        with registry.connect(url, registry.own_options(url, self.options)) as broker:
            return broker.capabilities


def takes(can: Capabilities) -> bool:
    """Whether looking at letters takes them from others for some time, and counts as a delivery, at a broker."""
    return can.browse is not Support.NATIVE


def slugs(names: Iterable[str]) -> list[str]:
    """Return a different name for a URL for each of these names."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:_LONGEST] or "place"
        slug, number = plain, 1
        while slug in found:
            number += 1
            slug = f"{plain}-{number}"
        found.append(slug)
    return found
