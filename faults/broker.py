"""A broker under test: its runtime, a fresh place in it, the proxy before it, and what an independent client reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.proxy import NetworkProxy, network_proxy
from redelivery.contract.capabilities import Capabilities
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.registry import connect
from redelivery_conformance.harness import Place, Runtime


@dataclass(frozen=True, slots=True)
class BrokerUnderTest:
    """One broker, for one cell.

    Attributes:
        broker: the plugin's name.
        runtime: the running broker.
        place: a fresh destination, provisioned, with its native dead letter place.
        proxy: between the processes under test and the broker; None: this broker has no network.
        scratch: a folder for secrets and files of this cell.
    """

    broker: str
    runtime: Runtime
    place: Place
    proxy: NetworkProxy | None
    scratch: Path

    @property
    def url(self) -> str:
        """The destination as the processes under test reach it: through the proxy."""
        return self.place.outage_url

    @property
    def options(self) -> Mapping[str, str]:
        """Client options with their prefix; secrets are references."""
        return self.place.options

    @property
    def letters(self) -> str | None:
        """The native name of the dead letter place, as `Place.stored` takes it; None: the broker has none."""
        place: Any = self.place
        if self.broker == "file":
            return None
        if not self.capabilities.dead_letter:
            return self.place.destination("letters")
        if self.broker == "sqs":
            stem, fifo, _ = place.queue.partition(".fifo")
            return f"{stem}-dead-letters{fifo}"
        found: str = getattr(place, "letters", None) or f"{place.queue}-dead-letters"
        return found

    @property
    def sink(self) -> str | None:
        """Where a job sends its letters: `native`, or the URL of another place; None: nowhere."""
        if self.letters is None or self.capabilities.dead_letter:
            return None if self.letters is None else "native"
        return self.url.replace(self.place.destination(""), self.letters)

    @property
    def capabilities(self) -> Capabilities:
        """The broker's capabilities here, as its plugin declares them."""
        with connect(self.place.url, self.place.options) as opened:
            return opened.capabilities

    def stored(self) -> Sequence[Message]:
        """What an independent client reads at the destination."""
        return self.place.stored()

    def dead(self) -> Sequence[Message]:
        """What an independent client reads at the dead letter place."""
        if self.letters is None:
            return []
        # Service Bus moves a letter on that was given too often. Nothing of ours reads it there, so none should be.
        further = [f"{self.letters}/$DeadLetterQueue"] if self.broker == "servicebus" else []
        return [message for name in (self.letters, *further) for message in self.place.stored(name)]

    def close(self) -> None:
        """Remove the place, and close the proxy. The runtime goes on."""
        self.place.close()
        if self.proxy is not None:
            self.proxy.close()


def under_test(broker: str, runtime: Runtime, fault: str, scratch: Path) -> BrokerUnderTest:
    """Make a place, provision it, and put the proxy for this fault before the broker.

    The runtime's own proxy gives up its port to ours, because a broker may advertise that port (Kafka).
    """
    place = runtime.place()
    with connect(place.url, place.options) as opened:
        if opened.capabilities.provision:
            with opened.admin() as admin:
                admin.provision(DeliverySpec())
    theirs: Any = getattr(runtime, "proxy", None)
    proxy = None
    if theirs is not None:
        theirs.close()
        host, target = theirs.target
        proxy = network_proxy(theirs.port, host, target, fault=fault)
    return BrokerUnderTest(broker, runtime, place, proxy, scratch)


def brokers(found: Sequence[str]) -> Iterator[str]:
    """Return the names of brokers in the order in which they run: the slowest to start first."""
    order = ("kafka", "rabbitmq", "sqs", "servicebus", "nats", "sqlite", "http", "file")
    return (each for each in order if each in found)
